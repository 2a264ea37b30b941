"""Linux, as far as Python's standard library does not reach it: system calls, prctl, and /proc."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_GET_SECCOMP = 21
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SCHED_CORE = 62


def syscall(number: int, *args) -> int:
    """Make a system call. OSError if it fails."""
    result = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def stat_fields(path: str) -> list[str]:
    """The fields of a process's or a thread's stat file behind its name: state, parent, process group, ...

    A candidate may give itself any name. OSError if the process is gone.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        _, _, fields = file.read().rpartition(")")
    return fields.split()
