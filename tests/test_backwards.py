"""Kernels whose programs may meet, and their twins that start in reverse."""

import pytest
import torch

from nanotriton.executor import ttir
from nanotriton.executor.backwards import backwards, may_meet
from nanotriton.executor.compiler import compile_kernel
from tests.recording import HEAD, record

X = [torch.empty(64)]
BODIES = {
    "apart": ("tl.store(y + p * 16 + i, tl.load(x + p * 16 + i) + 1)", False),
    "in place": ("tl.store(x + p * 16 + i, tl.load(x + p * 16 + i) + 1)", True),
    "adds up": ("tl.atomic_add(y, tl.sum(tl.load(x + p * 16 + i)))", True),
    "reads what others stored": ("tl.store(y + p, tl.sum(tl.load(x + p * 16 + i)))\n    if p == 3:\n        tl.store(y, tl.sum(tl.load(y + i)))", True),
    "waits": ("while tl.atomic_add(y, 0.0) < p:\n        pass\n    tl.atomic_add(y, 1.0)", False),
    "a loop that waits for nobody": ("while p < 3:\n        p += 1\n    tl.atomic_add(y, tl.load(x + p).to(tl.float32))", True),
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


def test_a_twin_starts_with_its_last_program():
    ticket = "tl.store(y + p * 3 + tl.program_id(1), tl.atomic_add(x, 1.0))"  # y: who came when
    plan = plan_of(ticket, grid="(4, 3)")
    twin = backwards(plan.kernels[0])
    answers = []
    for kernel in (plan.kernels[0], twin):
        memory, y = ttir.Memory(), torch.zeros(12)
        ttir.Kernel(kernel.ttir, kernel.name).run((4, 3, 1), [memory.add(torch.zeros(1)), memory.add(y)], memory)
        answers.append(y.reshape(4, 3))
    order = torch.arange(12.0).reshape(3, 4).T  # program_id(0) is the fastest
    assert torch.equal(answers[0], order) and torch.equal(answers[1], 11 - order)
    assert twin.key != plan.kernels[0].key and twin.signature == plan.kernels[0].signature
    assert compile_kernel(twin).cubin[:4] == b"\x7fELF"
