# split K, the last program of a row sums the partial results
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mv(A, B, P, C, Cnt, M, K, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    s = tl.program_id(1)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(s * BLOCK, K, SPLIT * BLOCK):
        o = k + tl.arange(0, BLOCK)
        acc += tl.load(A + m * K + o, mask=o < K, other=0.0) * tl.load(B + o, mask=o < K, other=0.0)
    tl.store(P + m * SPLIT + s, tl.sum(acc, axis=0))
    tl.debug_barrier()
    done = tl.atomic_add(Cnt + m, 1, sem="acq_rel")
    if done == SPLIT - 1:
        p = tl.load(P + m * SPLIT + tl.arange(0, SPLIT), volatile=True)
        tl.store(C + m, tl.sum(p, axis=0))


class ModelNew(nn.Module):
    def forward(self, A, B):
        M, K = A.shape
        C = torch.empty((M, 1), device=A.device, dtype=A.dtype)
        P = torch.empty((M, 4), device=A.device, dtype=torch.float32)
        cnt = torch.zeros(M, device=A.device, dtype=torch.int32)
        mv[(M, 4)](A, B, P, C, cnt, M, K, SPLIT=4, BLOCK=256)
        return C
