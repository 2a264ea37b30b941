"""A limit counts what a process takes, not what it waits for a core: under load the same kernel is in time."""

import contextlib
import errno
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.judge import worker as workers
from nanotriton.executor.judge.candidate.runner import Runner
from nanotriton.executor.phases import Phases
from nanotriton.executor.replay.replayer import ReplayError
from nanotriton.executor.sandbox import clock, zygote
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.executor.supervisor import workers_and_depth
from nanotriton.verdict import Fault, Unrecordable


def test_a_process_that_waits_for_a_core_is_told_by_the_kernel():
    assert clock.waited() >= 0 and clock.waited(os.getpid()) >= 0
    assert clock.waited(2**22 + 1) == 0  # no such process
    before = clock.own_time()
    assert before <= time.monotonic() and clock.own_time() >= before


def test_a_clock_without_files_does_not_jump(monkeypatch):
    """Its own file stays open. Of another process 0 s would be a lie: what runs there would be late by far."""
    before = clock.own_time()

    def none_left(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(clock.os, "open", none_left)
    assert before <= clock.own_time() <= before + 60
    with pytest.raises(OSError, match="Too many"):
        clock.waited(os.getpid())


def test_a_fork_has_a_clock_of_its_own():
    clock.waited()  # its file is open here
    child = os.fork()
    if not child:
        waits = clock.waited(os.getpid())
        os._exit(not clock.waited() >= waits)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_that_ended_in_time_is_not_late_because_its_zygote_is():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    child = zygote.Child(1, pid, started=0.0, limits=Limits(seconds=1.0), folder="")
    pidfd = os.pidfd_open(pid)
    zygote.look_at({pidfd: child})
    os.close(pidfd)
    os.waitpid(pid, 0)
    assert child.killed is None


@pytest.mark.parametrize(("without_a_core", "late"), [(0.0, True), (4.5, True), (7.0, False)])
def test_a_child_has_its_seconds_for_itself(monkeypatch, without_a_core, late):
    monkeypatch.setattr(zygote, "waited", lambda pid: without_a_core)
    child = zygote.Child(1, 1, started=100.0, limits=Limits(seconds=5.0), folder="", slow=True)
    assert zygote.overdue(child, 104.9) is None
    assert zygote.overdue(child, 110.5) == ("timeout" if late else None)
    assert child.due() == 105.0 + without_a_core  # so the zygote sleeps until then


def stage_of(monkeypatch, left: float, own: float):
    """A worker in a stage with so many seconds left, of which it has taken `own`; what its alarm is set to."""
    alarms: list[float] = []
    monkeypatch.setattr(workers.signal, "setitimer", lambda which, seconds: alarms.append(seconds))
    monkeypatch.setattr(workers, "own_time", lambda: 50.0 + own)
    worker = object.__new__(workers.Worker)
    worker.stages, worker.since = [workers.Stage("run", left)], 50.0
    return worker, alarms


def test_an_alarm_that_load_made_early_is_set_again(monkeypatch):
    worker, alarms = stage_of(monkeypatch, left=10.0, own=4.0)
    worker._alarm()
    assert alarms == [pytest.approx(6.0)]
    worker, alarms = stage_of(monkeypatch, left=10.0, own=10.0)
    with pytest.raises(workers.Overtime):
        worker._alarm()
    assert not alarms


@pytest.mark.parametrize(("status", "kind"), [("unsupported", Unrecordable), ("out_of_bounds", Fault)])
def test_what_a_replay_lacks_another_mode_may_have(status, kind):
    runner = object.__new__(Runner)
    runner.worker = SimpleNamespace(stage=lambda name, limit: contextlib.nullcontext())
    runner.job, runner.replay = SimpleNamespace(timeout=1.0, memory=1), SimpleNamespace(forget=lambda: None)
    with pytest.raises(Fault) as caught, runner.running():
        raise ReplayError(status, "an operation")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("policy", "mode", "goes_on"),
    [
        ("kernelbench", None, True),
        ("none", None, True),
        ("strict", None, False),
        ("kernelbench", "replay", False),
    ],
)
def test_the_fallback_is_for_policies_that_need_no_plan(policy, mode, goes_on):
    phases = Phases("cuda", mode, policy)
    assert phases.after("replay", "unsupported", fallback=True) == ("process" if goes_on else None)
    assert phases.after("replay", "unsupported", fallback=False) is None


@pytest.mark.parametrize(("gib", "workers", "wanted"), [(139, 15, 15), (24, 15, 6), (24, 3, 3), (2, 15, 1)])
def test_a_small_gpu_has_room_for_few_contexts(gib, workers, wanted):
    assert workers_and_depth("cuda", workers, 3, replace(DEFAULT, total_memory=gib << 30)) == (wanted, 1)
