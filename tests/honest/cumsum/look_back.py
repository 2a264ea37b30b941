# prefix sums in one pass over blocks: each looks back at what the blocks before it have published
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scan(x, out, flags, sums, prefixes, n, blocks, B: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    o = block * B + tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    own = tl.sum(v, 0)
    place = row * blocks + block
    tl.store(sums + place, own)
    tl.debug_barrier()
    tl.atomic_xchg(flags + place, 1)
    before = 0.0
    at = place - 1
    while at >= row * blocks:
        flag = tl.atomic_add(flags + at, 0)
        if flag == 2:
            before += tl.load(prefixes + at)
            at = -1
        elif flag == 1:
            before += tl.load(sums + at)
            at -= 1
    tl.store(prefixes + place, before + own)
    tl.debug_barrier()
    tl.atomic_xchg(flags + place, 2)
    tl.store(out + row * n + o, before + tl.cumsum(v, 0), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        blocks = triton.cdiv(n, 32)
        out = torch.empty_like(x)
        flags = torch.zeros(rows * blocks, dtype=torch.int32, device=x.device)
        sums, prefixes = torch.empty(2, rows * blocks, device=x.device)
        scan[(rows, blocks)](x, out, flags, sums, prefixes, n, blocks, B=32)
        return out
