# alignment hints, cache modifiers, eviction policies, an assumption
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    tl.assume(n > 0)
    pid = tl.program_id(axis=0).to(tl.int64)
    o = tl.max_contiguous(tl.multiple_of(pid * B + tl.arange(0, B), B), B)
    v = tl.load(x + o, mask=o < n, cache_modifier=".cg")
    w = tl.load(y + o, mask=o < n, eviction_policy="evict_first")
    tl.debug_barrier()
    tl.store(out + o, v * tl.sigmoid(v) + w, mask=o < n, cache_modifier=".cs")


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 256),)](x, y, out, n, B=256)
        return out
