"""The rights that a process gives up before it runs a candidate's Python.

It takes the standard library only, and about 1 ms after a fork. `enter` is called in the forked child and
can't be undone. It empties the capabilities and sets no_new_privs, resource limits, Landlock (files, TCP,
signals and abstract sockets, as far as the kernel has them) and a seccomp filter. Afterwards the process
can read the Python installation, system libraries and its own folder. It can write in its own folder, if
that was asked for. It can compute, with some threads. It has no socket, no signal to another process (not
as the owner of a file either), no ptrace, no change of a file's permissions, owner, times or attributes, no
memory, semaphore or queue of others by its number, no say in when others run, and unless `exec_ok` no fork
and no exec. So no orphan can exist: the one process
there is dies with its parent (by the parent-death signal, which the filter keeps it from clearing).

The sandbox does NOT protect:

- Against bugs of the Linux kernel or of the GPU driver. A candidate can make every system call that
  system_calls.py does not refuse, and run native code of its own (ctypes is importable). For hostile code
  rather than reward-seeking models, put a virtual machine around it.
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

import os
import resource
import signal
import struct
import tempfile
from dataclasses import dataclass

from nanotriton.executor.sandbox.files import landlock_abi, restrict_files
from nanotriton.executor.sandbox.linux import (
    PR_GET_SECCOMP,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    libc,
    syscall,
)
from nanotriton.executor.sandbox.system_calls import restrict_calls

CAPSET = 126
QUEUED_SIGNALS = 64  # and POSIX timers; Linux counts them for all processes of a user together
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


def drop_capabilities() -> None:
    """Give up root's powers: to raise limits, to read others' files, to signal them."""
    header = struct.pack("=Ii", 0x20080522, 0)
    syscall(CAPSET, header, struct.pack("=6I", *[0] * 6))


def set_limits(limits: Limits) -> None:
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_FSIZE, limits.output)
    _cap(resource.RLIMIT_NOFILE, limits.files)
    _cap(resource.RLIMIT_SIGPENDING, QUEUED_SIGNALS)
    if limits.seconds is not None:
        # a signal first that tells this limit from a lack of memory, of which the kernel kills too
        _cap(resource.RLIMIT_CPU, int(limits.seconds) + 2, 1)
    if limits.memory is not None:
        limit_memory(limits.memory)


def _cap(kind: int, value: int, more: int = 0) -> None:
    """Set a limit, and `more` beyond it as the hard one, at most to the hard limit that there is."""
    most = value + more
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value, most = min(value, hard), min(most, hard)
    resource.setrlimit(kind, (value, most))


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
