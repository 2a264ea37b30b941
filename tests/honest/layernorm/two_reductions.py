# mean, then variance of the masked differences
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layernorm(x, w, b, out, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    d = tl.where(o < n, v - tl.sum(v, 0) / n, 0.0)
    r = tl.rsqrt(tl.sum(d * d, 0) / n + eps)
    tl.store(out + row * n + o, d * r * tl.load(w + o, mask=o < n) + tl.load(b + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, x):
        n = x.shape[-1]
        rows = x.numel() // n
        out = torch.empty_like(x)
        layernorm[(rows,)](x, self.norm.weight, self.norm.bias, out, n, self.norm.eps, B=256)
        return out
