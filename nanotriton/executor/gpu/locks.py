"""A lock of all processes on a machine that many share, and some want alone: two files' flocks, which the kernel takes back from who dies.

`lock` is what is held. `wanted` is held shared by all who want it alone, so that nobody new shares it before the last of them is done.
"""

import fcntl
from contextlib import contextmanager


def hold_shared(wanted: int, lock: int) -> None:
    """Hold a lock beside others. Who wants it alone goes first, and so do all who want that too before the last of them is done."""
    fcntl.flock(wanted, fcntl.LOCK_EX)
    fcntl.flock(lock, fcntl.LOCK_SH)
    fcntl.flock(wanted, fcntl.LOCK_UN)


@contextmanager
def hold_alone(wanted: int, lock: int):
    """Hold a lock alone that is shared now, and is again afterwards."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # first, or two that want it alone wait for each other
    fcntl.flock(wanted, fcntl.LOCK_SH)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(wanted, fcntl.LOCK_UN)
        hold_shared(wanted, lock)
