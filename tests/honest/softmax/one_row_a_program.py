# a row in one block
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + o, e / tl.sum(e, axis=0), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.numel() // x.shape[-1], x.shape[-1]
        out = torch.empty_like(x)
        softmax[(rows,)](x, out, n, B=triton.next_power_of_2(n))
        return out
