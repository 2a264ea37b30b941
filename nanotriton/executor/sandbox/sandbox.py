"""What a process gives up before it runs a candidate's Python. Standard library only; about 1 ms after a fork.

`enter` is called in the forked child and can't be undone: empty capabilities, no_new_privs, resource limits, Landlock (files, TCP,
signals and abstract sockets, as far as the kernel has them) and a seccomp filter. Afterwards the process can read the Python
installation, system libraries and its own folder, write (only if asked) in its own folder, compute, and nothing else: no
socket, no signal to another process, no ptrace, and unless `exec_ok` no fork and no exec, so that no orphan can exist: the one
process there is dies with its parent (parent-death signal, which the filter keeps it from clearing).

What this does NOT protect:
- against bugs of the Linux kernel or of the GPU driver: a candidate can make every system call that is not refused below, and
  native code of its own (ctypes is importable). For hostile code rather than reward-seeking models, put a virtual machine around it;
- time and power: a candidate may use all its limits every time, and side channels between processes (caches, timing) stay open;
- what world-readable system folders (/usr, /lib, the Python environment) hold: secrets do not belong there. Everything
  else (home, the project's runs, /tmp, /proc, /dev/shm) is unreadable, but only where the kernel has Landlock (5.13 or later);
- memory that it inherits from its zygote: the zygote never holds a secret, a reference output or another candidate;
- the next binaries of a compile server (servers.py) that TTIR took over through a memory error of the compiler's;
- where compilers must run (process mode on CUDA, making cubins) fork and exec stay possible: what is left over when the child ends is
  killed by its zygote, which adopts it. In process mode on CUDA, moreover, GPU memory is limited only by the card.
If the kernel lacks Landlock or seccomp, `support()` says so, the executor logs it once, and the rest still holds.
"""

import ctypes
import functools
import gc
import os
import resource
import signal
import struct
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
PR_SET_PDEATHSIG, PR_GET_SECCOMP, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = (
    1,
    21,
    22,
    36,
    38,
)
CLONE_THREAD = 0x10000

# x86-64 system calls that are refused with EPERM. Everything a recorder needs (files, memory, threads) is not
# among them.
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
    "setpriority": 141,
    "sched_setaffinity": 203,
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
FORKS = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}
CLONE, CLONE3, KILL, TGKILL, PRCTL, PRLIMIT64 = 56, 435, 62, 234, 157, 302
OWN_PID = 0x7E7E7E7E  # stands for the process's own id in a program; no process has it


@dataclass(frozen=True)
class Limits:
    """Limits of one sandboxed process. `seconds` is enforced by its zygote from the fork on; the CPU limit here backs it up."""

    seconds: float | None = 10.0  # None: a server, which its worker watches
    # bytes of address space beyond what the zygote had mapped; None (CUDA): no such limit
    memory: int | None = 2 << 30
    resident: int | None = None  # bytes in RAM, watched by the zygote: the limit where `memory` can't be one
    output: int = 64 << 20  # bytes of any one file it writes, its result included
    files: int = 256  # open files


def _syscall(number: int, *args) -> int:
    result = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def landlock_abi() -> int:
    """The kernel's Landlock version, 0 without."""
    return max(0, libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1)))


