"""A module is called again and again: its answers keep their memory, a third call is right as well, and weights
that are trained in between are the ones that count."""

import pytest

from nanotriton.executor import Executor
from nanotriton.tasks.task import Task

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n"
DRAWS = "\n\ndef get_inputs():\n    return [torch.randn(9, 40)]\n\n\ndef get_init_inputs():\n    return []\n"
KERNEL = """@triton.jit
def squared(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * v * scale, mask=i < n)


def launch(x, y, scale=1.0):
    squared[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), scale, BLOCK=64)
    return y


"""
CLASS = "class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n\n"
SQUARE = Task(
    "square", HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x * x\n" + DRAWS
)


def module(name: str, init: str, forward: str) -> str:
    """Lines of forward, in which two blanks indent a block."""
    body = "".join(f"        {line}\n" for line in forward.split("\n"))
    return CLASS.format(name=name, init=init) + "    def forward(self, x):\n" + body


def candidate(forward: str, init: str = "self.kept = []", kernel: str = KERNEL) -> str:
    return HEAD + kernel + module("ModelNew", init, forward)


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, seed=0) as made:
        yield made


@pytest.fixture
def judge(executor):
    return lambda task, source: executor.submit(task, source).result()


# ---- the memory of answers ----

IN_TURNS = """if len(self.kept) < 2:
    self.kept.append(torch.empty_like(x))
    return launch(x, self.kept[-1])
self.kept.reverse()
return launch(x, self.kept[0])"""
POOL = """if not self.kept:
    self.kept = list(torch.empty(4, *x.shape, device=x.device).unbind())
return launch(x, self.kept.pop())"""
LAST_AS_SCRATCH = """last = self.kept[-1] if self.kept else torch.empty_like(x)
launch(x, last, 3.0)
self.kept.append(torch.empty_like(x))
return launch(x, self.kept[-1])"""
WORKSPACE = """if not self.kept:
    self.kept.append(torch.empty_like(x))
launch(x, self.kept[0], 3.0)
return launch(x, torch.empty_like(x))"""


@pytest.mark.parametrize(
    "forward, message",
    [
        (IN_TURNS, "is memory of an earlier call"),
        (POOL, "is memory of an earlier call"),
        (LAST_AS_SCRATCH, "a later call of the same module overwrites output 0 of call 1"),
    ],
    ids=["two in turns", "a pool", "the last answer as scratch memory"],
)
def test_an_answer_keeps_its_memory(judge, forward, message):
    verdict = judge(SQUARE, candidate(forward))
    assert verdict.status == "wrong_value" and message in verdict.message, verdict


def test_a_workspace_may_be_kept(judge):
    verdict = judge(SQUARE, candidate(WORKSPACE))
    assert verdict.correct, verdict


def test_where_the_reference_gives_its_own_memory_so_may_the_candidate(judge):
    init = 'self.register_buffer("out", torch.zeros(9, 40))'
    reference = module("Model", init, "self.out.copy_(x * x)\nreturn self.out")
    task = Task("own_memory", HEAD + reference + DRAWS)
    verdict = judge(task, candidate("return launch(x, self.out)", init))
    assert verdict.correct, verdict


# ---- a third call ----

FIRST_AGAIN = """if len(self.kept) > 1:
    y = torch.empty_like(x)
    launch(x, y, 2.0)
    return y
self.kept.append(1)
return launch(x, torch.empty_like(x))"""
COUNTS = KERNEL.replace(
    "tl.store(y + i, v * v * scale, mask=i < n)",
    """calls = tl.load(count)
    tl.store(y + i, tl.where(calls < 2, v * v, v), mask=i < n)""",
).replace("def squared(x, y,", "def squared(x, y, count,")
COUNTS += "@triton.jit\ndef more(count):\n    tl.store(count, tl.load(count) + 1)\n\n\n"
COUNTED = """y = torch.empty_like(x)
squared[(triton.cdiv(x.numel(), 64),)](x, y, self.count, x.numel(), 1.0, BLOCK=64)
more[(1,)](self.count)
return y"""


@pytest.mark.parametrize(
    "source",
    [
        candidate(FIRST_AGAIN),
        candidate(COUNTED, "self.register_buffer('count', torch.zeros(1, dtype=torch.int32))", COUNTS),
    ],
    ids=["counted by Python", "counted on the GPU"],
)
def test_what_is_wrong_from_the_third_call_on(judge, source):
    verdict = judge(SQUARE, source)
    assert verdict.status == "wrong_value" and verdict.message.startswith("in a third call"), verdict


def test_a_third_call_without_a_kernel_breaks_the_rules(judge):
    forward = (
        "if len(self.kept) < 2:\n  self.kept.append(launch(x, torch.empty_like(x)))\nreturn self.kept[-1]"
    )
    verdict = judge(SQUARE, candidate(forward))
    assert verdict.status == "rule_violation" and "third call" in verdict.message, verdict


def test_a_call_that_the_module_refuses_is_an_error(judge):
    verdict = judge(
        SQUARE,
        candidate(FIRST_AGAIN.replace("    y = torch", "    raise ValueError('enough')\n    y = torch")),
    )
    assert verdict.status == "runtime_error" and "enough" in verdict.message, verdict


def test_calls_that_do_the_same_in_another_order_are_right(judge):
    forward = """self.kept.append(x.shape)
if len(self.kept) % 2:
    launch(x, torch.empty_like(x), 3.0)
return launch(x, torch.empty_like(x))"""
    verdict = judge(SQUARE, candidate(forward))
    assert verdict.correct, verdict


# ---- training between two calls ----

