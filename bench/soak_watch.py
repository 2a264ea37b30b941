"""What soak.py sees and does from outside: the executor's processes in /proc, kills at random moments, and what is left at the end."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from nanotriton.executor import Executor
from nanotriton.executor.judge.process import (
    STARTUP as STARTUP,  # what a child of process mode on CUDA gets beside its limit
)

LEVELS = ("base", "worker", "zygote", "child")
ROUND = ("child", "worker", "child", "zygote", "child", "base")  # whom a round of kills hits, in random order
TICK = os.sysconf("SC_CLK_TCK")
PAUSE = 0.05  # seconds between two looks
PATIENCE = 10.0  # seconds that the kernel and the driver have for taking back what dead processes held


def living(groups: set[int]) -> dict[int, tuple[int, float]]:
    """{process id: (parent's, start in seconds since boot)} of these process groups; no zombies."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent, group, *rest = Path("/proc", name, "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, ValueError):
            continue
        if int(group) in groups and state not in "ZX":
            found[int(name)] = (int(parent), int(rest[16]) / TICK)
    return found


def level(pid: int, alive: dict[int, tuple[int, float]]) -> int:
    """0 base, 1 worker, 2 zygote, 3 child, more: what a compiler started."""
    parent = alive[pid][0]
    return 1 + level(parent, alive) if parent in alive else 0


def base_of(pid: int, alive: dict[int, tuple[int, float]]) -> int:
    parent = alive[pid][0]
    return base_of(parent, alive) if parent in alive else pid


def folder_of(pid: int) -> str:
    """A child's folder: its candidate's, or a compile server's; empty for one that is ending, which has none any more."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


class Watcher(threading.Thread):
    """Looks all the time: how old do children get, and by how much does a stage of a worker's overrun its limit?"""

    def __init__(self, executor: Executor, stop: threading.Event):
        super().__init__(daemon=True)
        self.executor, self.stop = executor, stop
        self.groups: set[int] = set()
        # seconds; of process mode on CUDA, which has its own limit, apart
        self.child = self.cuda_child = self.overdue = 0.0
        self.overdue_stage = ""
        self.start()

    def run(self) -> None:
        while not self.stop.wait(PAUSE):
            self.groups.update(self.executor._groups)
            for process in list(self.executor._processes):
                with contextlib.suppress(ValueError):  # its beacon was closed just now
                    job, due, stage = process.computing()
                    late = time.monotonic() - due if due and job in process.entries else 0.0
                    if late > self.overdue:
                        self.overdue, self.overdue_stage = late, stage
            alive, now = living(self.groups), time.clock_gettime(time.CLOCK_BOOTTIME)
            cuda = {base.popen.pid for base in list(self.executor._bases.values()) if base.flavour == "cuda"}
            for pid, (_, started) in alive.items():
                if level(pid, alive) >= 3 and base_of(pid, alive) in cuda:
                    self.cuda_child = max(self.cuda_child, now - started)
                # those serve many, each with a limit of its own
                elif (
                    level(pid, alive) >= 3
                    and (folder := folder_of(pid))
                    and not Path(folder).name.startswith("compile-")
                ):
                    self.child = max(self.child, now - started)
        del self.executor


class Killer(threading.Thread):
    """kill -9 for one process after another, at random moments, all levels of the tree in turns.

    Spared is a candidate that is already suspected: a second random kill on the same one can't be told from its own doing.
    """

    def __init__(self, executor: Executor, stop: threading.Event, rng: random.Random, every: float):
        super().__init__(daemon=True)
        self.executor, self.stop, self.rng, self.every = executor, stop, rng, every
        self.kills: Counter = Counter()
        self.hit: set[str] = set()  # folders of children that were killed
        self.start()

    def run(self) -> None:
        todo: list[str] = []
        while not self.stop.wait(self.rng.expovariate(1 / self.every)):
            todo = todo or self.rng.sample(ROUND, len(ROUND))
            while not self.stop.is_set() and not self.kill(todo[-1]):
                self.stop.wait(PAUSE)  # until there is one
            self.kills[todo.pop()] += not self.stop.is_set()
        del self.executor

    def kill(self, wanted: str) -> bool:
        alive = living(set(self.executor._groups))
        suspected = {
            p.pid
            for p in list(self.executor._processes)
            if p.alone or any(e.deaths for e in list(p.entries.values()))
        }
        victims = []
        for pid in alive:
            if level(pid, alive) != LEVELS.index(wanted):
                continue
            above = {pid} | {p for p, (parent, _) in alive.items() if pid in (p, parent)} | {alive[pid][0]}
            # one that dies twice of a kill would count as crashed
            if not suspected & above and (wanted != "child" or folder_of(pid) not in self.hit):
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
    """What there was before, to be compared with what is left."""

    def __init__(self, device: str):
        self.device = device
        self.free = self._free()  # first: a CUDA context of our own opens files
        self.shared, self.descriptors = self._shared(), len(os.listdir("/proc/self/fd"))
        self.children = set(self._children())

    def left(self, groups: set[int], folder: str) -> dict:
        """All empty or 0 if nothing is left. What only takes the kernel a moment to take back is waited for."""
        end = time.monotonic() + PATIENCE
        while True:
            found = {
                # those are every executor's
                "processes": sorted(
                    living(groups) | dict.fromkeys(set(self._children()) - self.children, ())
                ),
                "files": sorted(f for f in os.listdir(folder) if not f.startswith("nanotriton-locks-")),
                "shared_memory": sorted(self._shared() - self.shared),
                "descriptors": max(0, len(os.listdir("/proc/self/fd")) - self.descriptors),
                "gpu_bytes": max(0, self.free - self._free()),
            }
            if not any(found.values()) or time.monotonic() > end:
                return found
            time.sleep(PAUSE)

    def _shared(self) -> set[str]:
        """POSIX shared memory (files in /dev/shm) and System V's, by key and id."""
        lines = (
            Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
            if os.path.exists("/proc/sysvipc/shm")
            else []
        )
        return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} | {
            "System V " + " ".join(line.split()[:2]) for line in lines
        }

    def _free(self) -> int:
        if self.device == "cpu":
            return 0
        import torch

        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    @staticmethod
    def _children() -> list[int]:
        """Processes, zombies too, that this one has as children."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if int(Path("/proc", name, "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                    found.append(int(name))
        return found
