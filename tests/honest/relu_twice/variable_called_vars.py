# a variable with the name of a built-in function
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    vars = tl.load(x + o, mask=o < n)
    tl.store(y + o, tl.maximum(vars, 0) * 2, mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), B=128)
        return y
