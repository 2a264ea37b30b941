# a launcher that is looked up, and a kernel made by a function
import torch
import torch.nn as nn
import triton
import triton.language as tl


def make():
    @triton.jit
    def silu_add(x, y, out, n, B: tl.constexpr):
        o = tl.program_id(0) * B + tl.arange(0, B)
        v = tl.load(x + o, mask=o < n)
        tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=o < n), mask=o < n)

    return silu_add


KERNELS = {torch.float32: make()}


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        KERNELS[x.dtype][(triton.cdiv(n, 256),)](x, y, out, n, 256)
        return out
