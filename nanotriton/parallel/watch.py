"""A rank that fails ends the whole run, soon, with a line on the first rank that names it and the cause.

    watch = Watch()               # does nothing yet
    watch.begin(world)            # ... nor where there is one rank
    try:
        work()                    # meanwhile a thread of every rank gives a sign of life, and listens
    except Exception as error:
        watch.fail(one_line(error), lost=is_lost(error))
    watch.end()

Without this a rank that fails leaves the others in a collective operation that never ends: gloo sees that a
process is gone, NCCL often does not, and torchrun ends the processes of its own machine only. The ranks meet
in the key-value store that torchrun started, over a connection of their own:

    beat/RANK    a number that grows while the rank lives
    failure      the first failure: the rank and the cause
    told         the first rank has printed it
    heard        how many of the others know it: the store may end with the first rank
"""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from nanotriton.parallel.world import World

BEAT = 1.0  # seconds between two signs of life
SILENT = 300.0  # seconds without one after which a rank is given up
PATIENCE = 6.0  # seconds in which all hear of a failure, and in which a dead rank is told from a slow one
SAME = 1.0  # seconds in which the first rank may fail of the same cause, and then tells it as its own
ENDING = 10.0  # seconds that a process may take to end when it has to
UNREACHABLE = "the first machine can't be reached any more"
AGAIN = "; mended, the same command continues"


def one_line(error: BaseException) -> str:
    """What an exception says, with its kind, on one line of at most 300 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."


def is_lost(error: BaseException) -> bool:
    """Whether an operation of several ranks failed (gloo's or NCCL's error): it is another one's fault."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


