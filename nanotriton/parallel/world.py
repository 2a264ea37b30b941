"""The ranks of a run: the processes that torchrun started, and the operations that they do together.

python train.py                                        one rank
torchrun --nproc-per-node 4 train.py                   four, on one machine
torchrun --nnodes 2 --nproc-per-node 8 ... train.py    more machines, which share the run's disk
"""

import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nanotriton.config import ConfigError
from nanotriton.executor.processes import cores

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among the `world_size` of a run, and the operations that they do together."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on this machine: which GPU
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of forward and backward: bf16 on a GPU, fp32 on the CPU."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def all_sum(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks, a new tensor on x's device."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def all_max(self, x: Tensor) -> Tensor:
        """The largest x of all ranks, element by element, a new tensor on x's device."""
        return self._reduce(x, dist.ReduceOp.MAX)

    def _reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        total = x.detach().to(self.device, copy=True)
        if self.world_size > 1:
            dist.all_reduce(total, op)
        return total.to(x.device)

    def gather(self, x: Any) -> list[Any]:
        """A small picklable x of every rank, in rank order, on every rank."""
        out = [x] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(out, x)
        return out

    def to_main(self, x: Any) -> list[Any]:
        """A picklable x of every rank, in rank order, on the main rank; [] on the others.

        For what is too large for all of them.
        """
        if self.world_size == 1:
            return [x]
        out = [None] * self.world_size if self.is_main else None
        dist.gather_object(x, out)
        return out or []

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's part of a list that every rank has: every world_size-th item."""
        return list(items[self.rank :: self.world_size])


def setup() -> World:
    """Join the other ranks that torchrun started, or be alone. Call once, first."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # a worker must not outlive its agent, however that died
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    trouble = gpu_trouble(device, used=size > 1) if cuda else ""
    if trouble and size == 1:
        raise ConfigError(trouble)
    if "OMP_NUM_THREADS" not in os.environ:
        # What runs on the CPU is small, and the other cores are the executor's (but see idle_cores).
        torch.set_num_threads(1)
    if size > 1:
        store = fresh_store(rank, size)
        agree(store, rank, size, device.type, trouble)
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            # ranks wait for the one with the longest rollout: ten minutes, the default, is short
            timeout=timedelta(hours=2),
            device_id=device if cuda else None,
        )
        # For the executor's workers, which take the first GPU that they see. torch keeps the number of GPUs
        # that it has counted once, so in this process all of them stay.
        if cuda:
            torch.cuda.device_count()
            os.environ["CUDA_VISIBLE_DEVICES"] = own_gpu(local, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return World(rank, size, local, device)


def gpu_trouble(device: torch.device, used: bool) -> str:
    """Why this rank can't use its GPU, on one line, or "".

    used: it will be for certain (NCCL does). Else nothing is put there: only the executor may need it.
    """
    count = torch.cuda.device_count()
    if device.index >= count:
        return f"it has no GPU: there are {count}, and --nproc-per-node is more"
    try:
        torch.cuda.set_device(device)
        if used:
            torch.zeros(1, device=device)
    except RuntimeError as error:
        return f"its GPU {device.index} can't be used: {str(error).splitlines()[0]}"
    return ""


def agree(store: dist.Store, rank: int, size: int, kind: str, trouble: str) -> None:
    """Go on if all ranks can work together; else ConfigError on the first, with a line, and the others end.

    kind: this rank's device type. trouble: a line about it, or "". It comes before the ranks' first common
    operation, for which all would wait.
    """
    host = socket.gethostname()
    store.set(f"ready/{rank}", json.dumps([host, kind, trouble]))
    if rank == 0:
        line = ""
        for other in range(size):
            its_host, its_kind, its_trouble = json.loads(store.get(f"ready/{other}"))
            if its_kind != kind:
                its_trouble = f"its device is {its_kind}, and that of rank 0 ({host}) is {kind}"
            if its_trouble and not line:
                line = f"rank {other} ({its_host}): {its_trouble}"
        store.set("agreed", line or "yes")
    line = store.get("agreed").decode()
    if line == "yes":
        return
    read = store.add("read", 1)
    due = time.monotonic() + 10
    while rank == 0 and read < size and time.monotonic() < due:  # the store may end with this process
        time.sleep(0.02)
        read = store.add("read", 0)
    raise ConfigError(line) if rank == 0 else SystemExit(2)


def leave(code: int) -> NoReturn:
    """End this process, with this exit status, when all is written.

    A rank among others leaves without the interpreter's teardown. A thread of Gloo lets go of the tensors of
    a finished collective when it is scheduled next. If that is during the teardown, it waits for an
    interpreter that is gone, and the process aborts ("terminate called without an active exception", pytorch
    pull request 179291). Everything else happens as ever: threads are waited for, exit handlers are called,
    streams are flushed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        sys.exit(code)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def idle_cores(world: World) -> Iterator[None]:
    """Train on the CPU with a second thread, where this rank has a second core.

    It goes around what runs while the executor waits. nanotriton/__init__.py says how OpenMP's threads wait:
    otherwise a core that is not free would cost dearly.
    """
    before = torch.get_num_threads()
    if world.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ and cores() > 1:
        torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def own_gpu(local_rank: int, visible: str | None) -> str:
    """The CUDA_VISIBLE_DEVICES that shows a rank's own GPU only, of those that are visible to all.

    >>> own_gpu(1, None), own_gpu(1, "4,6")
    ('1', '6')
    """
    return visible.split(",")[local_rank].strip() if visible else str(local_rank)


def fresh_store(rank: int, size: int) -> dist.Store:
    """A key space that all ranks of this attempt share and no earlier attempt has written to.

    After --max-restarts torchrun gives the workers the store that the dead ones used, where gloo finds their
    addresses and NCCL their ids (pytorch issue 135712); its restart count is each machine's own and can't
    tell attempts apart. So every rank says hello under a name that was never used, rank 0 answers that name,
    and the answer is acknowledged.
    """
    store, *_ = next(dist.rendezvous("env://"))
    space = me = uuid.uuid4().hex  # rank 0's own name is the space
    deadline = time.monotonic() + 600
    store.set(f"hello/{rank}", me)
    if rank:
        space = store.get(f"answer/{me}").decode()  # waits
        store.set(f"{space}/{rank}", "here")
    missing = set() if rank else set(range(1, size))  # ranks that rank 0 has not heard of
    while missing:
        for other in missing:
            if store.check([f"hello/{other}"]):  # maybe a dead one's, whose answer nobody reads
                name = store.get(f"hello/{other}").decode()
                store.set(f"answer/{name}", me)
        missing = {other for other in missing if not store.check([f"{me}/{other}"])}
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {sorted(missing)} of {size} did not start within 10 minutes")
        time.sleep(0.02)
    return dist.PrefixStore(space, store)
