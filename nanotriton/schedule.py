"""Learning rates, the order of the data, and seeds: functions of the run's seed and the step alone.

Nothing here depends on the rank or on what was drawn before. So another number of ranks draws the same
numbers, and a run that was stopped continues with those that it would have drawn.
"""

import math
import random
from enum import IntEnum

MASK = 0xFFFFFFFFFFFFFFFF  # 64 bits


class Stream(IntEnum):
    """The purpose of a random number. Two streams of one seed have nothing in common.

    A published seed stands for these numbers, so an entry is never renumbered, and a new one gets a new
    number.
    """

    SAMPLES = 1  # the completions of a training step
    SHUFFLED_REWARDS = 2  # the permutation of --shuffle-rewards
    UPDATES = 3  # which groups each optimizer step learns from
    EXAMPLES = 5  # the order of the examples in an epoch
    SPARE_TASKS = 6  # the tasks that replace groups without spread
    HELDOUT = 10  # the completions of held-out tasks
    KERNELBENCH = 20  # the completions of bench.kernelbench
    TRITONBENCH = 21  # and of bench.tritonbench
    SEARCH = 30  # the answers of sample.py


def seed_of(seed: int, stream: Stream, step: int, task: int = 0, sample: int = 0) -> int:
    """The seed of one random draw, 63 bits, from what the draw is for and never from the rank that makes it.

    Each part is mixed in with the finalizer of splitmix64 (Steele et al., OOPSLA 2014), so that neighbours
    get unrelated seeds.
    """
    value = seed
    for part in (stream, step, task, sample):
        value = (value * 0x9E3779B97F4A7C15 + part + 1) & MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        value ^= value >> 31
    return value & (MASK >> 1)


def learning_rate(step: int, steps: int, peak: float, warmup: float, least: float = 0.0) -> float:
    """Linear warm-up over `warmup * steps` steps, then a cosine to 0 that never falls below `least * peak`.

    `step` counts from 0.
    """
    rise = max(round(warmup * steps), 1)
    if step < rise:
        return peak * (step + 1) / rise
    angle = math.pi * (step - rise) / max(steps - rise, 1)  # 0 at the peak, pi at the end
    cosine = 0.5 * (1 + math.cos(angle))
    return peak * max(least, cosine)


def indices(step: int, batch: int, examples: int, seed: int) -> list[int]:
    """The `batch` examples that a step trains on. Every epoch is a new permutation of all of them.

    A step may begin in one epoch and end in another.
    """
    first, end = step * batch, (step + 1) * batch  # places in the epochs laid end to end
    chosen: list[int] = []
    for epoch in range(first // examples, (end - 1) // examples + 1):
        start = epoch * examples
        order = random.Random(seed_of(seed, Stream.EXAMPLES, epoch)).sample(range(examples), examples)
        chosen += order[max(first - start, 0) : end - start]
    return chosen


def update_groups(groups: int, epochs: int, updates: int, step: int, seed: int) -> list[list[int]]:
    """The numbers of the groups that each optimizer step learns from, [epochs * updates] lists.

    Each epoch is a random partition of all groups, those of other ranks included, into `updates` lists.
    """
    rng = random.Random(seed_of(seed, Stream.UPDATES, step))
    lists = []
    for _ in range(epochs):
        order = rng.sample(range(groups), groups)
        lists += [order[first::updates] for first in range(updates)]
    return lists
