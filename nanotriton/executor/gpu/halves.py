"""A launch in two halves, for kernels whose programs may see each other's work.

GPUs start programs in the order of their numbers, and all programs of a small launch at once. So a kernel
that is right only if a certain program comes last can be right every time. Such a kernel is also run in
halves, one after the other, in both orders. A hash of a program's number decides which half it is in.
(The evaluator on the CPU sees races itself, and draws the order of programs.)
"""

import re
from dataclasses import replace

from nanotriton.executor.gpu import driver
from nanotriton.executor.ttir.analysis import provenance, waits, walk
from nanotriton.executor.ttir.parse import parse
from nanotriton.executor.ttir.types import Function, Op, TTIRError
from nanotriton.plan.plan import Kernel, Launch, Plan


def may_meet(plan: Plan, number: int, calls: list[Launch]) -> bool:
    """Whether programs of kernel `number`, in one of these launches, may see each other's work.

    They may if the kernel has atomics, or loads from a buffer that it stores to.
    False for a kernel whose programs wait for each other: they must all run, and a half would wait forever.
    """
    kernel = plan.kernels[number]
    try:
        functions = parse(kernel.ttir)
        entry = next(f for f in functions.values() if f.name == kernel.name)
        ops = _operations(functions)
        reach = provenance(functions, entry)
    except (TTIRError, ValueError, LookupError, TypeError, StopIteration):  # we cannot read this TTIR
        return "scf.while" not in kernel.ttir
    if any(op.name == "scf.while" and waits(op, functions) for op in ops):
        return False
    if any(op.name.startswith("tt.atomic") or op.attrs.get("isVolatile") == "true" for op in ops):
        return True
    for call in calls:
        stored, loaded = (buffers(plan, call.args, mask) for mask in (reach.stored, reach.loaded))
        if call.kernel == number and stored & loaded:
            return True
    return False


def _operations(functions: dict[str, Function]) -> list[Op]:
    """Every operation of every function, those inside loops and branches included."""
    found: list[Op] = []
    for function in functions.values():
        found += walk(function.body)
    return found


def buffers(plan: Plan, args: list, mask: int) -> set[int]:
    """The storages of some of a launch's arguments. mask: bit i stands for parameter i of the kernel."""
    found, bit = set(), 0
    for ty, value in args:
        is_descriptor = isinstance(value, list)
        if (ty.startswith("*") or is_descriptor) and mask >> bit & 1:
            tensor = value[0] if is_descriptor else value
            found.add(plan.tensors[tensor].storage)
        bit += driver.parameters(value)
    return found


def half(kernel: Kernel, which: int) -> Kernel:
    """The kernel with only the programs of half 0 or of half 1. The others end at once."""
    v = "half"  # the new values' names begin with it, and none of the kernel's own does
    while f"%{v}" in kernel.ttir or f"^{v}" in kernel.ttir:
        v += "_"
    # number = x + nx * (y + ny * z). The half is bit 15 of number * 40503, Fibonacci hashing to 16 bits: it
    # follows no simple pattern, and three of four neighbours are in different halves.
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
    name = re.escape(kernel.name)
    head = re.compile(rf"^ *tt\.func public @{name}\(.*\{{(?= *(?:loc\(.*\))?$)", re.MULTILINE)
    return replace(kernel, ttir=head.sub(rf"\g<0>{entry}", kernel.ttir, count=1))
