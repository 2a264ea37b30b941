# running statistics of a module as buffers
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_relu(x, w, b, mean, var, out, C, S, eps, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    c = (o // S) % C
    v = (tl.load(x + o, mask=m) - tl.load(mean + c, mask=m)) / tl.sqrt(tl.load(var + c, mask=m, other=1.0) + eps)
    tl.store(out + o, tl.maximum(v * tl.load(w + c, mask=m) + tl.load(b + c, mask=m), 0.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.norm.eval()

    def forward(self, x):
        n, c, h, w = x.shape
        out = torch.empty_like(x)
        bn = self.norm
        norm_relu[(triton.cdiv(x.numel(), 128),)](
            x, bn.weight, bn.bias, bn.running_mean, bn.running_var, out, c, h * w, bn.eps, x.numel(), B=128
        )
        return out