def support() -> str | None:
    """One line that says what this kernel lacks, or None if nothing."""
    missing = []
    if not landlock_abi():
        missing.append("Landlock (candidates can read every file that you can)")
    if libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        missing.append("seccomp (candidates can fork, exec and open sockets)")
    return f"sandbox: this kernel lacks {' and '.join(missing)}" if missing else None


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Be sent `signum` when the parent (process id `parent`) dies, however it dies; exit now if it already did."""
    libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def stop_counting_references() -> None:
    """Make every object that there is now immortal (PEP 683): counting references to them in a fork copies the pages that they are on.

    A recording's child costs a third less CPU time for it. Does nothing where Python has no such objects, or they look otherwise.
    """
    count = {(3, 12): 0xFFFFFFFF, (3, 13): 0xFFFFFFFF, (3, 14): 3 << 30}.get(sys.version_info[:2])
    if count is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    objects = gc.get_objects()
    found = {id(o): o for o in objects}
    while objects:  # what they refer to: the collector knows containers only
        objects = list({id(o): o for o in gc.get_referents(*objects) if id(o) not in found}.values())
        found |= {id(o): o for o in objects}
    for address in found:
        ctypes.c_uint32.from_address(address).value = count


def make_forks_cheap() -> None:
    """Move this process's memory to 2 MiB pages: a fork then copies 200 page table entries instead of 80,000 (4 ms instead of 20)."""
    huge, collapse = 2 << 20, 25  # MADV_COLLAPSE, Linux 6.1; older kernels refuse, and forks stay slow
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *rest = line.split()
        if permissions == "rw-p" and not rest[-1].startswith(("/", "[stack")):
            start, end = (int(x, 16) for x in span.split("-"))
            start, end = -(-start // huge) * huge, end // huge * huge
            if start < end:
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), collapse)


def readable_paths() -> list[str]:
    """What every candidate may read: the Python environment, system libraries, and this package."""
    import numpy
    import torch
    import triton

    root = Path(__file__).resolve().parents[3]
    paths = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        sysconfig.get_path("purelib"),
        sysconfig.get_path("stdlib"),
    }
    paths |= {str(Path(m.__file__).resolve().parent.parent) for m in (numpy, torch, triton)}
    paths |= {
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
    }
    paths.add(str(root / "nanotriton"))
    real = sorted({os.path.realpath(p) for p in paths if p != "/"})
    # a rule covers what is below its path
    return [p for p in real if not any(p.startswith(q + "/") for q in real)]


