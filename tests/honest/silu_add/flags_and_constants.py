# global constexprs, a branch on a program's number, early return
import torch
import torch.nn as nn
import triton
import triton.language as tl


BLOCK = tl.constexpr(128)
HALF: tl.constexpr = tl.constexpr(0.5)


@triton.jit
def silu_add(x, y, out, n):
    pid = tl.program_id(0)
    if pid * BLOCK >= n:
        return
    o = pid * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o, mask=o < n)
    e = tl.exp2(-v * 1.4426950408889634)
    tl.store(out + o, v * (2.0 * HALF / (1.0 + e)) + tl.load(y + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 128) + 3,)](x, y, out, n)
        return out
