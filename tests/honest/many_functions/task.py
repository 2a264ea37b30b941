import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return (
            torch.flip(x, (-1,)) * 2,
            torch.sort(x, -1, descending=True)[0],
            torch.topk(x, 8, dim=-1)[0],
            x.sigmoid().log(),
            F.selu(x),
            F.elu(x),
            F.softsign(x),
            F.hardsigmoid(x),
            F.mish(x),
            F.leaky_relu(x, 0.1),
            F.log_softmax(x, -1),
            torch.sin(x) + torch.cos(x),
            torch.pow(torch.abs(x), 1.7),
            torch.floor(x) + torch.round(x),
            torch.atan2(x, x.flip(-1)),
            torch.lgamma(x.abs() + 1),
            torch.erfc(x),
            torch.special.i0(x),
        )


def get_inputs():
    return [torch.randn(6, 64)]


def get_init_inputs():
    return []
