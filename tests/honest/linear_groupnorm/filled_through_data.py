# parameters set to 0 and 1 through .data, under names of its own
import math
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lin(x, w, b, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        acc += tl.dot(
            tl.load(x + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0),
            tl.load(w + n[None, :] * K + k[:, None], mask=(n < N)[None, :] & (k < K)[:, None], other=0.0),
            input_precision="ieee",
        )
    acc += tl.load(b + n, mask=n < N, other=0.0)[None, :]
    tl.store(y + m[:, None] * N + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def gn(y, g, b, off, N, eps, CPG: tl.constexpr, B: tl.constexpr):
    r = tl.program_id(0)
    q = tl.program_id(1)
    c = tl.arange(0, B)
    m = c < CPG
    o = q * CPG + c
    v = tl.load(y + r * N + o, mask=m, other=0.0)
    mean = tl.sum(v, 0) / CPG
    d = tl.where(m, v - mean, 0.0)
    v = d * (1.0 / tl.sqrt(tl.sum(d * d, 0) / CPG + eps)) * tl.load(g + o, mask=m, other=0.0) + tl.load(
        b + o, mask=m, other=0.0
    )
    v += tl.load(off + o, mask=m, other=0.0)
    sp = tl.where(v > 20, v, tl.log(1 + tl.exp(v)))
    t = 1 - 2 / (tl.exp(2 * sp) + 1)
    tl.store(y + r * N + o, v * t, mask=m)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups):
        super().__init__()
        self.weight = nn.Parameter(torch.Tensor(out_features, in_features))
        self.bias = nn.Parameter(torch.Tensor(out_features))
        self.gamma = nn.Parameter(torch.Tensor(out_features))
        self.beta = nn.Parameter(torch.Tensor(out_features))
        self.num_groups = num_groups
        self.reset_parameters()
        self.register_buffer("offset", torch.arange(out_features).float() / out_features)

    def reset_parameters(self):
        stdv = 1.0 / math.sqrt(self.weight.size(1))
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)
        self.gamma.data.fill_(1.0)
        self.beta.data.zero_()

    def forward(self, x):
        M, K = x.shape
        N = self.weight.shape[0]
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        lin[(triton.cdiv(M, 16), triton.cdiv(N, 16))](x, self.weight, self.bias, y, M, N, K, 16, 16, 16)
        gn[(M, self.num_groups)](
            y,
            self.gamma,
            self.beta,
            self.offset,
            N,
            1e-5,
            CPG=N // self.num_groups,
            B=triton.next_power_of_2(N // self.num_groups),
        )
        return y
