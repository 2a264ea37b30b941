"""The sandbox denies what it says it denies, to code that runs inside it."""

import faulthandler
import fcntl
import getpass
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.gpu.compiler import compile_kernel
from nanotriton.executor.judge.candidate.job import Job
from nanotriton.executor.judge.candidate.process import confinement
from nanotriton.executor.sandbox import files, linux, sandbox, system_calls
from nanotriton.executor.sandbox.zygote import renumber
from nanotriton.plan.plan import Kernel
from nanotriton.plan.signature import signature
from nanotriton.tasks.task import Task
from tests.test_compile_servers import GOOD

pytestmark = pytest.mark.skipif(sandbox.support() is not None, reason=f"{sandbox.support()}")

GIB = 1 << 30


def confined(tmp_path, attempt, limits=sandbox.Limits(memory=1 * GIB), **options):
    """What `attempt()` returned inside the sandbox, the name of what it raised, or the signal it died of."""
    folder = tmp_path / "job"
    folder.mkdir(exist_ok=True)
    (folder / "candidate.py").write_text("x = 1\n")
    result = os.memfd_create("result")
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        try:
            sandbox.enter(str(folder), limits, files.readable_paths(), **options)
            try:
                answer = attempt()
            except BaseException as error:
                answer = type(error).__name__
            os.write(result, json.dumps(answer).encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    text = os.pread(result, 1 << 20, 0)
    os.close(result)
    return json.loads(text)


def test_own_folder_is_readable_and_not_writable(tmp_path):
    assert confined(tmp_path, lambda: Path("candidate.py").read_text()) == "x = 1\n"
    assert confined(tmp_path, Path("new").touch) == "PermissionError"
    assert confined(tmp_path, lambda: Path("candidate.py").write_text("")) == "PermissionError"
    assert confined(tmp_path, Path("new").touch, write=True) is None


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/maps", "/tmp", "/root", "/dev/shm", "/sys", "/home", __file__]
)
def test_other_files_are_not_there(tmp_path, path):
    assert confined(
        tmp_path, lambda: os.listdir(path) if os.path.isdir(path) else Path(path).read_text()
    ) in ("PermissionError", "FileNotFoundError")


def test_files_of_others_cannot_be_written(tmp_path):
    (tmp_path / "precious").write_text("kept")
    for attempt in (
        lambda: (tmp_path / "precious").write_text(""),
        (tmp_path / "precious").unlink,
        lambda: os.mkdir("/tmp/nanotriton-x"),
    ):
        assert confined(tmp_path, attempt, write=True) == "PermissionError"
    assert (tmp_path / "precious").read_text() == "kept"


def network():
    import socket

    socket.create_connection(("127.0.0.1", 9), timeout=1)


def unix_socket():
    import socket

    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def subprocess_run():
    import subprocess

    subprocess.run(["/bin/true"])


def spawn():
    os.posix_spawn("/bin/true", ["true"], {})


def vfork_by_hand():
    return linux.libc.syscall(58)


def raise_limit():
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 50, 1 << 50))


@pytest.mark.parametrize(
    "attempt", [network, unix_socket, os.fork, subprocess_run, spawn, lambda: os.execv("/bin/true", ["true"])]
)
def test_no_network_no_fork_no_exec(tmp_path, attempt):
    assert confined(tmp_path, attempt) == "PermissionError"


def test_no_signal_to_anyone_else(tmp_path):
    for target in (os.getpid(), os.getppid(), -1, 1):
        assert confined(tmp_path, lambda target=target: os.kill(target, 0)) == "PermissionError"
    assert confined(tmp_path, os.abort) == "signal 6"  # but a process may end itself


@pytest.mark.parametrize(
    "number, args",
    {
        "vfork": (58, ()),
        "ptrace": (101, (16, os.getppid(), 0, 0)),
        "process_vm_readv": (310, (os.getppid(), 0, 0, 0, 0, 0)),
        "pidfd_open": (434, (os.getppid(), 0)),
        "unshare": (272, (0x10000000,)),
        "bpf": (321, (0, 0, 0)),
        "io_uring_setup": (425, (1, 0)),
        "memfd_create": (319, (b"x", 0)),
        "shmget": (29, (1, 4096, 0o1777)),
        "setsid": (112, ()),
        "keyctl": (250, (0, 0, 0)),
        "prctl(PR_SET_PDEATHSIG, 0)": (157, (1, 0, 0, 0, 0)),
        "userfaultfd": (323, (0,)),
        "perf_event_open": (298, (0, 0, 0, 0, 0)),
    }.values(),
)
def test_system_calls_are_refused(tmp_path, number, args):
    assert confined(tmp_path, lambda: refused(number, *args)) == [-1, 1]


