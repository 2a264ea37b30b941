# tensor descriptors made in the kernel
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=o < n), mask=o < n)


@triton.jit
def silu_add_padded(x, y, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    dx = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    dy = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    do = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    v = dx.load([i, j])
    do.store([i, j], v * tl.sigmoid(v) + dy.load([i, j]))


def allocate(size, alignment, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


class ModelNew(nn.Module):
    def forward(self, x, y):
        triton.set_allocator(allocate)
        M, N = x.shape
        if N * x.element_size() % 16 == 0:
            out = torch.empty_like(x)
            silu_add_padded[(triton.cdiv(M, 16), triton.cdiv(N, 32))](x, y, out, M, N, BM=16, BN=32)
            return out
        padded = [nn.functional.pad(t, (0, -N % 4)) for t in (x, y)]  # descriptors want rows of 16 bytes
        out = torch.empty_like(padded[0])
        silu_add_padded[(triton.cdiv(M, 16), triton.cdiv(N, 32))](*padded, out, M, out.shape[1], BM=16, BN=32)
        return out[:, :N].contiguous()
