"""TTIR to cubin: the only way to code that runs on a GPU. No GPU is needed.

`compile_kernel` is trusted code on hostile input: old or odd kernels abort the compiler, so it runs in a process that may die
(a child of a zygote, under limits), and what comes back is a `Binary`: bytes and numbers. Nothing compiled elsewhere is
ever loaded. Measured: 44 ms for a softmax, 220 ms with `tl.dot`, CPU time of one core.
"""

import functools
import json
import os
import re
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nanotriton.executor.common.card import Card
from nanotriton.plan.aten import PlanError, check
from nanotriton.plan.plan import Kernel
from nanotriton.plan.signature import one_descriptor

MAX_CUBIN = 64 << 20
MAX_SCRATCH = 1 << 30  # bytes a program
TENSOR_MEMORY = 512  # columns, on GPUs that have it (sm_100): CUDA has no attribute for their number
MAX_KEPT = 256 << 20  # bytes of binaries in memory


class CompileError(Exception):
    """`status` is a Verdict status: compile_error or out_of_resources."""

    def __init__(self, status: str, message: str):
        super().__init__(status, message)  # both, or it could not be pickled
        self.status, self.message = status, message

    def __str__(self) -> str:
        return self.message


@dataclass
class Binary:
    """A compiled kernel and what its launch needs to know."""

    name: str
    cubin: bytes
    shared: int  # bytes of dynamic shared memory
    num_warps: int  # as launched: warp specialisation adds some
    num_ctas: int
    cooperative: bool
    scratch: int = 0  # bytes of global scratch a program
    scratch_align: int = 1
    profile_scratch: int = 0
    # of each host-side descriptor: its TMA layout, None: passed as numbers
    descriptors: list[dict | None] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        header = {k: v for k, v in asdict(self).items() if k != "cubin"}
        return json.dumps(header).encode() + b"\n" + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes, card: Card) -> "Binary":
        """Raises PlanError if it isn't one for that GPU: a compiler that a kernel took over could send anything."""
        header, _, cubin = data.partition(b"\n")
        try:
            binary = cls(**json.loads(header), cubin=cubin)
        except (ValueError, TypeError, RecursionError) as error:
            raise PlanError(f"malformed binary: {str(error)[:200]}") from None
        numbers = {
            "shared": card.shared_memory_per_block_optin,
            "num_warps": 64,
            "num_ctas": 16,
            "scratch": MAX_SCRATCH,
            "profile_scratch": MAX_SCRATCH,
        }
        for name, limit in numbers.items():
            value = getattr(binary, name)
            check(
                type(value) is int and 0 <= value <= limit, f"malformed binary: {name} is {str(value)[:40]}"
            )
        check(
            type(binary.scratch_align) is int and 0 < binary.scratch_align <= 1024,
            "malformed binary: alignment",
        )
        check(type(binary.name) is str and type(binary.cooperative) is bool, "malformed binary: name")
        check(binary.cubin[:4] == b"\x7fELF" and len(binary.cubin) <= MAX_CUBIN, "malformed binary: no cubin")
        check(
            type(binary.descriptors) is list and len(binary.descriptors) <= 64,
            "malformed binary: descriptors",
        )
        return binary


def compile_kernel(kernel: Kernel, card: Card) -> Binary:
    """One kernel of a validated plan, for that GPU. Raises CompileError; hostile TTIR can also kill the process."""
    from triton.runtime.errors import OutOfResources, PTXASError

    from nanotriton.executor.gpu.stages import compile_ttir

    try:
        reads_alike = functools.partial(_check_signature, kernel)
        cubin, metadata, options = compile_ttir(kernel.bare, card.target, kernel.options, reads_alike)
    except OutOfResources as error:
        raise CompileError("out_of_resources", str(error)) from None
    except PTXASError as error:
        raise CompileError("compile_error", f"ptxas: {_first_line(str(error))}") from None
    except (RuntimeError, ValueError, AssertionError, KeyError, IndexError) as error:
        raise CompileError("compile_error", f"{kernel.name}: {_first_line(str(error))}") from None
    _check_resources(kernel.name, metadata, card)
    return Binary(
        name=metadata["name"],
        cubin=cubin,
        shared=metadata["shared"],
        num_warps=metadata.get("num_warps", options.num_warps),
        num_ctas=options.num_ctas,
        cooperative=options.launch_cooperative_grid,
        scratch=metadata.get("global_scratch_size") or 0,
        scratch_align=metadata.get("global_scratch_align") or 1,
        profile_scratch=metadata.get("profile_scratch_size") or 0,
        descriptors=[dict(d) for d in metadata.get("tensordesc_meta") or []],
    )


def _check_resources(name: str, metadata: dict, card: Card) -> None:
    """Raise CompileError if a block takes more than the GPU has, as Triton does where it loads a kernel."""
    shared, columns = metadata["shared"], metadata.get("tmem_size") or 0
    if shared > card.shared_memory_per_block_optin:
        there, help = card.shared_memory_per_block_optin, "smaller blocks or num_stages help"
        text = f"shared memory, {shared} bytes needed, {there} there are; {help}"
        raise CompileError("out_of_resources", f"{name}: out of resource: {text}")
    if columns > TENSOR_MEMORY:
        text = f"tensor memory, {columns} columns needed, {TENSOR_MEMORY} there are; smaller blocks help"
        raise CompileError("out_of_resources", f"{name}: out of resource: {text}")


def _check_signature(kernel: Kernel, source) -> None:
    """MLIR's reading of the parameters must be ours, on which the arguments were checked: else a launch would pass too few."""
    theirs = [str(ty) for ty in source.signature.values()]
    ours = [re.sub(r"^!tt\.ptr<(.*)>$", r"*\1", ty) for ty, _ in kernel.signature]
    if source.name != f"@{kernel.name}" or [one_descriptor(ty) for ty in theirs] != ours:
        raise CompileError(
            "compile_error", f"the TTIR of {kernel.name} reads as {source.name}({', '.join(theirs)[:200]})"
        )


def _first_line(text: str) -> str:
    return next((line for line in map(str.strip, text.splitlines()) if line), "the compiler failed")[:400]


class BinaryCache:
    """One GPU's binaries, named after the target, a kernel's text and its options.

    In memory, oldest out first, and in a folder if one is given.
    """

    def __init__(self, card: Card, folder: str | Path | None = None):
        self.card, self.folder, self.size = card, Path(folder) if folder else None, 0
        self.binaries: OrderedDict[str, bytes] = OrderedDict()

    def name(self, kernel: Kernel) -> str:
        return f"{kernel.key}-{self.card.sm}"

    def get(self, kernel: Kernel) -> Binary | None:
        data = self.binaries.get(self.name(kernel))
        if data is None and self.folder and (path := self.folder / self.name(kernel)).exists():
            data = path.read_bytes()
        return Binary.from_bytes(data, self.card) if data is not None else None

    def put(self, kernel: Kernel, binary: Binary) -> None:
        data, name = binary.to_bytes(), self.name(kernel)
        if name not in self.binaries:
            self.binaries[name] = data
            self.size += len(data)
        while self.size > MAX_KEPT:
            self.size -= len(self.binaries.popitem(last=False)[1])
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = self.folder / f".{name}.{os.getpid()}"
            new.write_bytes(data)
            new.rename(self.folder / name)  # whole or not at all, whoever else writes it