def test_what_other_programs_share_stays(tmp_path):
    """System V's memory, semaphores and queues have numbers that can be guessed, and POSIX queues have names."""
    import ctypes

    libc = linux.libc
    memory, semaphores = libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600)
    queue = libc.msgget(0, 0o1600)
    try:
        for name, args in {
            "shmctl": (memory, 0, 0),  # IPC_RMID
            "semctl": (semaphores, 0, 16, 7),  # SETVAL
            "semop": (semaphores, (ctypes.c_short * 3)(0, 1, 0), 1),
            "msgsnd": (queue, (ctypes.c_char * 16)(1), 8, 0),
            "msgctl": (queue, 0, 0),
            "mq_unlink": (b"of-others",),
        }.items():
            assert confined(tmp_path, lambda n=system_calls.DENIED[name], a=args: refused(n, *a)) == [
                -1,
                1,
            ], name
        assert libc.semctl(semaphores, 0, 12) == 0  # GETVAL
    finally:
        left = libc.shmctl(memory, 0, 0), libc.semctl(semaphores, 0, 0), libc.msgctl(queue, 0, 0)
    assert left == (0, 0, 0)


def refused(number, *args):
    import ctypes

    return [linux.libc.syscall(number, *args), ctypes.get_errno()]


def test_what_a_user_or_a_machine_has_so_many_of_is_not_used_up(tmp_path):
    """Limits of the kernel's that all processes share: one candidate must not leave the others without."""
    import ctypes

    def timers():
        found, made = 0, ctypes.c_int()
        while found < 1000 and not linux.libc.syscall(222, 1, None, ctypes.byref(made)):
            found += 1
        return found

    for name, args in {
        "io_setup": (1, ctypes.byref(ctypes.c_ulong())),
        "inotify_init": (),
        "inotify_init1": (0,),
        "fanotify_init": (0x200, 0),
        "landlock_create_ruleset": ((ctypes.c_uint64 * 3)(1, 3, 0), 24, 0),
        "socketpair": (socket.AF_UNIX, socket.SOCK_STREAM, 0, (ctypes.c_int * 2)()),
    }.items():
        assert confined(tmp_path, lambda n=system_calls.DENIED[name], a=args: refused(n, *a)) == [-1, 1], name
    assert confined(tmp_path, lambda: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)) == "PermissionError"
    assert confined(tmp_path, timers) <= sandbox.QUEUED_SIGNALS


METADATA = {
    "chmod": lambda path: os.chmod(path, 0),
    "fchmod of a file that may be read": lambda path: os.fchmod(os.open("/usr/bin/env", os.O_RDONLY), 0o755),
    "chown": lambda path: os.chown(path, os.getuid(), os.getgid()),
    "lchown": lambda path: os.lchown(path, os.getuid(), os.getgid()),
    "utime": lambda path: os.utime(path, (0, 0)),
    "setxattr": lambda path: os.setxattr(path, "user.mark", b"x"),
    "removexattr": lambda path: os.removexattr(path, "user.mark"),
}


