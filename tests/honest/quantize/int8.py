# int8 output, rounding to even by libdevice
import torch
import torch.nn as nn
import triton
import triton.language as tl


from triton.language.extra import libdevice


@triton.jit
def quantize(x, q, scales, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    scale = tl.max(tl.abs(v), 0) / 127.0
    tl.store(q + row * n + o, libdevice.rint(tl.div_rn(v, scale + tl.zeros_like(v))).to(tl.int8), mask=o < n)
    tl.store(scales + row, scale)


class ModelNew(nn.Module):
    def forward(self, x):
        q = torch.empty_like(x, dtype=torch.int8)
        scales = torch.empty((x.shape[0], 1), device=x.device, dtype=x.dtype)
        quantize[(x.shape[0],)](x, q, scales, x.shape[1], B=64)
        return q, scales
