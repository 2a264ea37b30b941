"""A worker's GPU: its memory, its compiled kernels, its stopwatch, and its turns beside other workers.

The worker's zygote was forked before the CUDA context was made, and sees no GPU. Candidates are recorded and
kernels are compiled in its children. Only the worker, which never runs a candidate's Python, touches the GPU.
While a candidate's plan runs, the worker has only that plan's arena on the GPU, with the inputs and weights
that it was given. The reference's answers are computed later, and dropped before the next run, or locked away
(vault.py).
(Some drivers let a GPU read host memory by its address. A kernel could then reach the worker's heap, which
holds the secret seed, but no answer.)
"""

import fcntl
import gc
import json
import os
from contextlib import contextmanager

import torch

from nanotriton.executor.common.card import Card
from nanotriton.executor.common.limits import REPLAYERS
from nanotriton.executor.gpu import driver
from nanotriton.executor.gpu.compiler import BinaryCache
from nanotriton.executor.gpu.locks import Turns
from nanotriton.executor.gpu.timing import Stopwatch
from nanotriton.executor.gpu.vault import Vault
from nanotriton.vmm import LockedMemory

# Bytes of freed memory that a worker may keep, between two candidates and between two turns. They are
# overwritten. More than that is given back to the driver, which takes it milliseconds.
WIPED = 2 << 30
VAULT = 2 << 30  # bytes of what a worker keeps for candidates that share a draw, at most


class Gpu:
    """What a worker has on its GPU: at most one candidate's arena, compiled kernels, and a stopwatch."""

    def __init__(self, folder: str, locks: str, card: Card):
        """folder: path that begins the names of this executor's files. locks: a folder for every executor's.

        Raises RuntimeError if the GPU is another one than `card`.
        """
        here = torch.cuda.get_device_properties(torch.cuda.current_device())
        if (here.name, here.major, here.minor) != (card.name, card.major, card.minor):
            raise RuntimeError(f"this GPU is a {here.name}, not the {card} that kernels are compiled for")
        self.card = card
        driver.sleep_while_waiting()  # the cores are for recordings and compilations
        torch.cuda.init()
        # Judged and timed with torch's own precision: TF32 in convolutions, and nowhere else.
        self.binaries = BinaryCache(card, folder)
        # A trainer may share the GPU. Of the memory that is free for this executor a candidate's buffers get
        # half, and inputs and the reference the rest.
        free, _ = torch.cuda.mem_get_info()
        self.budget = most(f"{folder}-free", free) // 2  # bytes of one candidate's arena, at most
        self.share = self.budget // REPLAYERS  # a candidate that needs more has the GPU alone
        vault = min(VAULT, self.share // 4)
        device = torch.device("cuda", torch.cuda.current_device())
        self.vault = Vault(vault, device, lambda size: LockedMemory(size, device))
        self.owner = None  # the GpuRunner of the candidate that has the arena
        self.lost = False  # the context is lost: this process must end
        self.times = f"{folder}-times"  # a folder with a file for each task, for all workers
        self._watch: Stopwatch | None = None
        self.turns = Turns(os.path.join(_lock_folder(locks), str(here.uuid)))

    def own(self, runner) -> None:
        """Give the GPU to a runner, or to none. Buffers of other runners go, and answers of the reference."""
        if self.lost:
            self.owner = runner
            return
        self.vault.close()
        if self.owner is not runner and self.owner is not None:
            self.owner.replay.close()
        self.owner = runner
        reserved, allocated = memory_in_use("reserved", "allocated")
        if reserved - allocated > WIPED:
            torch.cuda.empty_cache()
        wipe_free_memory()

    def known(self, task: str) -> tuple[float, int] | None:
        """(microseconds of the reference, bytes of the inputs that its answer needs), or None.

        None: no worker has measured that task so far.
        """
        try:
            with open(os.path.join(self.times, task)) as file:
                return tuple(json.load(file))
        except OSError:  # no file yet
            return None

    def learn(self, task: str, reference_us: float, needed: int) -> None:
        """Let all workers of this executor know what `known` returns for the task."""
        os.makedirs(self.times, exist_ok=True)
        new = os.path.join(self.times, f".{task}.{os.getpid()}")
        with open(new, "w") as file:
            json.dump([reference_us, needed], file)
        os.rename(new, os.path.join(self.times, task))

    def crowded(self, job, reference) -> bool:
        """Whether a candidate and its task need more memory than a worker's share.

        A task's inputs and answer are on the GPU about eight times, some of them in float64.
        """
        return job.large or 4 * reference.findings.bytes > self.share

    @property
    def watch(self) -> Stopwatch:
        self._watch = self._watch or Stopwatch()
        return self._watch

    @contextmanager
    def busy(self):
        """A turn beside other workers. A worker that holds much memory gives it back for them at the end."""
        with self.turns.busy():
            yield
            if not self.lost and memory_in_use("reserved")[0] > WIPED:
                self.clear()

    def clear(self) -> None:
        """Give the GPU's memory back. If a candidate is not done, its buffers and kernels are made anew."""
        self.own(None)
        if memory_in_use("allocated")[0] > WIPED:
            gc.collect()  # an exception and its frames are a cycle, which still holds so much
        torch.cuda.empty_cache()

    @contextmanager
    def alone(self):
        """Within `busy`: have all of the GPU's memory, once the other workers have ended their turns.

        It is given back before the next worker has its turn alone: this one then waits, and would wait with
        its memory in hand.
        """
        self.clear()
        if not self.lost:
            self.vault.give_back()
        with self.turns.alone():
            try:
                yield
            finally:
                if not self.lost:
                    self.clear()
                    self.vault.give_back()


def _lock_folder(locks: str) -> str:
    """Where every executor of this user on this machine has its locks. It is made if need be."""
    folder = os.path.join(locks, f"nanotriton-locks-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def most(path: str, free: int) -> int:
    """The most bytes that any worker of this executor found free when it began.

    A worker that begins later than others finds their tasks in memory, and so fewer bytes.
    path: a file that all of them read and add to.
    """
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        earlier = [int(number) for number in file.read().split()]
        free = max([free, *earlier])
        file.write(f"{free}\n")
    return free


def memory_in_use(*kinds: str) -> list[int]:
    """Bytes that torch's allocator has "reserved" or "allocated", for each of these kinds.

    torch.cuda.memory_reserved() and memory_allocated() are slower, because they sort all statistics first.
    """
    statistics = torch.cuda.memory_stats_as_nested_dict()  # empty before the first allocation
    return [statistics.get(f"{kind}_bytes", {}).get("all", {}).get("current", 0) for kind in kinds]


def wipe_free_memory() -> None:
    """Overwrite the memory of tensors that are gone, which torch's allocator keeps.

    It may hold the reference's answers to the inputs of a moment ago.
    """
    stream = torch.cuda.current_stream().cuda_stream
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                driver.fill(block["address"], block["size"], stream)
