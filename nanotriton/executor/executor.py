"""The executor: candidates in, verdicts out. Hostile and fallible work happens in other processes.

    with Executor(device="cpu") as executor:
        future = executor.submit(task, source)   # returns at once; results arrive as they finish
        print(future.result().status)

One thread schedules. It owns all processes (sandbox/zygote.py has their tree) and all state. It hands each
worker a few candidates at a time, sees in shared memory when one is overdue, and starts dead processes again.

A candidate that was being judged when its worker died is tried once more, alone. If that kills a worker too,
a candidate known to be right is judged. If that works the fault is the candidate's (`crashed`), else it is
ours (`infra_error`). The others that were in flight are simply run again.

This module imports neither torch nor triton.
"""

import contextlib
import dataclasses
import hashlib
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
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from nanotriton.config import ConfigError
from nanotriton.executor.common import probe
from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.common.limits import REPLAYERS
from nanotriton.executor.processes import (
    Base,
    Process,
    ask_for_worker,
    default_workers,
    end_processes,
    make_root,
    memory_share,
    read_card,
    start_base,
    visible_devices,
)
from nanotriton.executor.queue import Entry, take
from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.sandbox.clock import own_time
from nanotriton.executor.sandbox.protocol import memory_file, receive, send
from nanotriton.python_text import plain
from nanotriton.rules.policy import check_policy
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

MODES = ("replay", "process")
NEEDS_GPU = "process mode needs a GPU (device cuda); on a CPU candidates are recorded and replayed"
# Seconds that a worker has for its own alarm before it is killed. With LOOK it is less than 2 beyond a limit.
GRACE = 1.5
LOOK = 0.25  # seconds between two looks for overdue workers
IDLE_LOOK = 2.0  # the same while nothing is in flight
RESTARTS = 8  # of a candidate caught in others' accidents, before that is a failure of ours
FAILED_STARTS = 3  # of a base in a row, before its candidates are given up
SHORT = 60.0  # seconds for which a machine may have no process, file or memory left, before that too
CONTEXT = 2 << 30  # bytes of a GPU's memory for each process with a context of its own
REMEMBERED = 1 << 16  # verdicts kept, so that identical candidates are judged once

log = logging.getLogger(__name__)


