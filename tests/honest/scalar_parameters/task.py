import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(2.0))
        self.b = nn.Parameter(torch.randn(1))
        self.register_buffer("lo", torch.tensor(-0.5))

    def forward(self, x):
        return torch.clamp(x * self.a + self.b, min=self.lo.item())


def get_inputs():
    return [torch.randn(7, 513)]


def get_init_inputs():
    return [3]
