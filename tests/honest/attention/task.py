import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs():
    return [torch.randn(1, 2, 40, 32), torch.randn(1, 2, 40, 32), torch.randn(1, 2, 40, 32)]


def get_init_inputs():
    return []
