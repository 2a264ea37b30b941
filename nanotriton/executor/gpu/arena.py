"""Memory and kernels of a replay on a GPU: one arena, with guard zones between the candidate's buffers.

A kernel can turn any integer into a pointer. So while a candidate runs, this process has no answer of the
reference and nobody else's data at any address of the GPU, and the arena is poisoned before every run.
A write into a guard zone is `out_of_bounds`, and a read there gives NaN.
An access that the hardware refuses costs the process its CUDA context: the ReplayError is then `fatal`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from nanotriton.executor.gpu import driver
from nanotriton.executor.gpu.compiler import Binary
from nanotriton.executor.replay.backend import ReplayError
from nanotriton.executor.replay.poison import PATTERN, Number, poison
from nanotriton.plan.plan import DTYPES, Kernel, Launch, Storage
from nanotriton.verdict import out_of_memory

ALIGN = 256  # bytes: every buffer begins at a multiple of it
GUARD = 16 << 10  # bytes of the guard zone in front of the first buffer, and at least as many behind each one
OUT_OF_RESOURCES = 701  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES


class CudaBackend:
    """Memory and kernels of one plan on the current GPU. It must be closed before the next plan's is made.

    `halves` holds both halves of a kernel's programs (halves.py) by the kernel's key. While `order` is set,
    a kernel that has halves is launched as these halves, one after the other.
    """

    def __init__(self, binaries: dict[str, Binary], limit: int = 64 << 30):
        """binaries: by a kernel's key. limit: the most bytes that the arena may have."""
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.binaries, self.limit = binaries, limit
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.storages: list[Storage] | None = None  # the arena is laid out for these
        self.resets = 0
        self.number: Number | None = None
        self.functions: dict[str, driver.Function] = {}  # by a kernel's key
        self.halves: dict[str, tuple[Kernel, Kernel]] = {}
        self.order: tuple[int, ...] | None = None
        # (id of a launch, number of its half or None) -> (the launch, which is kept alive; it prepared)
        self.prepared: dict[tuple[int, int | None], tuple[Launch, driver.Prepared]] = {}

    # ---- memory ----

    def reset(self, storages: list[Storage]) -> None:
        if storages is not self.storages:
            self._lay_out(storages)
        self.resets += 1
        poison(self.arena, "float32")
        for start, storage in zip(self.offsets, storages):
            # elements of one byte have a poison of their own
            numbered = self.number is not None and storage.kind == "temp"
            if storage.nbytes and (numbered or DTYPES[storage.dtype].itemsize == 1):
                data = self.arena[start : start + storage.nbytes]
                poison(data, storage.dtype, self.resets % 2 == 0, self.number)

    def _lay_out(self, storages: list[Storage]) -> None:
        """Make an arena with a place for every storage. Raises ReplayError if that takes too much memory."""
        self.offsets: list[int] = []
        self.guards = [(0, GUARD)]  # (first byte, byte behind the last one) of each guard zone
        at = GUARD
        for storage in storages:
            self.offsets.append(at)
            end = at + storage.nbytes
            at = (end + GUARD + ALIGN - 1) // ALIGN * ALIGN
            self.guards.append((end, at))
        if at > self.limit:
            needed, limit = at >> 20, self.limit >> 20
            raise ReplayError(
                "memory_limit",
                f"the candidate's buffers take {needed} MiB of GPU memory; the limit is {limit}",
            )
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)  # the old arena is freed first
        self.arena = torch.empty(at, dtype=torch.uint8, device=self.device)
        self.storages, self.prepared = storages, {}

    def allocate(self, index: int, storage: Storage) -> tuple[torch.UntypedStorage, int]:
        return self.arena.untyped_storage(), self.offsets[index]

    def address(self, index: int) -> int:
        return self.arena.data_ptr() + self.offsets[index]

    # ---- kernels ----

    def function(self, kernel: Kernel) -> driver.Function:
        if kernel.key not in self.functions:
            self.functions[kernel.key] = driver.load(self.binaries[kernel.key])
        return self.functions[kernel.key]

    def launch(self, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]) -> None:
        """args: (Triton's type, value); a tensor's value is its address.

        The packed launch is kept for the next run, because the arena does not move.
        """
        try:
            for number, part in self._parts(kernel):
                which = id(call), number
                if which not in self.prepared:
                    self.prepared[which] = call, self._prepare(self.function(part), kernel, call, args)
                _, prepared = self.prepared[which]
                prepared.go(torch.cuda.current_stream().cuda_stream)
        except driver.DriverError as error:
            message = f"kernel {kernel.name}: {error}"
            raise ReplayError(_status(error), message, call.line, error.fatal) from None

    def _parts(self, kernel: Kernel) -> list[tuple[int | None, Kernel]]:
        """(number, kernel) of each part that is launched: (None, the whole), or its halves in order."""
        if not self.order or kernel.key not in self.halves:
            return [(None, kernel)]
        halves = self.halves[kernel.key]
        return [(number, halves[number]) for number in self.order]

    def _prepare(
        self, function: driver.Function, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]
    ) -> driver.Prepared:
        """The launch with its arguments packed and scratch memory of its own.

        function: the whole kernel's, or a half's, which has the same parameters.
        """
        typed, at = [], 0
        for _, value in args:
            ty, _ = kernel.signature[at]
            typed.append((ty, value))
            at += driver.parameters(value)
        binary = function.binary
        blocks = math.prod(call.grid) * binary.num_ctas
        # tensors without elements have the address 0
        scratch = torch.empty(blocks * binary.scratch, dtype=torch.uint8, device=self.device)
        profile = torch.empty(blocks * binary.profile_scratch, dtype=torch.uint8, device=self.device)
        packed = driver.pack(function, typed, scratch.data_ptr(), profile.data_ptr())
        return driver.Prepared(function, call.grid, packed, keep=[scratch, profile])

    # ---- the end of a run ----

    def finish(self, read: Callable[[], tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[bool]]:
        """As `Backend.finish`. The guards' state comes to the host with the flags: one wait is enough."""
        try:
            found, flags = read()
            broken, *values = torch.stack([self._broken(self.guards), *flags]).tolist()
        except RuntimeError as error:
            # "CUDA error: out of memory" costs no context: others may have taken the memory
            if "CUDA error" not in str(error) or out_of_memory(error):
                raise
            text = str(error).splitlines()[0][:200]
            raise ReplayError("illegal_memory", f"the GPU reports: {text}", fatal=True) from None
        if broken:
            raise ReplayError("out_of_bounds", f"a kernel wrote outside of its tensors, {self._where()}")
        return found, values

    def _broken(self, guards: list[tuple[int, int]]) -> torch.Tensor:
        """Whether one of these guard zones was written to: a bool tensor, ()."""
        even = self.arena.numel() // 2 * 2
        words = self.arena[:even].view(torch.int16)
        zones = [words[(start + 1) // 2 : end // 2] for start, end in guards]
        return (torch.cat(zones) != PATTERN).any()

    def _where(self) -> str:
        """The place of the first guard zone that was written to."""
        zone = next(i for i, guard in enumerate(self.guards) if self._broken([guard]).item())
        if zone == 0:
            return "before the first buffer"
        return f"behind buffer {zone - 1} ({self.storages[zone - 1].nbytes} bytes)"

    def close(self) -> None:
        """Give back the arena and the kernels."""
        self.prepared.clear()
        for function in self.functions.values():
            function.unload()
        self.functions.clear()
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.storages = None


def _status(error: driver.DriverError) -> str:
    """The verdict's status for a launch that failed."""
    if error.fatal:
        return "illegal_memory"
    return "out_of_resources" if error.code == OUT_OF_RESOURCES else "runtime_error"
