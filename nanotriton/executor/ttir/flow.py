"""Control flow of TTIR: functions, blocks, loops and branches as steps over a frame of programs.

Where programs part ways (an `if`, a loop's bounds) each side runs in a frame of its own programs, and the
values that it yields are put together again.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .analysis import captured, cost, walk
from .frames import Frame, Step, Values, merge, put, take
from .numbers import DTYPE
from .ops import check, constant
from .promises import Check, promise, promised
from .tensor import build
from .types import TERMINATORS, Block, Function, Op, ParseError, Region, TTIRError, Type, Unsupported

STEP = 1000  # cost of one operation before its first element, in elements
MAX_LIVE = 1 << 27  # elements of all values of one program together (1 GiB)
BOOL = Type("i1")
COUNTERS = (Type("i32"), Type("i64"), Type("index"))  # types of a loop's induction variable


class Budget(TTIRError):
    """The kernel did not end within its budget of work: an endless or a hopelessly slow loop."""


class TooLarge(TTIRError):
    """A program with more values than any processor has room for."""


def scalars(kinds: list[Type], pack: int) -> list[Type]:
    """The types of the elements, each so many times."""
    return [t._replace(shape=()) for t in kinds for _ in range(pack)]


def scalar_function(op: Op) -> tuple[Region, int]:
    """(the region of tt.map_elementwise as the body of a function, how many elements it takes at once)."""
    check(len(op.regions) == 1 and bool(op.otypes), op)
    shape, pack = op.otypes[0].shape, int(op.attrs.get("pack", "1"))
    check(all(t.shape == shape for t in (*op.otypes, *op.rtypes)), op)
    check(pack > 0 and math.prod(shape) % pack == 0, op)
    (region,) = op.regions
    for block in region:
        for inner in block.ops:
            if inner.name == "tt.map_elementwise.return":
                inner.name = "tt.return"
                check(inner.otypes == scalars(op.rtypes, pack), op)
    for inner in walk(region):
        check(all(not t.shape for t in inner.rtypes), inner)
        if inner.name.startswith(("tt.atomic", "tt.load", "tt.store", "tt.call")):
            raise Unsupported(f"{inner.name[:40]} inside {op.name}")
    return region, pack


class Part(NamedTuple):
    """A block's steps with their operations; what the block costs, once and for each program."""

    steps: list[tuple[Op, Step]]
    fixed: int
    each: int


