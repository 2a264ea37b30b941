"""Forks: a large process's are made cheap, and they wait for a machine that has no process left. Nothing here
changes what a fork may do."""

import ctypes
import gc
import os
import sys
import sysconfig
import time
from pathlib import Path

from nanotriton.executor.sandbox.linux import libc

MADV_COLLAPSE = 25  # Linux 6.1
HUGE_PAGE = 2 << 20
PATIENCE = 5.0  # seconds for which a fork waits for a machine without processes or memory
AGAIN = 0.05  # seconds between two tries


def fork() -> int:
    """os.fork, which others' threads may keep from a process for a moment. Raises OSError after PATIENCE."""
    due = time.monotonic() + PATIENCE
    while True:
        try:
            return os.fork()
        except OSError:
            if time.monotonic() > due:
                raise
        time.sleep(AGAIN)


def stop_counting_references() -> None:
    """Make every object that there is now immortal (PEP 683).

    To count references to them in a fork would copy the pages that they are on. Without that a recording's
    child costs a third less CPU time. Nothing is done where Python has no such objects, or where they look
    otherwise.
    """
    count = {(3, 12): 0xFFFFFFFF, (3, 13): 0xFFFFFFFF, (3, 14): 3 << 30}.get(sys.version_info[:2])
    if count is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    objects = gc.get_objects()
    found = {id(o): o for o in objects}
    while objects:  # the collector knows containers only, so look at the objects that they refer to
        fresh = {id(o): o for o in gc.get_referents(*objects) if id(o) not in found}
        found |= fresh
        objects = list(fresh.values())
    for address in found:
        ctypes.c_uint32.from_address(address).value = count


def make_forks_cheap() -> None:
    """Move this process's memory to 2 MiB pages.

    A fork then copies 200 page table entries instead of 80,000 (4 ms instead of 20). Older kernels refuse,
    and forks stay slow.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *rest = line.split()
        if permissions != "rw-p" or rest[-1].startswith(("/", "[stack")):
            continue
        start, end = (int(x, 16) for x in span.split("-"))
        start = -(-start // HUGE_PAGE) * HUGE_PAGE
        end = end // HUGE_PAGE * HUGE_PAGE
        if start < end:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)
