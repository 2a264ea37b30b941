# a kernel that updates a copy in place
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(p, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(p + o, mask=o < n)
    tl.store(p + o, v * tl.sigmoid(v) + tl.load(y + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x.clone()
        silu_add[(triton.cdiv(x.numel(), 256),)](out, y, x.numel(), B=256)
        return out
