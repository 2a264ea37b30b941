"""A module is more than its first answer: it has an evaluation mode, others of its class beside it, weights that
become large, and attributes that others read."""

import math

import pytest
import torch
from torch import nn

from nanotriton.executor import Executor
from nanotriton.executor.common.training import Trained, every_parameter, train_
from nanotriton.executor.judge.inputs.kinds import Trial, grown
from nanotriton.executor.judge.reference.attributes import only_left
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault
from tests.test_draws import judge as judge_function
from tests.test_draws import task as draws_task

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport triton\n"
HEAD += "import triton.language as tl\n\n\n"
DRAWS = "\n\ndef get_inputs():\n    return [{draw}]\n\n\ndef get_init_inputs():\n    return []\n"
MODULE = "class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{init}\n"
MODULE += "    def forward(self, x):\n{forward}"
# y = (x - shift) * clamp(gain), of which gain has one number for each column
KERNEL = """@triton.jit
def scaled(x, gain, shift, y, cols, limit, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    mask = col < cols
    g = tl.load(gain + col, mask=mask, other=0.0)
    g = tl.minimum(tl.maximum(g, -limit), limit)
    v = tl.load(x + row * cols + col, mask=mask) - tl.load(shift + col, mask=mask, other=0.0)
    tl.store(y + row * cols + col, v * g, mask=mask)


def launch(x, gain, shift, limit=1e30):
    y = torch.empty_like(x)
    scaled[(x.shape[0],)](x, gain, shift, y, x.shape[1], limit, BLOCK=64)
    return y


"""
GAIN = "self.gain = nn.Parameter(torch.randn(40) * 0.1)"
SHIFT = "self.register_buffer('shift', torch.randn(40))"


def module(name: str, forward: str, init: str) -> str:
    lines = lambda text: "\n".join(f"        {line}" for line in text.split("\n")) + "\n"
    return MODULE.format(name=name, init=lines(init), forward=lines(forward))


def task(forward: str, init: str = f"{GAIN}\n{SHIFT}", draw: str = "torch.randn(6, 40)") -> Task:
    return Task("promises", HEAD + module("Model", forward, init) + DRAWS.format(draw=draw))


def candidate(forward: str, init: str = f"{GAIN}\n{SHIFT}", before: str = "") -> str:
    return HEAD + KERNEL + before + module("ModelNew", forward, init)


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, seed=0) as made:
        yield made


def judge(executor, asked: Task, source: str):
    return executor.submit(asked, source).result()


USUAL = task("return (x - self.shift) * self.gain")
OURS = "return launch(x, self.gain, self.shift)"


# ---- evaluation mode ----

STEPS = task(
    "if not self.training:\n    return x * self.gain\nreturn (x - self.shift) * self.gain",
)


@pytest.mark.parametrize(
    "forward, right",
    [
        (
            "s = self.shift if self.training else torch.zeros_like(self.shift)\nreturn launch(x, self.gain, s)",
            True,
        ),
        (OURS, False),
    ],
    ids=["both modes", "training alone"],
)
def test_a_module_is_right_in_evaluation_mode_too(executor, forward, right):
    verdict = judge(executor, STEPS, candidate(forward))
    assert verdict.correct == right, verdict
    assert right or "in evaluation mode" in verdict.message, verdict


def test_of_a_batch_norm_the_mode_is_judged_that_its_module_comes_in(executor):
    """A kernel for training alone does what is asked, where the task doesn't say a word about modes."""
    init = "self.norm = nn.BatchNorm1d(40, affine=False)"
    asked = task("return self.norm(x)", init)
    kernel = """
@triton.jit
def normed(x, mean, var, y, rows, cols, eps, momentum, BLOCK: tl.constexpr):
    col, row = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + col, mask=row < rows, other=0.0)
    m = tl.sum(v) / rows
    d = tl.where(row < rows, v - m, 0.0)
    s = tl.sum(d * d)
    tl.store(y + row * cols + col, d * tl.rsqrt(s / rows + eps), mask=row < rows)
    tl.store(mean + col, tl.load(mean + col) * (1 - momentum) + momentum * m)
    tl.store(var + col, tl.load(var + col) * (1 - momentum) + momentum * s / (rows - 1))


"""
    forward = "y = torch.empty_like(x)\nn = self.norm\n"
    forward += (
        "normed[(40,)](x, n.running_mean, n.running_var, y, 6, 40, n.eps, n.momentum, BLOCK=8)\nreturn y"
    )
    verdict = judge(executor, asked, candidate(forward, init, kernel))
    assert verdict.correct, verdict


