# split K with a lock a row
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mv(A, B, C, Lock, M, K, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    s = tl.program_id(1)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(s * BLOCK, K, SPLIT * BLOCK):
        o = k + tl.arange(0, BLOCK)
        acc += tl.load(A + m * K + o, mask=o < K, other=0.0) * tl.load(B + o, mask=o < K, other=0.0)
    v = tl.sum(acc, axis=0)
    while tl.atomic_cas(Lock + m, 0, 1) == 1:
        pass
    tl.store(C + m, tl.load(C + m) + v)
    tl.atomic_xchg(Lock + m, 0)


class ModelNew(nn.Module):
    def forward(self, A, B):
        M, K = A.shape
        C = torch.zeros((M, 1), device=A.device, dtype=A.dtype)
        lock = torch.zeros(M, device=A.device, dtype=torch.int32)
        mv[(M, 4)](A, B, C, lock, M, K, SPLIT=4, BLOCK=256)
        return C
