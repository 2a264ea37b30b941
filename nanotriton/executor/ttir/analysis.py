"""Facts of a kernel that are known before it runs."""

import math
from collections.abc import Iterator
from itertools import chain

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


def waits(op: Op) -> bool:
    """Whether a loop may wait for another program: its condition reads memory, or it has an atomic."""
    if any(inner.name == "tt.load" for inner in walk(op.regions[0])):
        return True
    inside = chain.from_iterable(walk(region) for region in op.regions)
    return any(inner.name.startswith("tt.atomic") for inner in inside)


def captured(region: Region) -> list[int]:
    """The slots that a region uses and does not define, those that it yields included."""
    uses, defines = set(), set()
    for block in region:
        defines.update(block.args)
        for op in block.ops:
            uses.update(op.operands)
            defines.update(op.results)
            for inner in op.regions:
                uses.update(captured(inner))
    return sorted(uses - defines)


def provenance(functions: dict[str, Function], entry: Function) -> tuple[int, int]:
    """The arguments whose buffers the kernel may store to, and load from: bit i for argument i, -1 for any.

    Flow-insensitive: a result may come from every operand of its operation. Only these buffers are watched
    for races.
    """
    called: list[Op] = []
    for function in functions.values():
        if function is not entry:
            called += walk(function.body)
    if any(op.name == "tt.int_to_ptr" for op in called):
        return ANY, ANY
    return _Provenance(entry, called).find()


class _Provenance:
    """For each slot of the entry function the arguments that its value may come from, as bits."""

    def __init__(self, entry: Function, called: list[Op]):
        self.ops = list(walk(entry.body))
        self.labels = {block.label: block for block in entry.body}
        self.calls_store = any(op.name.startswith("tt.store") for op in called)
        self.calls_load = any(op.name.startswith("tt.load") for op in called)
        self.stored = 0
        self.loaded = 0
        self.bits = [0] * len(entry.types)
        for i, slot in enumerate(entry.args):
            if entry.types[slot].elem in ("ptr", "desc"):
                self.bits[slot] = 1 << i

    def find(self) -> tuple[int, int]:
        for _ in range(ROUNDS):
            before = list(self.bits)
            for op in self.ops:
                self.visit(op)
            if self.bits == before:
                return self.stored, self.loaded
        return ANY, ANY

    def visit(self, op: Op) -> None:
        bits = self.union(op.operands)
        call = op.name == "tt.call"
        if op.name in ("tt.store", "tt.descriptor_store"):
            self.stored |= self.bits[op.operands[0]]
        elif call and self.calls_store:
            self.stored |= bits
        if op.name in ("tt.load", "tt.descriptor_load"):
            self.loaded |= bits
            bits = ANY if op.rtypes[0].elem == "ptr" else 0
        elif call and self.calls_load:
            self.loaded |= bits
        elif op.name == "tt.int_to_ptr":
            bits = ANY
        bits = self.visit_regions(op, bits)
        for label, args in op.targets:
            for slot, arg in zip(self.labels[label].args, args):
                self.bits[slot] |= self.bits[arg]
        for slot in op.results:
            self.bits[slot] |= bits

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