def restrict_files(read: list[str], write: list[str], devices: list[str] = ()) -> None:
    """Landlock: from here on only these paths (and what is below them) can be opened. Does nothing where the kernel has none."""
    if not (abi := landlock_abi()):
        return
    everything = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}.get(
        abi, (1 << 16) - 1
    )
    # files, TCP, scopes
    attributes = struct.pack("QQQ", everything, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    attributes = attributes[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_long(0))
    reading = 1 << 0 | 1 << 2 | 1 << 3  # execute (dlopen), read file, read folder
    on_files = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
    for paths, access in ((read, reading), (write, everything), (devices, reading | 1 << 1 | 1 << 15)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # a path that is not there needs no rule
            allowed = access & everything & (~0 if os.path.isdir(path) else on_files)
            _syscall(
                LANDLOCK_ADD,
                ctypes.c_long(ruleset),
                ctypes.c_long(1),
                struct.pack("=Qi", allowed, fd),
                ctypes.c_long(0),
            )
            os.close(fd)
    _syscall(LANDLOCK_RESTRICT, ctypes.c_long(ruleset), ctypes.c_long(0))
    os.close(ruleset)


@functools.cache
def call_filter(exec_ok: bool, cuda: bool) -> bytes:
    """The seccomp program, for a process OWN_PID. It takes a millisecond: a zygote makes it before it forks, and its children find it.

    cuda: the driver announces itself on an abstract Unix socket; connecting to anything stays refused.

    Offsets into struct seccomp_data: number 0, architecture 4, argument i at 16 + 8 i (low word first)."""

    def op(code, yes, no, value):
        return struct.pack("HBBI", code, yes, no, value)

    load = lambda offset: op(0x20, 0, 0, offset)
    equal = lambda value, yes, no: op(0x15, yes, no, value)
    has_bit = lambda value, yes, no: op(0x45, yes, no, value)
    allow, kill = op(0x06, 0, 0, 0x7FFF0000), op(0x06, 0, 0, 0x80000000)
    fail = lambda errno: op(0x06, 0, 0, 0x00050000 | errno)
    # x86-64 only, and not x32
    program = [load(4), equal(0xC000003E, 1, 0), kill, load(0), has_bit(0x40000000, 0, 1), kill]
    denied = DENIED if exec_ok else DENIED | FORKS
    if cuda:
        denied = {name: number for name, number in denied.items() if name not in ("socket", "bind", "listen")}
        program += [equal(DENIED["socket"], 0, 4), load(16), equal(1, 0, 1), allow, fail(1)]  # AF_UNIX
    for number in denied.values():
        program += [equal(number, 0, 1), fail(1)]
    program += [equal(CLONE3, 0, 1), fail(38)]  # its flags are behind a pointer; glibc falls back to clone
    if not exec_ok:
        program += [equal(CLONE, 0, 4), load(16), has_bit(CLONE_THREAD, 0, 1), allow, fail(1)]
    for number in (KILL, TGKILL):  # abort() signals itself
        program += [equal(number, 0, 4), load(16), equal(OWN_PID, 0, 1), allow, fail(1)]
    program += [equal(PRCTL, 0, 4), load(16), equal(PR_SET_PDEATHSIG, 0, 1), fail(1), allow]
    # prlimit64 may only read: root could raise its own limits, or touch another process's
    program += [equal(PRLIMIT64, 0, 6), load(32), equal(0, 0, 3), load(36), equal(0, 0, 1), allow, fail(1)]
    return b"".join([*program, allow])


def restrict_calls(exec_ok: bool = False, cuda: bool = False) -> None:
    """Install the seccomp filter. Does nothing where the kernel has none."""
    program = call_filter(exec_ok, cuda).replace(struct.pack("I", OWN_PID), struct.pack("I", os.getpid()))
    code = ctypes.create_string_buffer(program)
    prog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    if (
        libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(prog), 0, 0) != 0
        and libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp filter refused")


def drop_capabilities() -> None:
    """Give up root's powers (raising limits, reading others' files, signalling them); a no-op for ordinary users."""
    header = struct.pack("=Ii", 0x20080522, 0)
    _syscall(126, header, struct.pack("=6I", *[0] * 6))  # capset


def set_limits(limits: Limits) -> None:
    def cap(kind, value):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))

    cap(resource.RLIMIT_CORE, 0)
    cap(resource.RLIMIT_FSIZE, limits.output)
    cap(resource.RLIMIT_NOFILE, limits.files)
    if limits.seconds is not None:
        cap(resource.RLIMIT_CPU, int(limits.seconds) + 2)
    if limits.memory is not None:
        limit_memory(limits.memory)


def limit_memory(more: int) -> None:
    """Let this process map `more` bytes beyond what it has mapped now."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    value = mapped + more if hard == resource.RLIM_INFINITY else min(mapped + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (value, value))


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
    """Confine this process for good. `folder` becomes its home and working folder, writable only with `write`.

    read, also: what it may read. devices: what it may also write and control. exec_ok: it may fork and run programs.
    cuda: what the driver needs to start: an abstract Unix socket of its own, and its threads' names in /proc/PID.
    """
    os.chdir(folder)
    os.umask(0o077)
    for name in set(os.environ) - {
        "PATH",
        "LD_LIBRARY_PATH",
        "LANG",
        "TRITON_INTERPRET",
        "CUDA_VISIBLE_DEVICES",
    }:
        del os.environ[name]
    os.environ.update(
        HOME=folder, TMPDIR=folder, TRITON_HOME=folder, TRITON_CACHE_DIR=os.path.join(folder, "cache")
    )
    # torch._dynamo asks whose process it is, and the system's file of users is not to be read.
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", USER="candidate")
    # this process remembers its ancestor's; and where nothing may be written, none would be found
    tempfile.tempdir = folder
    set_limits(limits)
    drop_capabilities()
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    own = [f"/proc/{os.getpid()}"] if cuda else []
    restrict_files(
        [*read, *also, *([] if write else [folder])], [*own, *([folder] if write else [])], devices
    )
    restrict_calls(exec_ok, cuda)
