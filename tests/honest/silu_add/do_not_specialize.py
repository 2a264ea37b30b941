# jit options, keyword launches, None and bool arguments
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def silu_add(x, y, out, bias, n, ADD: tl.constexpr, HAS_BIAS: tl.constexpr, B: tl.constexpr = 256):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    v = v * tl.sigmoid(v)
    if HAS_BIAS:
        v += tl.load(bias + o, mask=o < n)
    if ADD:
        v += tl.load(y + o, mask=o < n)
    tl.store(out + o, v, mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 256),)](x=x, y=y, out=out, bias=None, n=n, ADD=True, HAS_BIAS=False)
        return out
