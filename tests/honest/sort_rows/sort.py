# tl.sort
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sort(x, out, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + o, tl.sort(tl.load(x + o)))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        sort[(x.shape[0],)](x, out, N=x.shape[1])
        return out
