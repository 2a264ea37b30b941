"""A launch in two halves, for kernels whose programs may see each other's work.

GPUs start programs in the order of their numbers, and those of a small launch all at once, so a kernel that is right only if a certain program
comes last can be right every time. Such kernels are also run in halves, one after the other, in both orders: each program is either in the first or
in the second half, by a hash of its number. (The CPU's evaluator sees races itself, and turns around those that it cannot judge.)
"""

import re
from dataclasses import replace

from nanotriton.executor.ttir.analysis import provenance, waits, walk
from nanotriton.executor.ttir.parse import parse
from nanotriton.executor.ttir.types import TTIRError
from nanotriton.plan.plan import Kernel, Launch, Plan


def may_meet(plan: Plan, number: int, calls: list[Launch]) -> bool:
    """Whether programs of kernel `number`, in one of these launches, may see what others do: it has atomics, or loads from a buffer that it stores to.

    False for one that waits for others: it relies on all of them running at once, and would wait forever.
    """
    kernel = plan.kernels[number]
    try:
        functions = parse(kernel.ttir)
        entry = next(f for f in functions.values() if f.name == kernel.name)
        ops = [op for f in functions.values() for op in walk(f.body)]
        stored, loaded = provenance(functions, entry)
    except (TTIRError, ValueError, LookupError, TypeError, StopIteration):  # beyond our reading of TTIR
        return "scf.while" not in kernel.ttir
    if any(op.name == "scf.while" and waits(op) for op in ops):
        return False
    if any(op.name.startswith("tt.atomic") or op.attrs.get("isVolatile") == "true" for op in ops):
        return True
    return any(
        buffers(plan, call.args, stored) & buffers(plan, call.args, loaded)
        for call in calls
        if call.kernel == number
    )


def buffers(plan: Plan, args: list, mask: int) -> set[int]:
    """Storages of those arguments whose bits are set; a descriptor's shape and strides are parameters of their own."""
    found, bit = set(), 0
    for ty, value in args:
        if (ty.startswith("*") or isinstance(value, list)) and mask >> bit & 1:
            found.add(plan.tensors[value[0] if isinstance(value, list) else value].storage)
        bit += 1 + 2 * len(value[1]) if isinstance(value, list) else 1
    return found


def half(kernel: Kernel, which: int) -> Kernel:
    """The kernel with only those programs that are in half 0 or 1: the others end at once."""
    v = "half"
    while f"%{v}" in kernel.ttir or f"^{v}" in kernel.ttir:
        v += "_"
    # number = x + nx * (y + ny * z); half = bit 15 of number * 40503 (Fibonacci hashing to 16 bits):
    # neighbours are apart, so are all powers of two
    entry = f"""
    %{v}x = tt.get_program_id x : i32
    %{v}y = tt.get_program_id y : i32
    %{v}z = tt.get_program_id z : i32
    %{v}nx = tt.get_num_programs x : i32
    %{v}ny = tt.get_num_programs y : i32
    %{v}a = arith.muli %{v}ny, %{v}z : i32
    %{v}b = arith.addi %{v}a, %{v}y : i32
    %{v}c = arith.muli %{v}nx, %{v}b : i32
    %{v}number = arith.addi %{v}c, %{v}x : i32
    %{v}factor = arith.constant 40503 : i32
    %{v}mixed = arith.muli %{v}number, %{v}factor : i32
    %{v}bit = arith.constant {1 << 15} : i32
    %{v}masked = arith.andi %{v}mixed, %{v}bit : i32
    %{v}wanted = arith.constant {which << 15} : i32
    %{v}in = arith.cmpi eq, %{v}masked, %{v}wanted : i32
    cf.cond_br %{v}in, ^{v}run, ^{v}end
  ^{v}end:
    tt.return
  ^{v}run:"""
    head = re.compile(
        rf"^ *tt\.func public @{re.escape(kernel.name)}\(.*\{{(?= *(?:loc\(.*\))?$)", re.MULTILINE
    )
    return replace(kernel, ttir=head.sub(lambda match: match[0] + entry, kernel.ttir, count=1))
