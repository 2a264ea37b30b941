"""TTIR as data: types, operations, blocks, functions; and the errors of this package."""

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

MAX_NUMEL = 1 << 20  # elements of one tensor: Triton's own limit
MAX_RANK = 20
_INTEGERS = ("i1", "i8", "i16", "i32", "i64", "index")
_FLOATS = ("f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E5M2")
ELEMENTS = frozenset((*_INTEGERS, *_FLOATS, "ptr", "desc"))
TERMINATORS = frozenset(
    (
        "scf.yield",
        "scf.condition",
        "tt.return",
        "tt.reduce.return",
        "tt.scan.return",
        "tt.map_elementwise.return",
        "cf.br",
        "cf.cond_br",
    )
)


class TTIRError(Exception):
    """Any of this package's errors. Its message is one line, fit to show a model."""


class ParseError(TTIRError):
    """The text is not TTIR as Triton prints it."""


class Unsupported(TTIRError):
    """An operation or a type that the evaluator lacks. It says nothing about the kernel's correctness."""


class Type(NamedTuple):
    """The type of a value.

    elem: of one element ("f32", "i1", "ptr", "desc"). shape: () for a scalar.
    pointee: of a pointer or descriptor: an element, or "*f32" for a pointer to pointers to f32.
    """

    elem: str
    shape: tuple[int, ...] = ()
    pointee: str = ""

    def target(self) -> "Type":
        """The type that a load through these pointers gives."""
        if self.pointee.startswith("*"):
            return Type("ptr", self.shape, self.pointee[1:])
        return Type(self.pointee, self.shape)


@dataclass(slots=True, eq=False)
class Op:
    """One operation. Operands and results are slots: indices into the values of a function's evaluation."""

    name: str
    line: int  # of the text, for messages
    operands: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    rtypes: list[Type] = field(default_factory=list)  # of the results
    otypes: list[Type] = field(default_factory=list)  # of the operands
    words: list[str] = field(default_factory=list)  # bare words, numbers, strings and symbols, in order
    attrs: dict[str, str] = field(default_factory=dict)
    regions: list["Region"] = field(default_factory=list)
    targets: list[tuple[str, list[int]]] = field(default_factory=list)  # successors and their arguments


@dataclass(slots=True, eq=False)
class Block:
    label: str
    args: list[int] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


Region = list[Block]


@dataclass(slots=True, eq=False)
class Function:
    name: str
    public: bool
    args: list[int] = field(default_factory=list)
    arg_names: list[str] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)  # of every slot
    body: Region = field(default_factory=list)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """`tensor<4x!tt.ptr<f32>>` -> Type("ptr", (4,), "f32")."""
    inner = text
    is_descriptor = inner.startswith("!tt.tensordesc<")
    if is_descriptor:
        inner = inner[15:-1]
        if not inner.startswith("tensor<"):  # as triton 3.8 prints it
            inner = f"tensor<{inner}>"
    shape: tuple[int, ...] = ()
    if inner.startswith("tensor<"):
        dims = re.match(r"(?:\d+x)*", inner[7:-1]).group()
        inner = inner[7 + len(dims) : -1]
        shape = tuple(int(d) for d in dims.split("x")[:-1])
    elem, pointee = inner, ""
    if inner.startswith("!tt.ptr<"):
        elem = "ptr"
        pointee = re.sub(r"(, \d+)|>", "", inner[8:-1]).replace("!tt.ptr<", "*")
    for name in (elem, pointee):
        if name and name.removeprefix("*") not in ELEMENTS:
            raise Unsupported(f"type {text[:80]}")
    numel = math.prod(shape)
    if numel > MAX_NUMEL or 0 in shape or len(shape) > MAX_RANK:
        raise Unsupported(f"tensor of {numel} elements, {text[:80]}")
    return Type("desc", shape, elem) if is_descriptor else Type(elem, shape, pointee)
