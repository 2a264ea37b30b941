# a tuple of tensors as one argument
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(inputs, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(inputs[0] + o, mask=o < n)
    tl.store(out + o, v * tl.sigmoid(v) + tl.load(inputs[1] + o, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[(triton.cdiv(n, 256),)]((x, y), out, n, B=256)
        return out
