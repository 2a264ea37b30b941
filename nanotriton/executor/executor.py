"""The executor: candidates in, verdicts out. Everything that may fail or be hostile happens in other processes (zygote.py).

    with Executor(device="cpu") as executor:
        future = executor.submit(task, source)   # returns at once; results arrive as they finish
        print(future.result().status)

One thread schedules; it owns all processes and all state. It hands each worker a few candidates at a time, sees in shared memory when one
is overdue, and starts again whatever died. A candidate that was being judged when its worker died is tried once more alone; if that
kills a worker too, a candidate known to be right is judged: if that works the fault is the candidate's (`crashed`), else ours
(`infra_error`). The others that were in flight are simply run again. This module imports neither torch nor triton.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import os
import secrets
import select
import shutil
import signal
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from nanotriton.executor.common import probe
from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.common.limits import REPLAYERS
from nanotriton.executor.processes import (
    Base,
    Process,
    ask_for_worker,
    end_processes,
    make_root,
    read_card,
    start_base,
    visible_devices,
)
from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.sandbox.protocol import memory_file, receive, send
from nanotriton.rules.policy import check_policy
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

MODES = ("replay", "process")
NEEDS_GPU = "process mode needs a GPU (device cuda); on a CPU candidates are recorded and replayed"
# seconds that a worker has for its own alarm before it is killed: with LOOK, less than 2 beyond a
# stage's limit
GRACE = 1.5
LOOK = 0.25  # seconds between two looks for overdue workers
# times that a candidate may be caught in others' accidents before that is an infrastructure failure
RESTARTS = 8
WINDOW = 64  # candidates that a worker chooses from
REMEMBERED = 1 << 16  # verdicts kept, so that identical candidates are judged once

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Entry:
    """One distinct candidate on its way to a verdict."""

    key: tuple
    job: dict
    future: Future = field(default_factory=Future)
    facts: dict = field(default_factory=dict)
    cost: dict = field(default_factory=dict)
    deaths: int = 0  # workers that died while they were computing it
    died_in: str = ""  # the stage that the last of them was in
    restarts: int = 0  # times it was in flight when a worker died of something else, having finished nothing
    given: float = 0.0  # when a worker got it (monotonic clock)
    is_probe: bool = False
    passed: int = 0  # times that others were taken while it was first in its queue


def take(queue: deque[Entry], own: set[str], known: set[str]) -> Entry:
    """Out of a queue, the next candidate for a worker that has examined the tasks `own`, where some worker has those in `known`.

    Examining a task costs as much as judging a candidate does, so it goes on with its own tasks, then takes one that is new to all. Who is
    first in the queue is passed over WINDOW times at most, and never after having been in flight when a worker died.
    """
    first = queue[0]
    if first.deaths or first.passed >= WINDOW:
        return queue.popleft()
    near = [e for e in itertools.islice(queue, WINDOW) if not e.deaths]
    entry = next((e for e in near if e.key[0] in own), None) or next(
        (e for e in near if e.key[0] not in known), first
    )
    first.passed += 1
    queue.remove(entry)
    return entry


class Executor:
    """Judges candidates in sandboxed processes. A context manager; `close` leaves no process and no file behind.

    device: where candidates run: cpu, cuda or cuda:N. mode: None (replay; on a GPU process mode for what can't be recorded, where the policy lets it),
    "replay" or "process". workers: judging processes (default: a core less than there are); each records up to `depth` candidates meanwhile.
    timeout: seconds for each stage of a candidate, counted from the stage's start. memory_gib: for each process.
    seed: of the secret draws; None draws one. Raises ValueError (one line) for impossible arguments, and for a GPU that candidates can't run on.
    """

    def __init__(
        self,
        device: str = "cpu",
        mode: str | None = None,
        workers: int | None = None,
        policy: str = "strict",
        timeout: float = 10.0,
        time: bool = False,
        *,
        memory_gib: float = 4.0,
        depth: int = 3,
        seed: int | None = None,
    ):
        device, _, index = device.partition(":")
        if device not in ("cpu", "cuda") or not (index.isdecimal() or not index):
            raise ValueError(
                f"unknown device {':'.join(filter(None, (device, index)))!r}; one of cpu, cuda, cuda:N"
            )
        if mode is not None and mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; one of {', '.join(MODES)}")
        if mode == "process" and device == "cpu":
            raise ValueError(NEEDS_GPU)
        if timeout <= 0 or memory_gib <= 0 or (workers is not None and workers < 1) or depth < 1:
            raise ValueError("timeout and memory_gib must be positive, workers and depth at least 1")
        self.device, self.mode, self.policy, self.timeout, self.time = (
            device,
            mode,
            check_policy(policy),
            timeout,
            time,
        )
        self.workers = workers or max(1, len(os.sched_getaffinity(0)) - 1)
        self.depth, self.memory = depth, int(memory_gib * 2**30)
        self.visible = visible_devices(int(index) if index else None)
        self.card = DEFAULT if device == "cpu" else read_card(self.visible, time)
        self.secret = (
            secrets.token_hex(16) if seed is None else hashlib.sha256(f"seed {seed}".encode()).hexdigest()
        )
        if missing := sandbox.support():
            log.warning(missing)
        self.root, self._lock_fd = make_root()
        self._lock = threading.Lock()
        # the only thing, with _known and _closing, that other threads touch
        self._submitted: deque[Entry] = deque()
        self._known: OrderedDict[tuple, Future] = OrderedDict()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self._queues: dict[str, deque[Entry]] = {}
        self._bases: dict[str, Base] = {}
        self._processes: list[Process] = []
        self._failed_starts = 0
        self._next_id = 0
        self._groups: list[int] = []  # process groups, for the last resort
        self._finalizer = weakref.finalize(self, end_processes, self._groups, self.root)
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def submit(self, task: Task, source: str) -> "Future[Verdict]":
        """Judge `source` for `task`. Identical candidates share one future, also while they are in flight."""
        return self._submit(
            task,
            source,
            self._first_phase(),
            hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest(),
        )

    def expect(self, tasks: Iterable[Task]) -> None:
        """Candidates for these are on their way: have the tasks examined meanwhile, which the first one would wait for."""
        for task in tasks:
            self._submit(task, "", "task", "")

    def _submit(self, task: Task, source: str, phase: str, name: str) -> "Future[Verdict]":
        key = (task.key, name)
        with self._lock:
            if self._closing:
                raise RuntimeError("this executor is closed")
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            job = {
                "task": {"name": task.name, "source": task.source},
                "source": source,
                "policy": self.policy,
            }
            entry = Entry(
                key, job | {"timeout": self.timeout, "memory": self.memory, "time": self.time, "phase": phase}
            )
            entry.future.set_running_or_notify_cancel()  # from here on it can't be cancelled
            self._known[key] = entry.future
            self._submitted.append(entry)
        os.write(self._wake_write, b"x")
        return entry.future

    def close(self) -> None:
        """End every process. What is not judged yet gets `infra_error`."""
        with self._lock:
            closing, self._closing = self._closing, True
        if not closing:
            os.write(self._wake_write, b"x")
        self._thread.join()

    # ---- phases ----

    def _first_phase(self) -> str:
        if self.mode != "process":
            return "replay"
        return "record" if self.policy in ("strict", "kernelbench") else "process"

    def _next_phase(self, entry: Entry, result: dict) -> str | None:
        """Where a candidate goes after a phase: None if the result is its verdict."""
        phase, status = entry.job["phase"], result["verdict"]["status"]
        if phase in ("process", "task") or entry.is_probe:
            return None
        # strict insists on a plan; otherwise a candidate that the recorder can't follow may still
        # run
        if phase == "record":
            goes_on = status == "correct" or (self.policy != "strict" and status != "rule_violation")
            return "process" if goes_on else None
        may_fall_back = self.device != "cpu" and self.mode is None and self.policy != "strict"
        return "process" if may_fall_back and status == "unsupported" and result["fallback"] else None

    def _flavour(self, phase: str) -> str:
        phase = self._first_phase() if phase == "task" else phase
        if self.device == "cpu":
            return "record"
        return "cuda" if phase == "process" else "gpu"

    def _wanted(self, flavour: str) -> tuple[int, int]:
        """(workers, candidates that each has in flight). Few share a GPU; their children use the cores."""
        if flavour != "gpu":
            # the driver makes one context after another
            return self.workers, 1 if flavour == "cuda" else self.depth
        count = min(REPLAYERS, -(-self.workers // 2))
        return count, max(self.depth, -(-self.workers // count) + 2)

    # ---- the scheduler's thread ----

    def _run(self) -> None:
        try:
            self._start(self._flavour(self._first_phase()))
            while not self._closing:
                self._wait()
                self._kill_overdue()
                self._dispatch()
        except BaseException:
            log.exception("executor: the scheduler failed")
            raise
        finally:
            with self._lock:
                self._closing = True  # also if the scheduler failed: nobody is left to take work
            self._finalizer()
            self._finish_all("the executor was closed before this candidate was judged")
            for fd in (self._wake_read, self._wake_write, self._lock_fd):
                os.close(fd)

    def _wait(self) -> None:
        """Sleep until something happens, then handle it."""
        owners: dict[int, Base | Process] = {
            x.sock.fileno(): x for x in (*self._bases.values(), *self._processes)
        }
        poll = select.poll()
        for fd in (self._wake_read, *owners):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(int(1000 * LOOK) if any(p.entries for p in self._processes) else 2000):
            if fd == self._wake_read:
                os.read(self._wake_read, 1 << 16)
                while self._submitted:
                    entry = self._submitted.popleft()
                    self._queue(entry).append(entry)
                continue
            owner = owners[fd]
            if isinstance(owner, Base) and owner in self._bases.values():
                self._base_says(owner, receive(owner.sock)[0])
            elif owner in self._processes:
                self._worker_says(owner, receive(owner.sock)[0])

    def _queue(self, entry: Entry) -> deque[Entry]:
        return self._queues.setdefault(self._flavour(entry.job["phase"]), deque())

    def _base_says(self, base: Base, message: dict | None) -> None:
        if message is None:
            self._base_died(base)
        elif "ready" in message:
            base.ready, self._failed_starts = True, 0
        else:
            base.unnamed.popleft().pid = message["pid"]

    def _worker_says(self, process: Process, message: dict | None) -> None:
        if message is None:
            self._worker_died(process)
            return
        entry = process.entries.pop(message["job"])
        process.alone, process.finished = False, process.finished + 1
        for name, seconds in message["cost"].items():
            entry.cost[name] = round(entry.cost.get(name, 0.0) + seconds, 6)
        if not entry.is_probe:
            entry.facts |= message["facts"]
        if phase := self._next_phase(entry, message):
            entry.job["phase"] = phase
            self._queue(entry).append(entry)
        else:
            self._finish(entry, **message["verdict"])

    # ---- processes ----

    def _start(self, flavour: str) -> None:
        base = self._bases[flavour] = start_base(flavour, self.root, self.visible, self.card)
        self._groups.append(base.popen.pid)

    def _base_died(self, base: Base) -> None:
        base.sock.close()
        base.popen.wait()
        del self._bases[base.flavour]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(base.popen.pid, signal.SIGKILL)  # what it left is dying anyway
        self._groups.remove(base.popen.pid)
        self._failed_starts += not base.ready
        for process in base.unnamed:
            self._worker_died(process)
        if self._failed_starts >= 3:
            self._failed_starts = 0
            self._finish_all(f"the {base.flavour} process does not start; its own message is on stderr")

    def _kill_overdue(self) -> None:
        """A worker whose alarm did not help (it is inside one long native call) is killed, and its candidate has its verdict."""
        for process in list(self._processes):
            job, due, stage = process.computing()
            if due and time.monotonic() > due + GRACE and process.pid is not None and job in process.entries:
                entry, process.finished = process.entries.pop(job), process.finished + 1
                with contextlib.suppress(ProcessLookupError):  # it may have died just now
                    os.kill(process.pid, signal.SIGKILL)
                self._worker_died(process)
                if stage in ("task", "judge"):
                    self._finish(
                        entry,
                        status="unsupported",
                        message="the reference itself takes too long here",
                        stage=stage,
                    )
                else:
                    self._finish(
                        entry,
                        status="timeout",
                        message=f"{stage}: not done after {self.timeout:g} s",
                        stage=stage,
                    )

    def _worker_died(self, process: Process) -> None:
        """Everything it had in flight is run again; the one that it was computing is the suspect."""
        if process not in self._processes:
            return
        self._processes.remove(process)
        process.sock.close()
        job, due, stage = process.computing()
        process.beacon.close()
        shutil.rmtree(process.folder, ignore_errors=True)
        for number, entry in process.entries.items():
            # where something was finished, running the rest again comes to an end
            entry.restarts += not process.finished
            if number == job and due:
                entry.deaths, entry.died_in = entry.deaths + 1, stage
            if entry.is_probe and entry.deaths:
                self._probed(entry, healthy=False)
            elif entry.restarts > RESTARTS:
                self._finish(
                    entry,
                    status="infra_error",
                    message="workers kept dying while this candidate was in flight",
                )
            elif entry.deaths >= 2:
                self._probe(entry)
            else:
                self._queue(entry).appendleft(entry)

    def _probe(self, suspect: Entry) -> None:
        """Two workers died of this candidate, or so it seems: judge one that is known to be right, and say who is to blame."""
        job = suspect.job | {"task": probe.TASK, "source": probe.CANDIDATE, "policy": "none"}
        entry = dataclasses.replace(
            suspect, job=job, deaths=0, restarts=0, given=0.0, is_probe=True, passed=0
        )
        self._queue(entry).appendleft(entry)

    def _probed(self, entry: Entry, healthy: bool) -> None:
        if healthy and entry.died_in == "task":  # where no candidate runs
            self._finish(
                dataclasses.replace(entry, is_probe=False),
                status="unsupported",
                message="the reference itself crashes the process that runs it",
                stage="task",
            )
        elif healthy:
            self._finish(
                dataclasses.replace(entry, is_probe=False),
                status="crashed",
                message="it crashed the process that ran it, twice",
            )
        else:
            self._finish(
                dataclasses.replace(entry, is_probe=False),
                status="infra_error",
                message="the executor's own health check fails",
            )

    # ---- work ----

    def _dispatch(self) -> None:
        for flavour, queue in self._queues.items():
            if not queue:
                continue
            if flavour not in self._bases:
                self._start(flavour)
            base = self._bases[flavour]
            own = [p for p in self._processes if p.flavour == flavour]
            workers, depth = self._wanted(flavour)
            for _ in range(workers - len(own) if base.ready else 0):
                self._next_id += 1
                try:
                    own.append(
                        ask_for_worker(base, self.root, self._next_id, self.memory, self.visible, self.card)
                    )
                    self._processes.append(own[-1])
                except OSError:  # the base just died: its socket will say so
                    break
            while queue:
                suspect = queue[0].deaths  # waits for an idle one
                free = [p for p in own if p.has_room(depth) and not (suspect and p.entries)]
                if not free:
                    break
                process = min(free, key=lambda p: len(p.entries))
                if not self._give(
                    process, take(queue, set(process.tasks), set().union(*(p.tasks for p in own)))
                ):
                    break

    def _give(self, process: Process, entry: Entry) -> bool:
        self._next_id += 1
        job = {"id": self._next_id, **entry.job, "facts": entry.facts, "secret": self.secret}
        fd = memory_file("job", job)
        try:
            send(process.sock, {"job": job["id"]}, (fd,))
        except OSError:  # it just died: its socket will say so
            self._queue(entry).appendleft(entry)
            return False
        finally:
            os.close(fd)
        process.entries[job["id"]], entry.given = entry, time.monotonic()
        process.tasks.append(entry.key[0])
        process.alone = bool(entry.deaths)
        return True

    def _finish(self, entry: Entry, status: str, message: str = "", stage: str = "", **_) -> None:
        if entry.is_probe:
            self._probed(entry, status == "correct")
            return
        mode = "process" if entry.job["phase"] == "process" else "replay"
        verdict = Verdict(status, stage, message, mode, self.device, **entry.facts, cost=entry.cost)
        if status == "infra_error":
            with self._lock:
                self._known.pop(entry.key, None)  # next time it gets another chance
        entry.future.set_result(verdict)
        with self._lock:
            while len(self._known) > REMEMBERED and next(iter(self._known.values())).done():
                self._known.popitem(last=False)

    def _finish_all(self, message: str) -> None:
        waiting = [e for q in self._queues.values() for e in q] + [
            e for p in self._processes for e in p.entries.values()
        ]
        waiting += self._submitted
        for queue in (*self._queues.values(), self._submitted):
            queue.clear()
        for process in self._processes:
            process.entries.clear()
        for entry in waiting:
            self._finish(dataclasses.replace(entry, is_probe=False), status="infra_error", message=message)