@pytest.mark.parametrize("change", METADATA.values(), ids=METADATA)
@pytest.mark.parametrize("exec_ok", [False, True])
def test_nothing_of_a_file_can_be_changed(tmp_path, change, exec_ok):
    """Permissions, owner, times and attributes, which Landlock knows nothing of, anywhere."""
    path = tmp_path / "others"
    path.write_text("x")
    before = path.stat()
    assert confined(tmp_path, lambda: change(str(path)), exec_ok=exec_ok, write=exec_ok) == "PermissionError"
    after = path.stat()
    assert (before.st_mode, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_mode,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def test_metadata_calls_are_refused_by_number_too(tmp_path):
    """Those that Python or this kernel may lack."""
    numbers = [
        system_calls.DENIED[name]
        for name in ("fchmodat2", "setxattrat", "removexattrat", "file_setattr", "utimensat")
    ]

    def attempt():
        import ctypes

        return [(linux.libc.syscall(n, 0, 0, 0, 0, 0), ctypes.get_errno()) for n in numbers]

    assert confined(tmp_path, attempt) == [[-1, 1]] * len(numbers)


def own_signal(command, value):
    """Make another process the owner of a pipe, which is then sent a signal when something can be read."""

    def attempt():
        read, _ = os.pipe()
        return fcntl.fcntl(read, command, value)

    return attempt


def test_no_signal_by_owning_a_file(tmp_path):
    """F_SETOWN makes the kernel send it, and Landlock scopes it on the newest kernels only."""
    import struct

    parent = os.getpid()
    # FS_IOC_SETFLAGS
    for attempt in (
        own_signal(fcntl.F_SETOWN, parent),
        own_signal(fcntl.F_SETOWN, -os.getpgrp()),
        own_signal(fcntl.F_SETSIG, 9),
        own_signal(15, struct.pack("ii", 1, parent)),  # F_SETOWN_EX
        lambda: fcntl.ioctl(os.pipe()[0], 0x8901, struct.pack("i", parent)),  # FIOSETOWN
        lambda: fcntl.ioctl(os.open("candidate.py", os.O_RDONLY), 0x40086602, struct.pack("l", 0)),
    ):
        assert confined(tmp_path, attempt) == "PermissionError"

    # what an opened file needs stays
    def flags():
        read, _ = os.pipe()
        os.set_blocking(read, False)
        os.set_inheritable(read, True)
        return [fcntl.fcntl(read, fcntl.F_GETFL) & os.O_NONBLOCK != 0, os.isatty(read)]

    assert confined(tmp_path, flags) == [True, False]


def test_nobody_else_is_made_to_wait(tmp_path):
    """Schedulers and priorities, of the processor and of the disk, of others of the same user."""
    parent = os.getpid()
    before = os.sched_getscheduler(0)
    for attempt in (
        lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0)),
        lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
        lambda: os.sched_setparam(parent, os.sched_param(0)),
        lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
    ):
        assert confined(tmp_path, attempt) == "PermissionError"
    for name, args in {
        "ioprio_set": (1, parent, 3 << 13),
        "sched_setattr": (parent, 0, 0),
        "sync": (),
    }.items():
        assert confined(tmp_path, lambda n=system_calls.DENIED[name], a=args: refused(n, *a)) == [-1, 1]
    assert os.sched_getscheduler(0) == before


@pytest.mark.parametrize("numbers", [(99, 100, 101), (101, 100, 99), (2, 0, 1), (1, 2, 100)])
def test_a_child_gets_the_files_that_it_was_sent_whatever_their_numbers(tmp_path, numbers):
    """A zygote with a hundred children has files of any number."""
    files = [os.open(tmp_path / str(i), os.O_CREAT | os.O_RDWR) for i in range(len(numbers))]
    for i, file in enumerate(files):
        os.write(file, b"%d" % i)
    child = os.fork()
    if not child:
        high = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in files]
        for file, number in zip(high, numbers, strict=True):
            os.dup2(file, number)
        renumber(list(numbers))
        found = [os.pread(i, 8, 0) for i in range(len(numbers))]
        os._exit(found != [b"%d" % i for i in range(len(numbers))])
    assert os.waitpid(child, 0)[1] == 0
    for file in files:
        os.close(file)


def test_threads_still_work(tmp_path):
    def attempt():
        import threading

        done = []
        thread = threading.Thread(target=lambda: done.append(1))
        thread.start()
        thread.join()
        return done

    assert confined(tmp_path, attempt) == [1]


def test_limits_hold_and_cannot_be_raised(tmp_path):
    assert confined(tmp_path, lambda: len(bytearray(2 * GIB))) == "MemoryError"
    assert confined(tmp_path, raise_limit) in ("ValueError", "PermissionError")
    small = sandbox.Limits(memory=1 * GIB, output=1 << 20)

    def write_much():
        with open("much", "wb") as file:
            file.write(bytes(2 << 20))

    assert confined(tmp_path, write_much, small, write=True) == "OSError"

    def compute_long():
        while True:
            pass

    # a signal that is not the one of a lack of memory, which would be ours
    assert confined(tmp_path, compute_long, sandbox.Limits(seconds=-1.0)) == "signal 24"

    def open_many():
        return [os.open("/dev/null", os.O_RDONLY) for _ in range(1000)]

    assert confined(tmp_path, open_many) == "OSError"


