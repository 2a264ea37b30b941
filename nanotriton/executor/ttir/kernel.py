"""A trusted evaluator of TTIR: what a Triton kernel computes, on the CPU, for all programs of a launch at once.

    memory = Memory()
    x, y = memory.add(tensor_x), memory.add(tensor_y)
    Kernel(ttir_text).run(grid=(4, 1, 1), args=[x, y, 64], memory=memory)      # tensor_y now holds the answer

The programs of a launch are evaluated together, in chunks, in NumPy (ops.py says how a value looks). Where they part ways
(`if`, a loop's bounds) each side runs with its own programs, a `Frame` of fewer of them, and the results are put together
again. Kernels that wait for other programs (locks, flags) are evaluated a program at a time, in order.

Hostile text raises one of `TTIRError`'s children: nothing in it can reach beyond the buffers of `memory`, its work is bounded
by `budget` and its own memory by MAX_LIVE (flow.py).
"""

import re
from itertools import chain

import numpy as np

from .analysis import provenance, waits, walk
from .flow import Body, Budget, Frame
from .memory import Memory
from .numbers import DTYPE, FLOATS, rounder
from .ops import Descriptor
from .parse import parse
from .types import Op, ParseError, Type, Unsupported

BUDGET = 4_000_000_000  # elements computed, about 1 to 3 ns each
CHUNK = 1 << 18  # elements of the largest value in a chunk of programs: what a core's cache likes
LIVE = 1 << 24  # elements of all values of a chunk together (128 MiB), if it has more than one program


