"""The executor's processes as its supervisor sees them: their start, their inheritance, and their end."""

import contextlib
import fcntl
import functools
import glob
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nanotriton.config import ConfigError
from nanotriton.executor.common.card import Card
from nanotriton.executor.common.limits import REFERENCES
from nanotriton.executor.queue import Entry
from nanotriton.executor.sandbox.linux import stat_fields
from nanotriton.executor.sandbox.protocol import BEACON, pair, remove_folder, send
from nanotriton.executor.sandbox.zygote import SLOW

PREFIX = "nanotriton-executor-"
ANSWERING = 120.0  # seconds that a driver may take to begin and to say what GPU there is
LEAST = 4 << 30  # bytes that a process may take, on any machine
# -P: Python imports nothing from the folder in which it is started, where numbers.py may be a user's
FLAGS = ("-P", "-c")
ENDING = 10.0  # seconds that killed processes may take to be gone: a CUDA context takes one to end
# The variables of the environment that the processes inherit. Candidates can read the memory that they are
# forked from, so there are no keys and no tokens among them.
ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "VIRTUAL_ENV",
    "CUDA_HOME",
    "CUDA_PATH",
    "SYSTEMROOT",
    "CUDA_DEVICE_ORDER",
)


def memory_share(workers: int) -> int:
    """Bytes that each process of an executor may take by default: LEAST, or more on a large machine.

    A worker and its children seldom need much at the same time, so a quarter of the machine is for each
    worker's largest one.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # a container may have less; "max" is no number
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(LEAST, total // (4 * workers))


@dataclass(eq=False)
class WorkerProcess:
    """A worker as the supervisor sees it."""

    sock: socket.socket
    beacon: mmap.mmap
    flavour: str
    folder: str
    pid: int | None = None  # None: not forked yet
    entries: dict[int, Entry] = field(default_factory=dict)  # in flight, by the number of the job
    finished: int = 0  # phases of candidates that it has finished
    alone: bool = False  # it has a suspect, and gets nothing else
    # keys of the tasks that it was given last, and so has loaded, each once
    tasks: deque[str] = field(default_factory=lambda: deque(maxlen=REFERENCES))

    def has_room(self, depth: int) -> bool:
        """Whether it may get another candidate.

        A candidate that has been in flight for SLOW seconds no longer takes a place: a few that hang must
        not stop the rest. There is an end to that, or slow compilations would crowd the cores until all of
        them are late.
        """
        young = sum(time.monotonic() - e.given < SLOW for e in self.entries.values())
        return not self.alone and young < depth and len(self.entries) < 2 * depth

    def computing(self) -> tuple[int, float, str]:
        """(job, when it is overdue or 0, stage) that the worker last wrote."""
        job, due, stage = BEACON.unpack_from(self.beacon)
        return job, due, stage.rstrip(b"\0").decode("ascii", "replace")


@dataclass(eq=False)
class Base:
    """A process that forks workers of one flavour."""

    flavour: str
    popen: subprocess.Popen
    sock: socket.socket
    ready: bool = False
    unnamed: deque[WorkerProcess] = field(default_factory=deque)  # workers asked for, in order


def cores() -> int:
    """This process's share of the machine's cores, one at least: torchrun and its like say how many processes
    were started here.
    """
    here = len(os.sched_getaffinity(0))
    return max(1, here // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def default_workers() -> int:
    """How many processes judge, where an executor is not told.

    One core is left to the sampler, or whoever else submits the candidates. Of two cores both judge: once a
    step's candidates are submitted, training only waits for their verdicts.
    """
    count = cores()
    return count if count <= 2 else count - 1


def visible_devices(index: int | None) -> str | None:
    """CUDA_VISIBLE_DEVICES of processes that may use GPU `index`, counted among those that this process sees.

    index: None leaves the variable as it is here.
    """
    here = os.environ.get("CUDA_VISIBLE_DEVICES")
    if index is None:
        return here
    names = here.split(",") if here else []
    return names[index].strip() if index < len(names) else str(index)


def environment(folder: str) -> dict[str, str]:
    """The environment of a process that is started here.

    folder: its home, and the place of its temporary files.
    """
    env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    env |= {"HOME": folder, "TMPDIR": folder}
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # else it is found anyway
        env["PYTHONPATH"] = root
    env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return env


@functools.cache
def ask_driver(visible: str | None) -> Card:
    """The GPU that processes with this CUDA_VISIBLE_DEVICES (None: unset) would use.

    A process of its own asks: where CUDA has been initialised, forks can't use it, and which devices are
    seen is settled. Raises ConfigError, one line, if candidates can't run there.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = environment(folder)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        command = [sys.executable, *FLAGS, "from nanotriton.executor.gpu.ask import main; main()"]
        options = {"env": env, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, timeout=ANSWERING, **options)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"this machine's CUDA GPU has not answered for {ANSWERING:g} s") from None
    if done.returncode:
        silent = f"the process that asked the CUDA driver ended with code {done.returncode}"
        raise ConfigError((done.stderr.strip().splitlines() or [silent])[-1])
    return Card(**json.loads(done.stdout.splitlines()[-1]))


