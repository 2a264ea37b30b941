# a module with parameters of its own, loops over chunks of a row
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layernorm(x, w, b, out, n, eps, B: tl.constexpr):
    x += tl.program_id(0) * n
    out += tl.program_id(0) * n
    total = tl.zeros([B], dtype=tl.float32)
    square = tl.zeros([B], dtype=tl.float32)
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        total += tl.load(x + o, mask=o < n, other=0.0)
    mean = tl.sum(total, axis=0) / n
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        d = tl.where(o < n, tl.load(x + o, mask=o < n, other=0.0) - mean, 0.0)
        square += d * d
    r = 1 / tl.sqrt(tl.sum(square, axis=0) / n + eps)
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = (tl.load(x + o, mask=o < n) - mean) * r
        tl.store(out + o, v * tl.load(w + o, mask=o < n) + tl.load(b + o, mask=o < n), mask=o < n)


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        n = x.shape[-1]
        out = torch.empty_like(x)
        layernorm[(x.numel() // n,)](x, self.weight, self.bias, out, n, self.eps, B=64)
        return out


class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.norm = Norm(width, eps)

    def forward(self, x):
        return self.norm(x)
