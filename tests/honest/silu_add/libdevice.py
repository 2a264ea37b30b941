# libdevice functions
import torch
import torch.nn as nn
import triton
import triton.language as tl


from triton.language.extra import libdevice


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    s = 0.5 * (1.0 + libdevice.tanh(0.5 * v))
    tl.store(out + o, libdevice.fma(v, s, tl.load(y + o, mask=o < n)), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 256),)](x, y, out, n, B=256)
        return out
