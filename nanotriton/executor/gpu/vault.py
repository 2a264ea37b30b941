"""What candidates share, on a GPU: memory that is not there while a candidate's kernels run.

A kernel can make a pointer of any number. So the reference's answers that are kept for other candidates
(judge/kept.py) lie in memory that is taken out of the process's address space before a kernel runs, and put
back after it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

ALIGN = 256  # bytes: every tensor begins at a multiple of it
LARGEST = 4  # what takes more than this part of a vault is not kept

log = logging.getLogger(__name__)


class Memory(Protocol):
    """Memory that can be locked (vmm.LockedMemory)."""

    def unlock(self) -> None: ...

    def lock(self) -> None: ...

    def tensor(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Place:
    """Of a tensor, in a vault. start, nbytes: in bytes."""

    start: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size


class Vault:
    """`size` bytes of a GPU, taken when something is first kept. Where that is not possible, nothing is kept.

    make: of so many bytes, the memory. Raises RuntimeError, MemoryError or OSError.
    """

    def __init__(self, size: int, device: torch.device, make: Callable[[int], Memory]):
        self.size, self.device, self.make = size, device, make
        self.memory: Memory | None = None
        self.bytes: torch.Tensor | None = None  # all of the memory, uint8
        self.works = True
        self.is_open = False
        self.used = 0
        self.age = 0  # how often everything was forgotten
        self.is_full = False

    def keep(self, given: list[torch.Tensor]) -> Callable[[], list[torch.Tensor] | None] | None:
        """Copy tensors into the vault. Returns what gives the copies, or None once they are gone; None if
        there is no room. The copies may be read until the vault is closed."""
        needed = sum(padded(t.nbytes) for t in given)
        if needed * LARGEST > self.size or not self.open():
            return None
        if self.used + needed > self.size:
            self.is_full = True
            return None
        places: list[Place] = []
        for t in given:
            places.append(Place(self.used, t.nbytes, t.dtype, t.shape))
            self.view(places[-1]).copy_(t.detach())
            self.used += padded(t.nbytes)
        age = self.age
        return lambda: [self.view(place) for place in places] if age == self.age and self.open() else None

    def view(self, place: "Place") -> torch.Tensor:
        """What lies at a place, while the vault is open."""
        return self.bytes[place.start : place.start + place.nbytes].view(place.dtype).view(place.shape)

    def open(self) -> bool:
        """Returns False where that is not possible."""
        if self.is_open:
            return True
        try:
            if self.works and self.memory is None:
                self.memory = self.make(self.size)
            if self.works:
                self.memory.unlock()
        except (RuntimeError, MemoryError, OSError) as error:
            log.warning("what candidates share is computed for each of them: %s", error)
            self.works = False
        if not self.works:
            return False
        self.is_open = True
        if self.bytes is None:
            self.bytes = self.memory.tensor()
        return True

    def close(self) -> None:
        """Before a candidate's kernel runs. If there was no room for something, all is forgotten."""
        if self.is_open:
            self.memory.lock()
            self.is_open = False
        if self.is_full:
            self.used, self.age, self.is_full = 0, self.age + 1, False

    def give_back(self) -> None:
        """Give the memory back, and forget what is in it. The next `keep` takes it again."""
        self.close()
        self.used, self.age, self.is_full = 0, self.age + 1, False
        self.memory = self.bytes = None


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
