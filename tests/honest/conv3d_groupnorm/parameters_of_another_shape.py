# parameters that start at 0 or 1 and have another shape than the reference's
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv3d(x, w, b, y, C, F, D, H, W, OD, OH, OW, K: tl.constexpr, B: tl.constexpr):
    nf = tl.program_id(0)
    n = nf // F
    f = nf % F
    o = tl.program_id(1) * B + tl.arange(0, B)
    S = OD * OH * OW
    m = o < S
    ow = o % OW
    oh = (o // OW) % OH
    od = o // (OW * OH)
    acc = tl.zeros((B,), tl.float32)
    for c in range(C):
        for kd in range(K):
            for kh in range(K):
                for kw in range(K):
                    xv = tl.load(x + (((n * C + c) * D + od + kd) * H + oh + kh) * W + ow + kw, mask=m, other=0.0)
                    acc += xv * tl.load(w + (((f * C + c) * K + kd) * K + kh) * K + kw)
    acc += tl.load(b + f)
    acc = acc * tl.minimum(tl.maximum(acc + 3.0, 0.0), 6.0) / 6.0
    tl.store(y + nf * S + o, acc, mask=m)


@triton.jit
def gn_mean(y, gw, gb, mult, bias, out, C, S, eps, CPG: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    G = C // CPG
    n = pid // G
    g = pid % G
    L = CPG * S
    base = (n * C + g * CPG) * S
    o = tl.arange(0, B)
    v = tl.load(y + base + o, mask=o < L, other=0.0)
    mu = tl.sum(v, 0) / L
    d = tl.where(o < L, v - mu, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, 0) / L + eps)
    for i in tl.static_range(CPG):
        c = g * CPG + i
        sel = (o >= i * S) & (o < (i + 1) * S)
        mean_c = tl.sum(tl.where(sel, v, 0.0), 0) / S
        r = (mean_c - mu) * rstd * tl.load(gw + c) + tl.load(gb + c)
        tl.store(out + n * C + c, r * tl.load(mult + c) + tl.load(bias + c))


class ModelNew(nn.Module):
    def __init__(self, c, f, k, groups):
        super().__init__()
        self.conv = nn.Conv3d(c, f, k)
        self.gn = nn.GroupNorm(groups, f)
        self.mult = nn.Parameter(torch.ones(f))
        self.bias = nn.Parameter(torch.zeros(f))
        self.groups = groups

    def forward(self, x):
        N, C, D, H, W = x.shape
        F_, _, K, _, _ = self.conv.weight.shape
        OD, OH, OW = D - K + 1, H - K + 1, W - K + 1
        S = OD * OH * OW
        y = torch.empty((N, F_, OD, OH, OW), device=x.device, dtype=torch.float32)
        conv3d[(N * F_, triton.cdiv(S, 64))](
            x, self.conv.weight, self.conv.bias, y, C, F_, D, H, W, OD, OH, OW, K=K, B=64
        )
        out = torch.empty((N, F_), device=x.device, dtype=torch.float32)
        cpg = F_ // self.groups
        gn_mean[(N * self.groups,)](
            y,
            self.gn.weight,
            self.gn.bias,
            self.mult,
            self.bias,
            out,
            F_,
            S,
            self.gn.eps,
            CPG=cpg,
            B=triton.next_power_of_2(cpg * S),
        )
        return out
