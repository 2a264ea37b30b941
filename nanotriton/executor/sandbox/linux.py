"""Linux, as far as Python's standard library does not reach it: system calls by number, and prctl."""

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
