"""Of a plan that a GPU runs the evaluator is asked for races that no GPU shows, and for false promises."""

import pytest
import torch

from nanotriton.executor.replay.asking import ask, worth_asking
from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.executor.replay.replayer import Replay, ReplayError
from tests.recording import ADD, HEAD, record

MEAN = """
@triton.jit
def mean_kernel(x, part, out, count, n, N: tl.constexpr, G: tl.constexpr):
    p = tl.program_id(0)
    o = p * N + tl.arange(0, N)
    HINT
    s = tl.sum(tl.load(x + o, mask=o < n, other=0.0))
    tl.store(part + p, s)
    tl.debug_barrier()
    if LAST:
        tl.store(out, tl.sum(tl.load(part + tl.arange(0, G))) / n)

class ModelNew(nn.Module):
    def forward(self, x):
        part, out = torch.empty(8, device=x.device), torch.empty((), device=x.device)
        count = torch.zeros(1, dtype=torch.int32, device=x.device)
        mean_kernel[(8,)](x, part, out, count, x.numel(), N=16, G=8)
        return out
"""
RIGHT = "tl.atomic_add(count, 1) == G - 1"
X = torch.randn(8 * 16 - 3)


def replay(last: str, hint: str = "") -> Replay:
    source = MEAN.replace("LAST", last).replace("HINT", hint)
    return Replay(record(HEAD + source, [X]))


def test_what_is_in_order_is_let_through():
    right = replay(RIGHT, "o = tl.max_contiguous(tl.multiple_of(o, N), N)")
    assert worth_asking(right.plan, {})
    ask(right, [X], {}, CpuBackend(seed=3))


@pytest.mark.parametrize(
    "last,hint,status,message",
    [
        ("(tl.atomic_add(count, 1) >= 0) & (p == G - 1)", "", "nondeterministic", "no atomic puts"),
        (RIGHT, "tl.assume(n % 2 == 0)", "runtime_error", r"tl\.assume"),
        (RIGHT, "o = tl.multiple_of(o + 3, 16)", "runtime_error", "multiple_of"),
    ],
)
def test_what_it_sees(last, hint, status, message):
    wrong = replay(last, hint)
    assert worth_asking(wrong.plan, {})
    with pytest.raises(ReplayError, match=message) as error:
        ask(wrong, [X], {}, CpuBackend(seed=3))
    assert error.value.status == status


def test_what_takes_too_long_is_let_through():
    wrong = replay("(tl.atomic_add(count, 1) >= 0) & (p == G - 1)")
    ask(wrong, [X], {}, CpuBackend(budget=1000, seed=3))


def test_other_kernels_are_not_asked_about():
    plain = HEAD + ADD + "\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return add(x, x)\n"
    assert not worth_asking(record(plain, [X]), {})
