# direct convolution, weights of an nn.Conv2d
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv(x, w, b, out, C, H, W, F, OH, OW, K: tl.constexpr, B: tl.constexpr):
    f, image = tl.program_id(1), tl.program_id(2)
    o = tl.program_id(0) * B + tl.arange(0, B)
    i, j = o // OW, o % OW
    acc = tl.zeros((B,), tl.float32) + tl.load(b + f)
    for c in range(C):
        for u in tl.static_range(K):
            for v in tl.static_range(K):
                p, q = 2 * i - 1 + u, 2 * j - 1 + v
                m = (p >= 0) & (p < H) & (q >= 0) & (q < W) & (o < OH * OW)
                acc += tl.load(x + ((image * C + c) * H + p) * W + q, mask=m, other=0.0) * tl.load(w + ((f * C + c) * K + u) * K + v)
    tl.store(out + (image * F + f) * OH * OW + o, acc, mask=o < OH * OW)


class ModelNew(nn.Module):
    def __init__(self, channels, out_channels, size):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, size, stride=2, padding=1)

    def forward(self, x):
        n, c, h, w = x.shape
        f, k = self.conv.weight.shape[0], self.conv.kernel_size[0]
        oh, ow = (h + 2 - k) // 2 + 1, (w + 2 - k) // 2 + 1
        out = torch.empty((n, f, oh, ow), device=x.device, dtype=x.dtype)
        conv[(triton.cdiv(oh * ow, 64), f, n)](x, self.conv.weight, self.conv.bias, out, c, h, w, f, oh, ow, K=k, B=64)
        return out
