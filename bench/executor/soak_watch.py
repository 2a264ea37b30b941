"""What soak.py sees and does from outside: it reads /proc, kills at random moments, and counts what is left.

The executor's processes are a tree: a base has workers, a worker has a zygote, and the zygote forks a child
for each candidate. Children may start processes of their own.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from nanotriton.executor import Executor
from nanotriton.executor.judge.candidate.process import STARTUP as STARTUP
from nanotriton.executor.sandbox.clock import own_time, waited
from nanotriton.executor.sandbox.linux import stat_fields
from nanotriton.executor.supervisor import RESTARTS

LEVELS = ("base", "worker", "zygote", "child")
ROUND = ("child", "worker", "child", "zygote", "child", "base")  # a round of kills, done in random order
TICK = os.sysconf("SC_CLK_TCK")
PAUSE = 0.05  # seconds between two looks
PATIENCE = 10.0  # seconds in which Linux and the GPU's driver must take back what dead processes held


def living(groups: set[int]) -> dict[int, tuple[int, float]]:
    """{process id: (parent's id, start in seconds since boot)} of these process groups, without zombies."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            state, parent, group, *rest = stat_fields(f"/proc/{name}/stat")
            if int(group) in groups and state not in "ZX":
                found[int(name)] = (int(parent), int(rest[16]) / TICK)
    return found


def level(pid: int, alive: dict[int, tuple[int, float]]) -> int:
    """0 for a base, 1 for a worker, 2 for a zygote, 3 for a child, more for what a child has started."""
    parent = alive[pid][0]
    return 1 + level(parent, alive) if parent in alive else 0


def base_of(pid: int, alive: dict[int, tuple[int, float]]) -> int:
    """The base process that a process descends from."""
    parent = alive[pid][0]
    return base_of(parent, alive) if parent in alive else pid


def exists(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def folder_of(pid: int) -> str:
    """A child's folder: its candidate's, or a compile server's. Empty for a child that has just ended."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


class Watcher(threading.Thread):
    """Looks all the time: how old do children get, and by how much does a worker's stage overrun its limit?

    Seconds count as the executor counts them: not those in which a process was ready to run and others had
    the cores. Of a child, those of the zygote that has to kill it do not count either.
    child: the age of the oldest child. cuda_child: the same of process mode on CUDA, whose children have a
    longer limit (STARTUP more). overdue, overdue_stage: the longest overrun of a stage, and which stage it
    was.
    """

    def __init__(self, executor: Executor, stop: threading.Event):
        super().__init__(daemon=True)
        self.executor, self.stop = executor, stop
        self.groups: set[int] = set()
        self.child = self.cuda_child = self.overdue = 0.0
        self.overdue_stage = ""
        # (child, its start) -> what its parent had waited for a core when the child was first seen
        self.parent_waited: dict[tuple[int, float], float] = {}
        self.start()

    def run(self) -> None:
        while not self.stop.wait(PAUSE):
            self.groups.update(self.executor.supervisor.groups)
            self.look_at_stages()
            self.look_at_children()
        del self.executor  # and with it the sockets that only this thread would still hold

    def look_at_stages(self) -> None:
        """Each worker's beacon says which job it computes, in which stage, and when that is due."""
        for process in list(self.executor.supervisor.workers):
            with contextlib.suppress(ValueError):  # its beacon was closed just now
                job, due, stage = process.computing()
                if not due or process.pid is None or job not in process.entries:
                    continue
                late = own_time(process.pid) - due
                if late > self.overdue and exists(process.pid):  # else nothing is known of its waiting
                    self.overdue, self.overdue_stage = late, stage

    def look_at_children(self) -> None:
        """How old is each child?

        Compile servers serve many candidates, each with a limit of its own: not they.
        """
        alive, now = living(self.groups), time.clock_gettime(time.CLOCK_BOOTTIME)
        cuda = {
            base.popen.pid for base in list(self.executor.supervisor.bases.values()) if base.flavour == "cuda"
        }
        for pid, (_, started) in alive.items():
            if level(pid, alive) < 3:
                continue
            age = now - started - self.waiting(pid, *alive[pid])
            if not exists(pid):  # it ended before it could say how long it waited
                continue
            if base_of(pid, alive) in cuda:
                self.cuda_child = max(self.cuda_child, age)
            elif (folder := folder_of(pid)) and not Path(folder).name.startswith("compile-"):
                self.child = max(self.child, age)

    def waiting(self, pid: int, parent: int, started: float) -> float:
        """Seconds for which a child, or the parent that has to kill it, has waited for a core."""
        at_first = self.parent_waited.setdefault((pid, started), waited(parent))
        return waited(pid) + max(0.0, waited(parent) - at_first)


class Killer(threading.Thread):
    """kill -9 for one process after another, at random moments, at all levels of the tree.

    Two kinds of candidates are spared. Of one that is already suspected, the executor could not tell a second
    random kill from the candidate's own doing. One that has lost as many workers as it may lose would rightly
    be given up after one more. every: seconds between two kills, on average.
    """

    def __init__(self, executor: Executor, stop: threading.Event, rng: random.Random, every: float):
        super().__init__(daemon=True)
        self.executor, self.stop, self.rng, self.every = executor, stop, rng, every
        self.kills: Counter = Counter()
        self.hit: set[str] = set()  # the folders of children that were killed
        self.start()

    def run(self) -> None:
        todo: list[str] = []
        while not self.stop.wait(self.rng.expovariate(1 / self.every)):
            todo = todo or self.rng.sample(ROUND, len(ROUND))
            while not self.stop.is_set() and not self.kill(todo[-1]):
                self.stop.wait(PAUSE)  # until there is a process of that level
            self.kills[todo.pop()] += not self.stop.is_set()
        del self.executor

    def kill(self, wanted: str) -> bool:
        """Kill a process of this level -> whether there was one that may be killed."""
        alive = living(set(self.executor.supervisor.groups))
        spared = {
            p.pid
            for p in list(self.executor.supervisor.workers)
            if p.alone or any(e.deaths or e.restarts >= RESTARTS for e in list(p.entries.values()))
        }
        victims = []
        for pid in alive:
            if level(pid, alive) != LEVELS.index(wanted):
                continue
            family = {pid, alive[pid][0]} | {p for p, (parent, _) in alive.items() if parent == pid}
            killed_before = wanted == "child" and folder_of(pid) in self.hit  # twice would count as crashed
            if not spared & family and not killed_before:
                victims.append(pid)
        if not victims:
            return False
        victim = self.rng.choice(victims)
        self.hit.add(folder_of(victim))
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            return True
        return False


class Machine:
    """What there was on the machine before the soak, to be compared with what is left after it."""

    def __init__(self, device: str):
        self.device = device
        self.free = self._free()  # comes first, as a CUDA context of our own opens files
        self.shared, self.descriptors = self._shared(), len(os.listdir("/proc/self/fd"))
        self.children = set(self._children())

    def left(self, groups: set[int], folder: str) -> dict:
        """What is left, each entry empty or 0 if nothing is. Waits PATIENCE seconds for it to go."""
        end = time.monotonic() + PATIENCE
        while True:
            found = {
                # of the executor, and children of this process that it did not have before
                "processes": sorted({*living(groups), *(set(self._children()) - self.children)}),
                # locks are shared by all executors, and stay
                "files": sorted(f for f in os.listdir(folder) if not f.startswith("nanotriton-locks-")),
                "shared_memory": sorted(self._shared() - self.shared),
                "descriptors": max(0, len(os.listdir("/proc/self/fd")) - self.descriptors),
                "gpu_bytes": max(0, self.free - self._free()),
            }
            if not any(found.values()) or time.monotonic() > end:
                return found
            time.sleep(PAUSE)

    def _shared(self) -> set[str]:
        """POSIX shared memory, which is files in /dev/shm, and System V's, by key and id."""
        found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
        table = Path("/proc/sysvipc/shm")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            found.add("System V " + " ".join(line.split()[:2]))
        return found

    def _free(self) -> int:
        """Free bytes of the GPU."""
        if self.device == "cpu":
            return 0
        import torch

        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    @staticmethod
    def _children() -> list[int]:
        """The children of this process, zombies too."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if int(stat_fields(f"/proc/{name}/stat")[1]) == os.getpid():
                    found.append(int(name))
        return found
