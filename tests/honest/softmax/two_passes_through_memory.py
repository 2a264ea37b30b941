# maximum and sum in their own kernel
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def statistics(x, top, total, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    m = tl.max(v, 0)
    tl.store(top + row, m)
    tl.store(total + row, tl.sum(tl.exp(v - m), 0))


@triton.jit
def normalise(x, top, total, out, n, size, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    row = o // n
    m = o < size
    v = tl.load(x + o, mask=m) - tl.load(top + row, mask=m)
    tl.store(out + o, tl.exp(v) / tl.load(total + row, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        out = torch.empty_like(x)
        top, total = x.new_empty(rows), x.new_empty(rows)
        statistics[(rows,)](x, top, total, n, B=256)
        normalise[(triton.cdiv(x.numel(), 512),)](x, top, total, out, n, x.numel(), B=512)
        return out
