# tensor descriptors made on the host
import torch
import torch.nn as nn
import triton
import triton.language as tl


from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def silu_add(dx, dy, do, BM: tl.constexpr, BN: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    v = dx.load([i, j])
    do.store([i, j], v * tl.sigmoid(v) + dy.load([i, j]))


class ModelNew(nn.Module):
    def forward(self, x, y):
        M, N = x.shape
        a, b = (nn.functional.pad(t, (0, -N % 4)) for t in (x, y))
        out = torch.empty_like(a)
        describe = lambda t: TensorDescriptor.from_tensor(t, [16, 32])
        silu_add[(triton.cdiv(M, 16), triton.cdiv(N, 32))](describe(a), describe(b), describe(out), BM=16, BN=32)
        return out[:, :N].contiguous()
