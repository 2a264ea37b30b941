"""What a CPU would forgive and a card does not: whole candidates, judged on the CPU."""

import pytest

from nanotriton.executor.executor import Executor
from nanotriton.tasks.task import Task

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return FUNCTION

def get_inputs():
    return [torch.randn(30, 41)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def kernel(x, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=1.0)
    tl.store(out + o, FUNCTION, mask=o < n)

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), B=256)
        return out
"""


@pytest.mark.parametrize(
    "task,candidate,status",
    [
        ("torch.cos(5 * x) + 1", "libdevice.fast_cosf(5 * v) + 1", "wrong_value"),
        ("torch.cos(5 * x) + 1", "tl.cos(5 * v) + 1", "correct"),
        ("torch.sigmoid(x)", "1 / (1 + libdevice.fast_expf(-v))", "correct"),
        ("torch.log1p(x.abs())", "libdevice.fast_logf(1 + tl.abs(v))", "correct"),
        ("torch.tanh(x)", "libdevice.fast_dividef(1 - tl.exp(-2 * v), 1 + tl.exp(-2 * v))", "not_finite"),
    ],
)
def test_fast_functions(task, candidate, status):
    source, kernel = TASK.replace("FUNCTION", task), CANDIDATE.replace("FUNCTION", candidate)
    with Executor(workers=1) as executor:
        verdict = executor.submit(Task("fast", source), kernel).result()
    assert verdict.status == status, verdict.message
