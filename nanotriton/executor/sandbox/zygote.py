"""The process tree. Each level dies with the one above it, even by kill -9, and can be started again.

    executor   (the trainer's process; it imports neither torch nor triton for this)
      base     one a flavour. It pays for the imports and one warm-up recording (3 s), then only forks
               workers (10 ms), and removes the executor's folder when the executor is gone. It holds no
               secret, and has an allow-listed environment.
        worker   trusted, one a core. It draws inputs, replays and judges (judge/worker.py).
          zygote   a fork of the worker, made before the worker learned anything. It forks sandboxed
                   children, times them, limits them and reaps them.
            child    one a candidate. Untrusted from its first line of candidate code on.

A candidate can read all the memory that its child inherits, so a process that forks children must know
nothing. That is why workers do not fork them themselves. A zygote never looks at a child's answer
(protocol.py).

Flavours: "record" (no GPU visible), "gpu" (it records the same way, and its worker has the GPU) and "cuda"
(process mode: no CUDA context yet).
"""

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass

from nanotriton.executor.sandbox import forks, sandbox
from nanotriton.executor.sandbox.clock import waited
from nanotriton.executor.sandbox.linux import PR_SET_CHILD_SUBREAPER, libc, stat_fields
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
from nanotriton.executor.sandbox.system_calls import call_filter

SLOW = 1.0  # seconds after which a child has to let others pass
LOOK = 0.25  # seconds between two looks at the threads of children
RESIDENT_LOOK = 50  # milliseconds between two looks at the memory of children that are limited in RAM
NICER = 5  # priority levels that a slow child loses
LEVEL = 1.25  # how much more of a processor the next priority level gets (Linux's sched_prio_to_weight)
LOWEST = 19


# ---- the zygote's side


@dataclass
class Child:
    id: int
    pid: int
    started: float
    limits: sandbox.Limits
    folder: str
    killed: str | None = None  # the reason, if the zygote killed it
    forks: bool = False  # it may fork, so it may leave strays
    slow: bool = False  # it has to let others pass
    threads: int = 1  # when it was last looked at
    waited: float = 0.0  # seconds without a core, as far as it was looked at: they do not count

    def timed(self) -> bool:
        return not self.killed and self.limits.seconds is not None

    def due(self) -> float:
        """When to look at it next: when it gets slow, then at its limit."""
        return self.started + (self.waited + self.limits.seconds if self.slow else SLOW)


def child_main(request: dict, fds: list[int], parent: int, targets: dict, readable: list[str]) -> None:
    """In the forked child: keep nothing but the given files, enter the sandbox, run the target, exit.

    It never returns.
    """
    status = 1
    try:
        sandbox.die_with_parent(parent)
        arguments, result, log, *extra = fds
        args = json.loads(os.pread(arguments, os.fstat(arguments).st_size, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        renumber([null, log, log, result, *extra])
        limits = sandbox.Limits(**request["limits"])
        sandbox.enter(request["folder"], limits, readable, **request["sandbox"])
        target = targets[request["target"]]
        target(Report(3), list(range(4, 4 + len(extra))), request["folder"], args)
        status = 0
    # a candidate may raise anything: the parent's code must never run in the child
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace")[-2000:])
    finally:
        os._exit(status)


def renumber(fds: list[int]) -> None:
    """Make these file descriptors 0, 1, 2, .., and close all others."""
    # out of the way first, to numbers that nothing has: many children at a time take many
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(fds)) for fd in fds]
    for i, fd in enumerate(high):
        os.dup2(fd, i)
    os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))


def fork_child(request: dict, fds: list[int], targets: dict, readable: list[str]) -> Child:
    parent, started = os.getpid(), time.monotonic()
    limits = sandbox.Limits(**request["limits"])
    exec_ok = request["sandbox"].get("exec_ok", False)
    call_filter(exec_ok, request["sandbox"].get("cuda", False))  # made here, the child finds it
    pid = forks.fork()
    if not pid:
        child_main(request, fds, parent, targets, readable)
    for fd in fds:
        os.close(fd)
    return Child(request["id"], pid, started, limits, request["folder"], forks=exec_ok)


def overdue(child: Child, now: float) -> str | None:
    """The limit that a running child broke, or None. The kernel enforces the others (sandbox.set_limits).

    For the number of threads the kernel has a limit for each user, and none for root.
    """
    if child.limits.seconds is not None and now - child.started - child.waited > child.limits.seconds:
        child.waited = waited(child.pid)
        if now - child.started - child.waited > child.limits.seconds:
            return "timeout"
    if child.limits.resident and resident(child.pid) > child.limits.resident:
        return "memory_limit"
    if child.timed() and len(threads(child.pid)) > child.limits.threads:
        return "threads"
    return None


