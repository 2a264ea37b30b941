"""A trusted evaluator of TTIR. It computes a Triton kernel on the CPU, for all programs of a launch at once.

    memory = GlobalMemory()
    x, y = memory.add(tensor_x), memory.add(tensor_y)
    Evaluator(ttir_text).run(grid=(4, 1, 1), args=[x, y, 64], memory=memory)   # tensor_y now holds the answer

The programs of a launch are evaluated together, in chunks, in NumPy (ops.py says how a value looks). Where
they part ways (`if`, a loop's bounds) each side runs with its own programs, a `Frame` of fewer of them, and
the results are put together again. Kernels that wait for other programs (locks, flags) are evaluated a
program at a time, in turns (waiting.py).

In which order programs run is drawn wherever that could matter: where a kernel has atomics. If it also looks
at what they give, its programs are run in several groups, one after another, because those of a chunk do
each operation together, as no GPU does. Also drawn is the order in which tl.reduce combines lanes by a
function of the kernel's own (tensor.py).

Hostile text raises one of `TTIRError`'s children. Nothing in it can reach beyond the buffers of `memory`.
Its work is bounded by `budget` and its own memory by MAX_LIVE (flow.py).
"""

import random
import re
from collections.abc import Iterator
from itertools import chain

import numpy as np

from .analysis import provenance, volatile, waits, walk
from .clocks import Clocks
from .flow import STEP, Body, Budget
from .frames import Frame, Values
from .memory import GlobalMemory
from .numbers import DTYPE, FLOATS, rounder
from .ops import Descriptor
from .parse import parse
from .races import MANY
from .types import Op, ParseError, Type, Unsupported
from .waiting import Schedule

BUDGET = 4_000_000_000  # elements computed, about 1 to 3 ns each
CHUNK = 1 << 18  # elements of the largest value in a chunk of programs: a core's cache likes so many
LIVE = 1 << 24  # elements of all values of a chunk together (128 MiB), if it has more than one program
MAX_CHUNK = 1 << 16  # programs
GROUPS = 4  # groups at most that programs are run in, where a kernel uses the results of its atomics
SHUFFLED = 1 << 20  # programs that are shuffled one by one; of more, whole chunks are
RESIDENT = 2112  # programs that are on a GPU at once: 132 multiprocessors of an H100, 16 of 4 warps on each
# Errors of text that no Triton printed (a value that is used where it is not defined), or of a fault in this
# package. They are never the kernel's fault.
OWN_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)


class Evaluation:
    """One launch while it is evaluated: its kernel, grid, memory, and the work that is left of its budget.

    started: (owner number of the first, numbers) of the programs that were started together.
    luck: draws what Triton leaves open, such as the order of programs.
    """

    def __init__(
        self,
        evaluator: "Evaluator",
        grid: tuple[int, int, int],
        memory: GlobalMemory,
        budget: int,
        seed: int,
    ):
        self.evaluator = evaluator
        self.grid = grid
        self.memory = memory
        self.left = budget
        self.luck = np.random.default_rng(seed)
        self.started: list[tuple[int, np.ndarray | range]] = []
        self.count = 0

    def spend(self, elements: int) -> None:
        self.left -= elements
        if self.left < 0:
            raise Budget("too much work: an endless loop, or far too many iterations")

    def at(self, op: Op) -> str:
        """An operation and its line in the source, for a message."""
        line = self.evaluator.source_line(op)
        return op.name + (f", line {line}" if line else "")

    def coordinates(self, program):
        """(x, y, z) of a program's number, or of an array of them."""
        x, y, _ = self.grid
        return program % x, program // x % y, program // (x * y)

    def start(self, programs: np.ndarray | range, alone: bool) -> Frame:
        """A frame of these programs. A coordinate that is the same in all of them has length 1.

        alone: all that were started before have ended.
        """
        numbers = np.arange(programs.start, programs.stop) if isinstance(programs, range) else programs
        ids = []
        for coordinate, size in zip(self.coordinates(numbers), self.grid):
            ids.append((coordinate if size > 1 else coordinate[:1]).astype(np.int32))
        owner = np.arange(self.count + 1, self.count + 1 + len(programs), dtype=np.int32)
        self.started.append((self.count + 1, programs))
        self.count += len(programs)
        if self.memory.watch.clocks is not None:
            self.spend(STEP * len(programs))
            self.memory.watch.clocks.start(owner, alone)
        return Frame([], len(programs), owner, tuple(ids), self)

    def program(self, owner: int) -> str:
        """An owner's program, for a message."""
        if owner == MANY:
            return "every program"
        first, programs = next(s for s in reversed(self.started) if s[0] <= owner)
        x, y, z = self.coordinates(int(programs[owner - first]))
        return f"program {(x, y, z)}"


