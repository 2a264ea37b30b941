# device functions, one of which returns a tuple
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def parts(v):
    return v, tl.sigmoid(v)


@triton.jit
def silu(v):
    a, b = parts(v)
    return a * b


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(out + o, silu(v) + tl.load(y + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 256),)](x, y, out, n, B=256)
        return out
