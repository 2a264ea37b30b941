"""Facts of a kernel that are known before it runs."""

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from .types import Function, Op, Region

ANY = -1  # the bits of all arguments
ROUNDS = 16  # of `provenance`, before it gives up
EXPENSIVE = ("tt.load", "tt.store", "tt.atomic", "math.", "tt.extern")  # four times the work of an element


def walk(region: Region) -> Iterator[Op]:
    """Every operation of a region and of the regions in it."""
    for block in region:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)


def volatile(op: Op) -> bool:
    """Whether it is a load that looks at memory each time: volatile, or with cache modifier .cv."""
    return op.attrs.get("isVolatile") == "true" or op.attrs.get("cacheModifier") == "cv"


def narrow(op: Op) -> bool:
    """Whether it is an atomic of scope cta."""
    return op.name.startswith("tt.atomic") and "cta" in op.words


def called(ops: Iterable[Op], functions: dict[str, Function]) -> list[Op]:
    """These operations, and every one of the functions that they call, and that those call."""
    found, names = list(ops), set()
    for op in found:  # it grows
        name = op.words[0][1:].strip('"') if op.name == "tt.call" and op.words else ""
        if name in functions and name not in names:
            names.add(name)
            found += walk(functions[name].body)
    return found


def waits(op: Op, functions: dict[str, Function]) -> bool:
    """Whether a loop may wait for another program: its condition reads memory, or it has an atomic."""
    if any(inner.name == "tt.load" for inner in called(walk(op.regions[0]), functions)):
        return True
    inside = chain.from_iterable(walk(region) for region in op.regions)
    return any(inner.name.startswith("tt.atomic") for inner in called(inside, functions))


def captured(region: Region) -> list[int]:
    """The slots that a region uses and does not define, those that it yields included."""
    uses, defines = set(), set()
    for block in region:
        defines.update(block.args)
        for op in block.ops:
            uses.update(op.operands)
            uses.update(chain.from_iterable(args for _, args in op.targets))
            defines.update(op.results)
            for inner in op.regions:
                uses.update(captured(inner))
    return sorted(uses - defines)


class Reach(NamedTuple):
    """The arguments whose buffers a kernel may store to, load from, change by atomics, and change by atomics
    of scope cta: bit i for argument i, -1 for any."""

    stored: int
    loaded: int
    atomics: int
    narrow: int


def provenance(functions: dict[str, Function], entry: Function) -> Reach:
    """What a kernel may do to its buffers.

    Flow-insensitive: a result may come from every operand of its operation. Only these buffers are watched
    for races.
    """
    inside: list[Op] = []
    for function in functions.values():
        if function is not entry:
            inside += walk(function.body)
    if any(op.name == "tt.int_to_ptr" for op in inside):
        return Reach(ANY, ANY, ANY, ANY)
    return _Provenance(entry, inside).find()


class _Provenance:
    """For each slot of the entry function the arguments that its value may come from, as bits."""

    def __init__(self, entry: Function, inside: list[Op]):
        self.ops = list(walk(entry.body))
        self.labels = {block.label: block for block in entry.body}
        self.calls_store = any(op.name.startswith("tt.store") for op in inside)
        self.calls_load = any(op.name.startswith("tt.load") for op in inside)
        self.calls_atomics = any(op.name.startswith("tt.atomic") for op in inside)
        self.calls_narrow = any(map(narrow, inside))
        self.stored = 0
        self.loaded = 0
        self.atomics = 0
        self.narrow = 0
        self.bits = [0] * len(entry.types)
        for i, slot in enumerate(entry.args):
            if entry.types[slot].elem in ("ptr", "desc"):
                self.bits[slot] = 1 << i

    def find(self) -> Reach:
        for _ in range(ROUNDS):
            before = list(self.bits)
            for op in self.ops:
                self.visit(op)
            if self.bits == before:
                return Reach(self.stored, self.loaded, self.atomics, self.narrow)
        return Reach(ANY, ANY, ANY, ANY)

    def visit(self, op: Op) -> None:
        self.visit_memory(op)
        bits = self.union(op.operands)
        if op.name in ("tt.load", "tt.descriptor_load"):
            bits = ANY if op.rtypes[0].elem == "ptr" else 0
        elif op.name == "tt.int_to_ptr":
            bits = ANY
        bits = self.visit_regions(op, bits)
        for label, args in op.targets:  # in a region of its own, `visit_regions` sees to it
            for slot, arg in zip(self.labels[label].args if label in self.labels else (), args):
                self.bits[slot] |= self.bits[arg]
        for slot in op.results:
            self.bits[slot] |= bits

    def visit_memory(self, op: Op) -> None:
        """Which buffers an operation accesses, if it does: a call any of those that it is given."""
        bits = self.union(op.operands)
        call = op.name == "tt.call"
        if op.name in ("tt.store", "tt.descriptor_store"):
            self.stored |= self.bits[op.operands[0]]
        elif call and self.calls_store:
            self.stored |= bits
        if op.name in ("tt.load", "tt.descriptor_load") or (call and self.calls_load):
            self.loaded |= bits
        if op.name.startswith("tt.atomic") or op.name == "tt.descriptor_reduce":
            self.atomics |= self.bits[op.operands[0]]
        elif call and self.calls_atomics:
            self.atomics |= bits
        if narrow(op):
            self.narrow |= self.bits[op.operands[0]]
        elif call and self.calls_narrow:
            self.narrow |= bits

    def visit_regions(self, op: Op, bits: int) -> int:
        """Block arguments come from the operands, from each other, and from yielded values. So do results."""
        for block in chain(*op.regions):
            yielded = block.ops[-1].operands if block.ops else []
            bits |= self.union(chain(block.args, yielded))
            for slot in block.args:
                self.bits[slot] |= bits
        return bits

    def union(self, slots) -> int:
        bits = 0
        for slot in slots:
            bits |= self.bits[slot]
        return bits


def cost(op: Op) -> int:
    """The elements that an operation computes for one program."""
    sizes = [math.prod(t.shape) for t in chain(op.otypes, op.rtypes)]
    largest = max(sizes, default=1)
    if op.name == "tt.dot":
        summed = op.otypes[0].shape[-1]
        return largest + math.prod(op.rtypes[0].shape) * summed // 16
    if op.name in ("tt.reduce", "tt.scan"):
        return largest * 2 * sum(len(block.ops) for block in op.regions[0])
    return largest * (4 if op.name.startswith(EXPENSIVE) else 1)
