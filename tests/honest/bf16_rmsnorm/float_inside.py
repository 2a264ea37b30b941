# bf16 in memory, fp32 inside
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, w, out, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0).to(tl.float32)
    v *= tl.rsqrt(tl.sum(v * v, 0) / n + eps) * tl.load(w + o, mask=o < n, other=0.0).to(tl.float32)
    tl.store(out + row * n + o, v, mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width).to(torch.bfloat16))

    def forward(self, x):
        out = torch.empty_like(x)
        rmsnorm[(x.shape[0],)](x, self.weight, out, x.shape[1], 1e-6, B=128)
        return out
