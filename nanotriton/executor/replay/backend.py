"""Memory and kernels of a device for the replayer, and the CPU's backend. A GPU's is gpu/arena.py."""

import functools
import random
from collections.abc import Callable
from typing import Any, Protocol

import torch

from nanotriton.executor import ttir
from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.replay.poison import Number, poison
from nanotriton.plan.plan import Kernel, Launch, Storage

MOST_BLOCKS = 32  # of a launch that a multiprocessor has at once
# The verdict's status for each of the evaluator's errors. TTIR that it can't read says nothing of the kernel.
STATUS = {
    ttir.OutOfBounds: "out_of_bounds",
    ttir.Race: "nondeterministic",
    ttir.Budget: "timeout",
    ttir.AssertionFailed: "runtime_error",
    ttir.FalsePromise: "runtime_error",
    ttir.TooLarge: "out_of_resources",
    ttir.TTIRError: "unsupported",
}


class ReplayError(Exception):
    """The candidate failed while it ran.

    status: of the verdict. line: the candidate's line (0: unknown). fatal: the process has lost its CUDA
    context and must end.
    """

    def __init__(self, status: str, message: str, line: int = 0, fatal: bool = False):
        super().__init__(message)
        self.status, self.message = status, message
        self.line, self.fatal = line, fatal

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class Backend(Protocol):
    """Memory and kernels of one device.

    number: what fresh memory holds; None for NaN and absurd integers (poison.py).
    """

    device: torch.device
    number: Number | None

    def reset(self, storages: list[Storage]) -> None:
        """Forget the last run: all memory is poison."""

    def allocate(self, index: int, storage: Storage) -> tuple[torch.UntypedStorage, int]:
        """Memory for one storage of the plan: (a storage of torch's, the byte in it at which that starts)."""

    def address(self, index: int) -> int:
        """The address that a kernel gets for an allocated storage."""

    def launch(self, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]) -> None:
        """Run one launch.

        args: (Triton's type, value). A value is a number, an address, or for a descriptor the list
        [address, shape, strides, padding].
        """

    def finish(self, read: Callable[[], tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[bool]]:
        """Call read() when all work is done, and return its findings, with its flags as booleans.

        read: returns anything, and flags as tensors. Raises ReplayError if memory outside a buffer was
        written.
        """


class CpuBackend:
    """Buffers of exactly the right size at made-up addresses. Kernels run in the TTIR evaluator.

    notes: it is noted which bytes kernels load. budget: elements that one launch may compute. seed: of the
    order of programs, which is another one in every launch.
    """

    device = torch.device("cpu")

    def __init__(self, notes: bool = False, budget: int = ttir.BUDGET, seed: int = 0):
        self.runs = 0
        self.number: Number | None = None
        self.order = random.Random(seed)
        self.notes = notes
        self.budget = budget

    def reset(self, storages: list[Storage]) -> None:
        self.memory = ttir.GlobalMemory(self.notes)
        self.runs += bool(storages)
        self.addresses: dict[int, int] = {}

    def allocate(self, index: int, storage: Storage) -> tuple[torch.UntypedStorage, int]:
        data = torch.empty(storage.nbytes, dtype=torch.uint8)
        poison(data, storage.dtype, self._second(), self.number)
        self.addresses[index] = self.memory.add(data)
        return data.untyped_storage(), 0

    def address(self, index: int) -> int:
        return self.addresses[index]

    def loaded(self) -> dict[int, torch.Tensor]:
        """For each byte of a storage whether a kernel has loaded it (0 or 255); of those with a load."""
        found = {index: self.memory.find(address).loaded for index, address in self.addresses.items()}
        return {index: torch.from_numpy(flags) for index, flags in found.items() if flags is not None}

    def launch(self, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]) -> None:
        flat: list = []
        for ty, value in args:
            if ty.startswith("tensordesc"):
                address, shape, strides, padding = value
                if padding != "zero":
                    raise ttir.Unsupported("a host-side descriptor that pads with NaN")
                flat += [(address, shape, strides), *shape, *strides]
            else:
                flat.append(value)
        evaluator = evaluator_of(kernel)
        seed = self.order.getrandbits(62)
        evaluator.run(call.grid, flat, self.memory, self.budget, seed, _resident(kernel))

    def finish(self, read: Callable[[], tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[bool]]:
        found, flags = read()
        return found, [bool(flag) for flag in flags]

    def _second(self) -> bool:
        """Whether this is every second run: it has the other poison."""
        return self.runs % 2 == 0


def _resident(kernel: Kernel) -> int:
    """How many programs of a kernel the card has room for at once, by their threads alone."""
    threads = DEFAULT.warp_size * (kernel.options.get("num_warps") or 4)
    each = min(MOST_BLOCKS, DEFAULT.max_threads_per_multi_processor // threads)
    return DEFAULT.multi_processor_count * max(1, each)


def evaluator_of(kernel: Kernel) -> ttir.Evaluator:
    """Raises TTIRError if it cannot be read."""
    return _evaluator(kernel.ttir, kernel.name)


@functools.lru_cache(maxsize=256)
def _evaluator(text: str, name: str) -> ttir.Evaluator:
    return ttir.Evaluator(text, name)
