# an operator that torch.library registers, with a fake
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(y + o, tl.maximum(v, 0) * 2, mask=o < n)


@torch.library.custom_op("mylib::relu2b", mutates_args=(), device_types="cuda")
def relu2(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.numel()
    k[(triton.cdiv(n, 128),)](x, y, n, B=128)
    return y


@relu2.register_fake
def _(x):
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return relu2(x)
