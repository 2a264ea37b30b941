"""The rights that a process gives up before it runs a candidate's Python.

It takes the standard library only, and about 1 ms after a fork. `enter` is called in the forked child and
can't be undone. It empties the capabilities and sets no_new_privs, resource limits, Landlock (files, TCP,
signals and abstract sockets, as far as the kernel has them) and a seccomp filter. Afterwards the process
can read the Python installation, system libraries and its own folder. It can write in its own folder, if
that was asked for. It can compute, with some threads. It has no socket, no signal to another process (not
as the owner of a file either), no ptrace, no change of a file's permissions, owner, times or attributes, no
say in when others run, and unless `exec_ok` no fork and no exec. So no orphan can exist: the one process
there is dies with its parent (by the parent-death signal, which the filter keeps it from clearing).

The sandbox does NOT protect:

- Against bugs of the Linux kernel or of the GPU driver. A candidate can make every system call that is not
  refused below, and run native code of its own (ctypes is importable). For hostile code rather than
  reward-seeking models, put a virtual machine around it.
- Names, sizes and times of files, anywhere: `stat` needs no right that Landlock could refuse.
- Time and power. A candidate may use all its limits every time. Side channels between processes (caches,
  timing) stay open.
- World-readable system folders (/usr, /lib, the Python environment). Secrets do not belong there. Everything
  else (home, the project's runs, /tmp, /proc, /dev/shm) is unreadable, but only where the kernel has Landlock
  (5.13 or later).
- Memory that a child inherits from its zygote. The zygote never holds a secret, a reference output or another
  candidate.
- The next binaries of a compile server (servers.py) that TTIR took over through a memory error of the
  compiler's.

Where compilers must run (process mode on CUDA, making cubins) fork and exec stay possible. Processes that are
left over when the child ends are killed by its zygote, which adopts them. In process mode on CUDA, moreover,
GPU memory is limited only by the card. If the kernel lacks Landlock or seccomp, `support()` says so, the
executor logs it once, and the rest still holds.
"""

import ctypes
import functools
import gc
import os
import resource
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

LANDLOCK_CREATE = 444
LANDLOCK_ADD = 445
LANDLOCK_RESTRICT = 446
CAPSET = 126
PR_SET_PDEATHSIG = 1
PR_GET_SECCOMP = 21
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SCHED_CORE = 62
MADV_COLLAPSE = 25  # Linux 6.1
HUGE_PAGE = 2 << 20
CLONE_THREAD = 0x10000

# x86-64 system calls that are refused with EPERM. A recorder needs none of them: it needs files, memory and
# threads.
DENIED = {
    "socket": 41,
    "connect": 42,
    "bind": 49,
    "listen": 50,
    "accept": 43,
    "accept4": 288,
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "process_madvise": 440,
    "tkill": 200,
    "rt_sigqueueinfo": 129,
    "rt_tgsigqueueinfo": 297,
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
    "pidfd_getfd": 438,
    "setpgid": 109,
    "setsid": 112,
    # what decides when other processes of this user run
    "setpriority": 141,
    "sched_setaffinity": 203,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "sched_setattr": 314,
    "ioprio_set": 251,
    "migrate_pages": 256,
    "process_mrelease": 448,
    # Landlock knows nothing of a file's permissions, owner, times and attributes
    "chmod": 90,
    "fchmod": 91,
    "fchmodat": 268,
    "fchmodat2": 452,
    "chown": 92,
    "fchown": 93,
    "lchown": 94,
    "fchownat": 260,
    "utime": 132,
    "utimes": 235,
    "futimesat": 261,
    "utimensat": 280,
    "setxattr": 188,
    "lsetxattr": 189,
    "fsetxattr": 190,
    "setxattrat": 463,
    "removexattr": 197,
    "lremovexattr": 198,
    "fremovexattr": 199,
    "removexattrat": 466,
    "file_setattr": 469,
    "sync": 162,  # waits for everybody's writes
    "syncfs": 306,
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "mount_setattr": 442,
    "open_by_handle_at": 304,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "iopl": 172,
    "ioperm": 173,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "quotactl": 179,
    "syslog": 103,
    "setrlimit": 160,
    "memfd_create": 319,
    "memfd_secret": 447,  # a memfd would be memory beside RLIMIT_AS
    # System V and POSIX queues outlive their process
    "shmget": 29,
    "shmat": 30,
    "msgget": 68,
    "semget": 64,
    "mq_open": 240,
}
FCNTL, IOCTL_CALL = 72, 16
# Commands of fcntl that send signals to the owner of a file, whoever that is. Leases and notes on folders
# signal too.
SIGNALLING = {"F_SETOWN": 8, "F_SETSIG": 10, "F_SETOWN_EX": 15, "F_SETLEASE": 1024, "F_NOTIFY": 1026}
# Commands of ioctl that do the same, that change a file's flags for good, or that type into a terminal.
DENIED_IOCTLS = {
    "FIOSETOWN": 0x8901,
    "SIOCSPGRP": 0x8902,
    "FS_IOC_SETFLAGS": 0x40086602,
    "FS_IOC32_SETFLAGS": 0x40046602,
    "FS_IOC_SETVERSION": 0x40087602,
    "FS_IOC_FSSETXATTR": 0x401C5820,
    "FS_IOC_ENABLE_VERITY": 0x40806685,
    "FS_IOC_SET_ENCRYPTION_POLICY": 0x800C6613,
    "TIOCSTI": 0x5412,
    "TIOCLINUX": 0x541C,
}
FORKS = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}
CLONE, CLONE3 = 56, 435
KILL, TGKILL = 62, 234
PRCTL, PRLIMIT64 = 157, 302
OWN_PID = 0x7E7E7E7E  # stands for the process's own id in a filter; no process has it
KEPT_VARIABLES = {"PATH", "LD_LIBRARY_PATH", "LANG", "CUDA_VISIBLE_DEVICES"}


