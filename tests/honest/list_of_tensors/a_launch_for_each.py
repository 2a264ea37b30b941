# a list of inputs, a launch for each, a list of outputs
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def accumulate(x, out, factor, n, FIRST: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o, mask=o < n) * factor
    if not FIRST:
        v += tl.load(out + o, mask=o < n)
    tl.store(out + o, v, mask=o < n)


@triton.jit
def exponential(x, out, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(out + o, tl.exp(tl.load(x + o, mask=o < n)), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, tensors, weights=None):
        total = torch.empty_like(tensors[0])
        for i, t in enumerate(tensors):
            accumulate[(1,)](t, total, i + 1.0, t.numel(), FIRST=i == 0, B=64)
        out = torch.empty_like(total)
        exponential[(1,)](total, out, total.numel(), B=64)
        return [total, out]