class Launch:
    def __init__(self, kernel: "Kernel", grid: tuple[int, int, int], memory: Memory, budget: int):
        self.kernel, self.grid, self.memory, self.left = kernel, grid, memory, budget

    def spend(self, elements: int) -> None:
        self.left -= elements
        if self.left < 0:
            raise Budget("too much work: an endless loop, or far too many iterations")

    def at(self, op: Op) -> str:
        line = self.kernel.source_line(op)
        return op.name + (f", line {line}" if line else "")

    def coordinates(self, program: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return program % x, program // x % y, program // (x * y)


class Kernel:
    """One kernel of TTIR text. Raises ParseError, Unsupported or TooLarge when the text is not TTIR, or beyond this evaluator or any processor."""

    def __init__(self, ttir: str, name: str | None = None):
        self.text, self.compiled = ttir, {}
        try:
            self.functions = parse(ttir)
        except (ValueError, LookupError) as error:  # numbers of thousands of digits
            raise ParseError(f"not TTIR: {str(error)[:200]}") from error
        entry = [f for f in self.functions.values() if (f.name == name if name else f.public)]
        if len(entry) != 1:
            raise ParseError(f"no kernel {name or ''} in the TTIR")
        (self.entry,) = entry
        self.name = self.entry.name
        self.signature: list[Type] = [self.entry.types[i] for i in self.entry.args]
        try:
            self.main = self.function(self.name, ())
            self.stored, self.loaded = provenance(self.functions, self.entry)
        except (ValueError, LookupError, TypeError) as error:  # attributes of another kind than Triton prints
            raise ParseError(f"kernel {self.name}: {error}") from error
        ops = [op for f in self.functions.values() for op in walk(f.body)]
        uses = set(chain.from_iterable(f.uses for f in self.compiled.values()))
        atomics = [op for op in ops if op.name.startswith("tt.atomic")]
        self.synchronised = any((id(op) in uses) for op in atomics) or any(
            op.attrs.get("isVolatile") == "true" for op in ops
        )
        self.waits = any(op.name == "scf.while" and waits(op) for op in ops)

    def function(self, name: str, callers: tuple[str, ...]) -> "Body":
        if name in callers or name not in self.functions:
            raise Unsupported(
                f"call of {name[:40]}, {'a recursion' if name in callers else 'which is not there'}"
            )
        if name not in self.compiled:
            self.compiled[name] = Body(self, self.functions[name], (*callers, name))
        return self.compiled[name]

    def source_line(self, op: Op) -> int | None:
        """Line of the Python source, where the text has locations."""
        lines = self.text.split("\n", op.line)
        place = re.search(r"loc\((#\w+)\)\s*$", lines[op.line - 1]) if len(lines) >= op.line else None
        for _ in range(8):  # #loc3 = loc("x"(#loc2)), #loc2 = loc("file.py":12:4)
            if place is None:
                return None
            place = re.search(rf"^{place.group(1)} = loc\((.*)\)\s*$", self.text, re.MULTILINE)
            if place and (found := re.match(r'"[^"]*":(\d+):\d+$', place.group(1))):
                return int(found.group(1))
            place = place and re.search(r"(#\w+)", place.group(1).removeprefix("callsite("))
        return None

    def pointers(self, args: list) -> dict[int, tuple[int, str]]:
        """Number of a pointer argument -> its address and what to call it; TTIR without locations has no names."""
        found = {}
        for i, (value, kind, name) in enumerate(zip(args, self.signature, self.entry.arg_names)):
            if kind.elem in ("ptr", "desc"):
                name = f"argument {i}" if re.fullmatch(r"arg\d+", name) else name
                found[i] = (int(value[0] if kind.elem == "desc" else value), name)
        return found

    def run(
        self, grid: tuple[int, ...], args: list, memory: Memory, budget: int = BUDGET, backwards: bool = False
    ) -> None:
        """Evaluates all programs of the grid (x, y, z).

        args: one a parameter: a pointer is an address that `memory` gave, a tensor descriptor (address, shape, strides) or
            (address, shape, strides, "zero" | "nan"), followed, as in the signature, by its sizes and strides.
        backwards: a kernel that is not watched for races, and does not wait, runs the last program and every seventh before it, and then the others: any
            order is as good, and what a neighbour stores at the same time is not there yet.
        Raises OutOfBounds, Race, Budget, AssertionFailed, Unsupported.
        """
        grid = tuple((*grid, 1, 1)[:3])
        launch = Launch(self, grid, memory, budget)
        if len(args) != len(self.signature):
            raise ParseError(f"kernel {self.name} takes {len(self.signature)} arguments, not {len(args)}")
        main, total = self.main, grid[0] * grid[1] * grid[2]
        chunk = 1 if self.waits else max(1, min(CHUNK // main.largest, LIVE // main.live, 1 << 16))
        backwards = backwards and self.synchronised and not self.waits
        orders = [range(total)[::-1][i::7] for i in range(7)] if backwards else [range(total)]
        try:
            values = [_argument(a, t) for a, t in zip(args, self.signature)]
            memory.begin(self.pointers(args), self.stored, self.loaded, not self.synchronised)
            with np.errstate(all="ignore"):
                starts = range(0, -(-total // len(orders)), chunk)
                for part in (order[start : start + chunk] for order in orders for start in starts):
                    if not part:
                        continue
                    program = np.arange(part.start, part.stop, part.step)
                    ids = (program % grid[0], program // grid[0] % grid[1], program // (grid[0] * grid[1]))
                    ids = tuple((x if g > 1 else x[:1]).astype(np.int32) for x, g in zip(ids, grid))
                    frame = Frame([], len(program), (program + 1).astype(np.int32), ids, launch)
                    main(frame, values)
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ArithmeticError,
            MemoryError,
            RecursionError,
        ) as error:
            # Text that no Triton printed (a value used where it is not defined), or a bug here: never the
            # kernel's fault.
            raise Unsupported(f"kernel {self.name}: {type(error).__name__}: {str(error)[:200]}") from error


def _argument(value, kind: Type):
    if kind.elem == "desc":
        address, shape, strides, *padding = value
        one = lambda xs: tuple(np.array([x], np.int64) for x in xs)
        return Descriptor(np.array([address], np.int64), one(shape), one(strides), *padding)
    if kind.elem in FLOATS:
        x = np.array([value], np.float64).astype(DTYPE[kind.elem])
        return (rounder(kind.elem) or (lambda x: x))(x)
    bits = 8 * DTYPE[kind.elem].itemsize
    value = int(value)
    return np.array(
        [bool(value) if kind.elem == "i1" else (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)],
        DTYPE[kind.elem],
    )
