import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return (a.to(torch.int32)[:, :, None] * b.to(torch.int32)[None]).sum(1, dtype=torch.int32)


def get_inputs():
    return [torch.randint(-128, 128, (32, 64), dtype=torch.int8), torch.randint(-128, 128, (64, 32), dtype=torch.int8)]


def get_init_inputs():
    return []
