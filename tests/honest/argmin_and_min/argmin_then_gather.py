# tl.argmin and a load at the index
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_min(x, values, indices, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=float("inf"))
    at = tl.argmin(v, axis=0)
    tl.store(indices + row, at.to(tl.int64))
    tl.store(values + row, tl.load(x + row * n + at))


class ModelNew(nn.Module):
    def forward(self, x):
        values = x.new_empty(x.size(0))
        indices = torch.empty_like(values, dtype=torch.int64)
        row_min[(x.size(0),)](x, values, indices, x.size(1), B=128)
        return dict(values=values, indices=indices)
