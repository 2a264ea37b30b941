"""What a task does to its worker is the task's: no candidate is blamed, other tasks are judged as ever."""

import pytest
import torch

from nanotriton.executor import Executor
from nanotriton.executor.common import probe
from nanotriton.executor.gpu import driver
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import ContextLost
from nanotriton.tasks.task import Task

RIGHT = probe.CANDIDATE
WRONG = RIGHT.replace("x * 2 + 1", "x * 2.02 + 1")
NEIGHBOUR = Task(**probe.TASK)
# The exception stands for an assertion that fails on a GPU.
LOSES = "from nanotriton.executor.judge.task.module import ContextLost"


def task(before: str, top: str = "", answer: str = "x * 2 + 1") -> Task:
    """The probe's task with a line before forward's last, and some at the top of its file."""
    source = probe.TASK["source"]
    source = source.replace("        return x * 2 + 1", f"        {before}\n        return {answer}")
    return Task("t", source.replace("class Model", f"{top}\n\nclass Model"))


@pytest.fixture(scope="module")
def executor():
    """One worker: whatever it loses, all lose."""
    with Executor(workers=1, seed=0, timeout=30.0) as executor:
        yield executor


def judged(executor: Executor, *pairs: tuple[Task, str]) -> list[tuple[str, str]]:
    futures = [executor.submit(task, source) for task, source in pairs]
    verdicts = [future.result(300) for future in futures]
    return [(v.status, v.message) for v in verdicts]


def statuses(executor: Executor, *pairs: tuple[Task, str]) -> list[str]:
    return [status for status, _ in judged(executor, *pairs)]


# ---- a context that is lost ----


def test_a_context_that_stress_has_cost_is_not_the_candidates(executor):
    """From then on the task is asked what it draws itself and nothing else, so it is judged."""
    lost = task("if x.abs().max() > 12: raise ContextLost('scaled')", LOSES)
    got = statuses(executor, (lost, RIGHT), (NEIGHBOUR, RIGHT), (lost, WRONG), (NEIGHBOUR, WRONG))
    assert got == ["correct", "correct", "wrong_value", "wrong_value"]


def test_a_context_that_only_some_draws_cost_is_not_the_candidates_either(executor):
    """The reference survives its examination. The context is lost in a trial."""
    condition = "if len(LOOKS) > 45 and x.abs().max() > 12: raise ContextLost('padded')"
    late = task(f"LOOKS.append(1)\n        {condition}", f"{LOSES}\nLOOKS = []")
    right = [(late, f"{RIGHT}# {i}\n") for i in range(12)]
    assert statuses(executor, *right, (late, WRONG)) == ["correct"] * 12 + ["wrong_value"]


def test_a_task_that_loses_the_context_on_its_own_inputs_is_unsupported(executor):
    always = task("raise ContextLost('plain')", LOSES)
    got = judged(executor, (always, RIGHT), (NEIGHBOUR, f"{RIGHT}#\n"), (always, WRONG))
    assert [status for status, _ in got] == ["unsupported", "correct", "unsupported"]
    assert "ends the GPU's context, on its own inputs" in got[0][1]


@pytest.fixture
def looks(monkeypatch) -> list[bool]:
    """Answers of the driver to whether the context is lost, as they are asked for; True once one is."""
    found = []

    def context_is_lost() -> bool:
        found.append(bool(found) and found[-1])
        return found[-1]

    monkeypatch.setattr(driver, "context_is_lost", context_is_lost)
    return found


def test_nobody_waits_for_a_gpu_after_each_call_of_the_task(looks):
    """One wait is enough, before a candidate's kernels run."""
    reference = Reference(NEIGHBOUR)
    reference.code.device = torch.device("cuda")
    for kind in ("plain", "scaled", "plain"):
        with reference.code.active_on(kind):
            pass
    assert not looks
    reference.code.settle()
    reference.code.settle()
    assert looks == [False]


def test_a_context_that_was_lost_meanwhile_is_the_tasks(looks):
    reference = Reference(NEIGHBOUR)
    reference.code.device = torch.device("cuda")
    for kind in ("plain", "scaled"):
        with reference.code.active_on(kind):
            pass
    looks.append(True)
    with pytest.raises(ContextLost) as lost:
        reference.code.settle()
    assert lost.value.kind == "scaled"
    with pytest.raises(ContextLost), reference.code.active_on("plain"):
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_reference_that_ends_its_process_is_not_the_candidates_crash(executor):
    ends = task("import os; os.kill(os.getpid(), 9)")
    got = judged(executor, (ends, RIGHT), (NEIGHBOUR, f"{RIGHT}# beside it\n"))
    assert [status for status, _ in got] == ["unsupported", "correct"]
    assert got[0][1] == "the reference itself crashes the process that runs it"


def test_a_task_that_exits_is_told_so(executor):
    status, message = judged(executor, (task("raise SystemExit(0)"), RIGHT))[0]
    assert status == "unsupported" and "the reference itself fails" in message and "SystemExit" in message


# ---- draws ----


@pytest.mark.parametrize("policy", ["strict", "kernelbench"])
def test_a_task_that_draws_is_told_so_before_its_candidates_and_with_each(executors, policy):
    executor = executors(policy=policy)
    draws = task("x = x + 0.01 * torch.randn_like(x)")
    executor.expect([draws])
    for told in (executor._known[draws.key, ""].result(300), executor.submit(draws, RIGHT).result(300)):
        assert (told.status, told.stage, told.scored) == ("unsupported", "task", False)
        assert told.message == "the reference is not deterministic: it draws random numbers in forward"


# ---- settings ----


@pytest.mark.parametrize(
    "first",
    [
        "torch.set_default_dtype(torch.float16)",
        "torch.set_default_dtype(torch.float64)",
        "torch.Tensor.__mul__ = torch.Tensor.add",
        "torch.randn = torch.rand",
    ],
)
def test_what_one_task_sets_changes_no_verdict_of_the_next(executor, first):
    """In float16 a kernel that is off by 0.1% would pass; in float64 a right one would not."""
    hostile = task("pass", first)
    after = Task("after", f"{probe.TASK['source']}# after {first}\n")
    judged(executor, (hostile, RIGHT))
    wrong = RIGHT.replace("x * 2 + 1", "x * 2.002 + 1")
    assert statuses(executor, (after, wrong), (after, RIGHT)) == ["wrong_value", "correct"]


DEFAULTS = "torch.set_default_dtype(torch.bfloat16)\ntorch.set_default_device('cuda')"
LAYER = """
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(33))
"""


def test_a_candidate_finds_the_defaults_that_its_task_has_set(executor):
    """In KernelBench it is imported after the task. Its weight is bfloat16, its result on the GPU."""
    source = task("pass", DEFAULTS, "x * self.w").source
    source = source.replace("class Model(nn.Module):", f"class Model(nn.Module):{LAYER}")
    candidate = RIGHT.replace("class ModelNew(nn.Module):", f"class ModelNew(nn.Module):{LAYER}")
    candidate = candidate.replace("x * 2 + 1", "x * tl.load(w_ptr + i % 33)")
    candidate = candidate.replace("kernel(x_ptr,", "kernel(w_ptr, x_ptr,").replace(
        "](x, y,", "](self.w, x, y,"
    )
    candidate = candidate.replace("torch.empty_like(x)", "torch.empty(x.shape)")
    assert judged(executor, (Task("defaults", source), candidate)) == [("correct", "")]
