import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def compare(y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + o, (tl.load(y + o, mask=o < n) != 0).to(tl.int8), mask=o < n)


@triton.jit
def multiply(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    tl.store(out + o, tl.load(x + o, mask=m) * tl.load(y + o, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, x, y):
        grid, out = (triton.cdiv(x.numel(), 128),), torch.empty_like(x)
        truth = torch.empty(x.shape, device=x.device, dtype=torch.bool)
        compare[grid](y, truth.view(torch.int8), x.numel(), B=128)  # Triton stores no bits
        multiply[grid](x, truth.float(), out, x.numel(), B=128)
        return out
