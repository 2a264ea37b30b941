import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        values, indices = torch.min(x, dim=1)
        return {"values": values, "indices": indices}


def get_inputs():
    return [torch.randn(19, 70)]


def get_init_inputs():
    return []