class Watch(threading.Thread):
    """A rank's connection to the others, and what it knows of them. See the top."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self.world = World()
        self.store: dist.Store | None = None
        self.hosts: list[str] = []
        self.over = threading.Event()  # this rank has ended
        self.knows = threading.Event()  # this rank has said that it knows of a failure
        self.failing = threading.Event()  # this rank fails, and tells it by itself
        self.counts: dict[int, tuple[int, float]] = {}  # rank -> its last sign of life, and when that was new

    @property
    def begun(self) -> bool:
        """Whether there are others, and a way to tell them."""
        return self.store is not None

    def begin(self, world: World) -> None:
        """From now on, if there are others. All ranks call it together. SystemExit if the first is gone."""
        if world.world_size == 1:
            return
        self.world = world
        self.hosts = world.gather(socket.gethostname())
        space = world.gather(uuid.uuid4().hex)[0]  # no earlier attempt has written there
        try:
            self.store = dist.PrefixStore(f"watch/{space}", connection())
            self.store.add(f"beat/{world.rank}", 1)
        except dist.DistError:
            tell(UNREACHABLE + AGAIN)
            raise SystemExit(1) from None
        self.start()
        world.barrier()  # nobody goes on, and fails, before all listen

    def end(self) -> None:
        """This rank is done."""
        self.over.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(ENDING)

    # ---- this rank fails

    def fail(self, line: str, lost: bool = False) -> None:
        """Let all ranks end, and the first one tell why.

        line: the cause. lost: another rank's failure was noticed here, and its own words are better. Returns
        when that is done; the caller then ends this process, and the thread does it where that takes long.
        """
        if self.store is None:
            tell(line)
            return
        with contextlib.suppress(ValueError):  # a thread that is not the main one
            for number in (signal.SIGINT, signal.SIGTERM):  # torchrun's: it is ending already
                signal.signal(number, signal.SIG_IGN)
        self.failing.set()
        with contextlib.suppress(RuntimeError):  # the first machine has ended, and taken the store with it
            if lost:
                self.fail_lost(line)
            else:
                self.fail_first(line)
            self.heard()
            return
        # the store is gone, and nobody else will tell it
        tell(f"{UNREACHABLE} ({line})" if lost else line)

    def fail_first(self, line: str) -> None:
        """This rank is the first that fails, or one of many that fail of one cause."""
        self.store.compare_set("failure", "", self.name_of(self.world.rank) + line)
        if self.world.is_main:
            tell(line)
            self.store.set("told", "")
        elif not self.wait_for("told"):
            tell(self.name_of(self.world.rank) + line)

    def fail_lost(self, line: str) -> None:
        """An operation of several ranks failed. The rank that is at fault may tell; a dead one can't."""
        if not self.wait_for("failure"):
            others = [rank for rank in list(self.counts) if rank != self.world.rank]
            silent = [rank for rank in others if self.silence(rank) > PATIENCE / 2]
            if silent:
                line = self.name_of(silent[0]) + "it is gone: killed, perhaps for want of memory" + AGAIN
            if self.world.is_main or not self.wait_for("failure"):  # the first one looks, too
                self.store.compare_set("failure", "", line)
        self.tell_failure(self.store.get("failure").decode())

    def tell_failure(self, line: str) -> None:
        """The first rank prints the failure; the others wait for that, and print it only if it doesn't."""
        if self.world.is_main:
            if not self.store.check(["told"]):
                tell(line)
                self.store.set("told", "")
        elif not self.wait_for("told"):
            tell(line)

    def heard(self) -> None:
        """This rank knows of the failure. The first one waits for the others, of whom some may be dead."""
        due = time.monotonic() + PATIENCE
        first = not self.knows.is_set()
        self.knows.set()
        count = self.store.add("heard", int(first and not self.world.is_main))
        while self.world.is_main and count < self.world.world_size - 1 and time.monotonic() < due:
            time.sleep(BEAT / 10)
            count = self.store.add("heard", 0)

    def wait_for(self, key: str) -> bool:
        """Whether a key is there, or comes in PATIENCE seconds."""
        due = time.monotonic() + PATIENCE
        while not self.store.check([key]):
            if time.monotonic() > due:
                return False
            time.sleep(BEAT / 10)
        return True

    def name_of(self, rank: int) -> str:
        """The beginning of a line about a rank."""
        return f"rank {rank} ({self.hosts[rank]}): "

    # ---- the thread: another one fails

    def run(self) -> None:
        """The thread: give signs of life until this rank has ended, or the run has failed."""
        gone = 0.0  # seconds for which the store hasn't answered
        while not self.over.wait(BEAT):
            try:
                failure = self.look()
                gone = 0.0
            except RuntimeError:  # no answer: the next one may come
                gone += BEAT
                failure = UNREACHABLE + AGAIN if gone > ENDING else ""
            if failure:
                self.end_process(failure)
                return

    def look(self) -> str:
        """Give a sign of life, and look for those of others -> how the run has failed, or ""."""
        self.store.add(f"beat/{self.world.rank}", 1)
        for rank in range(self.world.world_size):
            # the first rank watches all, and all watch the first
            if (self.world.is_main or rank == 0) and rank != self.world.rank:
                self.count(rank)
                if self.silence(rank) > SILENT:
                    line = f"it has given no sign of life for {SILENT:g} s{AGAIN}"
                    self.store.compare_set("failure", "", self.name_of(rank) + line)
        return self.store.get("failure").decode() if self.store.check(["failure"]) else ""

    def count(self, rank: int) -> None:
        """Note when a rank's number last grew."""
        now = time.monotonic()
        count = self.store.add(f"beat/{rank}", 0)
        if count != self.counts.get(rank, (-1, now))[0]:
            self.counts[rank] = count, now

    def silence(self, rank: int) -> float:
        """Seconds since this rank's last sign of life."""
        return time.monotonic() - self.counts[rank][1]

    def end_process(self, failure: str) -> None:
        """Another rank has failed: tell it and end this process, whatever its main thread is doing."""
        self.failing.wait(SAME)
        if self.failing.is_set():
            self.over.wait(PATIENCE * 3 + ENDING)  # the main thread tells, and ends the process
        elif failure.startswith(UNREACHABLE):
            tell(failure)
        else:
            with contextlib.suppress(RuntimeError):  # the first rank has ended, and taken the store with it
                self.tell_failure(failure)
                self.heard()
        if self.over.is_set():
            return
        # the executor's processes and folders; a main thread that is stuck on a GPU can't be waited for
        last = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
        last.start()
        last.join(ENDING)
        sys.stderr.flush()
        os._exit(1)


def connection() -> dist.Store:
    """A connection to the store of this run, beside torch's own, which may be waiting for an answer."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))


def tell(line: str) -> None:
    """Print an error, now."""
    print(f"error: {line}", file=sys.stderr, flush=True)
