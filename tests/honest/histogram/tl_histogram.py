# tl.histogram, then one atomic a bin
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def count(ids, out, n, B: tl.constexpr, BINS: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(ids + o, mask=o < n, other=BINS).to(tl.int32)
    found = tl.histogram(v, 2 * BINS)
    b = tl.arange(0, 2 * BINS)
    tl.atomic_add(out + b, found.to(tl.int64), mask=b < BINS)


class ModelNew(nn.Module):
    def forward(self, ids):
        out = torch.zeros(16, device=ids.device, dtype=torch.int64)
        count[(triton.cdiv(ids.numel(), 128),)](ids, out, ids.numel(), B=128, BINS=16)
        return out
