import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("inv", 10000.0 ** (-torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, x):
        t = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        angle = t[:, None] * self.inv[None, :]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


def get_inputs():
    return [torch.randn(3, 20, 32)]


def get_init_inputs():
    return [32]
