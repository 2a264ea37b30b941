import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return ((a * 31) ^ (b >> 3)) & 0xFFFF, a // 7 + torch.remainder(b, 5), (a > b) | (b == 0)


def get_inputs():
    return [torch.randint(0, 1000, (333,), dtype=torch.int32), torch.randint(0, 1000, (333,), dtype=torch.int32)]


def get_init_inputs():
    return []
