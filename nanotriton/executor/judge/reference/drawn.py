"""The last draws of a task's inputs, for whoever asks for them again.

A trial's inputs are needed by the candidate, by the reference in its own dtype, and in float64. To copy them
is several times as quick as to draw them again. This is for a CPU: on a GPU a candidate's kernel could write
to what is kept there.
"""

import copy
from collections.abc import Callable

import torch

from nanotriton.executor.judge.reference.kept import can_be_cloned
from nanotriton.plan.trees import mapped, tensors

MOST_BYTES = 16 << 20
MOST_DRAWS = 8
Key = tuple[str, int]  # kind, seed


def cloned(given: list) -> list:
    """copy.deepcopy of a draw whose tensors share no memory, in a seventh of its time."""
    return mapped(given, torch.clone)


class Drawn:
    """Copies of the last draws, by kind and seed."""

    def __init__(self):
        # Each draw with its bytes and with what copies it, the last asked for last.
        self.kept: dict[Key, tuple[list, int, Callable[[list], list]]] = {}

    def copy_of(self, key: Key) -> list | None:
        """A copy of a draw that is still known: tensors that share memory share it in the copy too."""
        if key not in self.kept:
            return None
        given, _, copied = self.kept[key] = self.kept.pop(key)
        return copied(given)

    def keep(self, key: Key, given: list) -> None:
        """Keep a copy of a draw, if it is small enough and can be copied."""
        try:
            storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors(given)}
            size = sum(storage.nbytes() for storage in storages.values())
            if size > MOST_BYTES:
                return
            copied = cloned if can_be_cloned(given) else copy.deepcopy
            self.kept[key] = copied(given), size, copied
        except RuntimeError:  # a sparse tensor, or one that was computed from another with gradients
            return
        while len(self.kept) > MOST_DRAWS or sum(size for _, size, _ in self.kept.values()) > MOST_BYTES:
            del self.kept[next(iter(self.kept))]

    def forget(self) -> None:
        self.kept.clear()
