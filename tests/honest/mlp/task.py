import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x):
        return self.layers(x) + x


def get_inputs():
    return [torch.randn(9, 33)]


def get_init_inputs():
    return [33, 50]
