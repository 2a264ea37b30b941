"""Time as a limit counts it: not while a process was ready to run and other processes had the cores.

Right kernels must not be late because the machine is busy. Sleeping and waiting count, or a candidate that
sleeps would never be late.
"""

import os
import time


def waited(pid: int | str = "self") -> float:
    """Seconds for which a process's main thread has waited for a core since it began.

    0 where the kernel does not say, and of a process that is gone.
    """
    try:
        fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)  # a third of what a file object takes
        try:
            _, waiting, _ = os.read(fd, 128).split()
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return 0.0
    return int(waiting) * 1e-9


def own_time(pid: int | str = "self") -> float:
    """A clock that stands still while a process waits for a core. Only differences mean anything."""
    return time.monotonic() - waited(pid)
