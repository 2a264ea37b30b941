"""A refused author reads what to change, where the error has a look of its own."""

import pytest
import torch

from nanotriton.executor.executor import Executor
from nanotriton.executor.judge.candidate.hints import hinted
from nanotriton.executor.replay.poison import poison, unwritten
from nanotriton.tasks.task import Task
from nanotriton.verdict import ValueFault
from tests.recording import HEAD, record

TASK = """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return {answer}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""
NORM = Task(
    "norm",
    TASK.format(
        answer="(x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, unbiased=False)",
        inputs="torch.randn(5, 60) + 100",
    ),
)
TURNED = Task("turned", TASK.format(answer="x / x.sum(1, keepdim=True)", inputs="torch.rand(60, 5).t() + 1"))
SOFTMAX = Task("softmax", TASK.format(answer="torch.softmax(x, 1)", inputs="torch.randn(5, 60) * 60"))
MATMUL = Task("matmul", TASK.format(answer="x @ x.T", inputs="torch.randn(16, 16)"))
CANDIDATE = """
import torch, torch.nn as nn, triton
import triton.language as tl
@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0)
    {lines}
    tl.store(y + row * n + i, v, mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[({rows},)](x, y, {n}, B={block})
        return y
"""
ONE_PASS = """m = tl.sum(v, 0) / n
    v = (v - m) / tl.sqrt(tl.sum(v * v, 0) / n - m * m)"""
TWO_PASSES = """d = tl.where(i < n, v - tl.sum(v, 0) / n, 0.0)
    v = d / tl.sqrt(tl.sum(d * d, 0) / n)"""
NO_MAXIMUM = """e = tl.where(i < n, tl.exp(v), 0.0)
    v = e / tl.sum(e, 0)"""
DOT = """j = tl.arange(0, 16)
    square = tl.load(x + j[:, None] * 16 + j[None, :])
    product = tl.dot(square, tl.trans(square){how})
    v = tl.sum(tl.where(j[:, None] == row, product, 0.0), 0)"""
PADDING = "v = v / tl.sum(v + 1.0, 0)"
OTHER = "v = v * 0.5"  # far from the answer
CASES = {
    "a variance in one pass": (NORM, ONE_PASS, "numbers that cancel"),
    "a variance in two": (NORM, TWO_PASSES, None),
    "no maximum": (SOFTMAX, NO_MAXIMUM, "subtract the maximum"),
    "TF32": (MATMUL, DOT.format(how=""), "input_precision"),
    "IEEE": (MATMUL, DOT.format(how=", input_precision='ieee'"), None),
    "beyond the end": (NORM, "tl.store(y + row * n + i, v)", "mask what lies beyond"),
    "all beyond the end": (NORM, "tl.store(y + 5 * n + i, v)", "multiplied by"),
    "all in one place": (NORM, "tl.store(y + i, v, mask=i < n)", "tl.atomic_add"),
    "nothing stored": (NORM, "v = tl.load(y + row * n + i, mask=i < n)", "what no kernel stores to"),
    "lanes that are padding": (SOFTMAX, PADDING, "lanes beyond a mask"),
    "rows that are columns": (TURNED, "v = v / tl.sum(v, 0)", "has shape (5, 60) and strides (1, 5)"),
    "another thing": (NORM, OTHER, ""),
}


@pytest.fixture(scope="module")
def judged():
    with Executor(workers=2, timeout=20.0, seed=1) as executor:
        futures = {}
        for name, (task, lines, _) in CASES.items():
            square = task is MATMUL
            n = 16 if square else 60
            source = CANDIDATE.format(lines=lines, rows=16 if square else 5, n=n, block=16 if square else 64)
            futures[name] = executor.submit(task, source)
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_message_says_what_to_change(name, judged):
    verdict, hint = judged[name], CASES[name][2]
    assert verdict.correct == (hint is None), verdict.message
    hints = [hint for _, _, hint in CASES.values() if hint]
    assert [h for h in hints if h in verdict.message] == ([hint] if hint else []), verdict.message


@pytest.mark.parametrize("read", ["tl.load(bias + at)", "0.0 * tl.load(bias + at)", "tl.sum(v)"])
def test_a_weight_that_nothing_reads_is_named(read):
    source = f"""{HEAD}
@triton.jit
def shifted(x, bias, y, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at)
    unused = tl.load(bias + at)
    tl.store(y + at, v + {read})


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(64))

    def forward(self, x):
        y = torch.empty_like(x)
        shifted[(1,)](x, self.bias, y, B=64)
        return y
"""
    plan = record(source, [torch.randn(64)])
    message = hinted(ValueFault("values differ", 1.0), plan).message
    assert ("nothing reads bias" in message) == ("bias" not in read), message


@pytest.mark.parametrize("shape", [(), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_nobody_wrote_is_counted(shape, dtype):
    t = torch.empty(shape, dtype=dtype)
    poison(t.reshape(-1).view(torch.uint8), str(dtype).removeprefix("torch."))
    assert unwritten(t) == t.numel()
    t.reshape(-1)[0] = float("nan")
    assert unwritten(t) == t.numel() - 1