def test_a_mode_that_the_reference_does_not_have_is_none_of_the_candidates(executor):
    """It answers otherwise in evaluation mode, and the reference does not."""
    other = "return launch(x, self.gain, self.shift if self.training else self.gain)"
    assert not judge(executor, USUAL, candidate(other)).correct


def test_a_task_that_draws_in_evaluation_alone_is_judged_in_training(executor):
    drawing = task(
        "if not self.training:\n    x = x + torch.randn_like(x)\nreturn (x - self.shift) * self.gain"
    )
    assert judge(executor, drawing, candidate(OURS)).correct


def test_a_task_that_chooses_evaluation_is_judged_there(executor):
    chosen = Task("chosen", STEPS.source.replace(SHIFT, f"{SHIFT}\n        self.eval()"))
    zero = "return launch(x, self.gain, torch.zeros_like(self.shift))"
    assert judge(executor, chosen, candidate(zero)).correct


# ---- other modules of the class ----

CLASS_CACHE = """if ModelNew.version != self.gain._version:
    ModelNew.kept, ModelNew.version = self.gain.detach().clone(), self.gain._version
return launch(x, ModelNew.kept, self.shift)"""
OWN_CACHE = CLASS_CACHE.replace("ModelNew", "self")
COUNTER = """ModelNew.calls = getattr(ModelNew, "calls", 0) + 1
return launch(x, self.gain, self.shift, 1e30 if ModelNew.calls < 4 else 0.1)"""
TABLE = """if "zeros" not in KEPT:
    KEPT["zeros"] = torch.zeros(40, device=x.device)
y = launch(x, self.gain, self.shift)
return launch(y, torch.ones(40, device=x.device), KEPT["zeros"])"""


@pytest.mark.parametrize(
    "forward, right",
    [(CLASS_CACHE, False), (OWN_CACHE, True), (COUNTER, False), (TABLE, True)],
    ids=["the class keeps a weight", "the module keeps it", "the class counts", "a constant for all"],
)
def test_another_module_of_the_class_is_right_too(executor, forward, right):
    source = candidate(forward, before="KEPT = {}\n\n\n")
    source = source.replace(
        "class ModelNew(nn.Module):", "class ModelNew(nn.Module):\n    kept, version = None, -1"
    )
    verdict = judge(executor, USUAL, source)
    assert verdict.status == ("correct" if right else "wrong_value"), verdict


def test_weights_that_are_made_on_the_gpu_belong_to_another_module_too(executor):
    on_gpu = GAIN.replace("randn(40)", "randn(40, device='cuda')")
    source = candidate(TABLE, init=f"{on_gpu}\n{SHIFT}", before="KEPT = {}\n\n\n")
    assert judge(executor, USUAL, source).correct


# ---- weights ----


def test_a_limit_on_a_weight_is_reached(executor):
    limited = task("return (x - self.shift) * self.gain.clamp(-0.9, 0.9)")
    for limit, right in ((0.9, True), (1e30, False), (0.5, False)):
        verdict = judge(executor, limited, candidate(f"return launch(x, self.gain, self.shift, {limit})"))
        assert verdict.correct == right, verdict


def test_a_reference_that_large_weights_break_is_judged_without_them(executor):
    init = "self.gain = nn.Parameter(torch.full((40,), 0.2))\nself.register_buffer('shift', torch.zeros(40))"
    steep = task(
        "return (x - self.shift) * self.gain * (1 if (self.gain.abs() < 1).all() else float('nan'))", init
    )
    assert judge(executor, steep, candidate(OURS, init)).correct


@pytest.mark.parametrize(
    "init", ["self.a = nn.Parameter(torch.zeros(1))", "self.a = nn.Parameter(torch.tensor(2.0))"]
)
def test_a_weight_of_one_element_is_trained(executor, init):
    asked = task("return x * self.a", init)
    row = lambda a: f"return launch(x, {a}.expand(40).contiguous(), torch.zeros(40, device=x.device))"
    kept = "if not hasattr(self, 'kept'):\n    self.kept = self.a.detach().clone()\n"
    assert judge(executor, asked, candidate(row("self.a"), init)).correct
    assert not judge(executor, asked, candidate(kept + row("self.kept"), init)).correct


def test_training_reaches_every_kind_of_weight():
    embedding = nn.Embedding(9, 4, padding_idx=2)
    train_(embedding, 3, every_parameter(embedding))
    assert (embedding.weight[2] == 0).all() and embedding.weight[3].abs().min() > 0  # as torch leaves it

    model = nn.Module()
    model.one = nn.Parameter(torch.tensor(2.0))
    model.wave = nn.Parameter(torch.randn(5, dtype=torch.complex64))
    model.register_buffer("order", torch.tensor([3, 0, 2, 1, 4]))
    before = model.wave.detach().clone()
    train_(model, 3, Trained((0, 1), ("order",)))
    assert -2 <= model.one <= -1.5 and (model.wave != before).all()
    assert sorted(model.order.tolist()) == [0, 1, 2, 3, 4]
    with torch.no_grad():
        model.one.fill_(2.0)
    train_(model, 3, Trained((0,), flips=False))
    assert 1.5 <= model.one <= 2


