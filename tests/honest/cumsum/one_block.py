# tl.cumsum
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cumsum(x, out, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + o, mask=o < n, other=0.0)
    tl.store(out + tl.program_id(0) * n + o, tl.cumsum(v, axis=0), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty_like(x)
        cumsum[(rows,)](x, out, n, B=128)
        return out
