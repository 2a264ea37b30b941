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
CHUNK = 256 << 20  # bytes that are put back at a time, and the most that is kept at once

log = logging.getLogger(__name__)


class Memory(Protocol):
    """Memory that can be locked (vmm.LockedMemory)."""

    def unlock(self) -> None: ...

    def lock(self) -> None: ...

    def tensor(self) -> torch.Tensor: ...


@dataclass
class Chunk:
    """A part of a vault. bytes: all of its memory, uint8, to be read while it is open."""

    memory: Memory
    bytes: torch.Tensor
    used: int = 0
    is_open: bool = True


@dataclass(frozen=True)
class Place:
    """Of a tensor in a chunk. start, nbytes: in bytes."""

    start: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size


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
        chunk = self._with_room(sum(padded(t.nbytes) for t in given))
        if chunk is None:
            return None
        places: list[Place] = []
        for t in given:
            places.append(Place(chunk.used, t.nbytes, t.dtype, t.shape))
            chunk.used += padded(t.nbytes)
        for copy, t in zip(self._look(chunk, places), given, strict=True):
            copy.copy_(t.detach())
        age = self.age
        return lambda: self._look(chunk, places) if age == self.age else None

    def close(self) -> None:
        """Before a candidate's kernel runs. If there was no room for something, all is forgotten."""
        for chunk in self.chunks:
            if chunk.is_open:
                chunk.memory.lock()
                chunk.is_open = False
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

    def _with_room(self, needed: int) -> Chunk | None:
        """A chunk with so many bytes left, or None."""
        if needed > self.chunk:
            return None
        found = next((c for c in self.chunks if c.used + needed <= self.chunk), None)
        if found is None and self.works:
            self.is_full = len(self.chunks) >= self.most
            found = None if self.is_full else self._new_chunk()
        return found

    def _new_chunk(self) -> Chunk | None:
        try:
            memory = self.make(self.chunk)
            memory.unlock()
        except (RuntimeError, MemoryError, OSError) as error:
            log.warning("what candidates share is computed for each of them: %s", error)
            self.works = False
            return None
        self.chunks.append(Chunk(memory, memory.tensor()))
        return self.chunks[-1]

    def _look(self, chunk: Chunk, places: list[Place]) -> list[torch.Tensor]:
        if not chunk.is_open:
            chunk.memory.unlock()
            chunk.is_open = True
        return [chunk.bytes[p.start : p.start + p.nbytes].view(p.dtype).view(p.shape) for p in places]


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
