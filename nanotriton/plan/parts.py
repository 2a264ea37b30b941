"""The parts of a plan (plan.py): storages, tensors, weights, kernels, steps, and their limits. Pure data."""

import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

import torch

MAX_MEMORY = 16 << 30  # bytes of all storages together
MAX_COUNT = {"storages": 100_000, "tensors": 200_000, "kernels": 4_096, "steps": 100_000, "weights": 50_000}
MAX_ALTERNATIVES = 256
MAX_TTIR = 4 << 20
MAX_DIMS = 25  # torch's own limit is 64; Triton's and ATen's kernels stop at 25
GRID_LIMIT = (2**31 - 1, 65_535, 65_535)  # CUDA's
KINDS = ("input", "weight", "const", "temp", "carried")
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
}
OPTIONS = {
    "num_warps": 4,
    "num_stages": 3,
    "num_ctas": 1,
    "maxnreg": None,
    "launch_cooperative_grid": False,
    "enable_fp_fusion": True,
}
# Locations and device_print in TTIR, up to two brackets deep.
_NOT_COMPILED = re.compile(
    r"^#loc.*\n|^ *tt\.print .*\n| loc\((?:[^()\n]|\([^()\n]{0,200}\)){0,200}\)", re.MULTILINE
)


@dataclass
class Storage:
    """A flat block of bytes."""

    kind: str  # input, weight, const, temp, or carried: the plan of the call before left it
    nbytes: int
    dtype: str  # of the first tensor in it: it chooses the poison
    # hash of the initial bytes (of a weight or constant); `Plan.blobs` may lack those of a weight
    blob: str | None = None


@dataclass(frozen=True)
class Tensor:
    """A view of a storage. Shape, stride and offset are in elements."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Weight:
    """A parameter, buffer or tensor attribute of the module.

    A tied weight has several names. One that is not in the state_dict has none.
    """

    names: list[str]
    tensor: int


@dataclass
class Kernel:
    """A Triton kernel as its front end leaves it: TTIR text and launch options."""

    name: str
    ttir: str  # with locations: lines of "candidate.py"
    options: dict[str, Any]  # OPTIONS' keys, all of them
    # (TTIR type, divisibility) of each parameter, read off the text by `Plan.validate`
    signature: list[tuple[str, int]] = field(default_factory=list, compare=False)

    @functools.cached_property
    def bare(self) -> str:
        """The text that is compiled: without locations and without device_print.

        Without locations the same kernel elsewhere in a file is the same kernel. A device_print computes
        nothing, and on a GPU it would write to the console of the judge.
        """
        return _NOT_COMPILED.sub("", self.ttir)

    @functools.cached_property
    def key(self) -> str:
        """The cubin's name. The bare text and the options decide it."""
        return digest((self.bare + json.dumps(self.options, sort_keys=True)).encode())


@dataclass
class Aten:
    """A call of an ATen operator."""

    op: str  # "add.Tensor"
    args: list  # JSON values as in aten.py, tensors by id
    kwargs: dict[str, Any]
    # the tensor of each result; None: the result is an existing tensor (a call in place), or is not used
    outs: list[int | None]
    line: int = 0  # of the candidate's file; 0: unknown

    @property
    def name(self) -> str:
        """The operator without its overload: "add"."""
        return self.op.split(".")[0]


@dataclass
class Launch:
    """A launch of one of the plan's kernels."""

    kernel: int
    grid: tuple[int, int, int]
    # (Triton's type, value): a number, a tensor id for a pointer, a list for a descriptor
    args: list[tuple[str, Any]]
    line: int = 0

    @property
    def tensors(self) -> list[int]:
        """The tensors that its pointers and descriptors point at, in order."""
        found = []
        for ty, value in self.args:
            if ty.startswith("tensordesc"):
                found.append(value[0])
            elif ty.startswith("*"):
                found.append(value)
        return found


Call = Aten | Launch


@dataclass
class Tuning:
    """What an autotuner does beside running the kernel again and again: reset_to_zero, restore_value, hooks.

    before, after: each of its runs. end: once, when it has chosen.
    """

    before: list[Call]
    after: list[Call]
    end: list[Call]

    @property
    def calls(self) -> list[Call]:
        return [*self.before, *self.after, *self.end]


@dataclass
class Choice:
    """An autotuned launch, with one alternative for each configuration.

    Choices of one key choose the same index. tuning: of the first launch of its key, if it is tuned. It is no
    part of a call, and what it does counts for nobody.
    """

    key: int
    alternatives: list[list[Call]]
    line: int = 0
    tuning: Tuning | None = None


Step = Call | Choice


def digest(data: bytes) -> str:
    """32 hex digits that name some bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
