"""The process tree. Each level dies with the one above it, by kill -9 too, and every level can be killed and started again.

    executor   (the trainer's process; imports neither torch nor triton for this)
      base     one a flavour. Pays for the imports and one warm-up recording (3 s), then only forks workers (10 ms), and
               removes the executor's folder when the executor is gone. Holds no secret, and an allow-listed environment
        worker   trusted, one a core: draws inputs, replays, judges (worker.py)
          zygote   a fork of the worker made before it learned anything. Forks, times, limits and reaps one sandboxed
            child    per candidate. Untrusted from its first line of candidate code on

A candidate can read all the memory that its child inherits, so whatever forks children must know nothing: that is why workers do not
fork them themselves. A zygote never looks at what a child wrote; a child's answer goes straight to the worker, through a memory file
that the worker owns (`Report`), with a size limit and in a format that is parsed, never unpickled.

Flavours: "record" (no GPU visible), "gpu" (it records the same way, and its worker has the GPU) and "cuda" (process mode: no CUDA context yet).
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass

from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.sandbox.protocol import (
    LOG,
    LOG_BYTES,
    Ended,
    Report,
    memory_file,
    pair,
    receive,
    send,
)

SLOW = 1.0  # seconds after which a child has to let others pass


# ---- the zygote: forks children, enforces their limits, reaps them
# -------------------------------------------------


@dataclass
class Child:
    id: int
    pid: int
    started: float
    limits: sandbox.Limits
    folder: str
    killed: str | None = None
    forks: bool = False  # it may, so it may leave strays
    slow: bool = False


def child_main(request: dict, fds: list[int], parent: int, targets: dict, readable: list[str]) -> None:
    """In the forked child: keep nothing but the given files, enter the sandbox, run the target, exit. Never returns."""
    status = 1
    try:
        sandbox.die_with_parent(parent)
        arguments, result, log, *extra = fds
        args = json.loads(os.pread(arguments, os.fstat(arguments).st_size, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        wanted = [null, log, log, result, *extra]
        # out of the way first, then 0, 1, 2, 3, ...
        high = [os.dup2(fd, 100 + i) for i, fd in enumerate(wanted)]
        for i, fd in enumerate(high):
            os.dup2(fd, i)
        os.closerange(len(wanted), os.sysconf("SC_OPEN_MAX"))
        options = request["sandbox"]
        sandbox.enter(request["folder"], sandbox.Limits(**request["limits"]), readable, **options)
        targets[request["target"]](Report(3), list(range(4, 4 + len(extra))), request["folder"], args)
        status = 0
    # whatever a candidate manages to raise: the parent's code must never run in the child
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace")[-2000:])
    finally:
        os._exit(status)


def fork_child(request: dict, fds: list[int], targets: dict, readable: list[str]) -> Child:
    parent, started, options = os.getpid(), time.monotonic(), request["sandbox"]
    sandbox.call_filter(options.get("exec_ok", False), options.get("cuda", False))
    pid = os.fork()
    if not pid:
        child_main(request, fds, parent, targets, readable)
    for fd in fds:
        os.close(fd)
    return Child(
        request["id"],
        pid,
        started,
        sandbox.Limits(**request["limits"]),
        request["folder"],
        forks=options.get("exec_ok", False),
    )


def overdue(child: Child, now: float) -> str | None:
    """The limit that a running child broke, if any. The kernel enforces the others (sandbox.set_limits)."""
    if child.limits.seconds is not None and now - child.started > child.limits.seconds:
        return "timeout"
    if child.limits.resident and resident(child.pid) > child.limits.resident:
        return "memory_limit"
    return None


def resident(pid: int) -> int:
    """Bytes of a process's memory that are in RAM; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def serve_children(sock: socket.socket, targets: dict, readable: list[str]) -> None:
    """The zygote's life: fork a child per request, report each one's end. Returns when its worker is gone."""
    children: dict[int, Child] = {}  # by pidfd
    sandbox.libc.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        watched = any(c.limits.resident for c in children.values())
        timed = [c for c in children.values() if not c.killed and c.limits.seconds is not None]
        due = min((c.started + (c.limits.seconds if c.slow else SLOW) for c in timed), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1
        for fd, _ in poll.poll(50 if watched else wait):
            if fd == sock.fileno():
                request, fds = receive(sock)
                if request is None:
                    return
                child = fork_child(request, fds, targets, readable)
                pidfd = os.pidfd_open(child.pid)
                children[pidfd] = child
                poll.register(pidfd, select.POLLIN)
                send(sock, {"id": child.id, "pid": child.pid})
            else:
                poll.unregister(fd)
                os.close(fd)
                child = children.pop(fd)
                ended = reap(child)
                if child.forks:
                    kill_strays({c.pid for c in children.values()})
                send(sock, ended)
        now = time.monotonic()
        for child in children.values():
            if not child.killed and (reason := overdue(child, now)):
                child.killed = reason
                os.kill(child.pid, signal.SIGKILL)
            elif child in timed and not child.slow and now - child.started >= SLOW:
                child.slow = True
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def reap(child: Child) -> dict:
    _, status, usage = os.wait4(child.pid, 0)
    ended = {"id": child.id, "killed": child.killed, "seconds": time.monotonic() - child.started}
    ended["cpu"] = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return ended | {"signal": os.WTERMSIG(status)}
    return ended | {"code": os.WEXITSTATUS(status)}


def kill_strays(known: set[int]) -> None:
    """End the processes that ended children have left: as a subreaper, this process has become their parent."""
    while strays := [p for p in own_children() if p not in known]:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def own_children() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rsplit(")", 1)[1].split()[1]) == os.getpid():
                found.append(int(name))
    return found


