"""A worker that owns a CUDA context: compiles plans in children, replays them in an arena, and times them.

The zygote was forked before the context was made, with no GPU visible: it records and compiles; only this process, which never runs a
candidate's Python, touches the GPU. While a candidate runs there is nothing on the GPU in this process but its own buffers and the inputs
and weights that it is given: answers of the reference are computed later and dropped before the next run. (Where the driver lets GPUs read
host memory by address, a kernel could reach this process's heap: the secret seed is there, answers are not.)
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

# bytes of freed memory that are overwritten, and that a worker keeps between two turns; to give
# back more takes the driver milliseconds
WIPED = 2 << 30


class Gpu:
    """What a worker has on its GPU: at most one candidate's arena, compiled kernels, and a stopwatch."""

    def __init__(self, folder: str, locks: str, card: Card):
        here = torch.cuda.get_device_properties(torch.cuda.current_device())
        if (here.name, here.major, here.minor) != (card.name, card.major, card.minor):
            raise RuntimeError(f"this GPU is a {here.name}, not the {card} that kernels are compiled for")
        self.card = card
        driver.sleep_while_waiting()  # the cores are for recordings and compilations
        torch.cuda.init()
        # Judged with TF32 off everywhere; timing turns torch's defaults back on.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.binaries = BinaryCache(card, folder)
        # Of what there is for this executor (a trainer may share the GPU) a candidate's buffers get half;
        # inputs and the reference the rest.
        self.budget = most(f"{folder}-free", torch.cuda.mem_get_info()[0]) // 2
        self.share = self.budget // REPLAYERS  # who needs more has the GPU alone
        self.owner = None  # the GpuRunner whose candidate has the arena
        self.lost = False  # the context: this process must end
        self.times = f"{folder}-times"  # what is known of tasks, for all workers of this executor
        self._watch: Stopwatch | None = None
        folder = os.path.join(locks, f"nanotriton-locks-{os.getuid()}")  # every executor's on this machine
        os.makedirs(folder, mode=0o700, exist_ok=True)
        name = os.path.join(folder, str(here.uuid))
        self.turns = Turns(name)

    def own(self, runner) -> None:
        """The GPU is this candidate's from here on: whatever there is of another's, or of the reference's answers, goes."""
        if self.lost:
            self.owner = runner
            return
        if self.owner is not runner and self.owner is not None:
            self.owner.replay.close()
        self.owner = runner
        if memory_in_use("reserved") - memory_in_use("allocated") > WIPED:
            torch.cuda.empty_cache()
        wipe_free_memory()

    def known(self, task: str) -> tuple[float, int] | None:
        """(microseconds of the reference, bytes of the inputs that its answer needs) if a worker has found them out."""
        try:
            with open(os.path.join(self.times, task)) as file:
                return tuple(json.load(file))
        except OSError:
            return None

    def learn(self, task: str, reference_us: float, needed: int) -> None:
        os.makedirs(self.times, exist_ok=True)
        new = os.path.join(self.times, f".{task}.{os.getpid()}")
        with open(new, "w") as file:
            json.dump([reference_us, needed], file)
        os.rename(new, os.path.join(self.times, task))

    def crowded(self, job, reference) -> bool:
        """Whether they need more than a worker's share: a task's inputs and answer are there about eight times over, some in float64."""
        return job.large or 4 * reference.bytes > self.share

    @property
    def watch(self) -> Stopwatch:
        self._watch = self._watch or Stopwatch()
        return self._watch

    @contextmanager
    def busy(self):
        """Work beside other workers'. Much memory is given back at the end, for the others, until this worker's next turn."""
        with self.turns.busy():
            yield
            if not self.lost and memory_in_use("reserved") > WIPED:
                self.clear()

    def clear(self) -> None:
        """Give the GPU's memory back. A candidate that is not done yet finds its buffers and kernels made anew."""
        self.own(None)
        if memory_in_use("allocated") > WIPED:
            gc.collect()  # what still holds so much is a cycle, of an exception and its frames
        torch.cuda.empty_cache()

    @contextmanager
    def alone(self):
        """Within `busy`: work that needs the memory of all, once the others are done with what they have begun."""
        self.clear()
        with self.turns.alone():
            yield


def most(path: str, free: int) -> int:
    """The most that any worker of this executor found free when it began: one that begins later finds the others' tasks in memory."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        free = max([free, *map(int, file.read().split())])
        file.write(f"{free}\n")
    return free


def memory_in_use(kind: str) -> int:
    """Bytes that torch's allocator has "reserved" or "allocated". torch.cuda.memory_reserved() and ..._allocated() sort all statistics first."""
    return torch.cuda.memory_stats_as_nested_dict().get(f"{kind}_bytes", {}).get("all", {}).get("current", 0)


def wipe_free_memory() -> None:
    """Overwrite what torch's allocator keeps of tensors that are gone: the reference's answers to the inputs of a moment ago."""
    stream = torch.cuda.current_stream().cuda_stream
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                driver.fill(block["address"], block["size"], stream)
