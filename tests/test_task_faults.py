"""What a task does to the worker that runs it is the task's: no candidate is blamed for it, and every other task is judged as ever."""

import pytest

from nanotriton.executor import Executor, probe
from nanotriton.tasks.task import Task

RIGHT = probe.CANDIDATE
WRONG = RIGHT.replace("x * 2 + 1", "x * 2.02 + 1")
NEIGHBOUR = Task(**probe.TASK)
DRAWS = "the reference is not deterministic: it draws random numbers in forward"


def task(before: str, top: str = "", answer: str = "x * 2 + 1") -> Task:
    source = probe.TASK["source"].replace("        return x * 2 + 1", f"        {before}\n        return {answer}")
    return Task("t", source.replace("class Model", f"{top}\n\nclass Model"))


@pytest.fixture(scope="module")
def executor():
    """One worker: whatever it loses, all lose."""
    with Executor(workers=1, seed=0, timeout=30.0) as executor:
        yield executor


def judged(executor: Executor, *pairs: tuple[Task, str]) -> list[tuple[str, str]]:
    verdicts = [future.result(300) for future in [executor.submit(task, source) for task, source in pairs]]
    return [(v.status, v.message) for v in verdicts]


LOSES = "from nanotriton.executor.reference import ContextLost"  # in place of an assertion that fails on a GPU


def test_a_context_that_stress_has_cost_is_not_the_candidates(executor):
    """From then on the task is asked what it draws itself, and nothing else; so it is judged."""
    stress_alone = task("if x.abs().max() > 12: raise ContextLost('scaled')", LOSES)
    got = judged(executor, (stress_alone, RIGHT), (NEIGHBOUR, RIGHT), (stress_alone, WRONG), (NEIGHBOUR, WRONG))
    assert [status for status, _ in got] == ["correct", "correct", "wrong_value", "wrong_value"]


def test_a_context_that_only_some_draws_cost_is_not_the_candidates_either(executor):
    """It survives examination, and is lost in a trial."""
    late = task("LOOKS.append(1)\n        if len(LOOKS) > 45 and x.abs().max() > 12: raise ContextLost('padded')", f"{LOSES}\nLOOKS = []")
    got = judged(executor, *((late, f"{RIGHT}# {i}\n") for i in range(12)), (late, WRONG))
    assert [status for status, _ in got] == ["correct"] * 12 + ["wrong_value"]


def test_a_task_that_loses_the_context_on_its_own_inputs_is_unsupported(executor):
    always = task("raise ContextLost('plain')", LOSES)
    got = judged(executor, (always, RIGHT), (NEIGHBOUR, f"{RIGHT}#\n"), (always, WRONG))
    assert [status for status, _ in got] == ["unsupported", "correct", "unsupported"]
    assert "ends the GPU's context, on its own inputs" in got[0][1]


def test_a_reference_that_ends_its_process_is_not_the_candidates_crash(executor):
    ends = task("import os; os.kill(os.getpid(), 9)")
    got = judged(executor, (ends, RIGHT), (NEIGHBOUR, f"{RIGHT}# beside it\n"))
    assert [status for status, _ in got] == ["unsupported", "correct"]
    assert got[0][1] == "the reference itself crashes the process that runs it"


@pytest.mark.parametrize("options", [{"policy": "strict"}, {"policy": "none", "mode": "process"}])
def test_a_task_that_draws_is_told_so_in_every_mode_and_before_its_candidates(executors, options):
    executor, draws = executors(**options), task("x = x + 0.01 * torch.randn_like(x)")
    executor.expect([draws])
    told = [executor._known[draws.key, ""].result(300), executor.submit(draws, RIGHT).result(300)]
    assert [(v.status, v.stage, v.message, v.scored) for v in told] == [("unsupported", "task", DRAWS, False)] * 2


@pytest.mark.parametrize("first", ["torch.set_default_dtype(torch.float16)", "torch.Tensor.__mul__ = torch.Tensor.add", "torch.set_default_dtype(torch.float64)"])
def test_what_one_task_sets_changes_no_verdict_of_the_next(executor, first):
    """An input of the default dtype would be float16, whose tolerance lets a percent pass, and a right kernel would be of another dtype."""
    hostile = task("pass", first)
    after = Task("after", f"{probe.TASK['source']}# after {first}\n")
    judged(executor, (hostile, RIGHT))
    assert [status for status, _ in judged(executor, (after, WRONG.replace("2.02", "2.002")), (after, RIGHT))] == ["wrong_value", "correct"]


DEFAULTS = "torch.set_default_dtype(torch.bfloat16)\ntorch.set_default_device('cuda')"
LAYER = "    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.randn(33))\n\n"


@pytest.mark.parametrize("options", [{"policy": "strict"}, {"policy": "none", "mode": "process"}])
def test_a_candidate_finds_the_defaults_that_its_task_has_set(executors, options):
    """As in KernelBench, where it is imported after the task."""
    source = task("pass", DEFAULTS, "x * self.w").source.replace("class Model(nn.Module):\n", f"class Model(nn.Module):\n{LAYER}")
    candidate = RIGHT.replace("class ModelNew(nn.Module):\n", f"class ModelNew(nn.Module):\n{LAYER}").replace("x * 2 + 1", "x * tl.load(w_ptr + i % 33)")
    candidate = candidate.replace("kernel(x_ptr,", "kernel(w_ptr, x_ptr,").replace("(x, y, x.numel()", "(self.w, x, y, x.numel()")
    candidate = candidate.replace("torch.empty_like(x)", "torch.empty(x.shape)")
    verdict = executors(**options).submit(Task("defaults", source), candidate).result(300)
    assert verdict.correct, verdict