def read_card(visible: str | None, timed: bool = False) -> Card:
    """As `ask_driver`. timed: it also raises where candidates can't be timed."""
    card = ask_driver(visible)
    if timed and not card.bandwidth:
        reason = "the driver does not tell how fast its memory is"
        raise ConfigError(f"candidates can't be timed on this machine's {card}: {reason}")
    return card


def check_card(device: str, timed: bool = False) -> None:
    """ConfigError if candidates can't run on the GPU of --device. Call it before anything else is done."""
    if device == "cuda":
        try:
            read_card(visible_devices(None), timed)
        except ConfigError as error:
            raise ConfigError(f"--device cuda: {error}") from None


def start_base(flavour: str, root: str, visible: str | None, card: Card) -> Base:
    """Start a base.

    Call it from a thread that lives as long as the base shall: Linux's parent-death signal is about the
    thread.
    """
    ours, theirs = pair()
    env = environment(root)
    if flavour == "cuda":
        env |= {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NVIDIA_"))}
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
    else:
        env["CUDA_VISIBLE_DEVICES"] = ""
    call = f"base_main({theirs.fileno()}, {os.getpid()}, {flavour!r}, {root!r}, {asdict(card)!r})"
    command = [sys.executable, *FLAGS, f"from nanotriton.executor.base import base_main; {call}"]
    popen = subprocess.Popen(
        command,
        env=env,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=2,
    )
    theirs.close()
    return Base(flavour, popen, ours)


def ask_for_worker(
    base: Base, root: str, number: int, memory: int, visible: str | None, card: Card
) -> WorkerProcess:
    """Let a base fork a worker. Its process id comes later, but work may be sent to it at once.

    memory: bytes for each of its processes. Raises ConnectionError if the base is dead, and another OSError
    if there is no file or memory left.
    """
    folder = os.path.join(root, f"worker-{number}")
    on_gpu = base.flavour in ("cuda", "gpu")
    options = {
        "folder": folder,
        "flavour": base.flavour,
        "cubins": os.path.join(root, "cubins"),
        "locks": tempfile.gettempdir(),
        "visible": visible,
        "device": "cuda" if on_gpu else "cpu",
        "memory": None if on_gpu else memory,  # a CUDA context maps far more address space than it uses
        "card": asdict(card),
    }
    ours, theirs = pair()
    with theirs, open(os.memfd_create("beacon"), "r+b") as file:
        file.truncate(BEACON.size)
        process = WorkerProcess(ours, mmap.mmap(file.fileno(), BEACON.size), base.flavour, folder)
        send(base.sock, options, (theirs.fileno(), file.fileno()))
    base.unnamed.append(process)
    return process


# ---- the folder, and the end


def make_root() -> tuple[str, int]:
    """A private folder, and the descriptor of a lock on it.

    Folders whose owner is gone (by kill -9 of every process at once) are removed.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # its owner lives, or it is gone
            if old.lstat().st_uid != os.getuid():  # what another user has put there may be anything
                continue
            with open(old / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
    root = tempfile.mkdtemp(prefix=PREFIX)
    fd = os.open(os.path.join(root, "lock.new"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(os.path.join(root, "lock.new"), os.path.join(root, "lock"))  # it is never there unlocked
    return root, fd


def end_processes(groups: list[int], root: str, owner: int) -> None:
    """Kill every process of these groups, wait until their part of a GPU is free, and remove the folder.

    owner: the process that started them. A fork of it, which ends sooner, leaves them alone.
    """
    if os.getpid() != owner:
        return
    for group in groups:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # and somebody has waited for it
            os.waitpid(group, 0)
    due = time.monotonic() + ENDING
    while groups and any_left(set(groups)) and time.monotonic() < due:
        time.sleep(0.01)
    remove_folder(root)


def any_left(groups: set[int]) -> bool:
    """Whether a thread of these process groups still holds memory or files.

    A thread that nobody has reaped yet (a zombie) holds none.
    """
    for stat in glob.iglob("/proc/[0-9]*/task/*/stat"):
        with contextlib.suppress(OSError):  # a thread may end while it is looked at
            state, _, group, *_ = stat_fields(stat)
            if state not in "ZX" and int(group) in groups:
                return True
    return False
