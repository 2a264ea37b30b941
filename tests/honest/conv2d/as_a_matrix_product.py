# implicit matrix product with tl.dot, weights packed in __init__
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv(x, w, b, out, C, H, W, F, OH, OW, K: tl.constexpr, TOTAL, BP: tl.constexpr, BF: tl.constexpr, BK: tl.constexpr):
    image = tl.program_id(1)
    o = tl.program_id(0) * BP + tl.arange(0, BP)
    i, j = o // OW, o % OW
    f = tl.arange(0, BF)
    acc = tl.zeros((BP, BF), tl.float32)
    for start in range(0, TOTAL, BK):
        t = start + tl.arange(0, BK)
        c, u, v = t // (K * K), (t // K) % K, t % K
        p, q = 2 * i[:, None] - 1 + u[None, :], 2 * j[:, None] - 1 + v[None, :]
        m = (p >= 0) & (p < H) & (q >= 0) & (q < W) & (o[:, None] < OH * OW) & (t[None, :] < TOTAL)
        a = tl.load(x + ((image * C + c[None, :]) * H + p) * W + q, mask=m, other=0.0)
        y = tl.load(w + t[:, None] * F + f[None, :], mask=(t[:, None] < TOTAL) & (f[None, :] < F), other=0.0)
        acc = tl.dot(a, y, acc, input_precision="ieee")
    acc += tl.load(b + f, mask=f < F, other=0.0)[None, :]
    tl.store(out + (image * F + f[None, :]) * OH * OW + o[:, None], acc, mask=(o[:, None] < OH * OW) & (f[None, :] < F))


class ModelNew(nn.Module):
    def __init__(self, channels, out_channels, size):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, size, stride=2, padding=1)

    def forward(self, x):
        n, c, h, w = x.shape
        f, k = self.conv.weight.shape[0], self.conv.kernel_size[0]
        packed = self.conv.weight.view(f, -1).t().contiguous()
        oh, ow = (h + 2 - k) // 2 + 1, (w + 2 - k) // 2 + 1
        out = torch.empty((n, f, oh, ow), device=x.device, dtype=x.dtype)
        conv[(triton.cdiv(oh * ow, 32), n)](x, packed, self.conv.bias, out, c, h, w, f, oh, ow, k, c * k * k, BP=32, BF=16, BK=16)
        return out