class Zygote:
    """A worker's handle on its zygote. Made before the worker holds anything that a candidate must not see."""

    def __init__(self, targets: dict, readable: list[str]):
        worker, (self.sock, other) = os.getpid(), pair()
        self.pid = os.fork()
        if not self.pid:
            try:
                self.sock.close()
                sandbox.die_with_parent(worker)
                serve_children(other, targets, readable)
            finally:
                os._exit(0)
        other.close()
        self.running: dict[int, tuple[int, int, int]] = {}  # id -> (result file, log file, limit in bytes)
        self.pids: dict[int, int] = {}
        self.next_id = 0

    def spawn(
        self,
        target: str,
        folder: str,
        args: dict,
        limits: sandbox.Limits,
        extra: tuple[int, ...] = (),
        **options,
    ) -> int:
        """Start one child; returns its id. Its end arrives through `event`."""
        self.next_id += 1
        # those of a module of many weights are larger than a message can be
        arguments = memory_file("arguments", args)
        result, log = os.memfd_create("result"), os.memfd_create("log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(log, LOG_BYTES)
        fcntl.fcntl(log, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)  # printing more fails
        request = {
            "id": self.next_id,
            "target": target,
            "folder": folder,
            "limits": asdict(limits),
            "sandbox": options,
        }
        send(self.sock, request, (arguments, result, log, *extra))
        os.close(arguments)
        self.running[self.next_id] = (result, log, limits.output)
        return self.next_id

    def kill(self, child: int) -> bool:
        """End a child (its end arrives through `event`). False: it has not started yet, ask again."""
        if child not in self.pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[child], signal.SIGKILL)
        return True

    def event(self) -> Ended | None:
        """Read one message of the zygote: a child's end, or None (a start). Raises EOFError when the zygote is dead."""
        message, _ = receive(self.sock)
        if message is None:
            raise EOFError("the zygote died")
        if "pid" in message:
            self.pids[message["id"]] = message["pid"]
            return None
        self.pids.pop(message["id"], None)
        result, log, limit = self.running.pop(message["id"])
        ended = Ended(**message).read(result, limit)
        ended.begun = bool(fcntl.fcntl(log, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL)
        printed = os.lseek(log, 0, os.SEEK_CUR)
        if printed > LOG_BYTES - (64 << 10):
            ended.killed = ended.killed or "output_limit"
        if ended.header is None:
            LOG.debug(
                "child %d left no answer: %s",
                ended.id,
                os.pread(log, 4096, max(0, printed - 4096)).decode("utf-8", "replace"),
            )
        os.close(result)
        os.close(log)
        return ended


# ---- the base: imports once, forks workers
# -------------------------------------------------------------------------
