# torch casts between floats, Triton computes
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, w, out, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    v = v / tl.sqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(out + row * n + o, v * tl.load(w + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width).to(torch.bfloat16))

    def forward(self, x):
        wide = x.float()
        out = torch.empty_like(wide)
        rmsnorm[(x.shape[0],)](wide, self.weight.to(torch.float32), out, x.shape[1], 1e-6, B=128)
        return out.to(x.dtype)
