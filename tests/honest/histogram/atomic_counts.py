# integer atomics on counters
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def count(ids, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out + tl.load(ids + o, mask=o < n, other=0), 1, mask=o < n)


class ModelNew(nn.Module):
    def forward(self, ids):
        out = torch.zeros(16, device=ids.device, dtype=torch.int64)
        count[(triton.cdiv(ids.numel(), 128),)](ids, out, ids.numel(), B=128)
        return out