class Body:
    """A function's blocks as steps. Called with a frame and arguments it returns the values of tt.return.

    used: the slots that some operation reads. uses: ids of the operations whose results are read.
    largest, live: elements of a program's largest value, and of all its values. template: the constants by
    slot.
    """

    def __init__(self, evaluator, function: Function, callers: tuple[str, ...]):
        self.evaluator = evaluator
        self.f = function
        self.callers = callers
        self.used: set[int] = set()
        for op in walk(function.body):
            self.used.update(op.operands)
            for _, args in op.targets:
                self.used.update(args)
        self.uses = {id(op) for op in walk(function.body) if self.used.intersection(op.results)}
        sizes = [math.prod(t.shape) for t in function.types]
        self.largest = max(sizes, default=1)
        self.live = 1 + sum(sizes)
        self.callee_live = 0
        self.template: list = [None] * len(sizes)
        if not function.body:
            raise Unsupported(f"function {function.name[:40]} without a body")
        self.limit()
        self.parts: dict[int, Part] = {}  # of every block, by its id
        self.blocks = {block.label: (block, *self.block(block)) for block in function.body}
        self.live += self.callee_live
        self.limit()

    def limit(self) -> None:
        if self.live > MAX_LIVE:
            raise TooLarge(f"{self.f.name[:40]} holds {self.live} elements a program, more than {MAX_LIVE}")

    def __call__(self, frame: Frame, args: Values) -> Values:
        frame.v = self.template.copy()
        put(frame.v, self.f.args, args)
        parts = []
        # (label of a block, programs that come to it, their numbers in `frame`)
        todo = [(self.f.body[0].label, frame, np.arange(frame.n))]
        while todo:
            label, part, index = todo.pop()
            _, run, end = self.blocks[label]
            run(part.v, part)
            if end.name == "tt.return":
                parts.append((index, [part.v[i] for i in end.operands]))
                continue
            for side, where, (target, operands) in _sides(part, index, end):
                put(side.v, self.blocks[target][0].args, [side.v[i] for i in operands])
                todo.append((target, side, where))
        return merge(parts, frame.n)

    def block(self, block: Block) -> tuple[Step, Op]:
        """(run, terminator). `run` does all steps of a block but the terminator, and pays for them."""
        last = block.ops[-1].name if block.ops else ""
        if last not in TERMINATORS or any(op.name in TERMINATORS for op in block.ops[:-1]):
            raise ParseError(f"a block of {self.f.name[:40]} without a terminator at its end")
        end = block.ops[-1]
        ends_function_block = end.name.startswith("cf.") or end.name == "tt.return"
        if ends_function_block != any(block is b for b in self.f.body):
            raise ParseError(f"TTIR line {end.line}: {end.name} in the wrong place")
        if end.name.startswith("cf."):
            self.branch(end)
        steps, part = [], []
        for op in block.ops[:-1]:
            value = constant(op)
            if value is not None:
                self.template[op.results[0]] = value
            step = self.step(op) if value is None else None
            if len(op.results) == 1:
                step = promised(op, step, op.rtypes[0])
            if step is not None:
                steps.append(step)
                part.append((op, step))
        fixed = STEP * (1 + len(steps))
        each = 1 + sum(map(cost, block.ops[:-1]))
        self.parts[id(block)] = Part(part, fixed, each)

        def run(v, frame):
            frame.evaluation.spend(fixed + each * frame.n)
            for step in steps:
                step(v, frame)

        return run, end

    def region(self, region: Region) -> tuple[Step, list[int]]:
        """(run, slots that it yields) of a region of one block."""
        if len(region) != 1:
            raise ParseError("a region of several blocks")
        run, end = self.block(region[0])
        return run, end.operands

    def kinds(self, slots: list[int]) -> list[Type]:
        return [self.f.types[i] for i in slots]

    def agree(self, op: Op, *lists: list[int]) -> None:
        """Values that are handed on keep their types: a step relies on the types it was built for."""
        first = self.kinds(lists[0])
        check(all(self.kinds(slots) == first for slots in lists), op)

    def branch(self, end: Op) -> None:
        """Check a terminator's successors."""
        check(len(end.targets) == (2 if end.name == "cf.cond_br" else 1), end)
        check(all(t == BOOL for t in end.otypes), end)
        labels = {block.label: block for block in self.f.body}
        for label, args in end.targets:
            check(label in labels, end)
            self.agree(end, args, labels[label].args)

    def step(self, op: Op) -> Step | None:
        special = {
            "tt.call": self.call,
            "tt.map_elementwise": self.map_elementwise,
            "scf.if": self.scf_if,
            "scf.for": self.scf_for,
            "scf.while": self.scf_while,
        }
        if op.name in special:
            return special[op.name](op)
        if op.name in ("tt.reduce", "tt.scan"):
            block = op.regions[0][0] if op.regions else Block("")
            kinds = [t._replace(shape=()) for t in op.otypes]
            check(self.kinds(block.args) == kinds * 2, op)
            check(block.ops[-1].otypes == kinds, op)
        return build(op, self.region, bool(self.used.intersection(op.results)))

    def call(self, op: Op) -> Step:
        name = op.words[0][1:].strip('"') if op.words else ""
        callee = self.evaluator.function(name, self.callers)
        self.largest = max(self.largest, callee.largest)
        self.callee_live = max(self.callee_live, callee.live)
        check(callee.kinds(callee.f.args) == op.otypes, op)
        for _, _, end in callee.blocks.values():
            if end.name == "tt.return":
                check(callee.kinds(end.operands) == op.rtypes, op)

        def step(v, frame):
            inner = Frame([], frame.n, frame.owner, frame.ids, frame.evaluation)
            put(v, op.results, callee(inner, [v[i] for i in op.operands]))

        return step

    def map_elementwise(self, op: Op) -> Step:
        """A function of scalars, with branches and loops of its own: each element is a program of its own.

        Or each `pack` neighbours are: then it takes so many arguments for each tensor, and gives as many.
        """
        shape, (region, pack) = op.otypes[0].shape, scalar_function(op)
        captures = captured(region)
        name = f"{self.f.name}.map"
        function = Function(name, False, region[0].args + captures, [], self.f.types, region)
        inner = Body(self.evaluator, function, self.callers)
        check(self.kinds(region[0].args) == scalars(op.otypes, pack), op)
        calls = math.prod(shape) // pack

        def step(v, frame):
            n = frame.n * calls
            xs = [np.broadcast_to(v[i], (frame.n, *shape)).reshape(n, pack) for i in op.operands]
            given = [x[:, j] for x in xs for j in range(pack)]
            given += [v[i] if len(v[i]) == 1 else np.repeat(v[i], calls) for i in captures]
            ids = tuple(x if len(x) == 1 else np.repeat(x, calls) for x in frame.ids)
            found = inner(Frame([], n, np.repeat(frame.owner, calls), ids, frame.evaluation), given)
            found = [np.broadcast_to(x, (n,)) for x in found]
            for i, slot in enumerate(op.results):
                each = np.stack(found[i * pack : (i + 1) * pack], 1)
                v[slot] = each.reshape(frame.n, *shape)

        return step

    def scf_if(self, op: Op) -> Step:
        check(1 <= len(op.regions) <= 2, op)
        check(op.otypes == [BOOL], op)
        sides = [(*self.region(region), captured(region)) for region in op.regions]
        if len(sides) == 1:
            sides.append((lambda v, frame: None, [], []))
        (condition,), outs = op.operands, op.results
        self.agree(op, outs, *(ends for _, ends, _ in sides))

        def step(v, frame):
            yes = v[condition]
            every = yes.all()
            if every or not yes.any():
                run, ends, _ = sides[0 if every else 1]
                run(v, frame)
                put(v, outs, [v[i] for i in ends])
                return
            parts = []
            for (run, ends, captures), where in zip(sides, (yes, ~yes)):
                index = np.flatnonzero(where)
                part = frame.part(index, captures)
                run(part.v, part)
                parts.append((index, [part.v[i] for i in ends]))
            put(v, outs, merge(parts, frame.n))

        return step

    def scf_for(self, op: Op) -> Step:
        run, ends = self.region(op.regions[0])
        captures = captured(op.regions[0])
        bounds, inits = op.operands[:3], op.operands[3:]
        outs = op.results
        counter, *args = op.regions[0][0].args
        kind = self.f.types[counter]
        if op.words:
            raise Unsupported(f"scf.for {op.words[0][:20]}")
        check(kind in COUNTERS, op)
        check(op.otypes[:3] == [kind] * 3, op)
        self.agree(op, inits, args, ends, outs)
        dtype = DTYPE[kind.elem]
        tests = self.promises(op, [counter, *args])

        def iterate(frame: Frame, count: np.ndarray, values: Values) -> Values:
            v = frame.v
            v[counter] = count.astype(dtype)
            put(v, args, values)
            for slot, test in tests:
                test(v[slot], frame)
            run(v, frame)
            return [v[slot] for slot in ends]

        def step(v, frame):
            low, high, by = (v[i].astype(np.int64) for i in bounds)
            if ((by <= 0) & (low < high)).any():
                raise Budget(f"{frame.evaluation.at(op)}: a loop whose step is not positive never ends")
            trips = np.maximum(-(-(high - low) // np.maximum(by, 1)), 0)
            values = [v[i] for i in inits]
            if (trips == trips[0]).all():
                for k in range(int(trips[0])):
                    values = iterate(frame, low + k * by, values)
                put(v, outs, values)
                return

            def iterate_part(part: Frame, live: np.ndarray, k: int, values: Values) -> Values:
                counts = np.broadcast_to(low + k * by, trips.shape)
                return iterate(part, counts[live], values)

            parts = list(_part_ways(frame, trips, captures, values, iterate_part))
            put(v, outs, merge(parts, frame.n))

        return step

    def promises(self, op: Op, args: list[int]) -> list[tuple[int, Check]]:
        """[(slot, check)] of a loop's block arguments of which it promises something."""
        found = [(slot, promise(op, self.f.types[slot], f"_arg{i}")) for i, slot in enumerate(args)]
        return [(slot, test) for slot, test in found if test is not None]

    def scf_while(self, op: Op) -> Step:
        (before, test), (after, ends) = (self.region(region) for region in op.regions)
        captures = sorted(set(captured(op.regions[0])) | set(captured(op.regions[1])))
        before_args, after_args = (region[0].args for region in op.regions)
        check(bool(test), op)
        check(self.f.types[test[0]] == BOOL, op)
        self.agree(op, op.operands, before_args, ends)
        self.agree(op, test[1:], after_args, op.results)

        def step(v, frame):
            live, part = np.arange(frame.n), frame
            parts: list[tuple[np.ndarray, Values]] = []
            values = [v[i] for i in op.operands]
            while True:
                put(part.v, before_args, values)
                before(part.v, part)
                going, *values = [part.v[i] for i in test]
                if not going.all():
                    going = np.broadcast_to(going, live.shape)
                    parts.append((live[~going], [take(x, ~going) for x in values]))
                    values = [take(x, going) for x in values]
                    live = live[going]
                    if not live.size:
                        break
                    part = frame.part(live, captures)
                put(part.v, after_args, values)
                after(part.v, part)
                values = [part.v[i] for i in ends]
            put(v, op.results, merge(parts, frame.n))

        return step


def _part_ways(
    frame: Frame,
    trips: np.ndarray,
    captures: list[int],
    values: Values,
    iterate: Callable[[Frame, np.ndarray, int, Values], Values],
) -> Iterator[tuple[np.ndarray, Values]]:
    """Iterations of fewer and fewer programs. Yields (programs, their values) when their loop ends.

    trips: iterations of each program. iterate(part, live, k, values): iteration k of the programs `live`.
    """
    live, part = np.arange(frame.n), frame
    for k in range(int(trips.max()) + 1):
        going = trips[live] > k
        if not going.all():
            yield live[~going], [take(x, ~going) for x in values]
            values = [take(x, going) for x in values]
            live = live[going]
            part = frame.part(live, captures)
        if live.size:
            values = iterate(part, live, k, values)


def _sides(part: Frame, index: np.ndarray, end: Op) -> list[tuple[Frame, np.ndarray, tuple[str, list[int]]]]:
    """(programs, their numbers, successor) for each way that programs take at the end of a block."""
    if end.name != "cf.cond_br":
        return [(part, index, end.targets[0])]
    yes = part.v[end.operands[0]]
    every = yes.all()
    if every or not yes.any():
        return [(part, index, end.targets[0 if every else 1])]
    sides = []
    for where, target in zip((yes, ~yes), end.targets):
        half = np.flatnonzero(where)
        sides.append((part.part(half, range(len(part.v))), index[half], target))
    return sides
