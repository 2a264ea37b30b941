"""An autotuner runs a kernel many times before its first result. Kernels to which that matters must say so."""

import pytest
import torch

from nanotriton.executor.replay.replayer import Replay
from nanotriton.executor.replay.tuning import accumulates
from nanotriton.plan.plan import Choice, Plan
from nanotriton.tasks.task import Task
from tests.recording import record
from tests.test_recorder import module

TASK = Task(
    "t",
    """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(60))

    def forward(self, x):
        self.seen += x.abs()
        return x + 3

def get_inputs():
    return [torch.randn(60)]

def get_init_inputs():
    return []
""",
)
TOP = """
@triton.autotune([triton.Config({"BLOCK": b}HOOK) for b in (16, 64)], key=["n"]OPTIONS)
@triton.jit
def tuned(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    BODY
"""
GRID = "[lambda m: (triton.cdiv(60, m['BLOCK']),)]"
WRITE = "tl.store(y_ptr + at, x + 3, mask=at < n)"
IN_PLACE = "tl.store(y_ptr + at, tl.load(y_ptr + at, mask=at < n) + 3, mask=at < n)"
ATOMIC = "tl.atomic_add(y_ptr + at, x + 3, mask=at < n)"
SEEN = "; tl.store(z_ptr + at, tl.load(z_ptr + at, mask=at < n) + tl.abs(x), mask=at < n)"


def top(body: str, options: str = "", hook: str = "") -> str:
    return TOP.replace("BODY", body).replace("OPTIONS", options).replace("HOOK", hook)


def plan_of(body: str, make: str, options: str = "", hook: str = "") -> Plan:
    forward = f"y = {make}\ntuned{GRID}(x, y, None, 60)\ntuned{GRID}(x, y, None, 60)\nreturn y"
    return record(module(forward, top=top(body, options, hook)), [torch.empty(60)])


ZEROES = ', pre_hook=lambda a: a["y_ptr"].zero_()'
RESETS = ', reset_to_zero=["y_ptr"]'
RESTORES = ', restore_value=["y_ptr"]'
OWN = ', pre_hook=lambda a, reset_only=False: a["y_ptr"].zero_()'


@pytest.mark.parametrize(
    "body, make, options, hook, runs",  # runs: of the kernel that are seen in the answer after tuning
    [
        (WRITE, "torch.empty_like(x)", "", "", 1),
        (ATOMIC, "torch.zeros_like(x)", "", "", 4),
        (ATOMIC, "torch.zeros_like(x)", RESETS, "", 2),
        (ATOMIC, "torch.zeros_like(x)", RESTORES, "", 2),
        (ATOMIC, "torch.zeros_like(x)", OWN, "", 2),
        (ATOMIC, "torch.zeros_like(x)", "", ZEROES, 1),
        (IN_PLACE, "x.clone()", "", "", 4),
        (IN_PLACE, "x.clone()", RESTORES, "", 2),
    ],
)
def test_a_first_call_with_its_tuning(body, make, options, hook, runs):
    plan = plan_of(body, make, options, hook)
    plan = Plan.from_bytes(plan.to_bytes())
    first, second = (step for step in plan.steps if isinstance(step, Choice))
    assert first.tuning is not None and second.tuning is None  # the second launch has its key
    x = torch.randn(60)
    want = x + 3 * runs if body == IN_PLACE else runs * (x + 3)
    replay = Replay(plan)
    replay.load([x])
    replay.execute_tuning()
    torch.testing.assert_close(replay.outputs(), want)
    untuned = 1 if hook or body == WRITE else 2
    torch.testing.assert_close(replay.run([x]), x + 3 * untuned if body == IN_PLACE else untuned * (x + 3))
    assert accumulates(plan, {}) == (body != WRITE)


def test_what_may_read_what_it_writes_accumulates():
    both = f"tuned{GRID}(x, x, None, 60)\nreturn x + 0"
    assert accumulates(record(module(both, top=top(WRITE)), [torch.empty(60)]), {})
    single = top(ATOMIC).replace("(16, 64)", "(16,)")  # of one configuration nothing is tuned
    plan = record(
        module(f"y = torch.zeros_like(x)\ntuned{GRID}(x, y, None, 60)\nreturn y", top=single),
        [torch.empty(60)],
    )
    assert not accumulates(plan, {})
    assert not any(isinstance(step, Choice) for step in plan.steps)


CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

TOP

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(60))

    def forward(self, x):
        y = MAKE
        tunedGRID(x, y, self.seen, 60)
        return y
"""


@pytest.mark.parametrize(
    "body, make, options, status",
    [
        (WRITE + SEEN, "torch.empty_like(x)", ', restore_value=["z_ptr"]', "correct"),
        (WRITE + SEEN, "torch.empty_like(x)", "", "wrong_value"),
        (ATOMIC + SEEN, "torch.zeros_like(x)", ', restore_value=["y_ptr", "z_ptr"]', "correct"),
        (ATOMIC + SEEN, "torch.zeros_like(x)", ', restore_value=["z_ptr"]', "wrong_value"),
        (
            ATOMIC + SEEN,
            "torch.zeros_like(x)",
            ', reset_to_zero=["y_ptr"], restore_value=["z_ptr"]',
            "correct",
        ),
        (IN_PLACE + SEEN, "x.clone()", ', restore_value=["z_ptr"]', "wrong_value"),
    ],
)
def test_a_kernel_that_adds_to_what_it_finds_must_say_so(executors, body, make, options, status):
    source = CANDIDATE.replace("TOP", top(body, options)).replace("MAKE", make).replace("GRID", GRID)
    verdict = executors().submit(TASK, source).result()
    assert verdict.status == status, verdict.message
    assert status == "correct" or "autotuning" in verdict.message


def test_every_configuration_must_say_so(executors):
    """One whose hook clears the output is right only where it is chosen."""
    configs = (
        'triton.Config({"BLOCK": 16}, pre_hook=lambda a: a["y_ptr"].zero_()), triton.Config({"BLOCK": 64})'
    )
    own = top(ATOMIC + SEEN, ', restore_value=["z_ptr"]')
    own = own.replace('triton.Config({"BLOCK": b}) for b in (16, 64)', configs)
    source = CANDIDATE.replace("TOP", own).replace("MAKE", "torch.zeros_like(x)").replace("GRID", GRID)
    verdict = executors().submit(TASK, source).result()
    assert verdict.status == "wrong_value" and "autotuning" in verdict.message
