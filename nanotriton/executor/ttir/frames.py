"""Frames: the programs that are evaluated together, their values, and how these are parted and merged."""

from collections.abc import Callable

import numpy as np

from .ops import Descriptor
from .types import Unsupported

# run(v, frame): computes values of the list v from others, for the programs of a frame
Step = Callable[[list, "Frame"], None]
Values = list[np.ndarray]


class Frame:
    """The programs that are evaluated together.

    v: values by slot. n: how many programs. owner: program + 1 of each. ids: their ids in x, y and z.
    """

    __slots__ = ("evaluation", "ids", "n", "owner", "v")

    def __init__(self, v: list, n: int, owner: np.ndarray, ids: tuple, evaluation):
        self.v = v
        self.n = n
        self.owner = owner
        self.ids = ids
        self.evaluation = evaluation

    def part(self, index: np.ndarray, captures) -> "Frame":
        """The programs of `index` alone. Of the values only those in the slots `captures` are theirs."""
        v = self.v.copy()
        for slot in captures:
            v[slot] = take(v[slot], index)
        ids = tuple(take(x, index) for x in self.ids)
        return Frame(v, len(index), self.owner[index], ids, self.evaluation)


def take(x, index: np.ndarray):
    """The programs `index` of a value."""
    if isinstance(x, Descriptor):
        shape = tuple(take(n, index) for n in x.shape)
        strides = tuple(take(n, index) for n in x.strides)
        return Descriptor(take(x.base, index), shape, strides, x.padding)
    return x if x is None or x.shape[0] == 1 else x[index]


def merge(parts: list[tuple[np.ndarray, Values]], n: int) -> Values:
    """The values of all n programs, from those of parts of the programs: (which programs, their values)."""
    if len(parts) == 1:
        return parts[0][1]
    results = []
    for values in zip(*(part_values for _, part_values in parts)):
        if isinstance(values[0], Descriptor):
            raise Unsupported("tensor descriptors that differ between programs")
        tail = np.broadcast_shapes(*(x.shape[1:] for x in values))
        out = np.empty((n, *tail), values[0].dtype)
        for (index, _), x in zip(parts, values):
            out[index] = x
        results.append(out)
    return results


def put(v: list, slots: list[int], values) -> None:
    for slot, x in zip(slots, values):
        v[slot] = x
