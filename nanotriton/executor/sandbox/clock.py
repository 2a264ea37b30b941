"""Time as a limit counts it: not while a process was ready to run and other processes had the cores.

Right kernels must not be late because the machine is busy. Sleeping and waiting count, or a candidate that
sleeps would never be late.
"""

import functools
import os
import time


def waited(pid: int | str = "self") -> float:
    """Seconds for which a process's main thread has waited for a core since it began.

    0 where the kernel does not say, and of a process that is gone. Raises OSError if there are no files left:
    0 would make what runs late by all that it has ever waited.
    """
    try:
        if pid == "self":
            said = os.pread(_own_file(os.getpid()), 128, 0)
        else:
            fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)  # a third of what a file object takes
            try:
                said = os.read(fd, 128)
            finally:
                os.close(fd)
        _, waiting, _ = said.split()
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
        return 0.0
    return int(waiting) * 1e-9


@functools.cache
def _own_file(pid: int) -> int:
    """This process's file, which stays open. A fork has another one."""
    return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def own_time(pid: int | str = "self") -> float:
    """A clock that stands still while a process waits for a core. Only differences mean anything."""
    return time.monotonic() - waited(pid)