def test_environment_is_scrubbed(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = confined(tmp_path, lambda: dict(os.environ))
    assert "HF_TOKEN" not in found
    assert found["HOME"] == str(tmp_path / "job")
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.delenv("LOGNAME", raising=False)
    assert confined(tmp_path, getpass.getuser) == "candidate"  # which would else look for /etc/passwd


def test_a_process_dies_with_its_parent(tmp_path):
    """Parent and child are two levels down; the middle one is killed, the lowest must go, though it tries to stay."""
    read, write = os.pipe()
    middle = os.fork()
    if not middle:
        parent = os.getpid()
        if not os.fork():
            sandbox.die_with_parent(parent)
            (tmp_path / "job").mkdir()
            sandbox.enter(str(tmp_path / "job"), sandbox.Limits(), files.readable_paths())
            linux.libc.prctl(1, 0, 0, 0, 0)
            os.write(write, b"x")
            while True:
                select.select([], [], [])
        select.select([], [], [])
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.kill(middle, 9)
    os.waitpid(middle, 0)
    assert select.select([read], [], [], 10)[0], "the pipe is still open"
    assert os.read(read, 1) == b""  # its last writer is gone
    os.close(read)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has something to lose")
def test_capabilities_are_gone(tmp_path):
    assert confined(tmp_path, lambda: os.chroot("/")) == "PermissionError"
    assert confined(tmp_path, lambda: os.nice(-1)) == "PermissionError"


def test_cuda_gets_a_unix_socket_to_listen_on_and_no_other(tmp_path):
    """What the driver needs to start; a connection to anything, or another family, stays refused."""

    def unix(connect=False):
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"\0nanotriton-test-{os.getpid()}")
            s.listen()
            if connect:
                with socket.socket(socket.AF_UNIX) as other:
                    other.connect(s.getsockname())

    own_name = lambda: Path(f"/proc/{os.getpid()}/comm").write_text("x")
    parents_name = lambda: Path(f"/proc/{os.getppid()}/comm").write_text("x")
    cuda = {"cuda": True, "exec_ok": True, "write": True, "also": ["/proc"]}
    assert confined(tmp_path, unix, **cuda) is None
    assert confined(tmp_path, lambda: unix(connect=True), **cuda) == "PermissionError"
    assert confined(tmp_path, lambda: socket.socket(socket.AF_INET).close(), **cuda) == "PermissionError"
    assert confined(tmp_path, unix, **cuda | {"cuda": False}) == "PermissionError"
    assert confined(tmp_path, own_name, **cuda) == 1
    assert confined(tmp_path, own_name, **cuda | {"cuda": False}) == "PermissionError"
    assert confined(tmp_path, parents_name, **cuda) == "PermissionError"


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_triton_can_build_its_launcher_where_cuda_candidates_run(tmp_path):
    """What process mode on CUDA does before the first launch: a C extension by the C compiler, and a cubin by ptxas."""
    source = '#include <Python.h>\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "stub", 0, -1, 0};\nPyMODINIT_FUNC PyInit_stub(void) { return PyModule_Create(&d); }'

    def build():
        from triton.runtime.build import _build

        Path("stub.c").write_text(source)
        path = _build("stub", "stub.c", ".", [], [], [], [])
        cubin = compile_kernel(
            Kernel(GOOD["name"], GOOD["ttir"], GOOD["options"], signature(GOOD["ttir"], GOOD["name"])),
            DEFAULT,
        ).cubin
        return os.path.basename(path).split(".")[0], len(cubin) > 0

    task = Task("task", "")
    limits, options = confinement(Job(0, task, "", "none", 60.0, 4 * GIB), 1 << 20)
    assert confined(tmp_path, build, limits, **options) == ["stub", True]


def test_references_to_what_a_fork_finds_are_not_counted():
    """Where Python has immortal objects (3.12); a new object's are counted as ever."""
    code = """
import sys
from nanotriton.executor.sandbox import forks
old = [object()]
forks.stop_counting_references()
new = [object()]
counts = [sys.getrefcount(x[0]) for x in (old, new)]
more = [[x[0]] * 100 for x in (old, new)]
print([sys.getrefcount(x[0]) - n for x, n in zip((old, new), counts)])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ("[0, 100]" if sys.version_info >= (3, 12) else "[100, 100]")


def test_the_fields_behind_a_name_that_a_candidate_chose(tmp_path):
    stat = tmp_path / "stat"
    stat.write_bytes(b"7 (a) S \xff) Z 1 2 3\n")
    assert linux.stat_fields(str(stat)) == ["Z", "1", "2", "3"]
