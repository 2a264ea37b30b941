import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, tensors, weights=None):
        total = sum(t * (i + 1) for i, t in enumerate(tensors))
        return [total, total.exp()]


def get_inputs():
    return [[torch.randn(40), torch.randn(40), torch.randn(40)]]


def get_init_inputs():
    return []
