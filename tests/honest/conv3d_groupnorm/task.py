import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, f, k, groups):
        super().__init__()
        self.conv = nn.Conv3d(c, f, k)
        self.gn = nn.GroupNorm(groups, f)
        self.mult = nn.Parameter(torch.ones(f, 1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, f, 1, 1, 1))

    def forward(self, x):
        x = F.hardswish(self.conv(x))
        x = self.gn(x) * self.mult + self.bias
        return torch.mean(x, dim=[2, 3, 4])


def get_inputs():
    return [torch.rand(2, 3, 5, 6, 7)]


def get_init_inputs():
    return [3, 4, 3, 2]
