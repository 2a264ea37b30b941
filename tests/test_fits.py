"""A kernel that needs more shared memory than the card has is refused on a CPU too."""

import pytest

from nanotriton.executor.executor import Executor
from nanotriton.executor.judge.candidate.fits import doubtful, size_of
from nanotriton.plan.plan import Kernel
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.randn(64, 96, dtype=torch.float16), torch.randn(96, 48, dtype=torch.float16)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        row, column = k[None, :] + start, k[:, None] + start
        x = tl.load(a + m * K + row, mask=(m < M) & (row < K), other=0.0)
        y = tl.load(b + column * N + n, mask=(column < K) & (n < N), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + m * N + n, acc.to(tl.float16), mask=(m < M) & (n < N))

class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), (K, N) = a.shape, b.shape
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        grid = (triton.cdiv(M, BM), triton.cdiv(N, BN))
        matmul[grid](a, b, c, M, N, K, BM=BM, BN=BN, BK=BK, num_stages=STAGES, num_warps=8)
        return c
"""


def judge(*tiles: int) -> Verdict:
    source = CANDIDATE
    for name, size in zip(("BM", "BN", "BK", "STAGES"), tiles):
        source += f"\n{name} = {size}"
    with Executor(workers=1) as executor:
        return executor.submit(Task("matmul", TASK), source).result()


@pytest.mark.parametrize(
    "tiles,status",
    [
        ((64, 64, 32, 3), "correct"),  # no doubt
        ((128, 128, 64, 4), "correct"),  # 128 KiB in 4 stages, and twice as much by the estimate's reckoning
        ((128, 256, 64, 6), "out_of_resources"),
    ],
)
def test_tiles_and_stages(tiles, status):
    verdict = judge(*tiles)
    assert verdict.status == status, verdict.message
    if status != "correct":
        assert "shared memory" in verdict.message and "smaller blocks or num_stages help" in verdict.message


def test_sizes_of_tensors():
    assert size_of("tensor<64x32xf16>") == 4096
    assert size_of("tensor<8x!tt.ptr<f32>>") == 64
    assert size_of("tensor<16xi1>") == 16 and size_of("tensor<16xbf16>") == 32
    assert size_of("i32") == 0


def test_large_tensors_are_in_doubt_only_where_elements_change_places():
    text = "%1 = arith.addf %0, %0 : tensor<32768xf32>\n"
    assert not doubtful(Kernel("k", text, {}))
    assert doubtful(Kernel("k", text + "%2 = tt.trans %1 : tensor<32768xf32>\n", {}))
    assert not doubtful(Kernel("k", "%2 = tt.trans %1 : tensor<64x64xf32>\n", {}))


def test_the_shared_memory_is_that_of_the_card_that_candidates_are_told_of():
    from nanotriton.executor.common.card import DEFAULT

    assert DEFAULT.shared_memory_per_block_optin == 227 * 1024
