"""A kernel with its programs numbered from the last to the first.

GPUs start programs in the order of their numbers, so a kernel that is right only if a certain program comes last can be right every time, on
a card that nothing else runs on. Whose programs may see each other's work is judged in both orders. (The CPU's evaluator sees races itself, and
turns around those that it cannot judge.)
"""

import re
from dataclasses import replace

from nanotriton.executor.plan import Kernel, Launch, Plan
from nanotriton.executor.ttir.analysis import provenance, waits, walk
from nanotriton.executor.ttir.parse import parse
from nanotriton.executor.ttir.types import TTIRError

NUMBER = re.compile(r"^( *)(%[\w$.-]+) = tt\.get_program_id ([xyz]) : i32", re.MULTILINE)


def may_meet(plan: Plan, number: int, calls: list[Launch]) -> bool:
    """Whether programs of kernel `number`, in one of these launches, may see what others do: it has atomics, or loads from a buffer that it stores to.

    False for one that waits for others: it relies on the order that GPUs have, and might wait forever in another one.
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
    return any(buffers(plan, call.args, stored) & buffers(plan, call.args, loaded) for call in calls if call.kernel == number)


def buffers(plan: Plan, args: list, mask: int) -> set[int]:
    """Storages of those arguments whose bits are set; a descriptor's shape and strides are parameters of their own."""
    found, bit = set(), 0
    for ty, value in args:
        if (ty.startswith("*") or isinstance(value, list)) and mask >> bit & 1:
            found.add(plan.tensors[value[0] if isinstance(value, list) else value].storage)
        bit += 1 + 2 * len(value[1]) if isinstance(value, list) else 1
    return found


def backwards(kernel: Kernel) -> Kernel:
    prefix = "backwards"
    while f"%{prefix}" in kernel.ttir:
        prefix += "_"

    def turned(match: re.Match) -> str:
        indent, name, axis = match.groups()
        own = f"%{prefix}{match.start()}"
        lines = [
            f"{own}p = tt.get_program_id {axis} : i32", f"{own}n = tt.get_num_programs {axis} : i32", f"{own}c = arith.constant 1 : i32",
            f"{own}l = arith.subi {own}n, {own}c : i32", f"{name} = arith.subi {own}l, {own}p : i32",
        ]  # fmt: skip
        return "\n".join(indent + line for line in lines)

    return replace(kernel, ttir=NUMBER.sub(turned, kernel.ttir))
