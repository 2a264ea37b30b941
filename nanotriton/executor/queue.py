"""Candidates on their way to a verdict, and which worker gets which."""

import itertools
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

WINDOW = 256  # candidates of a queue that are chosen from


@dataclass(eq=False)
class Entry:
    """One distinct candidate on its way to a verdict."""

    # (the task's key, the source's hash, with the draw behind it if it shares one)
    key: tuple[str, str]
    job: dict  # the message that a worker gets
    future: Future = field(default_factory=Future)
    facts: dict = field(default_factory=dict)  # fields of its verdict that are known already
    cost: dict = field(default_factory=dict)  # stage -> seconds
    deaths: int = 0  # workers that died while they were computing it
    died_in: str = ""  # the stage that the last of them was in
    restarts: int = 0  # times it was in flight when a worker died of something else, having finished nothing
    given: float = 0.0  # when a worker got it (monotonic clock)
    suspect: "Entry | None" = None  # of a probe: the candidate whose workers died, and which waits for it
    passed: int = 0  # times that others were taken while it was first in its queue


class Worker(Protocol):
    """tasks: keys of those that it has examined. entries: what it has in flight."""

    tasks: Collection[str]
    entries: Collection


def take(queue: deque[Entry], free: list[Worker], workers: list[Worker]) -> tuple[Worker, Entry]:
    """Take the next candidate out of a queue, for one of the free workers.

    To examine a task costs as much as to judge a candidate, and of candidates that share a draw the first
    costs more than the others. So a candidate goes to a worker that knows its task. Where no free one does,
    the idlest takes a task that is new to all. If there is none either, it takes the first: nobody waits for
    a busy worker while another one is idle.

    The first entry of the queue is passed over WINDOW times at most, and never after it was in flight when a
    worker died.
    """
    first, idlest = queue[0], min(free, key=_load)
    if first.deaths or first.passed >= WINDOW:
        return idlest, queue.popleft()
    near = [entry for entry in itertools.islice(queue, WINDOW) if not entry.deaths]
    worker, entry = _known(near, free) or (idlest, _new(near, workers) or first)
    first.passed += entry is not first
    queue.remove(entry)
    return worker, entry


def _known(near: list[Entry], free: list[Worker]) -> tuple[Worker, Entry] | None:
    """The first candidate whose task a free worker knows, and the idlest of those that do."""
    known = set().union(*(worker.tasks for worker in free))
    entry = next((entry for entry in near if entry.key[0] in known), None)
    if entry is None:
        return None
    return min((worker for worker in free if entry.key[0] in worker.tasks), key=_load), entry


def _new(near: list[Entry], workers: list[Worker]) -> Entry | None:
    """The first candidate whose task no worker knows."""
    known = set().union(*(worker.tasks for worker in workers))
    return next((entry for entry in near if entry.key[0] not in known), None)


def _load(worker: Worker) -> int:
    return len(worker.entries)
