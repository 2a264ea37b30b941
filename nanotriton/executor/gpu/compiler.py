"""TTIR to cubin: the only way to code that runs on a GPU. No GPU is needed.

`compile_kernel` is trusted code on hostile input. Odd kernels abort the compiler, so it runs in a process
that may die: a compile server, under limits. The answer is a `Binary`, bytes and numbers.
Nothing compiled elsewhere is ever loaded.
Measured on one core: 44 ms of CPU time for a softmax, 220 ms for a kernel with `tl.dot`.
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

MAX_CUBIN = 64 << 20  # bytes
MAX_SCRATCH = 1 << 30  # bytes for each CTA
TENSOR_MEMORY = 512  # columns, on GPUs that have it (sm_100): CUDA has no attribute for their number
MAX_KEPT = 256 << 20  # bytes of binaries in memory


class CompileError(Exception):
    """A kernel that cannot be compiled. `status` is a verdict's: compile_error or out_of_resources."""

    def __init__(self, status: str, message: str):
        super().__init__(status, message)  # pickle calls the class with these arguments
        self.status, self.message = status, message

    def __str__(self) -> str:
        return self.message


@dataclass
class Binary:
    """A compiled kernel with everything that its launch needs to know."""

    name: str
    cubin: bytes
    shared: int  # bytes of dynamic shared memory
    num_warps: int  # of a launch: warp specialisation adds some
    num_ctas: int
    cooperative: bool
    scratch: int = 0  # bytes of global scratch memory for each CTA
    scratch_align: int = 1
    profile_scratch: int = 0
    # the TMA layout of each host-side descriptor; None, or no entry, where it is passed as numbers
    descriptors: list[dict | None] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        header = asdict(self)
        del header["cubin"]
        return json.dumps(header).encode() + b"\n" + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes, card: Card) -> "Binary":
        """Raises PlanError if the bytes are no binary for that GPU.

        A hostile kernel may have taken the compiler over, which could then send anything.
        """
        header, _, cubin = data.partition(b"\n")
        try:
            binary = cls(**json.loads(header), cubin=cubin)
        except (ValueError, TypeError, RecursionError) as error:
            raise PlanError(f"malformed binary: {str(error)[:200]}") from None
        binary._check(card)
        return binary

    def _check(self, card: Card) -> None:
        """Raise PlanError unless every field has its type and a sensible value."""
        ranges = {
            "shared": (0, card.shared_memory_per_block_optin),
            "num_warps": (0, 64),
            "num_ctas": (0, 16),
            "scratch": (0, MAX_SCRATCH),
            "scratch_align": (1, 1024),
            "profile_scratch": (0, MAX_SCRATCH),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            fits = type(value) is int and least <= value <= most
            check(fits, f"malformed binary: {name} is {str(value)[:40]}")
        check(type(self.name) is str, "malformed binary: name")
        check(type(self.cooperative) is bool, "malformed binary: cooperative")
        is_elf = self.cubin[:4] == b"\x7fELF"
        check(is_elf and len(self.cubin) <= MAX_CUBIN, "malformed binary: no cubin")
        listed = type(self.descriptors) is list
        check(listed and len(self.descriptors) <= 64, "malformed binary: descriptors")


def check_room(kernel: Kernel, card: Card) -> None:
    """Raise CompileError if a kernel of a validated plan needs more memory in a block than that GPU has.

    It is compiled as far as is needed to know. Hostile TTIR can also kill the process.
    """
    from nanotriton.executor.gpu.stages import compile_ttir

    try:
        _, metadata, _ = compile_ttir(kernel.bare, card.target, kernel.options, last="llir")
    except (RuntimeError, ValueError, AssertionError, KeyError, IndexError) as error:
        raise CompileError("compile_error", f"{kernel.name}: {_first_line(str(error))}") from None
    _check_resources(kernel.name, metadata, card)


def compile_kernel(kernel: Kernel, card: Card) -> Binary:
    """One kernel of a validated plan, for that GPU.

    Raises CompileError. Hostile TTIR can also kill the process.
    """
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
    """Raise CompileError if a block takes more than the GPU has. Triton checks it when it loads a kernel."""
    refusal = f"{name}: out of resource:"
    shared, there = metadata["shared"], card.shared_memory_per_block_optin
    if shared > there:
        text = f"shared memory, {shared} bytes needed, {there} there are; smaller blocks or num_stages help"
        raise CompileError("out_of_resources", f"{refusal} {text}")
    columns = metadata.get("tmem_size") or 0
    if columns > TENSOR_MEMORY:
        text = f"tensor memory, {columns} columns needed, {TENSOR_MEMORY} there are; smaller blocks help"
        raise CompileError("out_of_resources", f"{refusal} {text}")


def _check_signature(kernel: Kernel, source) -> None:
    """Raise CompileError if MLIR reads other parameters than we do: a launch would pass too few arguments.

    A launch's arguments were checked against our reading, kernel.signature. source: MLIR's reading.
    """
    theirs = [str(ty) for ty in source.signature.values()]
    ours = [re.sub(r"^!tt\.ptr<(.*)>$", r"*\1", ty) for ty, _ in kernel.signature]
    if source.name != f"@{kernel.name}" or [one_descriptor(ty) for ty in theirs] != ours:
        parameters = ", ".join(theirs)[:200]
        raise CompileError("compile_error", f"the TTIR of {kernel.name} reads as {source.name}({parameters})")


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    return next(filter(None, lines), "the compiler failed")[:400]


class BinaryCache:
    """One GPU's binaries, named after the target, a kernel's text and its options.

    They are kept in memory, from which the oldest go first, and in a folder if one is given.
    """

    def __init__(self, card: Card, folder: str | Path | None = None):
        self.card = card
        self.folder = Path(folder) if folder else None
        self.binaries: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0  # bytes in memory

    def name(self, kernel: Kernel) -> str:
        return f"{kernel.key}-{self.card.sm}"

    def get(self, kernel: Kernel) -> Binary | None:
        name = self.name(kernel)
        data = self.binaries.get(name)
        if data is None and self.folder and (self.folder / name).exists():
            data = (self.folder / name).read_bytes()
        return Binary.from_bytes(data, self.card) if data is not None else None

    def put(self, kernel: Kernel, binary: Binary) -> None:
        data, name = binary.to_bytes(), self.name(kernel)
        if name not in self.binaries:
            self.binaries[name] = data
            self.size += len(data)
        while self.size > MAX_KEPT:
            _, oldest = self.binaries.popitem(last=False)
            self.size -= len(oldest)
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = self.folder / f".{name}.{os.getpid()}"
            new.write_bytes(data)
            new.rename(self.folder / name)  # other workers write there too, and see whole files only
