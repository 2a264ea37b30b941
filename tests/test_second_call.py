"""A module is called twice: what the first call leaves behind must be what the reference leaves."""

import pytest

from nanotriton.executor import Executor
from nanotriton.tasks.task import Task

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n"
DRAWS = "\n\ndef get_inputs():\n    return [torch.randn(6, 40)]\n\n\ndef get_init_inputs():\n    return []\n"
COUNTED = """class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(40))

    def forward(self, x):
"""
REFERENCE = COUNTED.format(name="Model") + "        self.total += x.sum(0)\n        return x * self.total\n"
KERNEL = """@triton.jit
def kernel(x, total, y, rows, cols, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    mask = col < cols
    sums = tl.load(total + col, mask=mask, other=0.0)
    for row in range(rows):
        sums += tl.load(x + row * cols + col, mask=mask, other=0.0)
    {store}
    for row in range(rows):
        tl.store(y + row * cols + col, tl.load(x + row * cols + col, mask=mask) * sums, mask=mask)


"""
STORE = "tl.store(total + col, sums, mask=mask)"
LAUNCH = """        y = torch.empty_like(x)
        kernel[(1,)](x, self.total, y, x.shape[0], x.shape[1], BLOCK=64)
        return y
"""


def candidate(store: str = STORE, forward: str = LAUNCH) -> str:
    return HEAD + KERNEL.format(store=store) + COUNTED.format(name="ModelNew") + forward


RUNNING = Task("running_total", HEAD + REFERENCE + DRAWS)
PLAIN = Task(
    "plain",
    HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x * x.sum(0)\n" + DRAWS,
)
FILLED = Task(
    "filled",
    HEAD
    + "class Model(nn.Module):\n    def forward(self, x, y):\n        y.copy_(x * 2)\n        return x + y\n"
    + DRAWS.replace("[torch.randn(6, 40)]", "[torch.randn(6, 40), torch.randn(6, 40)]"),
)
FILLS = (
    HEAD
    + """@triton.jit
def kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    {store}
    tl.store(out + i, 3 * v, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
        return out
"""
)
KEEPS = LAUNCH.replace(
    "y = torch.empty_like(x)",
    "y = self.kept = getattr(self, 'kept', None) if hasattr(self, 'kept') else torch.empty_like(x)",
)


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, seed=0) as made:
        yield made


def test_state_that_is_updated_is_right(executor):
    verdict = executor.submit(RUNNING, candidate()).result()
    assert verdict.correct, verdict


def test_state_may_have_another_name(executor):
    source = candidate().replace(
        "self.register_buffer(", "self.inner = nn.Module()\n        self.inner.register_buffer("
    )
    source = source.replace("self.total", "self.inner.total")
    verdict = executor.submit(RUNNING, source).result()
    assert verdict.correct, verdict


def test_state_that_is_not_updated_is_wrong(executor):
    verdict = executor.submit(RUNNING, candidate(store="pass")).result()
    assert verdict.status == "wrong_value" and verdict.stage == "judge", verdict


def test_state_that_no_answer_shows_is_compared_too(executor):
    """The reference counts, and its answer does not depend on the count."""
    task = Task("hidden", RUNNING.source.replace("return x * self.total", "return x * x.sum(0)"))
    source = candidate(store="pass").replace(
        "sums = tl.load(total + col, mask=mask, other=0.0)", "sums = tl.zeros([BLOCK], tl.float32)"
    )
    verdict = executor.submit(task, source).result()
    assert (
        verdict.status == "wrong_value"
        and "after a second call of the same module, in total" in verdict.message
    ), verdict


def test_a_workspace_that_is_not_cleared_is_found_in_the_second_call(executor):
    """Here the reference has no state: the candidate's buffer is its own, and must not leak into the next answer."""
    verdict = executor.submit(PLAIN, candidate()).result()
    assert verdict.status == "wrong_value" and verdict.message.startswith("in a second call"), verdict
    cleared = candidate(forward="        self.total.zero_()\n" + LAUNCH)
    assert executor.submit(PLAIN, cleared).result().correct


def test_an_answer_in_memory_that_is_kept_for_the_next_call_is_wrong(executor):
    source = candidate(forward="        self.total.zero_()\n" + KEEPS)
    verdict = executor.submit(PLAIN, source).result()
    assert verdict.status == "wrong_value" and "is memory of an earlier call" in verdict.message, verdict


@pytest.mark.parametrize(
    "store, status", [("tl.store(y + i, 2 * v, mask=i < n)", "correct"), ("pass", "wrong_value")]
)
def test_inputs_that_the_reference_writes_to_are_required(executor, store, status):
    verdict = executor.submit(FILLED, FILLS.format(store=store)).result()
    assert verdict.status == status, verdict
    assert status == "correct" or "writes to input 1" in verdict.message


def test_a_task_that_is_known_to_keep_nothing_is_judged_as_before(executor):
    """After its first candidate the reference is called once instead of twice; the candidates still are called twice."""
    task = Task("known", PLAIN.source.replace("x * x.sum(0)", "x * x.sum(0) * 1"))
    cleared = candidate(forward="        self.total.zero_()\n" + LAUNCH)
    assert executor.submit(task, cleared).result().correct
    for _ in range(2):  # both workers know it by then
        assert executor.submit(task, cleared + "\n# once more").result().correct
    leaking = executor.submit(task, candidate()).result()
    assert leaking.message.startswith("in a second call"), leaking
    late = candidate(
        forward=LAUNCH.replace("        return y", "        self.total.zero_()\n        return y")
    )
    assert executor.submit(task, late).result().correct