class Executor:
    """Judges candidates in sandboxed processes. `close` leaves no process and no file behind.

    device: cpu, cuda or cuda:N, where candidates run.
    mode: "replay", "process" or None. None is replay, and on a GPU process mode for candidates that can't be
        recorded, where the policy lets it.
    workers: judging processes. None: processes.default_workers().
    policy: the rules that candidates obey (rules/policy.py).
    timeout: seconds for each stage of a candidate, counted from the stage's start. Those in which it waits
        for a core do not count.
    time: time correct candidates (on a GPU).
    memory_gib: for each process, beside what it needs to begin with. None: a share of what this machine has,
        and 4 at least. depth: candidates that a worker records while it judges.
    seed: of the secret draws. None draws one.
    Raises ValueError (one line) for impossible arguments, for a GPU that candidates can't run on, and where
    there is no thread or folder to be had.
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
        memory_gib: float | None = None,
        depth: int = 3,
        seed: int | None = None,
    ):
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda") or not (index.isdecimal() or not index):
            raise ValueError(f"unknown device {device!r}; one of cpu, cuda, cuda:N")
        if mode is not None and mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; one of {', '.join(MODES)}")
        if mode == "process" and kind == "cpu":
            raise ValueError(NEEDS_GPU)
        given = 1.0 if memory_gib is None else memory_gib
        if timeout <= 0 or given <= 0 or (workers is not None and workers < 1) or depth < 1:
            raise ValueError("timeout and memory_gib must be positive, workers and depth at least 1")
        self.device = kind
        self.mode = mode
        self.policy = check_policy(policy)
        self.timeout = timeout
        self.time = time
        self.workers = workers or default_workers()
        self.depth = depth
        self.memory = memory_share(self.workers) if memory_gib is None else int(memory_gib * 2**30)
        self.visible = visible_devices(int(index) if index else None)
        self.card = DEFAULT if device == "cpu" else read_card(self.visible, time)
        self.secret = secrets.token_hex(16) if seed is None else _sha256(f"seed {seed}")
        if missing := sandbox.support():
            log.warning(missing)
        try:
            self.root, self._lock_fd = make_root()
        except OSError as error:
            raise ConfigError(f"the executor's temporary folder can't be made: {error}") from None
        # other threads touch these alone
        self._lock = threading.Lock()
        self._submitted: deque[Entry] = deque()
        self._known: OrderedDict[tuple, Future] = OrderedDict()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self._queues: dict[str, deque[Entry]] = {}  # by flavour
        self._bases: dict[str, Base] = {}  # by flavour
        self._processes: list[Process] = []
        self._failed_starts = 0
        self._short_since: float | None = None  # when the machine first had nothing left (monotonic)
        self._next_id = 0
        self._groups: list[int] = []  # process groups, for the last resort
        self._finalizer = weakref.finalize(self, end_processes, self._groups, self.root, os.getpid())
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._finalizer()
            raise ConfigError(f"the executor does not start: {error}") from None

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def submit(self, task: Task, source: str, draw: str | None = None) -> "Future[Verdict]":
        """Judge `source` for `task`. Identical candidates share one future, even while they are in flight.

        draw: any text. Candidates of one task with the same text are judged on the same inputs and weights,
        of which the reference's part is computed once. None: on inputs and weights of its own. In process
        mode a candidate always has its own, because it sees them.
        """
        source = plain(source)
        name = _sha256(source) if draw is None else f"{_sha256(source)} {draw}"
        return self._submit(task, source, self._first_phase(), name, draw)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Have tasks examined whose candidates are on their way: else the first candidate waits for that."""
        for task in tasks:
            self._submit(task, "", "task", "")

    def _submit(
        self, task: Task, source: str, phase: str, name: str, draw: str | None = None
    ) -> "Future[Verdict]":
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
                "timeout": self.timeout,
                "memory": self.memory,
                "time": self.time,
                "phase": phase,
                "draw": draw,
            }
            entry = Entry(key, job)
            entry.future.set_running_or_notify_cancel()  # from here on it can't be cancelled
            self._known[key] = entry.future
            self._submitted.append(entry)
        os.write(self._wake_write, b"x")
        return entry.future

    def close(self) -> None:
        """End every process. A candidate that is not judged yet gets `infra_error`."""
        with self._lock:
            closing, self._closing = self._closing, True
        if not closing:
            os.write(self._wake_write, b"x")
        self._thread.join()

    # ---- phases: a candidate is recorded and replayed, or run in process mode, or both one after the other

    def _first_phase(self) -> str:
        if self.mode != "process":
            return "replay"
        return "record" if self.policy in ("strict", "kernelbench") else "process"

    def _next_phase(self, entry: Entry, result: dict) -> str | None:
        """The candidate's next phase, or None if the result is its verdict."""
        phase = entry.job["phase"]
        status = result["verdict"]["status"]
        if phase in ("process", "task") or entry.is_probe:
            return None
        if phase == "record":
            # strict insists on a plan; otherwise a candidate that the recorder can't follow may still run
            goes_on = status == "correct" or (self.policy != "strict" and status != "rule_violation")
        else:
            may_fall_back = self.device != "cpu" and self.mode is None and self.policy != "strict"
            goes_on = may_fall_back and status == "unsupported" and result["fallback"]
        return "process" if goes_on else None

    def _flavour(self, phase: str) -> str:
        """The flavour of the processes that a phase runs in (sandbox/zygote.py)."""
        if self.device == "cpu":
            return "record"
        if phase == "task":
            phase = self._first_phase()
        return "cuda" if phase == "process" else "gpu"

    def _wanted(self, flavour: str) -> tuple[int, int]:
        """(workers, candidates that each has in flight). Few share a GPU; their children use the cores."""
        if flavour == "cuda":  # the driver makes one context after another; while one is slow another begins
            room = self.card.total_memory // (2 * CONTEXT)
            return max(1, min(self.workers, room)), 1
        if flavour == "record":
            return self.workers, self.depth
        count = min(REPLAYERS, -(-self.workers // 2))
        return count, max(self.depth, -(-self.workers // count) + 2)

    # ---- the scheduler's thread

    def _run(self) -> None:
        try:
            self._if_possible(self._begin)
            while not self._closing:
                self._wait()
                self._if_possible(self._work)
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

    def _if_possible(self, act: Callable[[], None]) -> None:
        """Act. Where the machine has no process, file or memory left for that, the next turn tries it again.

        Candidates are given up where that goes on for SHORT seconds.
        """
        try:
            act()
            self._short_since = None
        except OSError as error:
            now = time.monotonic()
            if self._short_since is None:
                self._short_since = now
                log.warning("executor: %s; it tries again for %g s", error, SHORT)
            elif now - self._short_since > SHORT:
                self._short_since = None
                self._finish_all(f"this machine has no process, file or memory left: {error}")

    def _begin(self) -> None:
        self._start(self._flavour(self._first_phase()))

    def _work(self) -> None:
        self._kill_overdue()
        self._dispatch()

    def _wait(self) -> None:
        """Sleep until something happens, then handle it."""
        owners: dict[int, Base | Process] = {}
        for owner in (*self._bases.values(), *self._processes):
            owners[owner.sock.fileno()] = owner
        poll = select.poll()
        for fd in (self._wake_read, *owners):
            poll.register(fd, select.POLLIN)
        in_flight = any(process.entries for process in self._processes)
        for fd, _ in poll.poll(1000 * (LOOK if in_flight else IDLE_LOOK)):
            if fd == self._wake_read:
                os.read(self._wake_read, 1 << 16)
                self._queue_submitted()
            else:
                self._hear(owners[fd])

    def _queue_submitted(self) -> None:
        while self._submitted:
            entry = self._submitted.popleft()
            self._queue(entry).append(entry)

    def _hear(self, owner: Base | Process) -> None:
        """Handle one message, unless the process has been given up since."""
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
        process.alone, process.finished = False, process.finished + 1
        entry = process.entries.pop(message["job"], None)
        if entry is None:  # it was given up meanwhile
            return
        for name, seconds in message["cost"].items():
            entry.cost[name] = round(entry.cost.get(name, 0.0) + seconds, 6)
        if not entry.is_probe:
            entry.facts |= message["facts"]
        if phase := self._next_phase(entry, message):
            entry.job["phase"] = phase
            self._queue(entry).append(entry)
        else:
            self._finish(entry, **message["verdict"])

    # ---- processes

    def _start(self, flavour: str) -> None:
        base = self._bases[flavour] = start_base(flavour, self.root, self.visible, self.card)
        self._groups.append(base.popen.pid)

    def _base_died(self, base: Base) -> None:
        base.sock.close()
        base.popen.wait()
        del self._bases[base.flavour]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(base.popen.pid, signal.SIGKILL)  # processes that it left are dying anyway
        self._groups.remove(base.popen.pid)
        self._failed_starts += not base.ready
        for process in base.unnamed:
            self._worker_died(process)
        if self._failed_starts >= FAILED_STARTS:
            self._failed_starts = 0
            message = f"the {base.flavour} process does not start; its own message is on stderr"
            self._finish_all(message, base.flavour)

    def _kill_overdue(self) -> None:
        """Kill the workers whose alarm did not help: they are inside of one long native call."""
        for process in list(self._processes):
            job, due, stage = process.computing()
            if not due or process.pid is None or job not in process.entries:
                continue
            if time.monotonic() > due + GRACE and own_time(process.pid) > due + GRACE:
                self._kill(process, job, stage)

    def _kill(self, process: Process, job: int, stage: str) -> None:
        """Kill an overdue worker. Its candidate has its verdict."""
        entry = process.entries.pop(job)
        process.finished += 1
        with contextlib.suppress(ProcessLookupError):  # it may have died just now
            os.kill(process.pid, signal.SIGKILL)
        self._worker_died(process)
        if stage in ("task", "judge"):
            status, message = "unsupported", "the reference itself takes too long here"
            stage = "task"  # it says nothing of the candidate
        else:
            status, message = "timeout", f"{stage}: not done after {self.timeout:g} s"
        self._finish(entry, status, message, stage)

    def _worker_died(self, process: Process) -> None:
        """Its candidates in flight are run again. The one that it was computing is the suspect."""
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
            self._run_again(entry)

    def _run_again(self, entry: Entry) -> None:
        """Queue a candidate whose worker died, unless that happened too often."""
        if entry.is_probe and entry.deaths:
            self._probed(entry, healthy=False)
        elif entry.restarts > RESTARTS:
            self._finish(entry, "infra_error", "workers kept dying while this candidate was in flight")
        elif entry.deaths >= 2:
            self._probe(entry)
        else:
            self._queue(entry).appendleft(entry)

    def _probe(self, suspect: Entry) -> None:
        """Two workers died of this candidate, or so it seems. Judge one that is known to be right instead."""
        job = suspect.job | {"task": probe.TASK, "source": probe.CANDIDATE, "policy": "none"}
        entry = dataclasses.replace(
            suspect, job=job, deaths=0, restarts=0, given=0.0, is_probe=True, passed=0
        )
        self._queue(entry).appendleft(entry)

    def _probed(self, entry: Entry, healthy: bool) -> None:
        """The verdict of a suspect, after its probe: we are healthy or not."""
        if healthy and entry.died_in == "task":  # no candidate runs in that stage
            suspect = dataclasses.replace(entry, is_probe=False)
            message = "the reference itself crashes the process that runs it"
            self._finish(suspect, "unsupported", message, stage="task")
            return
        if healthy:
            status, message = "crashed", "it crashed the process that ran it, twice"
        else:
            status, message = "infra_error", "the executor's own health check fails"
        self._finish(dataclasses.replace(entry, is_probe=False), status, message)

    # ---- work

    def _dispatch(self) -> None:
        """Hand out the candidates that wait."""
        for flavour, queue in self._queues.items():
            if not queue:
                continue
            if flavour not in self._bases:
                self._start(flavour)
            count, depth = self._wanted(flavour)
            workers = [process for process in self._processes if process.flavour == flavour]
            if self._bases[flavour].ready:
                workers += self._more_workers(flavour, count - len(workers))
            while queue and self._give_one(queue, workers, depth):
                pass

    def _more_workers(self, flavour: str, count: int) -> list[Process]:
        started: list[Process] = []
        base = self._bases[flavour]
        with contextlib.suppress(ConnectionError):  # the base just died: its socket will say so
            for _ in range(count):
                self._next_id += 1
                process = ask_for_worker(base, self.root, self._next_id, self.memory, self.visible, self.card)
                started.append(process)
                self._processes.append(process)
        return started

    def _give_one(self, queue: deque[Entry], workers: list[Process], depth: int) -> bool:
        """Give a candidate of the queue to a worker. Returns False if none has room."""
        suspect = queue[0].deaths  # it waits for an idle worker
        free = [p for p in workers if p.has_room(depth) and not (suspect and p.entries)]
        if not free:
            return False
        return self._give(*take(queue, free, workers))

    def _give(self, process: Process, entry: Entry) -> bool:
        self._next_id += 1
        job = {"id": self._next_id, **entry.job, "facts": entry.facts, "secret": self.secret}
        try:
            with open(memory_file("job", job)) as file:
                send(process.sock, {"job": job["id"]}, (file.fileno(),))
        except OSError as error:
            self._queue(entry).appendleft(entry)
            if isinstance(error, ConnectionError):  # it just died: its socket will say so
                return False
            raise
        entry.given = time.monotonic()
        process.entries[job["id"]] = entry
        if entry.key[0] in process.tasks:
            process.tasks.remove(entry.key[0])
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

    def _finish_all(self, message: str, flavour: str | None = None) -> None:
        """Give up every candidate, or those that processes of one flavour were to judge."""
        self._queue_submitted()
        waiting: list[Entry] = []
        for name, queue in self._queues.items():
            if flavour in (None, name):
                waiting += queue
                queue.clear()
        for process in self._processes:
            if flavour in (None, process.flavour):
                waiting += process.entries.values()
                process.entries.clear()
        for entry in waiting:
            self._finish(dataclasses.replace(entry, is_probe=False), "infra_error", message)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
