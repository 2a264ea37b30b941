# a tile reduced along axis 0
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def column_max(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    best = tl.full((BN,), float("-inf"), tl.float32)
    for start in range(0, M, BM):
        i = start + tl.arange(0, BM)
        v = tl.load(x + i[:, None] * N + j[None, :], mask=(i[:, None] < M) & (j[None, :] < N), other=float("-inf"))
        best = tl.maximum(best, tl.max(v, axis=0))
    tl.store(out + j, best, mask=j < N)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[1], device=x.device, dtype=x.dtype)
        column_max[(triton.cdiv(x.shape[1], 16),)](x, out, *x.shape, BM=32, BN=16)
        return out
