import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels, size):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, size, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(2, 3, 11, 13)]


def get_init_inputs():
    return [3, 5, 3]
