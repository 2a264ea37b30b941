# torch makes tables of angles of nothing in forward
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rope(x, c, s, y, T, half, B: tl.constexpr):
    r = tl.program_id(0)
    t = r % T
    i = tl.arange(0, B)
    m = i < half
    a = tl.load(x + r * 2 * half + 2 * i, mask=m)
    b = tl.load(x + r * 2 * half + 2 * i + 1, mask=m)
    co = tl.load(c + t * half + i, mask=m)
    si = tl.load(s + t * half + i, mask=m)
    tl.store(y + r * 2 * half + 2 * i, a * co - b * si, mask=m)
    tl.store(y + r * 2 * half + 2 * i + 1, a * si + b * co, mask=m)


class ModelNew(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d = d

    def forward(self, x):
        x = x.contiguous()
        T = x.shape[-2]
        inv = 1.0 / (10000 ** (torch.arange(0, self.d, 2, device=x.device).float() / self.d))
        freqs = torch.outer(torch.arange(T, device=x.device).float(), inv)
        cos = torch.cos(freqs).contiguous()
        sin = torch.sin(freqs).contiguous()
        y = torch.empty_like(x)
        rope[(x.numel() // self.d,)](x, cos, sin, y, T, self.d // 2, B=triton.next_power_of_2(self.d // 2))
        return y
