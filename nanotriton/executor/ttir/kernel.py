"""A trusted evaluator of TTIR: what a Triton kernel computes, on the CPU, for all programs of a launch at once.

    memory = Memory()
    x, y = memory.add(tensor_x), memory.add(tensor_y)
    Kernel(ttir_text).run(grid=(4, 1, 1), args=[x, y, 64], memory=memory)      # tensor_y now holds the answer

The programs of a launch are evaluated together, in chunks, in NumPy (ops.py says how a value looks). Where they part ways
(`if`, a loop's bounds) each side runs with its own programs, a `Frame` of fewer of them, and the results are put together again.
Kernels that wait for other programs (locks, flags) are evaluated a program at a time, in order.

Hostile text raises one of `TTIRError`'s children: nothing in it can reach beyond the buffers of `memory`, its work is bounded
by `budget` and its own memory by MAX_LIVE.
"""

import re
from itertools import chain

import numpy as np

from .memory import Memory
from .numbers import DTYPE, FLOATS, rounder
from .ops import Descriptor, constant
from .parse import Block, Function, Op, ParseError, Region, TTIRError, Type, Unsupported, parse
from .tensor import build

BUDGET = 4_000_000_000  # elements computed, about 1 to 3 ns each
STEP = 1000  # what one operation costs before its first element, in elements
CHUNK = 1 << 18  # elements of the largest value in a chunk of programs: what a core's cache likes
MAX_LIVE = 1 << 25  # elements of all values of a chunk together (256 MiB); a single program may have 4 times that
TERMINATORS = frozenset("scf.yield scf.condition tt.return tt.reduce.return tt.scan.return cf.br cf.cond_br".split())


class Budget(TTIRError):
    """The kernel did not end within its budget of work: an endless or a hopelessly slow loop."""


class Frame:
    """The programs that are evaluated together: values by slot, how many, program + 1 of each, and their ids in x, y and z."""

    __slots__ = ("ids", "launch", "n", "owner", "v")

    def __init__(self, v: list, n: int, owner: np.ndarray, ids: tuple, launch: "Launch"):
        self.v, self.n, self.owner, self.ids, self.launch = v, n, owner, ids, launch

    def part(self, index: np.ndarray, captures) -> "Frame":
        """The programs of `index` alone; of the values only the slots in `captures` are theirs."""
        v = self.v.copy()
        for slot in captures:
            v[slot] = take(v[slot], index)
        return Frame(v, len(index), self.owner[index], tuple(take(x, index) for x in self.ids), self.launch)


def take(x, index: np.ndarray):
    """The programs `index` of a value."""
    if isinstance(x, Descriptor):
        return Descriptor(take(x.base, index), *(tuple(take(y, index) for y in z) for z in x[1:]))
    return x if x is None or x.shape[0] == 1 else x[index]


def merge(parts: list[tuple[np.ndarray, list]], n: int) -> list:
    """Values of programs by parts -> values of all n."""
    if len(parts) == 1:
        return parts[0][1]
    results = []
    for values in zip(*(p[1] for p in parts)):
        if isinstance(values[0], Descriptor):
            raise Unsupported("tensor descriptors that differ between programs")
        tail = np.broadcast_shapes(*(x.shape[1:] for x in values))
        out = np.empty((n, *tail), values[0].dtype)
        for (index, _), x in zip(parts, values):
            out[index] = x
        results.append(out)
    return results


