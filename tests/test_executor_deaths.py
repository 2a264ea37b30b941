"""Any process of the executor may be killed at any moment: every verdict is still right, and nothing is left behind."""

import hashlib
import math
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from nanotriton.executor import Executor, base
from nanotriton.executor.common import probe
from nanotriton.executor.judge.candidate.job import check_ended, not_its_own
from nanotriton.executor.processes import make_root
from nanotriton.executor.sandbox import files, sandbox
from nanotriton.executor.sandbox import zygote as zygotes
from nanotriton.executor.sandbox.protocol import BEACON, MESSAGE_BYTES, pair, receive, send
from nanotriton.executor.sandbox.zygote import Zygote
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault

TASK = Task(**probe.TASK)
RIGHT = probe.CANDIDATE
WRONG = RIGHT.replace("x * 2 + 1", "x * 2 + 2")
HANGING = RIGHT.replace("        y = torch", "        while True: pass\n        y = torch")
PATIENCE = 120  # seconds; on a loaded machine imports alone take 30


def processes(group: int) -> dict[int, int]:
    """{pid: parent's pid} of the living processes of a process group."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, pgrp = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
        except (OSError, IndexError):
            continue
        if int(pgrp) == group and state not in "ZX":
            found[int(folder.name)] = int(parent)
    return found


def level(pid: int, parents: dict[int, int]) -> int:
    """0 base, 1 worker, 2 zygote, 3 child."""
    return 1 + level(parents[pid], parents) if parents.get(pid) in parents else 0


def wait_for(condition, what: str):
    """Poll until `condition()` holds something true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        select.select([], [], [], 0.01)
    return found


def at_level(executor: Executor, wanted: int) -> int | None:
    for group in list(executor.supervisor.groups):
        parents = processes(group)
        for pid in parents:
            if level(pid, parents) == wanted:
                return pid
    return None


def test_close_returns_when_every_process_is_gone():
    executor = Executor(workers=1)
    future = executor.submit(TASK, HANGING)
    wait_for(lambda: at_level(executor, 3), "a child")
    groups = list(executor.supervisor.groups)
    executor.close()
    assert not any(map(processes, groups))
    assert future.result(timeout=1).status == "infra_error"


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=1, seed=0, timeout=30.0) as executor:
        assert executor.submit(TASK, RIGHT).result().correct
        yield executor


@pytest.mark.parametrize("victim", ["worker", "zygote", "child", "base"])
def test_kill_minus_9_costs_no_verdict(executor, victim):
    sources = [(RIGHT if i % 3 else WRONG) + f"# {victim} {i}\n" for i in range(9)]
    wanted = {"base": 0, "worker": 1, "zygote": 2, "child": 3}[victim]
    futures = [executor.submit(TASK, source) for source in sources]
    pid = wait_for(lambda: at_level(executor, wanted), f"a {victim}")
    os.kill(pid, signal.SIGKILL)
    assert [f.result(PATIENCE).status for f in futures] == [
        "correct" if i % 3 else "wrong_value" for i in range(9)
    ]


def test_a_candidate_that_kills_its_workers_is_at_fault(executor):
    """Two workers die while, as their beacons say, they compute it. A candidate known to be right is fine: so it has crashed."""
    future = executor.submit(TASK, HANGING + "# suspect\n")
    for _ in range(2):
        process = wait_for(
            lambda: next((p for p in list(executor.supervisor.workers) if p.pid and p.entries), None),
            "a worker that has it",
        )
        wait_for(lambda p=process: grandchildren(executor, p.pid), "its child")
        BEACON.pack_into(process.beacon, 0, next(iter(process.entries)), time.monotonic() + 1000, b"run")
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda p=process: p not in executor.supervisor.workers, "the supervisor to see it")
    verdict = future.result(PATIENCE)
    assert verdict.status == "crashed" and "twice" in verdict.message


def test_an_overdue_worker_is_killed_and_its_candidate_timed_out(executor):
    """A worker that misses its own alarm, as in one long native call."""
    future = executor.submit(TASK, HANGING + "# overdue\n")
    process = wait_for(
        lambda: next((p for p in list(executor.supervisor.workers) if p.pid and p.entries), None),
        "a worker that has it",
    )
    wait_for(lambda: grandchildren(executor, process.pid), "its child")
    BEACON.pack_into(process.beacon, 0, next(iter(process.entries)), 1.0, b"run")
    assert future.result(PATIENCE).status == "timeout"
    wait_for(lambda: not Path(f"/proc/{process.pid}/cwd").exists(), "its end")


