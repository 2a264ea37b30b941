import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        a = torch.sigmoid(a)
        h = torch.zeros_like(b[:, 0])
        out = []
        for t in range(b.shape[1]):
            h = a[:, t] * h + b[:, t]
            out.append(h)
        return torch.stack(out, dim=1)


def get_inputs():
    return [torch.randn(10, 48), torch.randn(10, 48)]


def get_init_inputs():
    return []
