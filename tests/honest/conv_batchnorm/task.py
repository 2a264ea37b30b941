import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, f, k):
        super().__init__()
        self.conv = nn.Conv2d(c, f, k, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(f)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


def get_inputs():
    return [torch.rand(2, 4, 9, 10)]


def get_init_inputs():
    return [4, 8, 3]