def grandchildren(executor: Executor, pid: int) -> list[int]:
    parents = processes(executor.supervisor.groups[0])
    return [p for p in parents if parents.get(parents[p]) == pid]


SCRIPT = """
import sys
from nanotriton.executor import Executor
from nanotriton.executor.common import probe
from nanotriton.executor.sandbox import sandbox
from nanotriton.tasks.task import Task
executor = Executor(workers=1, timeout=100.0)
futures = [executor.submit(Task(**probe.TASK), sys.argv[1] + f"# {i}") for i in range(4)]
executor.submit(Task(**probe.TASK), "syntax error").result()
print(executor.supervisor.groups[0], executor.root, flush=True)
try:
    futures[0].result()
except KeyboardInterrupt:
    executor.close()
    print("closed", flush=True)
"""


# SIGTERM ends it as SIGKILL does
@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_nothing_outlives_the_parent(signum):
    """However the trainer's process ends, with four candidates in endless loops: no process and no folder is left."""
    root = Path(__file__).resolve().parents[1]
    script = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), HANGING], stdout=subprocess.PIPE, text=True, cwd=root
    )
    group, folder = script.stdout.readline().split()
    group, folder = int(group), Path(folder)
    wait_for(lambda: any(level(p, t) == 3 for t in [processes(group)] for p in t), "a hanging child")
    assert folder.is_dir()
    script.send_signal(signum)
    rest, _ = script.communicate(timeout=PATIENCE)
    assert rest == ("closed\n" if signum == signal.SIGINT else "")
    wait_for(lambda: not processes(group), "every process to end")
    wait_for(lambda: not folder.exists(), "the folder to go")


def an_executor_that_hangs_up(root: Path, hung_up: int, may_end: int) -> None:
    """An executor's process with a base, which notes that its executor has hung up. It never returns."""
    ours, theirs = pair()
    executor = os.getpid()
    if not os.fork():
        ours.close()
        os.setsid()  # a base ends its whole group

        def serve(control, *_):
            assert receive(control) == (None, [])
            os.write(hung_up, b"x")

        base.serve = serve
        base.base_main(theirs.detach(), executor, "record", str(root), {})
        os._exit(0)
    ours.close()
    theirs.close()
    os.read(may_end, 1)
    os._exit(0)


def test_a_base_sees_its_executor_end_however_long_that_takes(tmp_path):
    """A process that ends closes its files first. The base that saw that, and its executor still there, left the folder."""
    root = tmp_path / "root"
    root.mkdir()
    (ended, hung_up), (may_end, end) = os.pipe(), os.pipe()
    executor = os.fork()
    if not executor:
        an_executor_that_hangs_up(root, hung_up, may_end)
    os.close(hung_up)
    assert os.read(ended, 1) == b"x"
    assert root.exists()
    os.write(end, b"x")
    os.waitpid(executor, 0)
    wait_for(lambda: not root.exists(), "the folder to go")
    for fd in (ended, may_end, end):
        os.close(fd)