class Launch:
    def __init__(self, kernel: "Kernel", grid: tuple[int, int, int], memory: Memory, budget: int):
        self.kernel, self.grid, self.memory, self.left = kernel, grid, memory, budget

    def spend(self, elements: int) -> None:
        self.left -= elements
        if self.left < 0:
            raise Budget(f"kernel {self.kernel.name} did too much work: an endless loop, or far too many iterations")

    def at(self, op: Op) -> str:
        line = self.kernel.source_line(op)
        return f"{op.name} in kernel {self.kernel.name}" + (f", line {line}" if line else "")

    def coordinates(self, program: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return program % x, program // x % y, program // (x * y)


class Kernel:
    """One kernel of TTIR text. Raises ParseError or Unsupported when the text is not TTIR, or beyond this evaluator."""

    def __init__(self, ttir: str, name: str | None = None):
        self.text, self.functions = ttir, parse(ttir)
        self.compiled: dict[str, _Function] = {}
        entry = [f for f in self.functions.values() if (f.name == name if name else f.public)]
        if len(entry) != 1:
            raise ParseError(f"no kernel {name or ''} in the TTIR")
        (self.entry,) = entry
        self.name = self.entry.name
        self.signature: list[Type] = [self.entry.types[i] for i in self.entry.args]
        try:
            self.main = self.function(self.name, ())
            self.stored, self.loaded = _provenance(self.functions, self.entry)
        except (ValueError, LookupError, TypeError) as error:  # attributes of another kind than Triton prints
            raise ParseError(f"kernel {self.name}: {error}") from error
        ops = [op for f in self.functions.values() for op in _walk(f.body)]
        uses = set(chain.from_iterable(f.uses for f in self.compiled.values()))
        atomics = [op for op in ops if op.name.startswith("tt.atomic")]
        self.synchronised = any((id(op) in uses) for op in atomics) or any(op.attrs.get("isVolatile") == "true" for op in ops)
        self.waits = any(op.name == "scf.while" and _waits(op) for op in ops)

    def function(self, name: str, callers: tuple[str, ...]) -> "_Function":
        if name in callers or name not in self.functions:
            raise Unsupported(f"call of {name[:40]}, {'a recursion' if name in callers else 'which is not there'}")
        if name not in self.compiled:
            self.compiled[name] = _Function(self, self.functions[name], (*callers, name))
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

    def run(self, grid: tuple[int, ...], args: list, memory: Memory, budget: int = BUDGET) -> None:
        """Evaluates all programs of the grid (x, y, z).

        args: one a parameter: a pointer is an address that `memory` gave, a tensor descriptor (address, shape, strides).
        Raises OutOfBounds, Race, Budget, AssertionFailed, Unsupported.
        """
        grid = tuple((*grid, 1, 1)[:3])
        launch = Launch(self, grid, memory, budget)
        if len(args) != len(self.signature):
            raise ParseError(f"kernel {self.name} takes {len(self.signature)} arguments, not {len(args)}")
        names = self.entry.arg_names
        pointers = {a if isinstance(a, int) else a[0]: n for a, t, n in zip(args, self.signature, names) if t.elem in ("ptr", "desc")}
        named = lambda bits: {a if isinstance(a, int) else a[0] for i, a in enumerate(args) if bits >> i & 1 and not isinstance(a, float)}
        memory.begin(pointers, named(self.stored), named(self.loaded), not self.synchronised)
        main, total = self.main, grid[0] * grid[1] * grid[2]
        chunk = 1 if self.waits else max(1, min(CHUNK // main.largest, MAX_LIVE // main.live, 1 << 16))
        try:
            values = [_argument(a, t) for a, t in zip(args, self.signature)]
            with np.errstate(all="ignore"):
                for start in range(0, total, chunk):
                    program = np.arange(start, min(total, start + chunk))
                    ids = (program % grid[0], program // grid[0] % grid[1], program // (grid[0] * grid[1]))
                    ids = tuple((x if g > 1 else x[:1]).astype(np.int32) for x, g in zip(ids, grid))
                    frame = Frame([], len(program), (program + 1).astype(np.int32), ids, launch)
                    main(frame, values)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, RecursionError) as error:
            # Text that no Triton printed (a value used where it is not defined), or a bug here: never the kernel's fault.
            raise Unsupported(f"kernel {self.name}: {type(error).__name__}: {str(error)[:200]}") from error


def _argument(value, kind: Type):
    if kind.elem == "desc":
        address, shape, strides = value
        one = lambda xs: tuple(np.array([x], np.int64) for x in xs)
        return Descriptor(np.array([address], np.int64), one(shape), one(strides))
    if kind.elem in FLOATS:
        x = np.array([value], np.float64).astype(DTYPE[kind.elem])
        return (rounder(kind.elem) or (lambda x: x))(x)
    bits = 8 * DTYPE[kind.elem].itemsize
    value = int(value)
    return np.array([bool(value) if kind.elem == "i1" else (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)], DTYPE[kind.elem])


# --- analysis


def _walk(region: Region):
    for block in region:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from _walk(inner)


def _waits(op: Op) -> bool:
    """A loop that may wait for another program: its condition reads memory, or it has an atomic."""
    names = [[o.name for o in _walk(r)] for r in op.regions]
    return "tt.load" in names[0] or any(n.startswith("tt.atomic") for n in chain(*names))


def _captures(region: Region) -> list[int]:
    """Slots that a region uses and does not define, what it yields included."""
    uses, defines = set(), set()
    for block in region:
        defines.update(block.args)
        for op in block.ops:
            uses.update(op.operands)
            defines.update(op.results)
            for inner in op.regions:
                uses.update(_captures(inner))
    return sorted(uses - defines)


def _provenance(functions: dict[str, Function], entry: Function) -> tuple[int, int]:
    """Which arguments' buffers the kernel may store to, and load from: bit i for argument i, -1 for any.

    Flow-insensitive: a result may come from every operand of its operation. Only these buffers are watched for races.
    """
    ops = list(_walk(entry.body))
    inside = [op for f in functions.values() if f is not entry for op in _walk(f.body)]
    calls_store, calls_load = (any(op.name.startswith(n) for op in inside) for n in ("tt.store", "tt.load"))
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


def _cost(op: Op) -> int:
    """Elements that an operation computes for one program."""
    sizes = [int(np.prod(t.shape)) for t in chain(op.otypes, op.rtypes)]
    largest = max(sizes, default=1)
    if op.name == "tt.dot":
        return largest + int(np.prod(op.rtypes[0].shape)) * op.otypes[0].shape[-1] // 16
    if op.name in ("tt.reduce", "tt.scan"):
        return largest * 2 * sum(len(b.ops) for b in op.regions[0])
    return largest * (4 if op.name.startswith(("tt.load", "tt.store", "tt.atomic", "math.", "tt.extern")) else 1)


# --- control flow


class _Function:
    """A function's blocks as steps. Called with a frame and arguments it returns the values of tt.return."""

    def __init__(self, kernel: Kernel, function: Function, callers: tuple[str, ...]):
        self.kernel, self.f, self.callers = kernel, function, callers
        used = set(chain.from_iterable(chain(op.operands, *(a for _, a in op.targets)) for op in _walk(function.body)))
        self.used, self.uses = used, {id(op) for op in _walk(function.body) if used.intersection(op.results)}
        sizes = [int(np.prod(t.shape)) for t in function.types]
        self.largest, self.live, self.callee_live = max(sizes, default=1), sum(sizes), 0
        self.template: list = [None] * len(sizes)
        if not function.body:
            raise Unsupported(f"function {function.name[:40]} without a body")
        self.blocks = {b.label: (b, *self.block(b)) for b in function.body}
        self.live = max(1, self.live + self.callee_live)
        if self.live > 4 * MAX_LIVE:
            raise Unsupported(f"kernel {kernel.name} holds {self.live} elements a program")

    def __call__(self, frame: Frame, args: list) -> list:
        frame.v = self.template.copy()
        for slot, x in zip(self.f.args, args):
            frame.v[slot] = x
        parts, todo = [], [(self.f.body[0].label, frame, np.arange(frame.n))]
        while todo:
            label, part, index = todo.pop()
            _, run, end = self.blocks[label]
            v = part.v
            run(v, part)
            if end.name == "tt.return":
                parts.append((index, [v[i] for i in end.operands]))
                continue
            sides = [(part, index, end.targets[0])]
            if end.name == "cf.cond_br":
                yes = v[end.operands[0]]
                if yes.all() or not yes.any():
                    sides = [(part, index, end.targets[0 if yes.all() else 1])]
                else:
                    halves = [np.flatnonzero(yes), np.flatnonzero(~yes)]
                    sides = [(part.part(h, range(len(v))), index[h], t) for h, t in zip(halves, end.targets)]
            for side, where, (target, operands) in sides:
                for slot, x in zip(self.blocks[target][0].args, [side.v[i] for i in operands]):
                    side.v[slot] = x
                todo.append((target, side, where))
        return merge(parts, frame.n)

    def block(self, block: Block):
        """(run, terminator): `run(v, frame)` does all steps of a block but the terminator, and pays for them."""
        if not block.ops or block.ops[-1].name not in TERMINATORS or any(o.name in TERMINATORS for o in block.ops[:-1]):
            raise ParseError(f"a block of {self.f.name[:40]} without a terminator at its end")
        steps, end = [], block.ops[-1]
        if end.name.startswith("cf.") and len(end.targets) != (2 if end.name == "cf.cond_br" else 1):
            raise ParseError(f"TTIR line {end.line}: {end.name} to {len(end.targets)} blocks")
        for op in block.ops[:-1]:
            value = constant(op)
            if value is not None:
                self.template[op.results[0]] = value
            elif (step := self.step(op)) is not None:
                steps.append(step)
        fixed, each = STEP * (1 + len(steps)), sum(map(_cost, block.ops[:-1]))

        def run(v, frame):
            frame.launch.spend(fixed + each * frame.n)
            for step in steps:
                step(v, frame)

        return run, end

    def region(self, region: Region):
        """(run, slots that it yields) of a region of one block."""
        if len(region) != 1:
            raise ParseError("a region of several blocks")
        run, end = self.block(region[0])
        return run, end.operands

    def step(self, op: Op):
        if op.name == "scf.if":
            return self.scf_if(op)
        if op.name == "scf.for":
            return self.scf_for(op)
        if op.name == "scf.while":
            return self.scf_while(op)
        if op.name == "tt.call":
            return self.call(op)
        return build(op, self.region, bool(self.used.intersection(op.results)))

    def call(self, op: Op):
        callee = self.kernel.function(op.words[0][1:].strip('"') if op.words else "", self.callers)
        self.largest, self.callee_live = max(self.largest, callee.largest), max(self.callee_live, callee.live)
        kinds = [callee.f.types[i] for i in callee.f.args]
        if kinds != op.otypes:
            raise ParseError(f"TTIR line {op.line}: call of {callee.f.name[:40]} with other types")

        def step(v, frame):
            inner = Frame([], frame.n, frame.owner, frame.ids, frame.launch)
            for slot, x in zip(op.results, callee(inner, [v[i] for i in op.operands])):
                v[slot] = x

        return step

    def scf_if(self, op: Op):
        if not 1 <= len(op.regions) <= 2 or len(op.operands) != 1 or op.otypes[0] != ("i1", (), ""):
            raise ParseError(f"TTIR line {op.line}: scf.if with {len(op.regions)} regions")
        sides = [(*self.region(r), _captures(r)) for r in op.regions]
        if len(sides) == 1:
            sides.append((lambda v, frame: None, [], []))
        (condition,), outs = op.operands, op.results
        if any(len(ends) != len(outs) for _, ends, _ in sides):
            raise ParseError(f"TTIR line {op.line}: scf.if that yields other than it gives")

        def step(v, frame):
            yes = v[condition]
            if (every := yes.all()) or not yes.any():
                run, ends, _ = sides[0 if every else 1]
                run(v, frame)
                values = [v[i] for i in ends]
            else:
                parts = []
                for (run, ends, captures), where in zip(sides, (yes, ~yes)):
                    part = frame.part(np.flatnonzero(where), captures)
                    run(part.v, part)
                    parts.append((np.flatnonzero(where), [part.v[i] for i in ends]))
                values = merge(parts, frame.n)
            for slot, x in zip(outs, values):
                v[slot] = x

        return step

    def scf_for(self, op: Op):
        run, ends = self.region(op.regions[0])
        captures, (bounds, inits, outs) = _captures(op.regions[0]), (op.operands[:3], op.operands[3:], op.results)
        induction, *args = op.regions[0][0].args
        kind = self.f.types[induction]
        if any(t != kind for t in op.otypes[:3]) or not len(ends) == len(inits) == len(outs) == len(args) or op.words:
            raise ParseError(f"TTIR line {op.line}: scf.for {' '.join(op.words)[:20]}")
        dtype = DTYPE[kind.elem]

        def iterate(frame, i, values):
            v = frame.v
            v[induction] = i
            for slot, x in zip(args, values):
                v[slot] = x
            run(v, frame)
            return [v[slot] for slot in ends]

        def step(v, frame):
            low, high, by = (v[i].astype(np.int64) for i in bounds)
            values = [v[i] for i in inits]
            if ((by <= 0) & (low < high)).any():
                raise Budget(f"{frame.launch.at(op)}: a loop whose step is not positive never ends")
            trips = np.maximum(-(-(high - low) // np.maximum(by, 1)), 0)
            if (trips == trips[0]).all():
                for k in range(int(trips[0])):
                    values = iterate(frame, (low + k * by).astype(dtype), values)
            else:
                values = merge(list(part_ways(frame, trips, low, by, values)), frame.n)
            for slot, x in zip(outs, values):
                v[slot] = x

        def part_ways(frame, trips, low, by, values):
            """Iterations of fewer and fewer programs; yields each program's values when its loop ends."""
            low, by = np.broadcast_to(low, trips.shape), np.broadcast_to(by, trips.shape)
            live, part = np.arange(frame.n), frame
            for k in range(int(trips.max()) + 1):
                going = trips[live] > k
                if not going.all():
                    yield live[~going], [take(x, ~going) for x in values]
                    live, values = live[going], [take(x, going) for x in values]
                    part = frame.part(live, captures)
                if live.size:
                    values = iterate(part, (low + k * by)[live].astype(dtype), values)

        return step

    def scf_while(self, op: Op):
        (before, test), (after, ends) = (self.region(r) for r in op.regions)
        captures = sorted(set(_captures(op.regions[0])) | set(_captures(op.regions[1])))
        before_args, after_args = (r[0].args for r in op.regions)
        if not test or not (len(before_args) == len(op.operands) == len(ends) and len(test) - 1 == len(after_args) == len(op.results)):
            raise ParseError(f"TTIR line {op.line}: scf.while of {len(op.operands)} values")

        def step(v, frame):
            live, part, parts = np.arange(frame.n), frame, []
            values = [v[i] for i in op.operands]
            while True:
                for slot, x in zip(before_args, values):
                    part.v[slot] = x
                before(part.v, part)
                going, *values = [part.v[i] for i in test]
                if not going.all():
                    going = np.broadcast_to(going, live.shape)
                    parts.append((live[~going], [take(x, ~going) for x in values]))
                    live, values = live[going], [take(x, going) for x in values]
                    if not live.size:
                        break
                    part = frame.part(live, captures)
                for slot, x in zip(after_args, values):
                    part.v[slot] = x
                after(part.v, part)
                values = [part.v[i] for i in ends]
            for slot, x in zip(op.results, merge(parts, frame.n)):
                v[slot] = x

        return step


