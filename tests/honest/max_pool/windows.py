# a window a thread, index arithmetic
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool(x, out, H, W, OH, OW, n, S: tl.constexpr, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    j, i, plane = o % OW, (o // OW) % OH, o // (OW * OH)
    best = tl.full((B,), -float("inf"), tl.float32)
    for u in range(S):
        for v in range(S):
            best = tl.maximum(best, tl.load(x + (plane * H + i * S + u) * W + j * S + v, mask=o < n, other=0.0))
    tl.store(out + o, best, mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        n, c, h, w = x.shape
        out = torch.empty((n, c, h // self.size, w // self.size), device=x.device, dtype=x.dtype)
        pool[(triton.cdiv(out.numel(), 64),)](x, out, h, w, out.shape[2], out.shape[3], out.numel(), S=self.size, B=64)
        return out
