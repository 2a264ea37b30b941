import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.permute(2, 0, 1).contiguous()


def get_inputs():
    return [torch.randn(5, 18, 22)]


def get_init_inputs():
    return []
