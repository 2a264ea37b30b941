"""CUDA for replays: one arena that holds the candidate's buffers and nothing else, between guard zones, and its kernels.

A kernel can make any integer a pointer, so what matters is what there is to find: while a candidate runs, this process has no
reference output and nobody else's data on the GPU, and the arena is poisoned before every run. A write into a guard zone is
`out_of_bounds`; a read there gives NaN. An access that the hardware refuses costs the process its context: `ReplayError.fatal`.
"""

from collections.abc import Callable
from typing import Any

import torch

from nanotriton.executor.gpu import driver
from nanotriton.executor.gpu.compiler import Binary
from nanotriton.executor.replay.backend import ReplayError, poison
from nanotriton.plan.plan import DTYPES, Kernel, Launch, Storage
from nanotriton.verdict import out_of_memory

ALIGN, GUARD = 256, 16 << 10  # bytes; the guard in front of the first buffer and behind each one
OUT_OF_RESOURCES = 701  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
PATTERN = 0x7FF9  # of `poison`, as int16


class CudaBackend:
    """Memory and kernels of one plan on the current GPU. `close` it before the next one."""

    def __init__(self, binaries: dict[str, Binary], limit: int = 64 << 30):
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.binaries, self.limit = binaries, limit
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.functions: dict[str, driver.Function] = {}
        self.prepared: dict[tuple[int, int | None], tuple[Launch, driver.Prepared]] = {}
        # by a kernel's key: both halves of its programs (halves.py)
        self.halves: dict[str, tuple[Kernel, Kernel]] = {}
        # launch these halves, one after the other, where a kernel has them
        self.order: tuple[int, ...] | None = None
        self.storages: list[Storage] | None = None
        self.resets = 0

    # -- memory
    # ---------------------------------------------------------------------------------------------------

    def reset(self, storages: list[Storage]) -> None:
        if storages is not self.storages:
            self._lay_out(storages)
        self.resets += 1
        poison(self.arena, "float32")
        for at, s in zip(self.offsets, storages):
            if s.nbytes and DTYPES[s.dtype].itemsize == 1:
                poison(self.arena[at : at + s.nbytes], s.dtype, other=self.resets % 2 == 0)

    def _lay_out(self, storages: list[Storage]) -> None:
        self.offsets, at = [], GUARD
        self.guards = [(0, GUARD)]
        for s in storages:
            self.offsets.append(at)
            end = at + s.nbytes
            at = (end + GUARD + ALIGN - 1) // ALIGN * ALIGN
            self.guards.append((end, at))
        if at > self.limit:
            raise ReplayError(
                "memory_limit",
                f"the candidate's buffers take {at >> 20} MiB of GPU memory; the limit is {self.limit >> 20}",
            )
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)  # the old one goes first
        self.arena = torch.empty(at, dtype=torch.uint8, device=self.device)
        self.storages, self.prepared = storages, {}

    def allocate(self, index: int, storage: Storage) -> tuple[torch.UntypedStorage, int]:
        return self.arena.untyped_storage(), self.offsets[index]

    def address(self, index: int) -> int:
        return self.arena.data_ptr() + self.offsets[index]

    # -- kernels
    # --------------------------------------------------------------------------------------------------

    def function(self, kernel: Kernel) -> driver.Function:
        if kernel.key not in self.functions:
            self.functions[kernel.key] = driver.load(self.binaries[kernel.key])
        return self.functions[kernel.key]

    def launch(self, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]) -> None:
        """args: (Triton's type, value), addresses in place. The packed launch is kept for the next run: the arena doesn't move."""
        try:
            halves = self.halves.get(kernel.key) if self.order else None
            for part in self.order if halves else (None,):
                which = id(call), part
                if which not in self.prepared:
                    function = self.function(kernel if part is None else halves[part])
                    self.prepared[which] = (call, self._prepare(function, kernel, call, args))
                self.prepared[which][1].go(torch.cuda.current_stream().cuda_stream)
        except driver.DriverError as error:
            status = (
                "illegal_memory"
                if error.fatal
                else "out_of_resources"
                if error.code == OUT_OF_RESOURCES
                else "runtime_error"
            )
            raise ReplayError(status, f"kernel {kernel.name}: {error}", call.line, error.fatal) from None

    def _prepare(
        self, function: driver.Function, kernel: Kernel, call: Launch, args: list
    ) -> driver.Prepared:
        binary, programs = function.binary, call.grid[0] * call.grid[1] * call.grid[2]
        scratch = [
            torch.empty(n * programs * binary.num_ctas, dtype=torch.uint8, device=self.device) if n else None
            for n in (binary.scratch, binary.profile_scratch)
        ]
        types, typed = iter(ty for ty, _ in kernel.signature), []
        for _, value in args:
            typed.append((next(types), value))
            # a descriptor's shape and strides have parameters of their own in the TTIR
            if isinstance(value, list):
                for _ in range(2 * len(value[1])):
                    next(types)
        packed = driver.pack(function, typed, *(t.data_ptr() if t is not None else 0 for t in scratch))
        return driver.Prepared(function, call.grid, packed, keep=scratch)

    def finish(self, read: Callable[[], tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[bool]]:
        """Look at the guards too, and wait only once: other processes' work goes on meanwhile. Raises ReplayError."""
        try:
            found, flags = read()
            broken, *values = torch.stack([self._broken(self.guards), *flags]).tolist()
        except RuntimeError as error:
            if "CUDA error" not in str(error) or out_of_memory(error):  # which others may have taken
                raise
            raise ReplayError(
                "illegal_memory", f"the GPU reports: {str(error).splitlines()[0][:200]}", fatal=True
            ) from None
        if broken:
            zone = next(i for i, guard in enumerate(self.guards) if self._broken([guard]).item())
            where = (
                "before the first buffer"
                if zone == 0
                else f"behind buffer {zone - 1} ({self.storages[zone - 1].nbytes} bytes)"
            )
            raise ReplayError("out_of_bounds", f"a kernel wrote outside of its tensors, {where}")
        return found, values

    def _broken(self, guards: list[tuple[int, int]]) -> torch.Tensor:
        words = self.arena[: self.arena.numel() // 2 * 2].view(torch.int16)
        return (torch.cat([words[(start + 1) // 2 : end // 2] for start, end in guards]) != PATTERN).any()

    def close(self) -> None:
        """Give back the arena and the kernels."""
        self.prepared.clear()
        for function in self.functions.values():
            function.unload()
        self.functions.clear()
        self.arena = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.storages = None
