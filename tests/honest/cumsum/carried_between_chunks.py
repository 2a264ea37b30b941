# chunks of a row with a carried sum
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cumsum(x, out, n, B: tl.constexpr):
    row = tl.program_id(0) * n
    carry = 0.0
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = tl.load(x + row + o, mask=o < n, other=0.0)
        tl.store(out + row + o, carry + tl.cumsum(v, 0), mask=o < n)
        carry += tl.sum(v, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty_like(x)
        cumsum[(rows,)](x, out, n, B=32)
        return out
