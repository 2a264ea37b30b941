# tl.reduce over a tuple with a combine function
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def combine(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    share = tl.where(n == 0.0, 0.0, n_b / tl.where(n == 0.0, 1.0, n))
    d = mean_b - mean_a
    return mean_a + d * share, m2_a + m2_b + d * d * n_a * share, n


@triton.jit
def layernorm(x, w, b, out, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    m = o < n
    v = tl.load(x + row * n + o, mask=m, other=0.0)
    mean, m2, count = tl.reduce((v, tl.zeros((B,), tl.float32), tl.where(m, 1.0, 0.0)), 0, combine)
    r = 1.0 / tl.sqrt_rn(m2 / count + eps)
    tl.store(out + row * n + o, (v - mean) * r * tl.load(w + o, mask=m) + tl.load(b + o, mask=m), mask=m)


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
