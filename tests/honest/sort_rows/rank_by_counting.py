# ranks by comparing all pairs, a scattered store
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sort(x, out, N: tl.constexpr):
    row = tl.program_id(0) * N
    o = tl.arange(0, N)
    v = tl.load(x + row + o)
    less = (v[None, :] < v[:, None]) | ((v[None, :] == v[:, None]) & (o[None, :] < o[:, None]))
    rank = tl.sum(less.to(tl.int32), axis=1)
    tl.store(out + row + rank, v)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        sort[(x.shape[0],)](x, out, N=x.shape[1])
        return out
