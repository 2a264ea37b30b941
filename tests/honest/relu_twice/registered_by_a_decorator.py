# a kernel that a decorator of the candidate's own puts into a table
import torch
import torch.nn as nn
import triton
import triton.language as tl

KERNELS = {}


def register(name):
    def deco(fn):
        KERNELS[name] = fn
        return fn

    return deco


@register("relu2")
@triton.jit
def k(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(y + o, tl.maximum(v, 0) * 2, mask=o < n)


class _Op(nn.Module):
    kernel = staticmethod(KERNELS["relu2"])

    def __call__(self, x):
        y = torch.empty_like(x)
        KERNELS["relu2"][(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), B=128)
        return y


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = _Op()

    def forward(self, x):
        return self.op(x)
