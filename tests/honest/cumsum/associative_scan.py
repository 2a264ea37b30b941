# tl.associative_scan with a combine function, on a 2D tile
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def cumsum(x, out, rows, n, R: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    j = tl.arange(0, B)[None, :]
    m = (i < rows) & (j < n)
    v = tl.load(x + i * n + j, mask=m, other=0.0)
    tl.store(out + i * n + j, tl.associative_scan(v, 1, add), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty_like(x)
        cumsum[(triton.cdiv(rows, 4),)](x, out, rows, n, R=4, B=128)
        return out
