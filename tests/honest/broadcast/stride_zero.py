# an expanded input read by its strides
import torch
import torch.nn as nn
import triton
import triton.language as tl


from triton.language.extra.cuda import libdevice


@triton.jit
def fused(x, bias, out, M, N, sb0, sb1, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    v = tl.load(x + o, mask=m)
    b = tl.load(bias + (o // N % M) * sb0 + (o % N) * sb1, mask=m)
    tl.store(out + o, libdevice.tanh(v + b) * tl.clamp(v, -1.0, 1.0), mask=m)


class ModelNew(nn.Module):
    def forward(self, x, bias):
        out = torch.empty_like(x)
        fused[(triton.cdiv(x.numel(), 256),)](x, bias, out, *bias.shape, *bias.stride(), x.numel(), B=256)
        return out
