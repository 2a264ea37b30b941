"""Whole files that run on a GPU, without one: their children are made up."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from nanotriton.executor.judge.candidate.job import Job
from nanotriton.executor.judge.candidate.script import answer_path, script_mode
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.script import read_answer
from nanotriton.plan import wire
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault

JOB = Job(0, Task("script", ""), "result = 1\n", "none", 5.0, 1 << 30)


@pytest.fixture
def worker(tmp_path):
    """A judge's worker as far as such files need it."""
    (tmp_path / "answers").mkdir()
    return SimpleNamespace(
        device="cuda",
        folder=str(tmp_path / "worker-1"),
        stage=lambda *_: contextlib.nullcontext(),
        add_child=lambda *_: None,
    )


def ended(seconds: float = 1.0, cpu: float = 1.0, **fields) -> Ended:
    return Ended(1, seconds, cpu, **fields)


def failed(status: str) -> Ended:
    return ended(code=0, header={"status": status, "message": "said so"})


def answered(tree) -> Ended:
    description, kept = wire.describe(tree)
    return ended(code=0, header={"tree": description, "stdout": "printed\n"}, payload=wire.raw(kept))


def outcome(worker, *ends: Ended) -> str:
    """The status of a file whose children end so, and nobody is asked for more of them."""
    mode = script_mode(JOB, worker)
    try:
        next(mode)
        for end in ends:
            mode.send(end)
    except StopIteration:
        return "correct"
    except Fault as fault:
        return fault.status
    return "it wants another child"


def test_an_answer_lies_where_the_executor_reads_it(worker, tmp_path):
    assert outcome(worker, answered({"x": torch.arange(3.0)})) == "correct"
    answer = read_answer(answer_path(str(tmp_path), JOB.source))
    assert answer.stdout == "printed\n" and answer.tree["x"].tolist() == [0, 1, 2]


def test_what_others_may_have_caused_is_tried_twice(worker):
    out_of_memory, right = failed("memory_limit"), answered([torch.ones(2)])
    slept = ended(85.0, 0.1, killed="timeout")
    killed = ended(signal=9)
    for first, status in ((out_of_memory, "memory_limit"), (slept, "timeout"), (killed, "crashed")):
        assert outcome(worker, first) == "it wants another child"
        assert outcome(worker, first, right) == "correct"
        assert outcome(worker, first, first) == status


def test_its_own_failures_are_final(worker):
    assert outcome(worker, failed("runtime_error")) == "runtime_error"
    assert outcome(worker, failed("infra_error")) == "runtime_error"  # that is not for a child to say
    assert outcome(worker, ended(85.0, 80.0, killed="timeout")) == "timeout"
    assert outcome(worker, ended(killed="memory_limit", signal=9)) == "memory_limit"
    assert outcome(worker, ended(code=0, header={"stdout": ""})) == "crashed"
