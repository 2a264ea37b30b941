# an operator that torch.library registers, its kernel wrapped
import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def k(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(y + o, tl.maximum(v, 0) * 2, mask=o < n)


@triton_op("mylib::relu2", mutates_args={})
def relu2(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.numel()

    def grid(meta):
        return (triton.cdiv(n, meta["B"]),)

    wrap_triton(k)[grid](x, y, n, B=128)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return relu2(x)
