# two kernels and a temporary between them
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu(x, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(out + o, v * tl.sigmoid(v), mask=o < n)


@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + o, tl.load(x + o, mask=o < n) + tl.load(y + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        middle = torch.empty_like(x)
        silu[(triton.cdiv(n, 256),)](x, middle, n, B=256)
        add[(triton.cdiv(n, 512),)](middle, y, out, n, B=512)
        return out
