# split K with atomics, zeroed by the autotuner's pre_hook
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128, "SPLIT": 4}, num_warps=4, pre_hook=lambda nargs: nargs["C"].zero_()),
        triton.Config({"BLOCK": 256, "SPLIT": 2}, num_warps=4, pre_hook=lambda nargs: nargs["C"].zero_()),
    ],
    key=["M", "K"],
    reset_to_zero=["C"],
)
@triton.jit
def mv(A, B, C, M, K, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    s = tl.program_id(1)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(s * BLOCK, K, SPLIT * BLOCK):
        o = k + tl.arange(0, BLOCK)
        acc += tl.load(A + m * K + o, mask=o < K, other=0.0) * tl.load(B + o, mask=o < K, other=0.0)
    tl.atomic_add(C + m, tl.sum(acc, axis=0))


class ModelNew(nn.Module):
    def forward(self, A, B):
        M, K = A.shape
        C = torch.empty((M, 1), device=A.device, dtype=A.dtype)
        mv[lambda META: (M, META["SPLIT"])](A, B, C, M, K)
        return C
