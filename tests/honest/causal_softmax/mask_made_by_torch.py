# torch makes a mask of nothing in forward
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sm(x, mask, y, T, B: tl.constexpr):
    r = tl.program_id(0)
    o = tl.arange(0, B)
    m = o < T
    k = tl.load(mask + (r % T) * T + o, mask=m, other=0)
    v = tl.load(x + r * T + o, mask=m & (k != 0), other=-float("inf"))
    v = v - tl.max(v, axis=0)
    e = tl.exp(v)
    tl.store(y + r * T + o, e / tl.sum(e, axis=0), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        B, H, T, _ = x.shape
        mask = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.int8))
        y = torch.empty_like(x)
        sm[(B * H * T,)](x, mask, y, T, B=triton.next_power_of_2(T))
        return y
