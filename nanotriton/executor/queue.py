"""Candidates on their way to a verdict, and the order in which a worker gets them."""

import itertools
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

WINDOW = 64  # candidates that a worker chooses from


@dataclass(eq=False)
class Entry:
    """One distinct candidate on its way to a verdict."""

    key: tuple[str, str]  # (the task's key, the source's hash and the draw, if it shares one)
    job: dict  # the message that a worker gets
    future: Future = field(default_factory=Future)
    facts: dict = field(default_factory=dict)  # fields of its verdict that are known already
    cost: dict = field(default_factory=dict)  # stage -> seconds
    deaths: int = 0  # workers that died while they were computing it
    died_in: str = ""  # the stage that the last of them was in
    restarts: int = 0  # times it was in flight when a worker died of something else, having finished nothing
    given: float = 0.0  # when a worker got it (monotonic clock)
    is_probe: bool = False
    passed: int = 0  # times that others were taken while it was first in its queue


def take(queue: deque[Entry], own: set[str], known: set[str]) -> Entry:
    """Take the next candidate for a worker out of a queue.

    own: the tasks that the worker has examined. known: those that some worker has. To examine a task costs
    as much as to judge a candidate. So a worker goes on with its own tasks, and then takes a task that is
    new to all. The first entry of the queue is passed over WINDOW times at most, and never after it was in
    flight when a worker died.
    """
    first = queue[0]
    if first.deaths or first.passed >= WINDOW:
        return queue.popleft()
    near = [entry for entry in itertools.islice(queue, WINDOW) if not entry.deaths]
    entry = next((e for e in near if e.key[0] in own), None)
    if entry is None:
        entry = next((e for e in near if e.key[0] not in known), first)
    first.passed += 1
    queue.remove(entry)
    return entry
