"""Which weights of a task are trained, and that a candidate is judged on them: parameters save those that a plain
tensor was made of, and buffers that the constructor draws."""

import pytest
import torch
from torch import nn

from nanotriton.executor import Executor
from nanotriton.executor.common.training import Trained, train_
from nanotriton.executor.judge.reference.origins import what_to_train
from nanotriton.tasks.task import Task

TASK = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.register_buffer("table", torch.rand(24) + 0.5)
        self.register_buffer("mask", torch.ones(24).cumsum(0) % 2)
        {extra}

    def forward(self, x):
        return torch.sigmoid(self.linear(x)) * self.table * self.mask + {added}

def get_inputs():
    return [torch.randn(8, 24)]

def get_init_inputs():
    return []
"""
CANDIDATE = """import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def kernel(x, w, b, t, y, N: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    m = i < N
    acc = tl.load(b + i, mask=m, other=0.0)
    for k in range(N):
        acc += tl.load(x + row * N + k) * tl.load(w + i * N + k, mask=m, other=0.0)
    v = tl.sigmoid(acc) * tl.load(t + i, mask=m, other=0.0) * ((i + 1) % 2)
    tl.store(y + row * N + i, v + {added}, mask=m)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.register_buffer("{name}", torch.rand(24) + 0.5)
        self.register_buffer("mask", torch.ones(24).cumsum(0) % 2)
        {prepared}

    def forward(self, x):
        y = torch.empty_like(x)
        w, b, t = {weights}
        kernel[(8,)](x, w, b, t, y, N=24, B=32)
        return y
"""
LIVE = "self.linear.weight, self.linear.bias, self.table"
COPY = "self.{0} = self.{1}.detach().clone()"


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, seed=0) as made:
        yield made


def task(extra: str = "", added: str = "0") -> Task:
    return Task("trained", TASK.format(extra=extra or "pass", added=added))


def candidate(weights: str = LIVE, prepared: str = "pass", name: str = "table", added: str = "0") -> str:
    return CANDIDATE.format(weights=weights, prepared=prepared, name=name, added=added)


# A plain tensor of the task, as its constructor makes it, and which of its parameters are left as they are.
PLAIN = {
    "a constant": ("self.half = torch.tensor(0.5)", ()),
    "constants in a list": ("self.some = [torch.ones(3), {'a': torch.zeros(2)}]", ()),
    "drawn": ("self.noise = torch.randn(4)", ()),
    "of one parameter": ("self.scale = self.linear.weight.detach().norm() * 2", (0,)),
    "filled from one": (
        "self.kept = torch.empty(24)\n        self.kept.copy_(self.linear.bias.detach())",
        (1,),
    ),
    "a view": ("self.row = self.linear.weight.detach()[0]", (0,)),
    "from outside of torch": (
        "self.outside = torch.from_numpy(self.linear.bias.detach().numpy() * 2)",
        (0, 1),
    ),
    "the parameters themselves": ("self.all = list(self.linear.parameters())", ()),
}


def construct(extra: str, seed: int) -> nn.Module:
    names: dict = {}
    exec(task(extra).source, names)
    torch.manual_seed(seed)
    return names["Model"]()


@pytest.mark.parametrize("extra, kept", PLAIN.values(), ids=PLAIN.keys())
def test_what_is_trained(extra, kept):
    found = what_to_train(construct(extra, 1), construct(extra, 2), lambda: construct(extra, 1))
    assert found == Trained(tuple(i for i in (0, 1) if i not in kept), ("table",))


def test_a_buffer_keeps_its_signs_and_zeros():
    model = nn.BatchNorm1d(64)
    model.running_mean.copy_(torch.randn(64).relu())
    before = model.running_mean.clone()
    train_(model, 3, Trained((), ("running_mean",)))
    assert torch.equal(model.running_mean.sign(), before.sign())
    assert ((model.running_mean != before) == (before != 0)).all()


@pytest.mark.parametrize("extra", ["", "self.half = torch.tensor(0.5)"], ids=["none", "a plain tensor"])
@pytest.mark.parametrize(
    "source, right",
    [
        (candidate(), True),
        (
            candidate("self.w.to(x.device), " + LIVE.split(", ", 1)[1], COPY.format("w", "linear.weight")),
            False,
        ),
        (
            candidate("self.linear.weight, self.linear.bias, self.t.to(x.device)", COPY.format("t", "table")),
            False,
        ),
        (candidate(LIVE.replace("self.table", "self.other"), name="other"), True),
    ],
    ids=["live", "a weight's copy", "a buffer's copy", "a buffer of another name"],
)
def test_what_a_constructor_has_copied_is_stale(executor, extra, source, right):
    verdict = executor.submit(task(extra), source).result()
    assert verdict.correct == right, verdict
    assert right or verdict.status == "wrong_value", verdict


def test_where_a_plain_tensor_was_made_of_a_weight_that_weight_stays(executor):
    """The reference goes on with its copy: who reads the weight is as right as who copies it."""
    asked = task("self.kept = self.linear.bias.detach().clone()", added="self.kept")
    kernel = "tl.load(b + i, mask=m)"
    prepared = COPY.format("kept", "linear.bias")
    for weights, right in ((LIVE, True), (LIVE.replace("self.table", "self.t.to(x.device)"), False)):
        lines = prepared + ("" if right else "; " + COPY.format("t", "table"))
        verdict = executor.submit(asked, candidate(weights, lines, added=kernel)).result()
        assert verdict.correct == right, verdict


LOOKUP = Task(
    "lookup",
    """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 16, padding_idx=3)

    def forward(self, i):
        return self.table(i).sum(1)

def get_inputs():
    return [torch.randint(0, 12, (10, 7))]

def get_init_inputs():
    return []
""",
)
OWN_LOOKUP = """import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def bag(i_ptr, w_ptr, o_ptr, n, D: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for k in range(n):
        i = tl.load(i_ptr + row * n + k)
        {skip}total += tl.load(w_ptr + i * D + d)
    tl.store(o_ptr + row * D + d, total)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(12, 16))
        with torch.no_grad():
            self.rows[3] = 0

    def forward(self, i):
        o = torch.empty(i.shape[0], 16, device=i.device)
        bag[(i.shape[0],)](i, self.rows, o, i.shape[1], D=16)
        return o
"""


@pytest.mark.parametrize("skip, right", [("", True), ("if i != 4:\n            ", False)])
def test_a_table_of_its_own_keeps_the_tasks_padding(executors, skip, right):
    verdict = executors().submit(LOOKUP, OWN_LOOKUP.format(skip=skip)).result(100)
    assert verdict.correct if right else verdict.status == "wrong_value", verdict
