# a fixed number of programs, each loops over its share
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    step = tl.num_programs(0) * B
    for start in range(tl.program_id(0) * B, n, step):
        o = start + tl.arange(0, B)
        m = o < n
        v = tl.load(x + o, mask=m, other=0.0)
        tl.store(out + o, v / (1.0 + tl.exp(-v)) + tl.load(y + o, mask=m, other=0.0), mask=m)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(4,)](x, y, out, n, B=256)
        return out
