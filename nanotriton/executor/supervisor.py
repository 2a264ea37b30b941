"""Who judges what, and what follows where a process dies. One thread of each executor does this.

The supervisor hands each worker a few candidates at a time, sees in shared memory when one is overdue, and
starts dead processes again. processes.py has the functions that start them.

A candidate that was being judged when its worker died is tried once more, alone. If that kills a worker too,
a candidate known to be right is judged, the probe. If that works the fault is the candidate's (`crashed`),
else it is ours (`infra_error`). The others that were in flight are simply run again.

This module imports neither torch nor triton.
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator

from nanotriton.executor.common import probe
from nanotriton.executor.common.card import Card
from nanotriton.executor.common.limits import REPLAYERS
from nanotriton.executor.phases import Phases
from nanotriton.executor.processes import Base, WorkerProcess, ask_for_worker, start_base
from nanotriton.executor.queue import Entry, take
from nanotriton.executor.sandbox.clock import own_time
from nanotriton.executor.sandbox.protocol import memory_file, receive, send
from nanotriton.verdict import Verdict

# Seconds that a worker has for its own alarm before it is killed. With LOOK it is less than 2 beyond a limit.
GRACE = 1.5
LOOK = 0.25  # seconds between two looks for overdue workers
IDLE_LOOK = 2.0  # the same while nothing is in flight
RESTARTS = 8  # of a candidate caught in others' accidents, before that is a failure of ours
FAILED_STARTS = 3  # of a base in a row, before its candidates are given up
SHORT = 60.0  # seconds for which a machine may have no process, file or memory left, before that too
CONTEXT = 2 << 30  # bytes of a GPU's memory for each process with a context of its own

log = logging.getLogger(__name__)


class Supervisor:
    """Owns the processes of an executor, and the candidates that wait or are in flight.

    submitted: where other threads leave new candidates. A byte from the descriptor `wake` says that they did.
    deliver: gets every candidate with its verdict.
    root: the executor's folder. most_workers: at most so many of one flavour. depth: candidates that a worker
    records while it judges. memory: bytes for each process. visible, card: the GPU, see processes.start_base.
    """

    def __init__(
        self,
        submitted: deque[Entry],
        wake: int,
        deliver: Callable[[Entry, Verdict], None],
        phases: Phases,
        root: str,
        most_workers: int,
        depth: int,
        memory: int,
        visible: str | None,
        card: Card,
    ):
        self.submitted, self.wake, self.deliver = submitted, wake, deliver
        self.phases, self.root = phases, root
        self.most_workers, self.depth, self.memory = most_workers, depth, memory
        self.visible, self.card = visible, card
        self.queues: dict[str, deque[Entry]] = {}  # by flavour
        self.bases: dict[str, Base] = {}  # by flavour
        self.workers: list[WorkerProcess] = []
        self.groups: list[int] = []  # process groups, which the executor kills at its end
        self.failed_starts = 0  # of bases, in a row
        self.short_since: float | None = None  # when the machine first had nothing left (monotonic)
        self.last_id = 0  # of workers and jobs

    def run(self, closing: Callable[[], bool]) -> None:
        """Work until the executor is closing."""
        with self._if_possible():
            self._start(self.phases.flavour(self.phases.first()))
        while not closing():
            self._wait()
            with self._if_possible():
                self._kill_overdue()
                self._dispatch()

    @contextlib.contextmanager
    def _if_possible(self) -> Iterator[None]:
        """What fails for want of a process, a file or memory is tried again at the next turn.

        Candidates are given up where that goes on for SHORT seconds.
        """
        try:
            yield
            self.short_since = None
        except OSError as error:
            now = time.monotonic()
            if self.short_since is None:
                self.short_since = now
                log.warning("executor: %s; it tries again for %g s", error, SHORT)
            elif now - self.short_since > SHORT:
                self.short_since = None
                self.give_up(f"this machine has no process, file or memory left: {error}")

    # ---- what happens

    def _wait(self) -> None:
        """Sleep until something happens, then handle it."""
        owners: dict[int, Base | WorkerProcess] = {}
        for owner in (*self.bases.values(), *self.workers):
            owners[owner.sock.fileno()] = owner
        poll = select.poll()
        for fd in (self.wake, *owners):
            poll.register(fd, select.POLLIN)
        in_flight = any(worker.entries for worker in self.workers)
        for fd, _ in poll.poll(1000 * (LOOK if in_flight else IDLE_LOOK)):
            if fd == self.wake:
                os.read(self.wake, 1 << 16)
                self._queue_submitted()
            else:
                self._hear(owners[fd])

    def _queue_submitted(self) -> None:
        while self.submitted:
            entry = self.submitted.popleft()
            self._queue(entry).append(entry)

    def _queue(self, entry: Entry) -> deque[Entry]:
        """The queue of the candidate's phase."""
        return self.queues.setdefault(self.phases.flavour(entry.job["phase"]), deque())

    def _hear(self, owner: Base | WorkerProcess) -> None:
        """Handle one message, unless the process has been given up since."""
        if isinstance(owner, Base) and owner in self.bases.values():
            self._base_says(owner, receive(owner.sock)[0])
        elif owner in self.workers:
            self._worker_says(owner, receive(owner.sock)[0])

    def _base_says(self, base: Base, message: dict | None) -> None:
        if message is None:
            self._base_died(base)
        elif "ready" in message:
            base.ready, self.failed_starts = True, 0
        else:
            base.unnamed.popleft().pid = message["pid"]

    def _worker_says(self, worker: WorkerProcess, message: dict | None) -> None:
        if message is None:
            self._worker_died(worker)
            return
        worker.alone, worker.finished = False, worker.finished + 1
        entry = worker.entries.pop(message["job"], None)
        if entry is None:  # it was given up meanwhile
            return
        for name, seconds in message["cost"].items():
            entry.cost[name] = round(entry.cost.get(name, 0.0) + seconds, 6)
        verdict = message["verdict"]
        if entry.suspect is None:
            entry.facts |= message["facts"]
            if phase := self.phases.after(entry.job["phase"], verdict["status"], message["fallback"]):
                entry.job["phase"] = phase
                self._queue(entry).append(entry)
                return
        self._finish(entry, **verdict)

    # ---- deaths

    def _base_died(self, base: Base) -> None:
        base.sock.close()
        base.popen.wait()
        del self.bases[base.flavour]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(base.popen.pid, signal.SIGKILL)  # processes that it left are dying anyway
        self.groups.remove(base.popen.pid)
        self.failed_starts += not base.ready
        for worker in base.unnamed:
            self._worker_died(worker)
        if self.failed_starts >= FAILED_STARTS:
            self.failed_starts = 0
            message = f"the {base.flavour} process does not start; its own message is on stderr"
            self.give_up(message, base.flavour)

    def _kill_overdue(self) -> None:
        """Kill the workers whose alarm did not help: they are inside of one long native call."""
        for worker in list(self.workers):
            job, due, stage = worker.computing()
            if not due or worker.pid is None or job not in worker.entries:
                continue
            if time.monotonic() > due + GRACE and own_time(worker.pid) > due + GRACE:
                self._kill(worker, job, stage)

    def _kill(self, worker: WorkerProcess, job: int, stage: str) -> None:
        """Kill an overdue worker. Its candidate has its verdict."""
        entry = worker.entries.pop(job)
        worker.finished += 1
        with contextlib.suppress(ProcessLookupError):  # it may have died just now
            os.kill(worker.pid, signal.SIGKILL)
        self._worker_died(worker)
        if stage in ("task", "judge"):  # it says nothing of the candidate
            self._finish(entry, "unsupported", "the reference itself takes too long here", "task")
        else:
            self._finish(entry, "timeout", f"{stage}: not done after {entry.job['timeout']:g} s", stage)

    def _worker_died(self, worker: WorkerProcess) -> None:
        """Its candidates in flight are run again. The one that it was computing is the suspect."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        worker.sock.close()
        job, due, stage = worker.computing()
        worker.beacon.close()
        shutil.rmtree(worker.folder, ignore_errors=True)
        for number, entry in worker.entries.items():
            # where something was finished, running the rest again comes to an end
            entry.restarts += not worker.finished
            if number == job and due:
                entry.deaths, entry.died_in = entry.deaths + 1, stage
            self._run_again(entry)

    def _run_again(self, entry: Entry) -> None:
        """Queue a candidate whose worker died, unless that happened too often."""
        if entry.suspect and entry.deaths:
            self._probed(entry.suspect, healthy=False)
        elif entry.restarts > RESTARTS:
            self._finish(entry, "infra_error", "workers kept dying while this candidate was in flight")
        elif entry.deaths >= 2:
            self._probe(entry)
        else:
            self._queue(entry).appendleft(entry)

    def _probe(self, suspect: Entry) -> None:
        """Two workers died of this candidate, or so it seems. Judge one that is known to be right instead."""
        job = suspect.job | {"task": probe.TASK, "source": probe.CANDIDATE, "policy": "none"}
        entry = Entry(suspect.key, job, facts=suspect.facts, cost=suspect.cost, suspect=suspect)
        self._queue(entry).appendleft(entry)

    def _probed(self, suspect: Entry, healthy: bool) -> None:
        """The verdict of a suspect, after its probe: we are healthy or not."""
        if not healthy:
            self._finish(suspect, "infra_error", "the executor's own health check fails")
        elif suspect.died_in == "task":  # no candidate runs in that stage
            message = "the reference itself crashes the process that runs it"
            self._finish(suspect, "unsupported", message, "task")
        else:
            self._finish(suspect, "crashed", "it crashed the process that ran it, twice")

    # ---- work

    def _dispatch(self) -> None:
        """Hand out the candidates that wait."""
        for flavour, queue in self.queues.items():
            if not queue:
                continue
            if flavour not in self.bases:
                self._start(flavour)
            count, depth = workers_and_depth(flavour, self.most_workers, self.depth, self.card)
            workers = [worker for worker in self.workers if worker.flavour == flavour]
            if self.bases[flavour].ready:
                workers += self._more_workers(flavour, count - len(workers))
            while queue and self._give_one(queue, workers, depth):
                pass

    def _start(self, flavour: str) -> None:
        base = self.bases[flavour] = start_base(flavour, self.root, self.visible, self.card)
        self.groups.append(base.popen.pid)

    def _more_workers(self, flavour: str, count: int) -> list[WorkerProcess]:
        started: list[WorkerProcess] = []
        base = self.bases[flavour]
        with contextlib.suppress(ConnectionError):  # the base just died: its socket will say so
            for _ in range(count):
                self.last_id += 1
                worker = ask_for_worker(base, self.root, self.last_id, self.memory, self.visible, self.card)
                started.append(worker)
                self.workers.append(worker)
        return started

    def _give_one(self, queue: deque[Entry], workers: list[WorkerProcess], depth: int) -> bool:
        """Give a candidate of the queue to a worker. Returns False if none has room."""
        suspect = queue[0].deaths  # it waits for an idle worker
        free = [w for w in workers if w.has_room(depth) and not (suspect and w.entries)]
        if not free:
            return False
        return self._give(*take(queue, free, workers))

    def _give(self, worker: WorkerProcess, entry: Entry) -> bool:
        """Send a candidate to a worker. False, and the candidate waits again, if the worker is dead."""
        self.last_id += 1
        job = {"id": self.last_id, **entry.job, "facts": entry.facts}
        try:
            with open(memory_file("job", job)) as file:
                send(worker.sock, {"job": job["id"]}, (file.fileno(),))
        except OSError as error:
            self._queue(entry).appendleft(entry)
            if isinstance(error, ConnectionError):  # it just died: its socket will say so
                return False
            raise
        entry.given = time.monotonic()
        worker.entries[job["id"]] = entry
        if entry.key[0] in worker.tasks:
            worker.tasks.remove(entry.key[0])
        worker.tasks.append(entry.key[0])
        worker.alone = bool(entry.deaths)
        return True

    # ---- verdicts

    def _finish(self, entry: Entry, status: str, message: str = "", stage: str = "") -> None:
        """A candidate has its verdict. A probe's is about us, and decides that of its suspect."""
        if entry.suspect:
            self._probed(entry.suspect, healthy=status == "correct")
            return
        mode = "process" if entry.job["phase"] == "process" else "replay"
        device = self.phases.device
        self.deliver(entry, Verdict(status, stage, message, mode, device, **entry.facts, cost=entry.cost))

    def give_up(self, message: str, flavour: str | None = None) -> None:
        """Every candidate is an `infra_error`, or those that processes of one flavour were to judge."""
        self._queue_submitted()
        waiting: list[Entry] = []
        for name, queue in self.queues.items():
            if flavour in (None, name):
                waiting += queue
                queue.clear()
        for worker in self.workers:
            if flavour in (None, worker.flavour):
                waiting += worker.entries.values()
                worker.entries.clear()
        for entry in waiting:
            self._finish(entry.suspect or entry, "infra_error", message)

    def close(self) -> None:
        """Give up all that is left, once the processes are dead."""
        self.give_up("the executor was closed before this candidate was judged")
        for owner in (*self.bases.values(), *self.workers):
            owner.sock.close()
        for worker in self.workers:
            worker.beacon.close()


def workers_and_depth(flavour: str, most_workers: int, depth: int, card: Card) -> tuple[int, int]:
    """(workers of a flavour, candidates that each has in flight).

    Few share a GPU: their children use the cores. most_workers, depth: as for Supervisor.
    """
    if flavour == "record":
        return most_workers, depth
    if flavour == "cuda":  # the driver makes one context after another; while one is slow another begins
        contexts = card.total_memory // (2 * CONTEXT)
        return max(1, min(most_workers, contexts)), 1
    count = min(REPLAYERS, -(-most_workers // 2))
    return count, max(depth, -(-most_workers // count) + 2)
