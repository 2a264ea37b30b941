"""Whose turn is it on a GPU? The workers of every executor on this machine agree by file locks.

When a process dies, the operating system takes its file locks (flock) back. So no worker can leave another
one waiting for ever.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class Lock:
    """A lock that many processes share, and that one of them can have alone.

    It consists of two files:

        held      locked shared by every process that shares the lock, exclusively by one that has it alone
        wanted    locked shared by every process that waits to have the lock alone

    A process that wants to share the lock takes `wanted` exclusively for a moment. So it cannot pass those
    that wait to have the lock alone: they have it one after another, before any process shares it again.
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
        self.release()  # two processes that both want the lock alone would otherwise wait for each other
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

        state    memory   compute   entered by    the worker may
        outside  -        -         (the start)   do nothing on the GPU
        busy     shared   shared    busy()        hold tensors and compute, beside other workers
        quiet    shared   alone     quiet()       time kernels: the others hold tensors, but compute nothing
        alone    alone    -         alone()       use all of the GPU's memory: the others hold no tensor

    quiet() and alone() are entered from busy, and lead back to it. In both states a further quiet() or
    pause() changes nothing.
    `memory` is always taken before `compute`. A worker that holds `compute` never waits for `memory`, so two
    workers that both want all of the memory cannot wait for each other. A worker that has the memory alone
    needs no lock on `compute`, because no worker computes without memory.
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
        """Let the workers that wait for quiet go first.

        They time kernels for 10 ms, which should not have to wait until this worker has judged its candidate.
        """
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
