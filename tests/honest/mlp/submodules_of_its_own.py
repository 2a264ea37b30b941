# submodules of Triton layers in a ModuleList
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear(x, w, b, skip, out, M, N, K, RELU: tl.constexpr, SKIP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(x + i[:, None] * K + k[None, :], mask=(i[:, None] < M) & (k[None, :] < K), other=0.0)
        c = tl.load(w + j[None, :] * K + k[:, None], mask=(j[None, :] < N) & (k[:, None] < K), other=0.0)
        acc = tl.dot(a, c, acc, input_precision="ieee")
    acc += tl.load(b + j, mask=j < N, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc > 0, acc, 0.0)
    m = (i[:, None] < M) & (j[None, :] < N)
    if SKIP:
        acc += tl.load(skip + i[:, None] * N + j[None, :], mask=m)
    tl.store(out + i[:, None] * N + j[None, :], acc, mask=m)


def apply(x, w, b, skip=None, relu=False):
    (M, K), N = x.shape, w.shape[0]
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(M, 16), triton.cdiv(N, 16))
    linear[grid](x, w, b, skip if skip is not None else x, out, M, N, K, RELU=relu, SKIP=skip is not None, BM=16, BN=16, BK=16)
    return out


class Linear(nn.Module):
    def __init__(self, inputs, outputs, relu):
        super().__init__()
        linear = nn.Linear(inputs, outputs)
        self.weight, self.bias, self.relu = linear.weight, linear.bias, relu

    def forward(self, x, skip=None):
        return apply(x, self.weight, self.bias, skip, self.relu)


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.layers = nn.ModuleList([Linear(width, hidden, True), Linear(hidden, width, False)])

    def forward(self, x):
        return self.layers[1](self.layers[0](x), skip=x)
