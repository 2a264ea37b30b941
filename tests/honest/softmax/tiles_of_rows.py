# several rows in one program, exp2
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, rows, n, R: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * R + tl.arange(0, R)
    j = tl.arange(0, B)
    m = (i[:, None] < rows) & (j[None, :] < n)
    v = tl.load(x + i[:, None] * n + j[None, :], mask=m, other=-1e30) * 1.44269504
    e = tl.exp2(v - tl.max(v, 1)[:, None])
    e = tl.where(m, e, 0.0)
    tl.store(out + i[:, None] * n + j[None, :], e / tl.maximum(tl.sum(e, 1), 1e-30)[:, None], mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        out = torch.empty_like(x)
        softmax[(triton.cdiv(rows, 8),)](x, out, rows, n, R=8, B=256, num_warps=8)
        return out