GAIN = "self.gain = nn.Parameter(torch.randn(40)); self.scale = nn.Parameter(torch.tensor(1.5))"
GAINED = Task("gained", HEAD + module("Model", GAIN, "return x * torch.tanh(self.gain) * self.scale") + DRAWS)
MULTIPLY = """@triton.jit
def squash(gain, table, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    g = tl.load(gain + i, mask=i < n, other=0.0)
    tl.store(table + i, 1 - 2 / (tl.exp(2 * g) + 1), mask=i < n)


@triton.jit
def multiply(x, table, scale, y, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n) * tl.load(table + i, mask=i < n) * tl.load(scale)
    tl.store(y + row * n + i, v, mask=i < n)


def squashed(gain):
    table = torch.empty_like(gain)
    squash[(1,)](gain, table, gain.numel(), BLOCK=64)
    return table


def multiplied(x, table, scale):
    y = torch.empty_like(x)
    multiply[(x.shape[0],)](x, table, scale, y, x.shape[1], BLOCK=64)
    return y


"""
EACH_TIME = "return multiplied(x, squashed(self.gain), self.scale)"
ONCE = """if self.table is None:
    self.table = squashed(self.gain)
return multiplied(x, self.table, self.scale)"""
COPIED = """if self.table is None:
    self.table = self.gain.clone()
return multiplied(x, squashed(self.table), self.scale)"""
BY_VERSION = """version = self.gain._version
if version not in self.tables:
    self.tables = {version: squashed(self.gain)}
return multiplied(x, self.tables[version], self.scale)"""
NUMBER = "return multiplied(x, squashed(self.gain), torch.full((1,), float(self.scale), device=x.device))"
NUMBER_ONCE = ONCE.replace("self.scale)", "torch.full((1,), float(self.scale), device=x.device))")
STALE = "in a second call of the same module"


def gained(forward: str, names: bool = True) -> str:
    init = GAIN + "; self.table = None; self.tables = {}"
    if not names:
        init = init.replace("self.gain", "self.weight").replace("self.scale", "self.factor")
        forward = forward.replace("self.gain", "self.weight").replace("self.scale", "self.factor")
    return candidate(forward, init, MULTIPLY)


@pytest.mark.parametrize("names", [True, False], ids=["the task's names", "other names"])
@pytest.mark.parametrize(
    "forward, right",
    [
        (EACH_TIME, True),
        (ONCE, False),
        (COPIED, False),
        (BY_VERSION, True),
        (NUMBER, True),
        (NUMBER_ONCE, False),
    ],
    ids=["each time", "once", "copied", "by version", "a number", "a number, and once"],
)
def test_what_is_kept_of_a_weight_is_stale_after_training(judge, forward, right, names):
    verdict = judge(GAINED, gained(forward, names))
    assert verdict.correct if right else verdict.message.startswith(STALE), verdict


def test_a_module_with_state_is_trained_too(judge):
    """The running count is the reference's own matter; the weight beside it is trained."""
    init = GAIN + '; self.register_buffer("total", torch.zeros(40))'
    forward = "self.total += (x > 0).sum(0)\nreturn x * torch.tanh(self.gain) * self.scale + self.total"
    task = Task("gained_and_summed", HEAD + module("Model", init, forward) + DRAWS)
    kernel = (
        MULTIPLY.replace(
            "v = tl.load(x + row * n + i, mask=i < n) *",
            "v = tl.load(x + row * n + i, mask=i < n, other=0.0) *",
        )
        + """@triton.jit
def add(x, total, y, rows, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    sums = tl.load(total + i, mask=i < n)
    for row in range(rows):
        sums += tl.load(x + row * n + i, mask=i < n) > 0
    tl.store(total + i, sums, mask=i < n)
    for row in range(rows):
        tl.store(y + row * n + i, tl.load(y + row * n + i, mask=i < n) + sums, mask=i < n)


"""
    )
    for body, right in ((EACH_TIME, True), (ONCE, False)):
        body = body.replace("return ", "y = ")
        body += "\nadd[(1,)](x, self.total, y, x.shape[0], x.shape[1], BLOCK=64)\nreturn y"
        verdict = judge(task, candidate(body, init + "; self.table = None", kernel))
        assert verdict.correct if right else verdict.message.startswith(STALE), verdict


def test_a_reference_that_keeps_something_of_its_weights_is_not_trained_in_between(judge):
    """Else nobody could be right who computes it anew."""
    forward = """if self.table is None:
    self.table = [torch.tanh(self.gain)]
return x * self.table[0] * self.scale"""
    task = Task("keeps", HEAD + module("Model", GAIN + "; self.table = None", forward) + DRAWS)
    for body in (EACH_TIME, ONCE):
        verdict = judge(task, gained(body))
        assert verdict.correct, verdict


# ---- memory that nobody has written ----

LOOKS = KERNEL.replace(
    "tl.store(y + i, v * v * scale, mask=i < n)",
    """old = tl.load(y + i, mask=i < n, other=0.0)
    tl.store(y + i, tl.where({condition}, v * v, v * v * 1.5), mask=i < n)""",
)


@pytest.mark.parametrize("condition", ["old != old", "(old != old) | (tl.abs(old) > 1e4)"])
def test_who_looks_for_what_unwritten_memory_holds(executor, condition):
    """It is a NaN in the trials, and numbers in further calls: a usual one and a large one."""
    source = candidate("return launch(x, torch.empty_like(x))", kernel=LOOKS.format(condition=condition))
    verdicts = [executor.submit(SQUARE, f"{source}\n# {i}\n").result() for i in range(4)]
    assert {verdict.status for verdict in verdicts} == {"wrong_value"}, verdicts
