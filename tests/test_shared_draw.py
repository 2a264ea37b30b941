"""Candidates of one task that share a draw: the same inputs, the reference computed once, a verdict for each."""

from dataclasses import dataclass

import pytest
import torch

from nanotriton.executor.gpu.vault import Vault
from nanotriton.executor.judge.reference.kept import MOST_BYTES, Kept
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.calls import Calls, calls_of, judge_calls
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.plan.trees import identical
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault
from tests.vaults import vault

SOURCE = """import torch
import torch.nn as nn

class Model(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(33))

    def forward(self, x):
        Model.calls += 1
        return torch.tanh(x) * self.scale

def get_inputs():
    return [torch.randn(8, 33)]

def get_init_inputs():
    return []
"""
TASK = Task("t", SOURCE)
ROOM = 1 << 20  # bytes


@dataclass
class Judge:
    """Judges functions of (module, x) as a worker does, and notes the inputs that they get."""

    reference: Reference
    secret: bytes = b"secret"

    def __post_init__(self):
        self.seen = []

    def status(self, candidate, draw: str | None, source: str = "") -> str:
        reference, self.seen = self.reference, []

        def run(inputs, weights):
            if reference.kept.vault is not None:
                reference.kept.vault.close()
            self.seen.append([x.clone() for x in inputs])
            with torch.no_grad():
                return candidate(reference.modules.build(weights), *inputs), {}

        with reference.kept.shared(draw):
            trials = reference.trials(self.secret, source if draw is None else draw)
            try:
                for trial in trials:
                    judge_trial(reference, trial, run)
                judge_calls(reference, calls_of(reference, trials[0])[:2], Stateless(run, trials[0].weights))
            except Fault as fault:
                return fault.status
        return "correct"


@dataclass
class Stateless:
    """Calls of a candidate that keeps nothing, as `judge_calls` asks for them."""

    run: object
    weights: int

    def calls(self, draws, training, least):
        return Calls([self.run(draw(), self.weights)[0] for draw in draws], [{} for _ in draws])


def right(model, x):
    return torch.tanh(x) * model.scale


def wrong(model, x):
    return torch.tanh(x) * model.scale * 1.01


def writes(model, x):
    """The answer is right, and afterwards the inputs are not."""
    answer = right(model, x)
    x.fill_(3.0)
    return answer


@pytest.fixture(params=["memory", "vault", "a vault that is too small"])
def judge(request) -> Judge:
    places = {"memory": None, "vault": vault(), "a vault that is too small": vault(8 << 10, 2 << 10)}
    return Judge(Reference(TASK, vault=places[request.param]))


# ---- the same inputs, and verdicts of their own ----


@pytest.mark.parametrize("order", [(right, wrong), (wrong, right), (wrong, writes, right, wrong, right)])
def test_each_candidate_of_a_draw_gets_its_own_verdict(judge, order):
    for candidate in order:
        expected = "wrong_value" if candidate is wrong else "correct"
        assert judge.status(candidate, "step 1") == expected


def test_candidates_of_a_draw_see_the_same_inputs_whatever_one_writes(judge):
    assert judge.status(writes, "step 1", "a") == "correct"
    first = judge.seen
    assert judge.status(right, "step 1", "b") == "correct"
    assert len(first) == 5 and identical(judge.seen, first)
    alone = Judge(Reference(TASK))
    alone.status(right, "step 1")
    assert identical(alone.seen, first)


def test_other_draws_and_candidates_without_one_see_other_inputs(judge):
    found = {}
    for draw, source in (("step 1", "a"), ("step 2", "a"), (None, "a"), (None, "b")):
        assert judge.status(right, draw, source) == "correct"
        found[draw, source] = judge.seen[0][0]
    values = list(found.values())
    for number, x in enumerate(values):
        assert not any(torch.equal(x, other) for other in values[:number])


def test_without_a_draw_nothing_is_kept(judge):
    judge.status(right, None, "a")
    assert not judge.reference.kept.found


# ---- the reference is computed once ----


def forwards(reference: Reference, work) -> int:
    """How often the task's own forward was called."""
    model = reference.code.names["Model"]
    model.calls = 0
    work()
    return model.calls


@pytest.mark.parametrize("place", [None, "vault"])
def test_the_reference_is_computed_once_for_a_group(place):
    judge = Judge(Reference(TASK, vault=vault() if place else None))
    judge.status(right, "step 0")  # what is found out once a task
    assert forwards(judge.reference, lambda: judge.status(right, "step 1")) > 0
    assert forwards(judge.reference, lambda: judge.status(right, "step 1")) == 0
    # what a wrong answer is forgiven is found out once too
    assert forwards(judge.reference, lambda: judge.status(wrong, "step 1")) > 0
    assert forwards(judge.reference, lambda: judge.status(wrong, "step 1")) == 0
    assert forwards(judge.reference, lambda: judge.status(right, "step 2")) > 0


def test_modules_are_constructed_once_for_a_group():
    judge, made = Judge(Reference(TASK)), []
    construct = judge.reference.modules.construct
    judge.reference.modules.construct = lambda seed: made.append(seed) or construct(seed)
    judge.status(right, "step 1")
    assert made
    made.clear()
    judge.status(right, "step 1")
    assert not made


