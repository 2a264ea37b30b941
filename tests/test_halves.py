"""Kernels whose programs may meet, and launches in two halves."""

import pytest
import torch

from nanotriton.executor import ttir
from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.gpu.compiler import compile_kernel
from nanotriton.executor.gpu.halves import half, may_meet
from tests.recording import HEAD, record

X = [torch.empty(64)]
BODIES = {
    "apart": ("tl.store(y + p * 16 + i, tl.load(x + p * 16 + i) + 1)", False),
    "in place": ("tl.store(x + p * 16 + i, tl.load(x + p * 16 + i) + 1)", True),
    "adds up": ("tl.atomic_add(y, tl.sum(tl.load(x + p * 16 + i)))", True),
    "reads what others stored": (
        "tl.store(y + p, tl.sum(tl.load(x + p * 16 + i)))\n    if p == 3:\n        tl.store(y, tl.sum(tl.load(y + i)))",
        True,
    ),
    "waits": ("while tl.atomic_add(y, 0.0) < p:\n        pass\n    tl.atomic_add(y, 1.0)", False),
    "a loop that waits for nobody": (
        "while p < 3:\n        p += 1\n    tl.atomic_add(y, tl.load(x + p).to(tl.float32))",
        True,
    ),
}


def plan_of(body: str, grid: str = "(4,)"):
    return record(
        HEAD
        + f"""
@triton.jit
def kernel(x, y):
    p = tl.program_id(0)
    i = tl.arange(0, 16)
    {body}

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        kernel[{grid}](x, y)
        return y
""",
        X,
    )


@pytest.mark.parametrize("name", BODIES)
def test_programs_that_may_meet(name):
    body, expected = BODIES[name]
    plan = plan_of(body)
    assert may_meet(plan, 0, plan.launches()) == expected


def test_two_halves_make_a_launch():
    ticket = "tl.store(y + p * 3 + tl.program_id(1), tl.atomic_add(x, 1.0))"  # y: who came when
    plan = plan_of(ticket, grid="(4, 3)")
    memory, y, parts = (
        ttir.GlobalMemory(),
        torch.full([12], -1.0),
        [half(plan.kernels[0], which) for which in (1, 0)],
    )
    addresses = [memory.add(torch.zeros(1)), memory.add(y)]
    for part, came in zip(parts, (6, 12)):
        assert part.key != plan.kernels[0].key and part.signature == plan.kernels[0].signature
        assert compile_kernel(part, DEFAULT).cubin[:4] == b"\x7fELF"
        ttir.Evaluator(part.ttir, part.name).run((4, 3, 1), addresses, memory)
        assert sorted(y.tolist())[12 - came :] == list(range(came))
    assert y.reshape(4, 3)[0, 0] >= 6  # program 0 is in the half that came last


def test_a_kernel_that_ends_early_can_be_halved():
    plan = plan_of("if p > 2:\n        return\n    tl.atomic_add(y, tl.sum(tl.load(x + p * 16 + i)))")
    assert all(
        compile_kernel(half(plan.kernels[0], which), DEFAULT).cubin[:4] == b"\x7fELF" for which in (0, 1)
    )
