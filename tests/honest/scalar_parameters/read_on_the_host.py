# weights read on the host with .item() and float()
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def k(x_ptr, y_ptr, n, a, b, lo, B: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    x = tl.load(x_ptr + o, mask=o < n, other=0.0)
    tl.store(y_ptr + o, tl.maximum(x * a + b, lo), mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(2.0))
        self.b = nn.Parameter(torch.randn(1))
        self.register_buffer("lo", torch.tensor(-0.5))

    def forward(self, x):
        y = torch.zeros_like(x)
        assert self.a.device == x.device
        k[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), self.a.item(), float(self.b), float(self.lo), B=256)
        return y
