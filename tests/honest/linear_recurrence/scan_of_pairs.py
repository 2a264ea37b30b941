# an associative scan over two tensors
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def combine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrence(a, b, out, n, B: tl.constexpr):
    row = tl.program_id(0) * n
    o = tl.arange(0, B)
    x = tl.sigmoid(tl.load(a + row + o, mask=o < n, other=0.0))
    y = tl.load(b + row + o, mask=o < n, other=0.0)
    _, h = tl.associative_scan((x, y), 0, combine)
    tl.store(out + row + o, h, mask=o < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty_like(b)
        recurrence[(b.shape[0],)](a, b, out, b.shape[1], B=64)
        return out
