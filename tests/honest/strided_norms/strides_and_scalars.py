# a transposed input by its strides, a float and a bool
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norms(x, out, scale, M, N, sm, sn, SQUARED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.arange(0, BN)
    v = tl.load(x + i[:, None] * sm + j[None, :] * sn, mask=(i[:, None] < M) & (j[None, :] < N), other=0.0)
    s = tl.sum(v * v, 1)
    if not SQUARED:
        s = tl.sqrt(s)
    tl.store(out + i, s * scale, mask=i < M)


class ModelNew(nn.Module):
    def forward(self, x, scale: float, squared: bool):
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        norms[(triton.cdiv(x.shape[0], 8),)](x, out, scale, *x.shape, *x.stride(), SQUARED=squared, BM=8, BN=32)
        return out
