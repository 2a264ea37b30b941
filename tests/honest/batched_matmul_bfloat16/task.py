import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b.transpose(1, 2))


def get_inputs():
    return [torch.randn(3, 40, 64, dtype=torch.bfloat16), torch.randn(3, 24, 64, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
