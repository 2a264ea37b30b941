# products summed without tl.dot
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, N, K, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN,), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + i * K + rk, mask=rk < K, other=0.0)
        y = tl.load(b + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc += tl.sum(x[:, None] * y, axis=0)
    tl.store(c + i * N + rn, acc, mask=rn < N)


class ModelNew(nn.Module):
    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        matmul[(M, triton.cdiv(N, 16))](a, b, c, N, K, BN=16, BK=32)
        return c