def test_a_slow_reference_is_not_quick_because_it_was_computed_before(monkeypatch):
    """It is not asked what it is sensitive to, for the first candidate as for the others."""
    from nanotriton.executor.judge.trials import trial

    judge = Judge(Reference(TASK))
    monkeypatch.setattr(trial, "QUICK", 0.0)
    judge.status(wrong, "step 1")
    assert forwards(judge.reference, lambda: judge.status(wrong, "step 1")) == 0


# ---- what is kept, and where ----


def test_what_is_kept_is_forgotten_with_the_draw():
    kept, made = Kept(), []

    def compute():
        made.append(len(made))
        return torch.tensor(made[-1])

    for draw, expected in (("a", 0), ("a", 0), ("b", 1), ("a", 2), (None, 3), (None, 4), ("a", 2)):
        with kept.shared(draw):
            assert kept.once(("number",), compute) == expected
    kept.forget()
    with kept.shared("a"):
        assert kept.once(("number",), compute) == 5


def test_what_is_computed_on_the_way_is_not_kept_beside_it():
    kept = Kept()
    inner = lambda: kept.once(("inner",), lambda: torch.zeros(3))
    with kept.shared("a"):
        kept.once(("outer",), lambda: [inner(), inner()])
    assert list(kept.found) == [("outer",)]


@pytest.mark.parametrize(
    "value", [object(), [torch.zeros(3), object()], torch.zeros(3).to_sparse(), torch.zeros(MOST_BYTES)]
)
def test_what_is_too_large_or_unknown_is_computed_each_time(value):
    kept, made = Kept(), []
    with kept.shared("a"):
        for _ in range(2):
            assert kept.once(("x",), lambda: made.append(1) or value) is value
    assert len(made) == 2


def test_tensors_of_another_device_are_kept_beside_the_vault():
    """A reference on a GPU leaves counters and constants on the CPU."""
    kept, made = Kept(vault()), []
    outside = torch.empty(3, device="meta")
    inside = [torch.randn(2), torch.randn(3)]

    def compute():
        made.append(1)
        return [outside, inside[0].clone(), {"a": outside, "b": inside[1].clone()}, outside]

    with kept.shared("a"):
        for _ in range(3):
            first, second, third, last = kept.once(("x",), compute)
            assert first is outside and third["a"] is outside and last is outside
            assert identical([second, third["b"]], inside)
            kept.vault.close()
    assert len(made) == 1


def test_inputs_that_share_memory_are_drawn_each_time():
    kept, made = Kept(vault()), []

    def draw():
        made.append(1)
        x = torch.arange(6.0)
        return [x, x[2:]]

    with kept.shared("a"):
        for _ in range(2):
            kept.copy_of_draw(("x",), draw)
    assert len(made) == 2


def test_where_memory_cannot_be_locked_nothing_is_kept(caplog):
    def refuses(size: int):
        raise RuntimeError("cuMemCreate failed with CUDA error 801")

    judge = Judge(Reference(TASK, vault=Vault(ROOM, torch.device("cpu"), refuses, ROOM)))
    for candidate, expected in ((right, "correct"), (wrong, "wrong_value"), (right, "correct")):
        assert judge.status(candidate, "step 1") == expected
    assert len(caplog.records) == 1 and not judge.reference.kept.found


# ---- from the executor down ----

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * v + 2 * v, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
"""
DOUBLE = Task(
    "double",
    HEAD
    + """
class Model(nn.Module):
    def forward(self, x):
        return x * x + 2 * x

def get_inputs():
    return [torch.randn(4, 40)]

def get_init_inputs():
    return []
""",
)
RIGHT = HEAD + KERNEL
WRONG = RIGHT.replace("2 * v", "2.002 * v")
WRITES = RIGHT.replace("    tl.store(y", "    tl.store(x + i, 0 * v, mask=i < n)\n    tl.store(y")


def test_an_executor_judges_each_candidate_of_a_draw_by_itself(executors):
    executor = executors()
    group = {"right": RIGHT, "writes": WRITES, "wrong": WRONG, "right again": RIGHT + "# again\n"}
    errors = []
    for draw in ("step 1", "step 2", None):
        futures = {name: executor.submit(DOUBLE, source, draw) for name, source in group.items()}
        found = {name: future.result() for name, future in futures.items()}
        assert {name: verdict.status for name, verdict in found.items()} == {
            "right": "correct",
            "writes": "input_modified",
            "wrong": "wrong_value",
            "right again": "correct",
        }
        errors.append([found["right"].max_error, found["right again"].max_error])
    assert errors[0][0] == errors[0][1] and errors[1][0] == errors[1][1]
    assert errors[0] != errors[1]


def test_a_verdict_is_remembered_for_its_draw(executors):
    executor = executors()
    first = executor.submit(DOUBLE, RIGHT, "step 1")
    assert executor.submit(DOUBLE, RIGHT, "step 1") is first
    assert executor.submit(DOUBLE, RIGHT, "step 2") is not first
