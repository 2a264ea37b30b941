# float64 arithmetic
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def moments(x, out, n, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=0.0)
    mean = tl.sum(v, 0) / n
    d = tl.where(o < n, v - mean, 0.0)
    tl.store(out, mean)
    tl.store(out + 1, tl.sqrt(tl.sum(d * d, 0) / (n - 1)))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(2, device=x.device, dtype=x.dtype)
        moments[(1,)](x, out, x.numel(), B=1024)
        return out