def test_folders_of_dead_executors_are_swept(tmp_path, monkeypatch):
    """When every process is killed at once nobody is left to clean up: the next executor does, and spares the living."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Executor(workers=1) as living:
        stale = tmp_path / "nanotriton-executor-stale"
        stale.mkdir()
        (stale / "lock").touch()
        (stale / "worker-1").mkdir()
        with Executor(workers=1) as other:
            assert not stale.exists()
            assert Path(living.root).is_dir() and Path(other.root).is_dir()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_user_is_left_alone(tmp_path, monkeypatch):
    """All users have one /tmp, and one of them may have put there what no open comes back from."""
    theirs = tmp_path / "nanotriton-executor-theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "lock")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    _, lock = make_root()
    os.close(lock)
    assert theirs.is_dir()


def test_a_base_that_does_not_start_is_an_infrastructure_failure(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Executor(workers=1) as executor:
        verdict = executor.submit(TASK, RIGHT).result(PATIENCE)
    assert verdict.status == "infra_error" and "does not start" in verdict.message


def leave_a_stray(report, fds, folder, args):
    """A child that may fork, and leaves a process that never ends."""
    if not os.fork():
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        while True:
            select.select([], [], [], 1000)
    report.finish({"left": True})


def test_a_zygote_kills_what_its_children_leave(tmp_path):
    (tmp_path / "job").mkdir()
    zygote = Zygote({"stray": leave_a_stray}, files.readable_paths())
    try:
        zygote.spawn("stray", str(tmp_path / "job"), {}, sandbox.Limits(), exec_ok=True)
        assert zygote.event() is None  # it has started
        ended = zygote.event()
        assert ended.header == {"left": True} and ended.code == 0
        assert not [p for p, parent in processes(os.getpgrp()).items() if parent == zygote.pid]
    finally:
        zygote.sock.close()
        os.waitpid(zygote.pid, 0)


def crowd(report, fds, folder, args):
    """Starts threads that compute outside of Python."""
    report.begin()
    more = {"target": hashlib.pbkdf2_hmac, "args": ("sha256", b"x", b"y", 1 << 30), "daemon": True}
    for _ in range(args["threads"]):
        threading.Thread(**more).start()
    if args["threads"] < sandbox.Limits.threads:
        report.finish({"started": args["threads"]})
    else:
        select.select([], [], [])


@pytest.mark.parametrize("count", [sandbox.Limits.threads // 2, sandbox.Limits.threads + 8])
def test_threads_have_a_limit(tmp_path, count):
    (tmp_path / "job").mkdir()
    zygote, limits = Zygote({"crowd": crowd}, files.readable_paths()), sandbox.Limits(seconds=30.0)
    try:
        zygote.spawn("crowd", str(tmp_path / "job"), {"threads": count}, limits)
        assert zygote.event() is None
        ended = zygote.event()
    finally:
        zygote.sock.close()
        os.waitpid(zygote.pid, 0)
    if count < limits.threads:
        assert ended.header == {"started": count}
        return
    assert ended.killed == "threads" and not not_its_own(ended)
    with pytest.raises(Fault) as fault:
        check_ended(ended, limits)
    assert fault.value.status == "crashed" and f"{limits.threads} at a time" in fault.value.message


def test_all_threads_of_a_slow_child_give_way_together():
    """As many threads as there are weigh as much as one: else a crowd of them has most of a processor."""
    code = (
        "import threading, time\n"
        + "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n" * 6
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code + "print(1, flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        child.stdout.readline()
        known = zygotes.Child(1, child.pid, 0.0, sandbox.Limits(), "")
        zygotes.give_way(known)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        levels = {os.getpriority(os.PRIO_PROCESS, thread) for thread in zygotes.threads(child.pid)}
        assert known.slow and known.threads == 7
        assert levels == {min(19, own + zygotes.NICER + round(math.log(7, zygotes.LEVEL)))}
    finally:
        child.kill()
        child.wait()
    assert zygotes.threads(child.pid) == []


def hang(report, fds, folder, args):
    if args["begin"]:
        report.begin()
    report.stage("start")  # what a child says of its stage it may take back, not the seal
    while True:
        select.select([], [], [])


@pytest.mark.parametrize("begin", [False, True])
def test_what_ends_before_its_candidate_begins_is_our_failure(tmp_path, begin):
    (tmp_path / "job").mkdir()
    zygote, limits = Zygote({"hang": hang}, files.readable_paths()), sandbox.Limits(seconds=0.5)
    try:
        zygote.spawn("hang", str(tmp_path / "job"), {"begin": begin}, limits)
        assert zygote.event() is None
        ended = zygote.event()
    finally:
        zygote.sock.close()
        os.waitpid(zygote.pid, 0)
    assert ended.begun == begin and not_its_own(ended) != begin
    with pytest.raises(Fault) as fault:
        check_ended(ended, limits)
    assert fault.value.status == ("timeout" if begin else "infra_error")


def test_a_message_is_read_whole_or_not_sent():
    """A verdict that was cut ended the supervisor, and with it every verdict to come."""
    ours, theirs = pair()
    longest = {"names": ["x" * (MESSAGE_BYTES - len('{"names": [""]}'))]}
    send(ours, longest)
    assert receive(theirs) == (longest, [])
    with pytest.raises(ValueError, match="bytes"):
        send(ours, {"names": ["x" * MESSAGE_BYTES]})
    ours.close()
    assert receive(theirs) == (None, [])
    theirs.close()


def test_a_worker_that_finds_no_gpu_memory_says_so_in_one_line():
    """Its verdict is infra_error, as of any worker that ends; what is tested is what a user reads."""
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried ..."),
        RuntimeError("CUDA error: out of memory\nSearch"),
    ):
        said = base.why(error)
        assert (
            said.startswith("executor: a worker ends: the GPU has no memory left") and said.count("\n") == 1
        )
    try:
        raise KeyError("ours")
    except KeyError as error:
        assert base.why(error).startswith("Traceback (most recent call last)")
