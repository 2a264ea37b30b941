"""Process mode without a GPU: what its parts do is looked at with children that are made up."""

import json
import os
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from nanotriton.executor.child import process as child_process
from nanotriton.executor.judge.candidate.job import Job, Spawn
from nanotriton.executor.judge.candidate.process import (
    further_calls,
    judge_answers,
    launches_matter,
    read_calls,
    write_trials,
)
from nanotriton.executor.judge.inputs.kinds import untrained
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan import wire
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault

JOB = Job(0, Task("task", ""), "", "kernelbench", 5.0, 1 << 30)
CHILD = Spawn("process", {"trials": [{"further": None}, "second"], "launches": True}, Limits())


@dataclass
class Worker:
    """A judge's worker as far as these parts need it."""

    children: list = field(default_factory=list)
    patience = 60.0

    def add_child(self, name, ended):
        self.children.append(name)

    def stage(self, name, limit):
        import contextlib

        return contextlib.nullcontext()


def answered(outputs: torch.Tensor) -> Ended:
    """The end of a child that ran one trial: it gave these outputs, and left its inputs alone."""
    description, kept = wire.describe([outputs, []])
    header = json.loads(json.dumps({"calls": [description], "overwritten": []}))
    return Ended(1, 0.1, 0.1, code=0, header=header, payload=wire.raw(kept))


def matters(ended: Ended, outputs: torch.Tensor) -> bool:
    """What `launches_matter` says of an answer, where the child without launches ended so."""
    asked = launches_matter(JOB, Worker(), CHILD, outputs)
    spawn = next(asked)
    assert spawn.args["launches"] is False and spawn.args["trials"] == [{"further": None}]
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


# ---- what the child does, and what the judge makes of it, on the CPU ----

HEAD = "import torch\nimport torch.nn as nn\n\n\n"
DRAWS = "\n\ndef get_inputs():\n    return [torch.randn(9, 40)]\n\n\ndef get_init_inputs():\n    return []\n"
INIT = "self.gain = nn.Parameter(torch.randn(40) * 0.1); self.register_buffer('shift', torch.randn(40))"
USUAL = "return (x - self.shift) * self.gain"


def module(name: str, forward: str, init: str = INIT) -> str:
    lines = "".join(f"        {line}\n" for line in forward.split("\n"))
    body = f"    def __init__(self):\n        super().__init__()\n        {init}\n\n    def forward(self, x):\n{lines}"
    return f"class {name}(nn.Module):\n    kept, version, calls = None, -1, 0\n\n{body}"


class Report:
    """A child's end of its pipe."""

    def stage(self, name):
        pass

    begin = lambda self: None

    def finish(self, header, payload=b""):
        self.header, self.payload = json.loads(json.dumps(header)), payload


def judged(folder, forward: str, candidate: str, own_init: str = INIT, secret: bytes = b"one") -> str | None:
    """What is wrong with a candidate, by its forward and its constructor. It runs in this process."""
    reference = Reference(Task("task", HEAD + module("Model", forward) + DRAWS))
    trials = [replace(t, weights=untrained(t.weights)) for t in reference.trials(secret, "")]
    further = further_calls(reference, trials[0])
    (folder / "candidate.py").write_text(HEAD + module("ModelNew", candidate, own_init))
    report, fd = Report(), os.memfd_create("trials")
    args = write_trials(fd, reference, trials, further)
    child_process.process_child(report, [fd], str(folder), json.loads(json.dumps(args)) | {"wait": 0.0})
    os.close(fd)
    assert "status" not in report.header, report.header
    said = read_calls(report.header, report.payload, len(further.calls), len(trials) - 1)
    try:
        judge_answers(JOB, Worker(), reference, trials, further, said)
    except Fault as fault:
        return fault.message
    return None


ONCE = (
    "if self.kept is None:\n    self.kept = self.gain.detach().clone()\nreturn (x - self.shift) * self.kept"
)
BY_VERSION = ONCE.replace("self.kept is None", "self.version != self.gain._version").replace(
    "    self.kept =", "    self.version = self.gain._version\n    self.kept ="
)
OF_THE_CLASS = BY_VERSION.replace("self.kept", "ModelNew.kept").replace("self.version", "ModelNew.version")
ONE_MEMORY = "if self.kept is None:\n    self.kept = torch.empty_like(x)\nself.kept.copy_((x - self.shift) * self.gain)\nreturn self.kept"
COUNTS = f"self.calls += 1\nif self.calls > 2:\n    return x\n{USUAL}"
MODES = f"if not self.training:\n    return x * self.gain\n{USUAL}"
LIMITED = "return (x - self.shift) * self.gain.clamp(-0.9, 0.9)"
LEAVES = f"self.seen = x * 2\n{USUAL}"


@pytest.mark.parametrize(
    "task, candidate, wrong",
    [
        (USUAL, USUAL, None),
        (USUAL, BY_VERSION, None),
        (USUAL, ONCE, "in a second call"),
        (USUAL, OF_THE_CLASS, "values differ"),
        (USUAL, ONE_MEMORY, "overwrites output 0 of call 1"),
        (USUAL, COUNTS, "in a third call"),
        (MODES, MODES, None),
        (MODES, USUAL, "in evaluation mode"),
        (LIMITED, LIMITED, None),
        (LIMITED, USUAL, "in a second call"),
        (LEAVES, LEAVES, None),
        (LEAVES, USUAL, "sets seen"),
    ],
)
def test_further_calls_are_made_and_judged(tmp_path, task, candidate, wrong):
    found = judged(tmp_path, task, candidate)
    assert found is None if wrong is None else wrong in found, found


def test_a_number_that_the_constructor_read_knows_of_no_training(tmp_path):
    forward = "return (x - self.shift) * self.gain.mean()"
    for kept in ("self.mean = self.gain.mean().item()", "self.many = [{'mean': self.gain.mean().item()}]"):
        number = "self.mean" if "many" not in kept else "self.many[0]['mean']"
        own = f"return (x - self.shift) * {number}"
        assert judged(tmp_path, forward, own, f"{INIT}; {kept}") is None
    a_tensor = judged(
        tmp_path, forward, "return (x - self.shift) * self.mean", f"{INIT}; self.mean = self.gain.mean()"
    )
    assert "in a second call" in a_tensor


def test_a_module_with_other_names_is_not_trained():
    model = nn.Linear(3, 3)
    assert not child_process.put_in(model, {"gain": torch.ones(40)}, {})
    assert not child_process.put_in(model, {"bias": torch.ones(4)}, child_process.snapshot(model))


def test_what_forward_changes_itself_is_left_as_it_is():
    model = nn.BatchNorm1d(3)
    before = child_process.snapshot(model)
    model.running_mean.fill_(7)
    given = {"running_mean": torch.zeros(3), "weight": torch.full((3,), 2.0)}
    assert child_process.put_in(model, given, before)
    assert (model.running_mean == 7).all() and (model.weight == 2).all()


def test_an_answer_of_another_form_is_no_answer():
    description, kept = wire.describe([torch.ones(3), []])
    header = {"calls": [description], "overwritten": []}
    assert read_calls(header, wire.raw(kept), 0, 0).further == []
    for broken, further in ((header, 1), ({"calls": [description]}, 0), (header | {"overwritten": [[1]]}, 0)):
        with pytest.raises(Fault, match="the process"):
            read_calls(broken, wire.raw(kept), further, 0)