def threads(pid: int) -> list[int]:
    """The ids of a process's threads; none if it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def resident(pid: int) -> int:
    """Bytes of a process's memory that are in RAM; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def serve_children(sock: socket.socket, targets: dict, readable: list[str]) -> None:
    """The zygote's life: fork a child for each request, and report each one's end.

    It returns when its worker is gone.
    """
    children: dict[int, Child] = {}  # by pidfd
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        for fd, _ in poll.poll(patience(children)):
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
        look_at(children)


def patience(children: dict[int, Child]) -> float | None:
    """Milliseconds until a child needs a look, or None if none does."""
    if any(child.limits.resident for child in children.values()):
        return RESIDENT_LOOK
    due = [child.due() for child in children.values() if child.timed()]
    if not due:
        return None
    return min(LOOK, max(0.0, min(due) - time.monotonic())) * 1000 + 1


def look_at(children: dict[int, Child]) -> None:
    """Kill the children that broke a limit. Give the slow ones a lower priority."""
    now = time.monotonic()
    for pidfd, child in children.items():
        if not child.killed and (reason := overdue(child, now)):
            if has_ended(pidfd):  # in time: this process is what was late
                continue
            child.killed = reason
            os.kill(child.pid, signal.SIGKILL)
        elif child.timed() and now - child.started >= SLOW:
            give_way(child)


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def give_way(child: Child) -> None:
    """Lower the priority of a slow child's threads, so far that all of them weigh no more than one would."""
    found = threads(child.pid)
    if child.slow and len(found) == child.threads:
        return
    child.slow, child.threads = True, len(found)
    crowd = math.log(max(1, len(found)), LEVEL)
    level = min(LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + NICER + round(crowd))
    for thread in found:
        with contextlib.suppress(OSError):  # it has just ended, or a level is not to be had back
            os.setpriority(os.PRIO_PROCESS, thread, level)


def reap(child: Child) -> dict:
    """Wait for a child that has ended: the fields of its `Ended` that the zygote knows."""
    seconds = time.monotonic() - child.started - waited(child.pid)
    _, status, usage = os.wait4(child.pid, 0)
    ended = {"id": child.id, "killed": child.killed, "seconds": seconds}
    ended["cpu"] = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return ended | {"signal": os.WTERMSIG(status)}
    return ended | {"code": os.WEXITSTATUS(status)}


def kill_strays(known: set[int]) -> None:
    """End the processes that ended children have left. This process, a subreaper, has become their parent."""
    while strays := [p for p in own_children() if p not in known]:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def own_children() -> list[int]:
    """The process ids of this process's children."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # a process may end while it is looked at
            _, parent, *_ = stat_fields(f"/proc/{name}/stat")
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


# ---- the worker's side


class Zygote:
    """A worker's handle on its zygote.

    It is made before the worker holds anything that a candidate must not see.
    """

    def __init__(self, targets: dict, readable: list[str]):
        worker = os.getpid()
        self.sock, other = pair()
        self.pid = forks.fork()
        if not self.pid:
            try:
                self.sock.close()
                sandbox.die_with_parent(worker)
                serve_children(other, targets, readable)
            finally:
                os._exit(0)
        other.close()
        self.running: dict[int, tuple[int, int, int]] = {}  # id -> (result file, log file, limit in bytes)
        self.pids: dict[int, int] = {}  # id -> process
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
        """Start one child, and return its id. Its end arrives through `event`.

        target: the name of the function that the child runs. extra: file descriptors that the child gets.
        options: of `sandbox.enter`.
        """
        self.next_id += 1
        # the arguments for a module of many weights are larger than a message can be
        arguments = memory_file("arguments", args)
        result = os.memfd_create("result")
        log = os.memfd_create("log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
        """Kill a child (its end arrives through `event`). Returns False if it has not started: ask again."""
        if child not in self.pids:
            return False
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pids[child], signal.SIGKILL)
        return True

    def event(self) -> Ended | None:
        """Read one message of the zygote: a child's end, or None for a start. EOFError: it is dead."""
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
            last = os.pread(log, 4096, max(0, printed - 4096)).decode("utf-8", "replace")
            LOG.debug("child %d left no answer: %s", ended.id, last)
        os.close(result)
        os.close(log)
        return ended
