# an unrolled loop of sub-blocks
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr, PARTS: tl.constexpr):
    first = tl.program_id(0) * B * PARTS
    for part in tl.static_range(PARTS):
        o = first + part * B + tl.arange(0, B)
        v = tl.load(x + o, mask=o < n)
        tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 512),)](x, y, out, n, B=128, PARTS=4)
        return out
