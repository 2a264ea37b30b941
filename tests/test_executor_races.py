"""Moments at which a process dies just before the supervisor turns to it: the supervisor lives, and so does every verdict."""

import errno
import os
import signal
from types import SimpleNamespace

import pytest

from nanotriton.config import ConfigError
from nanotriton.executor import Executor, supervisor
from nanotriton.executor.common import probe
from nanotriton.executor.judge import worker
from nanotriton.executor.sandbox import forks
from nanotriton.executor.sandbox.protocol import BEACON
from nanotriton.tasks.task import Task
from tests.test_executor_deaths import PATIENCE, grandchildren, wait_for

slow = pytest.mark.slow
TASK = Task(**probe.TASK)


def kill(pid: int) -> None:
    """Kill a child of this process and wait for its end, leaving it to be reaped by whom it belongs to."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@slow
def test_a_base_that_dies_as_it_is_asked_for_a_worker(monkeypatch):
    real, asked = supervisor.ask_for_worker, []

    def ask(base, *rest):
        asked.append(base.popen.pid)
        if len(asked) == 1:
            kill(base.popen.pid)
        return real(base, *rest)

    monkeypatch.setattr(supervisor, "ask_for_worker", ask)
    with Executor(workers=1) as ex:
        assert ex.submit(TASK, probe.CANDIDATE).result(PATIENCE).correct
    assert len(set(asked)) == 2


@slow
def test_an_overdue_worker_that_is_gone_already(monkeypatch):
    """Between the look at its beacon and the kill it may have died and been reaped."""
    with Executor(workers=1) as ex:
        assert ex.submit(TASK, probe.CANDIDATE).result(PATIENCE).correct
        hanging = probe.CANDIDATE.replace("        y = torch", "        while True: pass\n        y = torch")
        tried, real = [], os.kill

        def gone(pid, signum):
            real(pid, signum)
            tried.append(pid)
            raise ProcessLookupError

        future = ex.submit(TASK, hanging)
        busy = wait_for(
            lambda: [p for p in list(ex.supervisor.workers) if p.pid and p.entries], "a worker that has it"
        )
        wait_for(lambda: grandchildren(ex, busy[0].pid), "its child")
        monkeypatch.setattr(supervisor.os, "kill", gone)
        BEACON.pack_into(busy[0].beacon, 0, next(iter(busy[0].entries)), 1.0, b"run")
        assert future.result(PATIENCE).status == "timeout"
        monkeypatch.undo()
        assert tried == [busy[0].pid]
        assert ex.submit(TASK, probe.CANDIDATE + "# again\n").result(PATIENCE).correct


@slow
def test_others_accidents_are_no_failure_where_work_gets_done(monkeypatch):
    """A candidate that takes its whole limit is run again whenever its worker dies of another one, as often as that may be."""
    monkeypatch.setattr(supervisor, "RESTARTS", 1)
    hanging = probe.CANDIDATE.replace("        y = torch", "        while True: pass\n        y = torch")
    with Executor(workers=1, timeout=8.0) as ex:
        future = ex.submit(TASK, hanging)
        for i in range(4):
            assert ex.submit(TASK, f"{probe.CANDIDATE}# {i}\n").result(PATIENCE).correct
            busy = wait_for(
                lambda: [p for p in list(ex.supervisor.workers) if p.pid and len(p.entries) == 1],
                "a worker that has it",
            )
            os.kill(busy[0].pid, signal.SIGKILL)
            wait_for(lambda b=busy[0]: b not in ex.supervisor.workers, "the supervisor to see it")
        assert future.result(PATIENCE).status == "timeout"


@slow
def test_a_supervisor_that_fails_says_so(monkeypatch):
    """Whatever it fails of: no candidate waits for ever, no more are taken, and closing is still possible."""

    def fail(*_):
        raise RuntimeError("on purpose")

    ex = Executor(workers=1)
    monkeypatch.setattr(ex.supervisor, "_dispatch", fail)
    monkeypatch.setattr("threading.excepthook", lambda args: None)
    assert ex.submit(TASK, probe.CANDIDATE).result(PATIENCE).status == "infra_error"
    ex._thread.join(PATIENCE)
    with pytest.raises(RuntimeError, match="closed"):
        ex.submit(TASK, probe.CANDIDATE + "# more\n")
    ex.close()
    assert not os.path.exists(ex.root)


def failing(times: int, real):
    """`real`, which at first finds so often that there is nothing left of what it needs."""
    failures = [OSError(errno.EMFILE, "Too many open files")] * times

    def call(*args):
        if failures:
            raise failures.pop()
        return real(*args)

    return call


@slow
def test_a_machine_that_has_nothing_left_for_a_moment_costs_no_verdict(monkeypatch):
    for name in ("start_base", "ask_for_worker", "memory_file", "own_time"):
        monkeypatch.setattr(supervisor, name, failing(2, getattr(supervisor, name)))
    monkeypatch.setattr(supervisor, "IDLE_LOOK", 0.01)
    with Executor(workers=1) as ex:
        assert ex.submit(TASK, probe.CANDIDATE).result(PATIENCE).correct


def test_a_machine_that_has_nothing_left_is_an_infrastructure_failure(monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "start_base", failing(1000, None))
    monkeypatch.setattr(supervisor, "IDLE_LOOK", 0.001)
    monkeypatch.setattr(supervisor, "SHORT", 0.0)
    with Executor(workers=1) as ex:
        for i in range(2):
            verdict = ex.submit(TASK, f"# {i}").result(PATIENCE)
            assert verdict.status == "infra_error" and "Too many open files" in verdict.message
    assert "executor: [Errno 24] Too many open files; it tries again" in caplog.text


def test_a_fork_waits_for_a_process_to_be_had(monkeypatch):
    monkeypatch.setattr(forks.os, "fork", failing(3, lambda: 7))
    monkeypatch.setattr(forks, "AGAIN", 0.0)
    assert forks.fork() == 7
    monkeypatch.setattr(forks.os, "fork", failing(3, lambda: 7))
    monkeypatch.setattr(forks, "PATIENCE", -1.0)
    with pytest.raises(OSError, match="Too many"):
        forks.fork()


@pytest.mark.parametrize(
    ("error", "suspected"), [(OSError(errno.ENOSPC, "full"), False), (KeyError(7), True)]
)
def test_a_full_disk_makes_no_candidate_suspect(monkeypatch, error, suspected):
    judge = object.__new__(worker.Worker)
    judge.beacon, judge.last = bytearray(BEACON.size), "run"

    def fail(*_):
        raise error

    monkeypatch.setattr(judge, "resume", fail)
    with pytest.raises(type(error)):
        judge.step(worker.Running(SimpleNamespace(id=3), None, ""), None)
    job, due, _ = BEACON.unpack_from(judge.beacon)
    assert (job == 3 and due > 0) == suspected


def test_a_verdict_of_a_candidate_that_was_given_up_is_no_news():
    process = SimpleNamespace(entries={}, alone=True, finished=0)
    supervisor.Supervisor._worker_says(None, process, {"job": 7, "verdict": {"status": "correct"}})
    assert process.finished == 1 and not process.alone


def test_an_executor_without_a_thread_or_a_folder_is_one_line_and_leaves_nothing(monkeypatch, tmp_path):
    def none_left(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("threading.Thread.start", none_left)
    with pytest.raises(ConfigError, match="the executor does not start: can't start new thread"):
        Executor(workers=1)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"the executor's temporary folder can't be made: .* No such file"):
        Executor(workers=1)
