# a 2D grid of 2D tiles with strides
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, M, N, sx, sy, so, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    j = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    m = (i < M) & (j < N)
    v = tl.load(x + i * sx + j, mask=m)
    tl.store(out + i * so + j, v * tl.sigmoid(v) + tl.load(y + i * sy + j, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        M, N = x.shape
        silu_add[(triton.cdiv(M, 16), triton.cdiv(N, 32))](x, y, out, M, N, x.stride(0), y.stride(0), out.stride(0), BM=16, BN=32)
        return out