def test_some_weights_grow_beyond_the_others():
    linear = nn.Linear(64, 64)
    train_(linear, 3, Trained((0, 1), grows=True))
    large = linear.weight[linear.weight.abs() > 1.9]
    assert 100 < large.numel() < 600 and (large > 0).any() and (large < 0).any() and large.abs().max() <= 16


@pytest.mark.parametrize("shape", [(2,), (3,), (16,), (4, 40), (100, 33)])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_seed_some_weights_grow_and_some_shrink(shape, seed):
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(shape))
    train_(module, seed, Trained((0,), grows=True))
    runs = [run for run in module.weight.detach().flatten().split(64) if len(run) in (64, math.prod(shape))]
    assert runs and all((run >= 2).any() and (run <= -2).any() for run in runs)


LEAK = """a = torch.sigmoid(self.a)
        h, seen = torch.zeros(len(x), 16), []
        for t in range(x.shape[1]):
            h = a * h + (1 - a) * x[:, t]
            seen.append(h)
        return torch.stack(seen, 1)"""


def leaks(last: int | None = None):
    """A moving average of a sequence, as a function of the module; last: of so many steps."""

    def forward(m, x):
        a, h, seen = torch.sigmoid(m.a), [], []
        for t in range(x.shape[1]):
            h = (h + [x[:, t]])[-(last or len(x[0])) :]
            seen.append(sum((1 - a) * a**age * step for age, step in enumerate(reversed(h))))
        return torch.stack(seen, 1)

    return forward


def test_a_recurrence_that_forgets_is_wrong_with_any_large_weights():
    init = "self.a = nn.Parameter(torch.zeros(16))"
    reference = Reference(draws_task(LEAK, "torch.randn(3, 48, 16)", init=init))
    for seed in range(1, 7):
        trial = Trial("plain", seed, grown(-seed))
        judge_function(reference, [trial], leaks(), twice=False)
        with pytest.raises(Fault):
            judge_function(reference, [trial], leaks(24), twice=False)


def test_weights_that_share_memory_are_pulled_apart_on_their_way_to_a_gpu(executor):
    init = f"{GAIN}\nself.register_buffer('shift', torch.zeros(40))"
    asked = task("return (x - self.shift) * self.gain", init)
    shared = f"{init}\nself.register_buffer('alias', self.gain.detach(), persistent=False)"
    verdict = judge(executor, asked, candidate("return launch(x, self.alias, self.shift)", shared))
    assert verdict.status == "wrong_value", verdict


# ---- attributes ----


def test_an_attribute_that_forward_leaves_is_compared(executor):
    asked = task("y = (x - self.shift) * self.gain\nself.seen = y - self.shift\nreturn y")
    ours = "y = launch(x, self.gain, self.shift)\n"
    sees = "self.seen = launch(y, torch.ones(40, device=x.device), self.shift)\n"
    early = sees.replace("launch(y,", "launch(x,")
    for middle, right in ((sees, True), ("", False), (early, False)):
        verdict = judge(executor, asked, candidate(f"{ours}{middle}return y"))
        assert verdict.correct == right, verdict


def test_what_a_reference_reads_again_is_its_own_matter(executor):
    cached = "if not hasattr(self, 'kept'):\n    self.kept = torch.zeros_like(x)\nreturn (x - self.shift) * self.gain + self.kept"
    assert judge(executor, task(cached), candidate(OURS)).correct


def test_which_attributes_are_only_left():
    class Leaving(nn.Module):
        def forward(self):
            self.left = torch.ones(2)
            self.step = torch.ones(2)
            self.other = self.step * 2
            self.count = getattr(self, "count", torch.zeros(2)) + 1
            if getattr(self, "table", None) is None:
                self.table = torch.ones(3)

    outer = nn.Sequential()
    outer.add_module("inner", Leaving())
    outer.forward = lambda: outer.inner()
    assert only_left(outer, outer) == {"inner.left", "inner.other"}
    assert type(outer.inner) is Leaving


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_what_a_hook_makes_anew_is_not_left_by_forward():
    layer = nn.utils.weight_norm(nn.Linear(4, 4))
    assert only_left(layer, lambda: layer(torch.ones(1, 4))) == frozenset()
