"""Whose turn is it on a GPU? The workers of every executor on this machine agree by file locks.

The kernel takes a file lock (flock) back from a process that dies, so no worker can leave another one waiting for ever.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class Lock:
    """A lock that many processes share, and that one of them can have alone.

    It consists of two files. `held` is locked shared by those who share it, and exclusively by the one who has it alone.
    `wanted` is locked shared by all who wait to have it alone. Whoever wants to share the lock takes `wanted` exclusively
    for a moment, and so cannot pass those who wait: they are served one after another, before anybody shares the lock again.
    """

    def __init__(self, path: str):
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
        self.held = os.open(path, flags, 0o600)
        self.wanted = os.open(f"{path}-wanted", flags, 0o600)

    def share(self) -> None:
        """Wait until nobody has the lock alone, or waits for that, and share it."""
        fcntl.flock(self.wanted, fcntl.LOCK_EX)
        fcntl.flock(self.held, fcntl.LOCK_SH)
        fcntl.flock(self.wanted, fcntl.LOCK_UN)

    def release(self) -> None:
        fcntl.flock(self.held, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the lock alone. The caller shares it before, and shares it again afterwards."""
        self.release()  # first, or two who want the lock alone would wait for each other
        fcntl.flock(self.wanted, fcntl.LOCK_SH)
        fcntl.flock(self.held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.release()
            fcntl.flock(self.wanted, fcntl.LOCK_UN)
            self.share()

    def close(self) -> None:
        os.close(self.held)
        os.close(self.wanted)


class Turns:
    """The state of one worker on one GPU.

        state    memory   compute   entered by      what it may do
        outside  -        -         (the start)     nothing on the GPU
        busy     shared   shared    busy()          hold tensors and compute, beside other workers
        quiet    shared   alone     quiet()         time kernels: no other worker computes; their tensors stay where they are
        alone    alone    -         alone()         use all of the GPU's memory: no other worker holds a tensor

    quiet() and alone() are entered from busy, and lead back to it. In both, a further quiet() and a pause() change nothing.
    `memory` is always taken before `compute`: with `compute` in hand nobody waits for `memory`, so two workers that both
    want all of the memory cannot wait for each other. Who has the memory alone needs no lock on `compute`, because nobody
    computes without memory.
    """

    def __init__(self, path: str):
        self.memory = Lock(f"{path}.memory")
        self.compute = Lock(f"{path}.compute")
        self.undisturbed = False  # this worker is quiet or alone

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.memory.share()
        self.compute.share()
        try:
            yield
        finally:
            self.compute.release()
            self.memory.release()

    def pause(self) -> None:
        """Let those compute first who wait for quiet: 10 ms of timing should not wait for the whole judgement of a candidate."""
        if not self.undisturbed:
            self.compute.release()
            self.compute.share()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        if self.undisturbed:
            yield
            return
        with self.compute.alone(), self._undisturbed():
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.compute.release()
        try:
            with self.memory.alone(), self._undisturbed():
                yield
        finally:
            self.compute.share()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        self.undisturbed = True
        try:
            yield
        finally:
            self.undisturbed = False

    def close(self) -> None:
        self.memory.close()
        self.compute.close()
