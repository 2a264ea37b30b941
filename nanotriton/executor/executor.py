"""The executor: candidates in, verdicts out. Hostile and fallible work happens in other processes.

    with Executor(device="cpu") as executor:
        future = executor.submit(task, source)   # returns at once; results arrive as they finish
        print(future.result().status)

Here candidates are submitted, from any thread, and equal ones share a verdict. All processes belong to one
thread of the executor's own, in which its supervisor runs (supervisor.py).

This module imports neither torch nor triton.
"""

import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from concurrent.futures import Future

from nanotriton.config import ConfigError
from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.phases import Phases
from nanotriton.executor.processes import (
    default_workers,
    end_processes,
    make_root,
    memory_share,
    read_card,
    visible_devices,
)
from nanotriton.executor.queue import Entry
from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.supervisor import Supervisor
from nanotriton.python_text import plain
from nanotriton.rules.policy import check_policy
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

MODES = ("replay", "process")
NEEDS_GPU = "process mode needs a GPU (device cuda); on a CPU candidates are recorded and replayed"
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

    PHASES = Phases  # those of its candidates

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
        kind, index = parse_device(device)
        check_mode(mode, kind)
        given = 1.0 if memory_gib is None else memory_gib
        if timeout <= 0 or given <= 0 or (workers is not None and workers < 1) or depth < 1:
            raise ValueError("timeout and memory_gib must be positive, workers and depth at least 1")
        self.device = kind
        self.mode = mode
        self.policy = check_policy(policy)
        self.phases = self.PHASES(kind, mode, self.policy)
        self.timeout = timeout
        self.time = time
        self.workers = workers or default_workers()
        self.depth = depth
        self.memory = memory_share(self.workers) if memory_gib is None else int(memory_gib * 2**30)
        self.visible = visible_devices(index)
        self.card = DEFAULT if device == "cpu" else read_card(self.visible, time)
        self.secret = secrets.token_hex(16) if seed is None else _sha256(f"seed {seed}")
        if missing := sandbox.support():
            log.warning(missing)
        try:
            self.root, self._lock_fd = make_root()
        except OSError as error:
            raise ConfigError(f"the executor's temporary folder can't be made: {error}") from None
        self._start()

    def _start(self) -> None:
        """Begin to take candidates: the supervisor, and the thread in which it runs."""
        self._lock = threading.Lock()  # for the three below, which other threads touch too
        self._submitted: deque[Entry] = deque()
        self._known: OrderedDict[tuple, Future] = OrderedDict()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self.supervisor = Supervisor(
            self._submitted,
            self._wake_read,
            self._deliver,
            self.phases,
            self.root,
            self.workers,
            self.depth,
            self.memory,
            self.visible,
            self.card,
        )
        self._finalizer = weakref.finalize(
            self, end_processes, self.supervisor.groups, self.root, os.getpid()
        )
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
        return self._submit(task, source, self.phases.first(), name, draw)

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
                "secret": self.secret,
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

    # ---- the supervisor's thread

    def _run(self) -> None:
        try:
            self.supervisor.run(lambda: self._closing)
        except BaseException:
            log.exception("executor: the supervisor failed")
            raise
        finally:
            with self._lock:
                self._closing = True  # also if the supervisor failed: nobody is left to take work
            self._finalizer()
            self.supervisor.close()
            for fd in (self._wake_read, self._wake_write, self._lock_fd):
                os.close(fd)

    def _deliver(self, entry: Entry, verdict: Verdict) -> None:
        """Answer whoever submitted a candidate, or submits it again."""
        if verdict.status == "infra_error":
            with self._lock:
                self._known.pop(entry.key, None)  # next time it gets another chance
        entry.future.set_result(verdict)
        with self._lock:
            while len(self._known) > REMEMBERED and next(iter(self._known.values())).done():
                self._known.popitem(last=False)


def parse_device(device: str) -> tuple[str, int | None]:
    """("cpu" or "cuda", the number of the GPU if one is named). Raises ValueError."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdecimal() or not index):
        raise ValueError(f"unknown device {device!r}; one of cpu, cuda, cuda:N")
    return kind, int(index) if index else None


def check_mode(mode: str | None, kind: str) -> None:
    """Raise ValueError unless candidates can be run so on this kind of device."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; one of {', '.join(MODES)}")
    if mode == "process" and kind == "cpu":
        raise ValueError(NEEDS_GPU)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
