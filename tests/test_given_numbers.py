"""Numbers that a constructor gets and integers that stand for none: a candidate that has its own for them is wrong."""

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor import Executor
from nanotriton.executor.judge.inputs import marks
from nanotriton.executor.judge.inputs.kinds import MOVED
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.tasks.task import Task
from tests.test_draws import refused, task


def adam(eps=None, rate=None):
    def step(m, x, y):
        return x - (rate or m.c) * y / (y.abs() + (eps or m.d))

    return step


STEP = "return x - self.c * y / (y.abs() + self.d)"
GIVEN = {
    "a learning rate": (STEP, "self.c, self.d = c, 1e-8", "1e-4", adam(rate=1e-4)),
    "a small term": ("return y.tanh() + self.c * x", "self.c = c", "1e-5", lambda m, x, y: y.tanh()),
    "a power of two": ("return x + y * self.c", "self.c = c", "0.5", lambda m, x, y: x + y * 0.5),
}  # fmt: skip


@pytest.mark.parametrize("forward, init, given, wrong", GIVEN.values(), ids=GIVEN)
def test_a_number_of_its_own_is_wrong(forward, init, given, wrong):
    reference = Reference(task(forward, "torch.randn(20, 6), torch.randn(20, 6)", "x, y", init, given))
    assert reference.findings.moves.init.keys() == {0}
    assert refused(reference, wrong)
    assert not refused(reference, reference.code.names["Model"].forward)


SHAPES = {
    "a dimension": ("return x.softmax(self.c)", "self.c = c", "1"),
    "a size": ("return x * self.c ** -0.5", "self.c = c", "48"),
    "groups": ("return F.group_norm(x, self.c)", "self.c = c", "8"),
    "a window of a view": ("return x.unflatten(1, (-1, self.c)).amax(-1).sum(1)", "self.c = c", "12"),
    "a reach": ("return x.triu(self.c)", "self.c = c", "12"),
    "the width of a layer": ("return self.b(self.a(x).tanh())", "self.a, self.b = nn.Linear(48, c), nn.Linear(c, 5)", "30"),
}  # fmt: skip


@pytest.mark.parametrize("forward, init, given", SHAPES.values(), ids=SHAPES)
def test_an_integer_that_may_be_a_shape_stays(forward, init, given):
    assert not Reference(task(forward, "torch.randn(6, 48)", "x", init, given)).findings.moves.init


def unmarked(m, x, y):
    return F.cross_entropy(x, y.clamp(min=0))


DRAWN = "torch.randn(40, 12), torch.randint(0, 12, (40,))"
MARKS = {
    "named in forward": ("return F.cross_entropy(x, y, ignore_index=-1)", "pass", "0.5", unmarked),
    "given": ("return F.cross_entropy(x, y, ignore_index=self.c)", "self.c = c", "-100", unmarked),
    "compared": ("return x * (y != -7)[:, None]", "pass", "0.5", lambda m, x, y: x.clone()),
    "compared by size": ("return x.gather(1, y.clamp(min=0)[:, None]) * (y >= 0)[:, None]", "pass", "0.5", lambda m, x, y: x.gather(1, y.clamp(min=0)[:, None])),
}  # fmt: skip


@pytest.mark.parametrize("forward, init, given, wrong", MARKS.values(), ids=MARKS)
def test_what_stands_for_none_comes(forward, init, given, wrong):
    reference = Reference(task(forward, DRAWN, "x, y", init, given))
    assert refused(reference, wrong)
    assert not refused(reference, reference.code.names["Model"].forward)
    assert int(reference.inputs.draw(MOVED + "plain", 3)[1].min()) < 0


def test_what_stands_for_none_is_another_one():
    source = task("return F.cross_entropy(x, y, ignore_index=self.c)", DRAWN, "x, y", "self.c = c", "-100")
    assert refused(Reference(source), lambda m, x, y: F.cross_entropy(x, y.where(y == -100, y.clamp(min=0))))


UNMARKED = {
    "a default that nobody names": "return F.cross_entropy(x, y)",
    "an index that wraps": "return x[y] * (y != -7)[:, None]",
    "no such id": "return F.embedding(y, x) * (y != 50)[:, None]",
    "equality with what comes": "return x * (y == 0)[:, None]",
}


@pytest.mark.parametrize("forward", UNMARKED.values(), ids=UNMARKED)
def test_what_stands_for_none_stays_away(forward):
    y = Reference(task(forward, DRAWN, "x, y")).inputs.draw(MOVED + "plain", 3)[1]
    assert int(y.min()) >= 0 and int(y.max()) < 12


def test_marks_of_a_text():
    text = "x = f(a, ignore_index=-100, pad_id=3, dim=-1)\ny = (i != 7) & (i < 5) & (i == other)"
    assert sorted(marks.named(text)) == [-100, 3, 4, 5, 7]
    assert marks.named("x = (") == []
    x = torch.arange(4)
    marks.put(x, -9, torch.Generator().manual_seed(1))
    assert (x == -9).any() and not (x == -9).all()


HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n"
INIT = """(nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros(40))

    def forward(self, x):
"""
AVERAGE = Task(
    "average",
    HEAD
    + f"""class Model{INIT}        out = x - self.mean
        self.mean.mul_(self.decay).add_(x.mean(0) * (1 - self.decay))
        return out


def get_inputs():
    return [torch.randn(6, 40)]


def get_init_inputs():
    return [0.5]
""",
)
CENTERED = (
    HEAD
    + """@triton.jit
def kernel(x, mean, y, rows, cols, decay, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    mask = col < cols
    old = tl.load(mean + col, mask=mask)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        v = tl.load(x + row * cols + col, mask=mask)
        total += v
        tl.store(y + row * cols + col, v - old, mask=mask)
    tl.store(mean + col, old * decay + total / rows * (1 - decay), mask=mask)


"""
    + f"class ModelNew{INIT}"
    + """        y = torch.empty_like(x)
        kernel[(1,)](x, self.mean, y, x.shape[0], x.shape[1], self.decay, BLOCK=64)
        return y
"""
)


def test_a_number_that_only_state_shows():
    with Executor(device="cpu", workers=1) as executor:
        own = executor.submit(AVERAGE, CENTERED.replace("self.decay, B", "0.5, B"))
        right = executor.submit(AVERAGE, CENTERED)
        assert right.result().status == "correct"
        assert own.result().status == "wrong_value"
        assert "numbers that the module is given are others" in own.result().message
