"""What can be known of a kernel before it runs."""

import math
from itertools import chain

from .types import Function, Op, Region


def walk(region: Region):
    for block in region:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)


def waits(op: Op) -> bool:
    """A loop that may wait for another program: its condition reads memory, or it has an atomic."""
    names = [[o.name for o in walk(r)] for r in op.regions]
    return "tt.load" in names[0] or any(n.startswith("tt.atomic") for n in chain(*names))


def captured(region: Region) -> list[int]:
    """Slots that a region uses and does not define, what it yields included."""
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
    """Which arguments' buffers the kernel may store to, and load from: bit i for argument i, -1 for any.

    Flow-insensitive: a result may come from every operand of its operation. Only these buffers are watched for races.
    """
    ops = list(walk(entry.body))
    inside = [op for f in functions.values() if f is not entry for op in walk(f.body)]
    calls_store, calls_load = (any(op.name.startswith(n) for op in inside) for n in ("tt.store", "tt.load"))
    if any(op.name == "tt.int_to_ptr" for op in inside):
        return -1, -1
    labels = {b.label: b for b in entry.body}
    from_arg = [0] * len(entry.types)
    for i, slot in enumerate(entry.args):
        if entry.types[slot].elem in ("ptr", "desc"):
            from_arg[slot] = 1 << i
    stored = loaded = 0
    for _ in range(16):
        before = list(from_arg)
        for op in ops:
            bits = 0
            for slot in op.operands:
                bits |= from_arg[slot]
            if op.name in ("tt.store", "tt.descriptor_store") or (op.name == "tt.call" and calls_store):
                stored |= from_arg[op.operands[0]] if op.name != "tt.call" else bits
            if op.name in ("tt.load", "tt.descriptor_load") or (op.name == "tt.call" and calls_load):
                loaded |= bits
                bits = bits if op.name == "tt.call" else -1 if op.rtypes[0].elem == "ptr" else 0
            if op.name == "tt.int_to_ptr":
                bits = -1
            for block in chain(*op.regions):
                for slot in chain(block.args, *(o.operands for o in block.ops[-1:])):
                    bits |= from_arg[slot]
                for slot in block.args:
                    from_arg[slot] |= bits
            for label, args in op.targets:
                for slot, arg in zip(labels[label].args, args):
                    from_arg[slot] |= from_arg[arg]
            for slot in op.results:
                from_arg[slot] |= bits
        if from_arg == before:
            return stored, loaded
    return -1, -1


def cost(op: Op) -> int:
    """Elements that an operation computes for one program."""
    sizes = [math.prod(t.shape) for t in chain(op.otypes, op.rtypes)]
    largest = max(sizes, default=1)
    if op.name == "tt.dot":
        return largest + math.prod(op.rtypes[0].shape) * op.otypes[0].shape[-1] // 16
    if op.name in ("tt.reduce", "tt.scan"):
        return largest * 2 * sum(len(b.ops) for b in op.regions[0])
    return largest * (
        4 if op.name.startswith(("tt.load", "tt.store", "tt.atomic", "math.", "tt.extern")) else 1
    )
