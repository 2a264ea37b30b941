"""Which files may a confined process open? Landlock's rules, and the paths that every candidate may read."""

import ctypes
import os
import struct
import sys
import sysconfig
from pathlib import Path

from nanotriton.executor.sandbox.linux import libc, syscall

LANDLOCK_CREATE = 444
LANDLOCK_ADD = 445
LANDLOCK_RESTRICT = 446
# Landlock's rights on files, as bits (Linux's include/uapi/linux/landlock.h).
EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_FOLDER = 1 << 3
TRUNCATE = 1 << 14
IOCTL = 1 << 15
READING = EXECUTE | READ_FILE | READ_FOLDER  # execute: dlopen
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
DEVICES = READING | WRITE_FILE | IOCTL
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many there are, by version
RIGHTS_SINCE_5 = 16


def readable_paths() -> list[str]:
    """The paths that every candidate may read: Python's environment, system libraries, and this package."""
    import numpy
    import torch
    import triton

    root = Path(__file__).resolve().parents[3]
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    paths |= {sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")}
    paths |= {str(Path(m.__file__).resolve().parent.parent) for m in (numpy, torch, triton)}
    paths |= {"/usr", "/lib", "/lib64", "/bin"}
    paths |= {"/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom"}
    paths.add(str(root / "nanotriton"))
    real = sorted({os.path.realpath(p) for p in paths if p != "/"})
    # a rule covers everything below its path
    return [path for path in real if not _below_any(path, real)]


def _below_any(path: str, folders: list[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)


def landlock_abi() -> int:
    """The kernel's Landlock version, or 0 if it has none."""
    return max(0, libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1)))


def restrict_files(read: list[str], write: list[str], devices: list[str] = ()) -> None:
    """Landlock: from here on only these paths (and paths below them) can be opened.

    Nothing is done where the kernel has no Landlock.
    """
    abi = landlock_abi()
    if not abi:
        return
    everything = (1 << RIGHTS.get(abi, RIGHTS_SINCE_5)) - 1
    attributes = ruleset_attributes(abi, everything)
    ruleset = syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_long(0))
    for paths, rights in ((read, READING), (write, everything), (devices, DEVICES)):
        for path in paths:
            allow_path(ruleset, path, rights & everything)
    syscall(LANDLOCK_RESTRICT, ctypes.c_long(ruleset), ctypes.c_long(0))
    os.close(ruleset)


def ruleset_attributes(abi: int, everything: int) -> bytes:
    """struct landlock_ruleset_attr, of the size that this version knows: files, TCP (4), scopes (6)."""
    if abi < 4:
        return struct.pack("Q", everything)
    if abi < 6:
        return struct.pack("QQ", everything, 3)
    return struct.pack("QQQ", everything, 3, 3)


def allow_path(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a path. A path that is not there needs none."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        rights &= ON_FILES
    rule = struct.pack("=Qi", rights, fd)
    syscall(LANDLOCK_ADD, ctypes.c_long(ruleset), ctypes.c_long(1), rule, ctypes.c_long(0))
    os.close(fd)
