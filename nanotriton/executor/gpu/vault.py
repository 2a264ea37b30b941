"""What candidates share, on a GPU: memory that is not there while a candidate's kernels run.

A kernel can make a pointer of any number. So the reference's answers that are kept for other candidates
(judge/reference/kept.py) lie in memory that is taken out of the process's address space before a kernel runs,
and put back after it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

ALIGN = 256  # bytes: every tensor begins at a multiple of it
CHUNK = 256 << 20  # bytes that are put back at a time, and the most that is kept at once

log = logging.getLogger(__name__)


class Memory(Protocol):
    """Memory that can be locked (vmm.LockedMemory)."""

    def unlock(self) -> None: ...

    def lock(self) -> None: ...

    def tensor(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Place:
    """Of a tensor in a chunk. start, nbytes: in bytes."""

    start: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size


class Chunk:
    """A part of a vault. It begins locked."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.bytes: torch.Tensor | None = None  # all of the memory, uint8, once it was open
        self.used = 0
        self.is_open = False

    def open(self) -> None:
        self.memory.unlock()
        self.is_open = True
        if self.bytes is None:
            self.bytes = self.memory.tensor()

    def close(self) -> None:
        if self.is_open:
            self.memory.lock()
            self.is_open = False

    def put(self, t: torch.Tensor) -> Place:
        """Copy a tensor to the first free place."""
        place = Place(self.used, t.nbytes, t.dtype, t.shape)
        self.view(place).copy_(t.detach())
        self.used += padded(t.nbytes)
        return place

    def view(self, place: Place) -> torch.Tensor:
        data = self.bytes[place.start : place.start + place.nbytes]
        return data.view(place.dtype).view(place.shape)


class Vault:
    """`size` bytes of a GPU at most, in chunks. Where the GPU cannot lock memory, nothing is kept.

    make: of so many bytes, locked memory. Raises RuntimeError, MemoryError or OSError.
    """

    def __init__(self, size: int, device: torch.device, make: Callable[[int], Memory], chunk: int = CHUNK):
        self.device, self.make, self.chunk = device, make, chunk
        self.most = size // chunk
        self.chunks: list[Chunk] = []
        self.works = True
        self.is_full = False
        self.age = 0  # how often everything was forgotten

    def keep(self, given: list[torch.Tensor]) -> Callable[[], list[torch.Tensor] | None] | None:
        """Copy tensors into the vault. Returns what gives the copies, or None once they are gone; None if
        there is no room. The copies may be read until the vault is closed."""
        if not given:  # a constant, which takes no memory
            return lambda: []
        number = self._with_room(sum(padded(t.nbytes) for t in given))
        if number is None or not self._open(self.chunks[number]):
            return None
        places: list[Place] = []
        for t in given:
            places.append(self.chunks[number].put(t))
        age = self.age

        def again() -> list[torch.Tensor] | None:
            if age != self.age or not self._open(self.chunks[number]):
                return None
            return [self.chunks[number].view(place) for place in places]

        return again

    def close(self) -> None:
        """Before a candidate's kernel runs. If there was no room for something, all is forgotten."""
        for chunk in self.chunks:
            chunk.close()
        if self.is_full:
            self._forget()

    def give_back(self) -> None:
        """Give the memory back, and forget what is in it. The next `keep` takes it again."""
        self.close()
        self._forget()
        self.chunks = []

    def _forget(self) -> None:
        self.age, self.is_full = self.age + 1, False
        for chunk in self.chunks:
            chunk.used = 0

    def _with_room(self, needed: int) -> int | None:
        """The number of a chunk with so many bytes left, or None."""
        if needed > self.chunk or not self.works:
            return None
        for number, chunk in enumerate(self.chunks):
            if chunk.used + needed <= self.chunk:
                return number
        if len(self.chunks) >= self.most:
            self.is_full = True
            return None
        try:
            self.chunks.append(Chunk(self.make(self.chunk)))
        except MemoryError:  # others have it now
            return None
        except (RuntimeError, OSError) as error:
            self._give_up(error)
            return None
        return len(self.chunks) - 1

    def _open(self, chunk: Chunk) -> bool:
        """Returns False where that is not possible."""
        if not chunk.is_open and self.works:
            try:
                chunk.open()
            except (RuntimeError, OSError) as error:
                self._give_up(error)
        return chunk.is_open

    def _give_up(self, error: Exception) -> None:
        log.warning("what candidates share is computed for each of them: %s", error)
        self.works = False


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
