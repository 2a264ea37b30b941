# a torch.autograd.Function with a backward of its own
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    v = tl.load(x + o, mask=m)
    tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=m), mask=m)


class SiluAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        silu_add[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), B=256)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s)), grad


class ModelNew(nn.Module):
    def forward(self, x, y):
        return SiluAdd.apply(x, y)
