"""A teacher with habits, for the laptop run: what it writes is good to learn from, but for some operations it
is often wrong.

SFT imitates its teacher, so it learns the teacher's mistakes too, however long it trains. GRPO is paid
by execution, so it can unlearn them. That is the situation in which the paper uses GRPO (its SFT pairs
come from a larger model, which is wrong at times), at a size that a laptop can hold. With solutions
that are always right, more SFT is the better use of the same seconds (docs/laptop.md).

A habit replaces one element-wise operation by another one that looks alike, always the same one. Every
third operation without a second input has a habit, and the teacher follows it with probability SHARE
wherever the operation occurs. Of 12,000 pairs 28% are wrong.
"""

import random
from dataclasses import replace
from functools import cache

from nanotriton.tasks.grammar import OPS, Op
from nanotriton.tasks.synthetic import render
from nanotriton.tasks.task import Task

SHARE = 0.7  # probability that the teacher follows a habit where it could
EVERY = 3  # one operation of so many has a habit
BY_NAME = {op.name: op for op in OPS}
ANY_SIZES = {"rows": 2, "inner": 2, "cols": 3}  # a solution reads its sizes from its inputs


@cache
def habits() -> dict[str, Op]:
    """The operation that the teacher writes instead, by the name of the one that was asked for.

    >>> habits()["relu"].name, habits()["square"].name
    ('abs', 'sqrt_square')
    """
    maps = [op for op in OPS if op.kind == "map" and not op.operand]
    found = {}
    for i in range(0, len(maps), EVERY):
        later_first = maps[i + 1 :] + maps[:i]
        takes_a_constant = bool(maps[i].constants)
        found[maps[i].name] = next(op for op in later_first if bool(op.constants) == takes_a_constant)
    return found


def taught(task: Task, share: float = SHARE) -> Task:
    """The task with the teacher's solution in place of the right one, the same each time it is asked.

    The task must be one of synthetic.generate's, which keeps its operations in `meta`.
    """
    rng = random.Random(task.source)
    written = []
    for name, constant in zip(task.meta["ops"], task.meta["constants"]):
        follows = name in habits() and rng.random() < share
        written.append((habits()[name] if follows else BY_NAME[name], constant))
    _, solution = render(written, ANY_SIZES, block=16)
    return replace(task, solution=solution)
