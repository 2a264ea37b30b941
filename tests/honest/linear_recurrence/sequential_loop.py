# a loop over time with a carried vector
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def recurrence(a, b, out, rows, n, R: tl.constexpr):
    i = tl.program_id(0) * R + tl.arange(0, R)
    h = tl.zeros((R,), tl.float32)
    for t in range(n):
        x = tl.sigmoid(tl.load(a + i * n + t, mask=i < rows, other=0.0))
        h = x * h + tl.load(b + i * n + t, mask=i < rows, other=0.0)
        tl.store(out + i * n + t, h, mask=i < rows)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty_like(b)
        recurrence[(triton.cdiv(b.shape[0], 8),)](a, b, out, *b.shape, R=8)
        return out
