"""Every configuration of an autotuned kernel is judged on a CPU, because a GPU may choose any of them."""

import pytest
import torch

from nanotriton.executor.judge.trials.configurations import MOST
from nanotriton.plan.plan import Choice
from nanotriton.tasks.task import Task
from tests.recording import record
from tests.test_recorder import module

TASK = Task(
    "t",
    """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x - torch.logsumexp(x, 1, keepdim=True)

def get_inputs():
    return [torch.randn(6, 64)]

def get_init_inputs():
    return []
""",
)
CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

CONFIGS = [triton.Config({"WAY": way}, num_warps=warps) for way in range(WAYS) for warps in (1, 2)]

@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def rows(x, y, n, N: tl.constexpr, WAY: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, N)
    v = tl.load(x + at)
    top = BODY
    tl.store(y + at, v - top - tl.log(tl.sum(tl.exp(v - top), 0)))

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows[(x.shape[0],)](x, y, x.shape[1], N=64)
        return y
"""


def candidate(top: str, ways: int = 2) -> str:
    return CANDIDATE.replace("WAYS", str(ways)).replace("BODY", top)


@pytest.mark.parametrize(
    "top, status",
    [
        ("tl.max(v, 0)", "correct"),
        ("tl.max(v, 0) + WAY", "correct"),  # another rounding
        ("tl.max(v, 0) * (1 - WAY)", "not_finite"),  # overflows under stress alone
        ("tl.max(tl.load(x + at + WAY * 400), 0)", "out_of_bounds"),
    ],
)
def test_a_later_configuration_must_be_right_too(executors, top, status):
    verdict = executors().submit(TASK, candidate(top)).result()
    assert verdict.status == status, verdict.message
    assert status == "correct" or "another configuration" in verdict.message


def test_a_configuration_that_the_evaluator_cannot_run_is_let_off(executors):
    top = 'tl.max(v, 0) + WAY * tl.inline_asm_elementwise("activemask.b32 $0;", "=r,r", [tl.arange(0, N)], tl.int32, True, 1) * 0'
    assert executors().submit(TASK, candidate(f"{top} if WAY else tl.max(v, 0)")).result().status == "correct"


def test_one_that_the_evaluator_cannot_run_hides_no_other(executors):
    """Whatever order is drawn: of three configurations, one is wrong, and one is beyond the evaluator."""
    top = 'tl.max(v, 0) + tl.inline_asm_elementwise("activemask.b32 $0;", "=r,r", [tl.arange(0, N)], tl.int32, True, 1) * 0'
    top = f"{top} if WAY == 1 else tl.max(v, 0) * (1 - WAY)"
    for secret in range(2):
        source = candidate(top, ways=3).replace("(1, 2)]", f"(1,)]  # {secret}")
        verdict = executors().submit(TASK, source).result()
        assert not verdict.correct and "another configuration" in verdict.message


def test_which_configurations_are_recorded_is_drawn():
    top = CANDIDATE[CANDIDATE.index("CONFIGS") : CANDIDATE.index("class")]
    top = top.replace("WAYS", "8").replace("BODY", "tl.max(v, 0) + WAY")
    source = module("y = torch.empty_like(x)\nrows[(6,)](x, y, 64, N=64)\nreturn y", top=top)
    found = []
    for seed in range(3):
        plan = record(source, [torch.empty(6, 64)], max_configs=MOST, drawn=seed)
        (choice,) = (step for step in plan.steps if isinstance(step, Choice))
        found.append([plan.kernels[calls[0].kernel].key for calls in choice.alternatives])
    assert {len(keys) for keys in found} == {MOST} and len({keys[0] for keys in found}) == 1
    assert len({frozenset(keys) for keys in found}) == 3