@dataclass(frozen=True)
class Limits:
    """Limits of one sandboxed process."""

    # from the fork on, enforced by its zygote and backed up by a limit of CPU time; None: a server, which its
    # worker watches
    seconds: float | None = 10.0
    # bytes of address space beyond those that the zygote had mapped; None (CUDA): no limit
    memory: int | None = 2 << 30
    resident: int | None = None  # bytes in RAM, watched by the zygote: the limit where `memory` can't be one
    output: int = 64 << 20  # bytes of any one file it writes, its result included
    files: int = 256  # open files
    threads: int = 32  # watched by the zygote


def _syscall(number: int, *args) -> int:
    result = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def landlock_abi() -> int:
    """The kernel's Landlock version, or 0 if it has none."""
    return max(0, libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1)))


def support() -> str | None:
    """One line that names the protections that this kernel lacks, or None."""
    missing = []
    if not landlock_abi():
        missing.append("Landlock (candidates can read every file that you can)")
    if libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        missing.append("seccomp (candidates can fork, exec and open sockets)")
    return f"sandbox: this kernel lacks {' and '.join(missing)}" if missing else None


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Be sent `signum` when the parent (process id `parent`) dies, however it dies.

    Exit now if it is dead already.
    """
    libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


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


def restrict_files(read: list[str], write: list[str], devices: list[str] = ()) -> None:
    """Landlock: from here on only these paths (and paths below them) can be opened.

    Nothing is done where the kernel has no Landlock.
    """
    abi = landlock_abi()
    if not abi:
        return
    everything = (1 << RIGHTS.get(abi, RIGHTS_SINCE_5)) - 1
    attributes = ruleset_attributes(abi, everything)
    ruleset = _syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_long(0))
    for paths, rights in ((read, READING), (write, everything), (devices, DEVICES)):
        for path in paths:
            allow_path(ruleset, path, rights & everything)
    _syscall(LANDLOCK_RESTRICT, ctypes.c_long(ruleset), ctypes.c_long(0))
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
    _syscall(LANDLOCK_ADD, ctypes.c_long(ruleset), ctypes.c_long(1), rule, ctypes.c_long(0))
    os.close(fd)


# Instructions of classic BPF on struct seccomp_data: number at 0, architecture at 4, argument i at 16 + 8 i
# (low word first). `yes` and `no`: how many instructions to skip.
NUMBER, ARCHITECTURE = 0, 4
X86_64, X32_BIT = 0xC000003E, 0x40000000
EPERM, ENOSYS = 1, 38


def _instruction(code: int, yes: int, no: int, value: int) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _instruction(0x20, 0, 0, offset)


def _argument(i: int) -> bytes:
    return _load(16 + 8 * i)


def _equal(value: int, yes: int, no: int) -> bytes:
    return _instruction(0x15, yes, no, value)


def _has_bit(value: int, yes: int, no: int) -> bytes:
    return _instruction(0x45, yes, no, value)


def _fail(errno: int) -> bytes:
    return _instruction(0x06, 0, 0, 0x00050000 | errno)


ALLOW = _instruction(0x06, 0, 0, 0x7FFF0000)
KILL_PROCESS = _instruction(0x06, 0, 0, 0x80000000)


@functools.cache
def call_filter(exec_ok: bool, cuda: bool) -> bytes:
    """The seccomp program, for a process OWN_PID.

    It takes a millisecond, so a zygote makes it before it forks, and its children find it.
    cuda: the driver announces itself on an abstract Unix socket. To connect to anything stays refused.
    """
    program = [_load(ARCHITECTURE), _equal(X86_64, 1, 0), KILL_PROCESS]
    program += [_load(NUMBER), _has_bit(X32_BIT, 0, 1), KILL_PROCESS]
    denied = DENIED if exec_ok else DENIED | FORKS
    if cuda:
        denied = {name: number for name, number in denied.items() if name not in ("socket", "bind", "listen")}
        unix = [_argument(0), _equal(socket.AF_UNIX, 0, 1), ALLOW, _fail(EPERM)]
        program += [_equal(DENIED["socket"], 0, len(unix)), *unix]
    for number in denied.values():
        program += [_equal(number, 0, 1), _fail(EPERM)]
    # its flags are behind a pointer; glibc falls back to clone
    program += [_equal(CLONE3, 0, 1), _fail(ENOSYS)]
    if not exec_ok:
        threads = [_argument(0), _has_bit(CLONE_THREAD, 0, 1), ALLOW, _fail(EPERM)]
        program += [_equal(CLONE, 0, len(threads)), *threads]
    for number in (KILL, TGKILL):  # abort() signals itself
        itself = [_argument(0), _equal(OWN_PID, 0, 1), ALLOW, _fail(EPERM)]
        program += [_equal(number, 0, len(itself)), *itself]
    for call, commands in ((FCNTL, SIGNALLING), (IOCTL_CALL, DENIED_IOCTLS)):
        checks = [_argument(1)]
        for command in commands.values():
            checks += [_equal(command, 0, 1), _fail(EPERM)]
        program += [_equal(call, 0, len(checks) + 1), *checks, ALLOW]
    own = [_argument(0)]
    for option in (PR_SET_PDEATHSIG, PR_SCHED_CORE):  # to clear the death signal; to share others' cores
        own += [_equal(option, 0, 1), _fail(EPERM)]
    program += [_equal(PRCTL, 0, len(own) + 1), *own, ALLOW]
    # prlimit64 may only read, with no new limits (a null pointer, two words): root could raise its own, or
    # touch another process's
    low_word, high_word = 16 + 8 * 2, 16 + 8 * 2 + 4
    reads = [_load(low_word), _equal(0, 0, 3)]
    reads += [_load(high_word), _equal(0, 0, 1), ALLOW, _fail(EPERM)]
    program += [_equal(PRLIMIT64, 0, len(reads)), *reads]
    return b"".join([*program, ALLOW])


def restrict_calls(exec_ok: bool = False, cuda: bool = False) -> None:
    """Install the seccomp filter. Nothing is done where the kernel has no seccomp."""
    program = call_filter(exec_ok, cuda).replace(struct.pack("I", OWN_PID), struct.pack("I", os.getpid()))
    code = ctypes.create_string_buffer(program)
    prog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    refused = libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(prog), 0, 0) != 0
    if refused and libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0:
        raise OSError(ctypes.get_errno(), "seccomp filter refused")


def drop_capabilities() -> None:
    """Give up root's powers: to raise limits, to read others' files, to signal them."""
    header = struct.pack("=Ii", 0x20080522, 0)
    _syscall(CAPSET, header, struct.pack("=6I", *[0] * 6))


def set_limits(limits: Limits) -> None:
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_FSIZE, limits.output)
    _cap(resource.RLIMIT_NOFILE, limits.files)
    if limits.seconds is not None:
        _cap(resource.RLIMIT_CPU, int(limits.seconds) + 2)
    if limits.memory is not None:
        limit_memory(limits.memory)


def _cap(kind: int, value: int) -> None:
    """Set a limit, at most to the hard limit that there is."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def limit_memory(more: int) -> None:
    """Let this process map `more` bytes beyond those that it has mapped now."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    _cap(resource.RLIMIT_AS, mapped + more)


def enter(
    folder: str,
    limits: Limits,
    read: list[str],
    *,
    write: bool = False,
    also: list[str] = (),
    devices: list[str] = (),
    exec_ok: bool = False,
    cuda: bool = False,
) -> None:
    """Confine this process for good.

    folder: it becomes the home and working folder, writable only with `write`.
    read, also: paths that it may read. devices: paths that it may also write and control. exec_ok: it may
    fork and run programs. cuda: the driver can start, with an abstract Unix socket of its own,
    and its threads' names in /proc/PID.
    """
    os.chdir(folder)
    os.umask(0o077)
    set_environment(folder)
    set_limits(limits)
    drop_capabilities()
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    readable = [*read, *also]
    writable = [f"/proc/{os.getpid()}"] if cuda else []
    (writable if write else readable).append(folder)
    restrict_files(readable, writable, devices)
    restrict_calls(exec_ok, cuda)


def set_environment(folder: str) -> None:
    """Forget all environment variables but a few, and let all files go to the folder."""
    for name in set(os.environ) - KEPT_VARIABLES:
        del os.environ[name]
    for name in ("HOME", "TMPDIR", "TRITON_HOME"):
        os.environ[name] = folder
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "cache")
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # torch._dynamo asks for the user's name, and the system's file of users is not to be read
    os.environ["USER"] = "candidate"
    # tempfile remembers the ancestor's folder; and where nothing may be written, it would find none
    tempfile.tempdir = folder
