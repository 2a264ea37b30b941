# make_block_ptr with boundary checks
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    at = (tl.program_id(0) * BM, tl.program_id(1) * BN)
    px = tl.make_block_ptr(x, (M, N), (N, 1), at, (BM, BN), (1, 0))
    py = tl.make_block_ptr(y, (M, N), (N, 1), at, (BM, BN), (1, 0))
    po = tl.make_block_ptr(out, (M, N), (N, 1), at, (BM, BN), (1, 0))
    v = tl.load(px, boundary_check=(0, 1), padding_option="zero")
    tl.store(po, v * tl.sigmoid(v) + tl.load(py, boundary_check=(0, 1)), boundary_check=(0, 1))


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        M, N = x.shape
        silu_add[(triton.cdiv(M, 16), triton.cdiv(N, 32))](x, y, out, M, N, BM=16, BN=32)
        return out