class Evaluator:
    """One kernel of TTIR text, ready to be launched.

    Raises ParseError if the text is not TTIR. Raises Unsupported if it is beyond this evaluator, TooLarge
    if it is beyond any processor.
    """

    def __init__(self, ttir: str, name: str | None = None):
        self.text = ttir
        self.compiled: dict[str, Body] = {}
        try:
            self.functions = parse(ttir)
        except (ValueError, LookupError) as error:  # numbers of thousands of digits
            raise ParseError(f"not TTIR: {str(error)[:200]}") from error
        entries = [f for f in self.functions.values() if (f.name == name if name else f.public)]
        if len(entries) != 1:
            raise ParseError(f"no kernel {name or ''} in the TTIR")
        (self.entry,) = entries
        self.name = self.entry.name
        self.signature: list[Type] = [self.entry.types[i] for i in self.entry.args]
        try:
            self.main = self.function(self.name, ())
            self.reach = provenance(self.functions, self.entry)
        except (ValueError, LookupError, TypeError) as error:  # attributes of another kind than Triton prints
            raise ParseError(f"kernel {self.name}: {error}") from error
        ops = list(chain.from_iterable(walk(f.body) for f in self.functions.values()))
        self.synchronised = any(self._synchronises(op) for op in ops)
        self.atomic = any(op.name.startswith("tt.atomic") for op in ops)
        # programs can't wait where nothing is both looked at and changed
        meet = self.synchronised or bool(self.reach.loaded & (self.reach.stored | self.reach.atomics))
        self.waits = meet and any(op.name == "scf.while" and waits(op, self.functions) for op in ops)

    def _synchronises(self, op: Op) -> bool:
        """Whether programs may wait for each other by it: by an atomic's result, or a volatile access."""
        if volatile(op):
            return True
        atomic = op.name.startswith("tt.atomic")
        return atomic and any(id(op) in body.uses for body in self.compiled.values())

    def function(self, name: str, callers: tuple[str, ...]) -> Body:
        """A function's compiled body. callers: the functions that call it, which it must not call again."""
        if name in callers or name not in self.functions:
            reason = "a recursion" if name in callers else "which is not there"
            raise Unsupported(f"call of {name[:40]}, {reason}")
        if name not in self.compiled:
            self.compiled[name] = Body(self, self.functions[name], (*callers, name))
        return self.compiled[name]

    def source_line(self, op: Op) -> int | None:
        """The line of the Python source, where the text has locations."""
        lines = self.text.split("\n", op.line)
        place = re.search(r"loc\((#\w+)\)\s*$", lines[op.line - 1]) if len(lines) >= op.line else None
        for _ in range(8):  # #loc3 = loc("x"(#loc2)), #loc2 = loc("file.py":12:4)
            if place is None:
                return None
            location = re.search(rf"^{place.group(1)} = loc\((.*)\)\s*$", self.text, re.MULTILINE)
            if location is None:
                return None
            if found := re.match(r'"[^"]*":(\d+):\d+$', location.group(1)):
                return int(found.group(1))
            place = re.search(r"(#\w+)", location.group(1).removeprefix("callsite("))
        return None

    def pointers(self, args: list) -> dict[int, tuple[int, str]]:
        """Number of a pointer argument -> (its address, its name). TTIR without locations has no names."""
        found = {}
        for i, (value, kind, name) in enumerate(zip(args, self.signature, self.entry.arg_names)):
            if kind.elem not in ("ptr", "desc"):
                continue
            if re.fullmatch(r"arg\d+", name):
                name = f"argument {i}"
            found[i] = (int(value[0] if kind.elem == "desc" else value), name)
        return found

    def run(
        self,
        grid: tuple[int, ...],
        args: list,
        memory: GlobalMemory,
        budget: int = BUDGET,
        seed: int = 0,
        resident: int = RESIDENT,
    ) -> None:
        """Evaluate all programs of the grid (x, y, z).

        args: one a parameter. A pointer is an address that `memory` gave. A tensor descriptor is (address,
            shape, strides) or (address, shape, strides, "zero" | "nan"). As in the signature its sizes and
            strides follow it.
        seed: of the order in which programs run, and of that in which tl.reduce combines lanes.
        resident: how many programs there is room for at once, if they wait for each other.
        Raises OutOfBounds, Race, Budget, AssertionFailed, FalsePromise, Unsupported.
        """
        grid = tuple((*grid, 1, 1)[:3])
        if len(args) != len(self.signature):
            raise ParseError(f"kernel {self.name} takes {len(self.signature)} arguments, not {len(args)}")
        evaluation = Evaluation(self, grid, memory, budget, seed)
        try:
            values = [_argument(arg, kind) for arg, kind in zip(args, self.signature)]
            memory.begin(self.pointers(args), self.reach, Clocks() if self.synchronised else None)
            with np.errstate(all="ignore"):
                self._run(evaluation, values, seed, resident)
        except OWN_ERRORS as error:
            raise Unsupported(f"kernel {self.name}: {type(error).__name__}: {str(error)[:200]}") from error

    def _run(self, evaluation: Evaluation, values: Values, seed: int, resident: int) -> None:
        x, y, z = evaluation.grid
        if self.waits:
            Schedule(evaluation, self.main, values, random.Random(seed), resident).run()
            return
        for programs in self._chunks(x * y * z, evaluation.luck):
            self.main(evaluation.start(programs, alone=True), values)

    def _chunks(self, total: int, luck: np.random.Generator) -> Iterator[np.ndarray | range]:
        """The numbers of the programs that are evaluated together, one after another."""
        size = max(1, min(CHUNK // self.main.largest, LIVE // self.main.live, MAX_CHUNK))
        starts = range(0, total, size)
        drawn = self.atomic or self.synchronised
        if drawn and total <= SHUFFLED:
            for group in self._groups(luck.permutation(total), luck):
                for start in range(0, len(group), size):
                    yield group[start : start + size]
            return
        if drawn and len(starts) <= SHUFFLED:
            starts = luck.permutation(starts)
        for start in starts:
            yield range(start, min(start + size, total))

    def _groups(self, programs: np.ndarray, luck: np.random.Generator) -> list[np.ndarray]:
        """At least two groups where what an atomic gives is used, with sizes that nobody knows."""
        if not self.synchronised or len(programs) < 2:
            return [programs]
        cuts = 1 + luck.choice(len(programs) - 1, min(len(programs), GROUPS) - 1, replace=False)
        kept = np.sort(cuts[: luck.integers(1, len(cuts) + 1)])
        return np.split(programs, kept)


def _argument(value, kind: Type):
    """An argument as the one program's value that all programs share."""
    if kind.elem == "desc":
        address, shape, strides, *padding = value
        return Descriptor(np.array([address], np.int64), _sizes(shape), _sizes(strides), *padding)
    dtype = DTYPE[kind.elem]
    if kind.elem in FLOATS:
        x = np.array([value], np.float64).astype(dtype)
        near = rounder(kind.elem)
        return x if near is None else near(x)
    if kind.elem == "i1":
        return np.array([bool(int(value))], dtype)
    half = 1 << (8 * dtype.itemsize - 1)
    return np.array([(int(value) + half) % (2 * half) - half], dtype)  # wraps around


def _sizes(numbers) -> tuple[np.ndarray, ...]:
    return tuple(np.array([n], np.int64) for n in numbers)
