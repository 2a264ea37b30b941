import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)
        self.scale = nn.Parameter(torch.ones(o))

    def forward(self, x):
        x = self.linear(x)
        x = torch.sigmoid(x) * x
        x = x * self.scale
        return F.hardtanh(F.gelu(x))


def get_inputs():
    return [torch.rand(128, 50)]


def get_init_inputs():
    return [50, 128]
