"""Process mode without a GPU: what its parts do is looked at with children that are made up."""

import json
from dataclasses import dataclass, field

import pytest
import torch
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from nanotriton.executor.child import process as child_process
from nanotriton.executor.judge.job import Job, Spawn
from nanotriton.executor.judge.process import launches_matter
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan import wire
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault

JOB = Job(0, Task("task", ""), "", "kernelbench", 5.0, 1 << 30)
CHILD = Spawn("process", {"trials": ["first", "second"], "launches": True}, Limits())


@dataclass
class Worker:
    """A judge's worker as far as these parts need it."""

    children: list = field(default_factory=list)

    def add_child(self, name, ended):
        self.children.append(name)

    def stage(self, name, limit):
        import contextlib

        return contextlib.nullcontext()


def answered(outputs: torch.Tensor) -> Ended:
    """The end of a child that ran one trial, twice: it gave these outputs, and left its inputs alone."""
    kept: list[torch.Tensor] = []
    calls = []
    for call in ([outputs, []], [outputs, [], {}]):
        description, tensors = wire.describe(call)
        kept += tensors
        calls.append(description)
    header = json.loads(json.dumps({"calls": calls}))
    return Ended(1, 0.1, 0.1, code=0, header=header, payload=wire.raw(kept))


def matters(ended: Ended, outputs: torch.Tensor) -> bool:
    """What `launches_matter` says of an answer, where the child without launches ended so."""
    asked = launches_matter(JOB, Worker(), CHILD, outputs)
    spawn = next(asked)
    assert spawn.args["launches"] is False and spawn.args["trials"] == ["first"]
    try:
        asked.send(ended)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it wants another child")


def test_an_answer_that_stays_without_launches_needs_none():
    right = torch.randn(8, 5)
    assert not matters(answered(right.clone()), right)
    assert matters(answered(right + 0.5), right)
    assert matters(answered(torch.full_like(right, float("nan"))), right)


def test_a_candidate_that_fails_without_its_launches_needs_them():
    failed = Ended(1, 0.1, 0.1, code=0, header={"status": "runtime_error", "message": "shapes differ"})
    assert matters(failed, torch.randn(4))
    assert matters(Ended(1, 0.1, 0.1, signal=11), torch.randn(4))


def test_want_of_memory_is_no_sign_of_a_launch():
    asked = launches_matter(JOB, Worker(), CHILD, torch.randn(4))
    next(asked)
    with pytest.raises(Fault) as fault:
        asked.send(Ended(1, 0.1, 0.1, signal=9, killed="memory_limit"))
    assert fault.value.status == "memory_limit"


def test_every_way_to_launch_gets_an_empty_grid(monkeypatch):
    grids = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, grid, warmup, **options: grids.append(grid))
    monkeypatch.setattr(CompiledKernel, "__getitem__", lambda self, grid: grids.append(grid))
    child_process.launch_nothing()
    JITFunction.run(None, 1, grid=lambda meta: (7,), warmup=False, BLOCK=4)
    JITFunction.run(None, 1, grid=(3, 2), warmup=False)
    CompiledKernel.__getitem__(None, (9, 9, 9))
    assert grids == [(0, 1, 1)] * 3
