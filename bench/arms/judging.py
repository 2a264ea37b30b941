"""Judging a handful of pairs."""

from collections import Counter

from nanotriton.collect.sources import small
from nanotriton.executor import Executor
from nanotriton.tasks.task import Task


def count(rows: list[dict], policy: str) -> dict[str, int]:
    """{status: pairs} on the CPU, at sizes that are brought down."""
    with Executor("cpu", policy=policy) as executor:
        waiting = [executor.submit(Task(r["name"], small(r["task"])), r["solution"]) for r in rows]
        return dict(Counter(future.result().status for future in waiting).most_common())
