"""A grid that is sized by the card's number of multiprocessors must be right on a card with fewer."""

import pytest

from nanotriton.tasks.task import Task

TASK = Task(
    "t",
    """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * x + 1

def get_inputs():
    return [torch.randn(130, 16)]

def get_init_inputs():
    return []
""",
)
CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
TOP

@triton.jit
def rows(x, y, n, N: tl.constexpr):
    BODY
        at = row * N + tl.arange(0, N)
        v = tl.load(x + at)
        tl.store(y + at, v * v + 1)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        INIT

    def forward(self, x):
        y = torch.empty_like(x)
        rows[(min(COUNT, x.shape[0]),)](x, y, x.shape[0], N=16)
        return y
"""
LOOP = "for row in range(tl.program_id(0), n, tl.num_programs(0)):"
ONCE = "row = tl.program_id(0)\n    if row < n:"
PROPERTIES = 'torch.cuda.get_device_properties("cuda")'


def judged(executors, body: str, count: str, top: str = "", init: str = "pass"):
    source = CANDIDATE.replace("BODY", body).replace("COUNT", count).replace("TOP", top).replace("INIT", init)
    return executors().submit(TASK, source).result()


WAYS = [
    (f"{PROPERTIES}.multi_processor_count", "", "pass"),
    ("COUNTED", f"COUNTED = {PROPERTIES}.multi_processor_count", "pass"),
    ("self.count", "", f"self.count = {PROPERTIES}.multi_processor_count"),
    (
        'triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]',
        "",
        "pass",
    ),
]


@pytest.mark.parametrize("count, top, init", WAYS, ids=["forward", "module", "init", "triton"])
def test_one_program_for_each_multiprocessor(executors, count, top, init):
    right = judged(executors, LOOP, count, top, init)
    assert right.status == "correct", right.message
    wrong = judged(executors, ONCE, count, top, init)
    assert wrong.status == "not_finite" and "multiprocessors" in wrong.message


def test_a_grid_of_its_own_needs_no_number(executors):
    assert judged(executors, ONCE, "x.shape[0]").status == "correct"
    # it asks, and does not care
    verdict = judged(executors, ONCE, "x.shape[0]", init=f"self.name = repr({PROPERTIES})")
    assert verdict.status == "correct", verdict.message
