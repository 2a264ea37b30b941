"""Which system calls may a confined process make? Tables of those that it may not, and the seccomp filter."""

import ctypes
import functools
import os
import socket
import struct

from nanotriton.executor.sandbox.linux import (
    PR_GET_SECCOMP,
    PR_SCHED_CORE,
    PR_SET_PDEATHSIG,
    PR_SET_SECCOMP,
    libc,
)

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
    # System V's memory, semaphores and queues, and POSIX queues: they outlive their process. Those that other
    # programs of this user have need no right but a number or a name to be changed or removed.
    "shmget": 29,
    "shmat": 30,
    "shmctl": 31,
    "semget": 64,
    "semop": 65,
    "semctl": 66,
    "semtimedop": 220,
    "msgget": 68,
    "msgsnd": 69,
    "msgrcv": 70,
    "msgctl": 71,
    "mq_open": 240,
    "mq_unlink": 241,
    # one limit for all of a machine (aio) or a user (watches): a single process could use it up
    "io_setup": 206,
    "inotify_init": 253,
    "inotify_init1": 294,
    "fanotify_init": 300,
    # the kernel's memory for rules of Landlock counts for no limit of the process's
    "landlock_create_ruleset": 444,
    "socketpair": 53,
    "move_pages": 279,  # of others
}
FCNTL, IOCTL_CALL = 72, 16
# Commands of fcntl that send signals to the owner of a file, whoever that is. Leases and notes on folders
# signal too. And that for large pipes: what all pipes of a user hold has one limit.
DENIED_FCNTLS = {
    "F_SETOWN": 8,
    "F_SETSIG": 10,
    "F_SETOWN_EX": 15,
    "F_SETLEASE": 1024,
    "F_NOTIFY": 1026,
    "F_SETPIPE_SZ": 1031,
}
# Commands of ioctl that send signals too, that change a file's flags for good, or that type into a terminal.
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
        allowed = ("socket", "socketpair", "bind", "listen")
        denied = {name: number for name, number in denied.items() if name not in allowed}
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
    for call, commands in ((FCNTL, DENIED_FCNTLS), (IOCTL_CALL, DENIED_IOCTLS)):
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
