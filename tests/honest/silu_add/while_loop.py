# a while loop with a carried offset
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    start = tl.program_id(0) * B
    while start < n:
        o = start + tl.arange(0, B)
        v = tl.load(x + o, mask=o < n)
        tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=o < n), mask=o < n)
        start += tl.num_programs(0) * B


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(3,)](x, y, out, n, B=512)
        return out
