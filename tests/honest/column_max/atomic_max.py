# atomic maximum
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def column_max(x, out, N, B: tl.constexpr):
    j = tl.arange(0, B)
    tl.atomic_max(out + j, tl.load(x + tl.program_id(0) * N + j, mask=j < N, other=0.0), mask=j < N)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.full((x.shape[1],), float("-inf"), device=x.device, dtype=x.dtype)
        column_max[(x.shape[0],)](x, out, x.shape[1], B=64)
        return out
