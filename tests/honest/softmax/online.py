# one pass with a running maximum and sum
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    top = -float("inf")
    total = 0.0
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = tl.load(x + row + o, mask=o < n, other=-float("inf"))
        new = tl.maximum(top, tl.max(v, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(v - new), 0)
        top = new
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = tl.load(x + row + o, mask=o < n)
        tl.store(out + row + o, tl.exp(v - top) / total, mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        out = torch.empty_like(x)
        softmax[(rows,)](x, out, n, B=64)
        return out
