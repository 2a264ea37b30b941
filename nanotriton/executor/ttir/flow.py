"""Control flow of TTIR: functions, blocks, loops and branches as steps over a frame of programs.

Where programs part ways (an `if`, a loop's bounds) each side runs in a frame of its own programs, and what it yields is put
together again.
"""

import math
from itertools import chain

import numpy as np

from .analysis import captured, cost, walk
from .numbers import DTYPE
from .ops import Descriptor, check, constant
from .tensor import build
from .types import TERMINATORS, Block, Function, Op, ParseError, Region, TTIRError, Unsupported

STEP = 1000  # what one operation costs before its first element, in elements
MAX_LIVE = 1 << 27  # elements of all values of one program together (1 GiB)


class Budget(TTIRError):
    """The kernel did not end within its budget of work: an endless or a hopelessly slow loop."""


class TooLarge(TTIRError):
    """A program with more values than any processor has room for."""


class Frame:
    """The programs that are evaluated together: values by slot, how many, program + 1 of each, and their ids in x, y and z."""

    __slots__ = ("ids", "launch", "n", "owner", "v")

    def __init__(self, v: list, n: int, owner: np.ndarray, ids: tuple, launch):
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
        return Descriptor(
            take(x.base, index), *(tuple(take(y, index) for y in z) for z in (x.shape, x.strides)), x.padding
        )
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


class Body:
    """A function's blocks as steps. Called with a frame and arguments it returns the values of tt.return."""

    def __init__(self, kernel, function: Function, callers: tuple[str, ...]):
        self.kernel, self.f, self.callers = kernel, function, callers
        used = set(
            chain.from_iterable(chain(op.operands, *(a for _, a in op.targets)) for op in walk(function.body))
        )
        self.used, self.uses = used, {id(op) for op in walk(function.body) if used.intersection(op.results)}
        sizes = [math.prod(t.shape) for t in function.types]
        self.largest, self.live, self.callee_live = max(sizes, default=1), 1 + sum(sizes), 0
        self.template: list = [None] * len(sizes)
        if not function.body:
            raise Unsupported(f"function {function.name[:40]} without a body")
        self.limit()
        self.blocks = {b.label: (b, *self.block(b)) for b in function.body}
        self.live += self.callee_live
        self.limit()

    def limit(self) -> None:
        if self.live > MAX_LIVE:
            raise TooLarge(f"{self.f.name[:40]} holds {self.live} elements a program, more than {MAX_LIVE}")

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
        if (
            not block.ops
            or block.ops[-1].name not in TERMINATORS
            or any(o.name in TERMINATORS for o in block.ops[:-1])
        ):
            raise ParseError(f"a block of {self.f.name[:40]} without a terminator at its end")
        steps, end = [], block.ops[-1]
        if (end.name.startswith("cf.") or end.name == "tt.return") != any(block is b for b in self.f.body):
            raise ParseError(f"TTIR line {end.line}: {end.name} in the wrong place")
        if end.name.startswith("cf."):
            self.branch(end)
        for op in block.ops[:-1]:
            value = constant(op)
            if value is not None:
                self.template[op.results[0]] = value
            elif (step := self.step(op)) is not None:
                steps.append(step)
        fixed, each = STEP * (1 + len(steps)), 1 + sum(map(cost, block.ops[:-1]))

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

    def agree(self, op: Op, *lists: list[int]) -> None:
        """Values that are handed on keep their types: a step relies on the types it was built for."""
        kinds = [[self.f.types[i] for i in slots] for slots in lists]
        check(all(k == kinds[0] for k in kinds), op)

    def branch(self, end: Op) -> None:
        check(len(end.targets) == (2 if end.name == "cf.cond_br" else 1), end)
        check(all(t == ("i1", (), "") for t in end.otypes), end)
        labels = {b.label: b for b in self.f.body}
        for label, args in end.targets:
            check(label in labels, end)
            self.agree(end, args, labels[label].args)

    def step(self, op: Op):
        if op.name == "scf.if":
            return self.scf_if(op)
        if op.name == "scf.for":
            return self.scf_for(op)
        if op.name == "scf.while":
            return self.scf_while(op)
        if op.name == "tt.call":
            return self.call(op)
        if op.name in ("tt.reduce", "tt.scan"):
            block = op.regions[0][0] if op.regions else Block("")
            kinds = [t._replace(shape=()) for t in op.otypes]
            check([self.f.types[i] for i in block.args] == kinds * 2 and block.ops[-1].otypes == kinds, op)
        return build(op, self.region, bool(self.used.intersection(op.results)))

    def call(self, op: Op):
        callee = self.kernel.function(op.words[0][1:].strip('"') if op.words else "", self.callers)
        self.largest, self.callee_live = max(self.largest, callee.largest), max(self.callee_live, callee.live)
        kinds = [callee.f.types[i] for i in callee.f.args]
        returned = [
            [callee.f.types[i] for i in end.operands]
            for *_, end in callee.blocks.values()
            if end.name == "tt.return"
        ]
        check(kinds == op.otypes and all(r == op.rtypes for r in returned), op)

        def step(v, frame):
            inner = Frame([], frame.n, frame.owner, frame.ids, frame.launch)
            for slot, x in zip(op.results, callee(inner, [v[i] for i in op.operands])):
                v[slot] = x

        return step

    def scf_if(self, op: Op):
        check(1 <= len(op.regions) <= 2 and op.otypes == [("i1", (), "")], op)
        sides = [(*self.region(r), captured(r)) for r in op.regions]
        if len(sides) == 1:
            sides.append((lambda v, frame: None, [], []))
        (condition,), outs = op.operands, op.results
        self.agree(op, outs, *(ends for _, ends, _ in sides))

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
        captures, (bounds, inits, outs) = (
            captured(op.regions[0]),
            (op.operands[:3], op.operands[3:], op.results),
        )
        induction, *args = op.regions[0][0].args
        kind = self.f.types[induction]
        if op.words:
            raise Unsupported(f"scf.for {op.words[0][:20]}")
        check(
            op.otypes[:3] == [kind] * 3 and kind in (("i32", (), ""), ("i64", (), ""), ("index", (), "")), op
        )
        self.agree(op, inits, args, ends, outs)
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
        captures = sorted(set(captured(op.regions[0])) | set(captured(op.regions[1])))
        before_args, after_args = (r[0].args for r in op.regions)
        check(bool(test) and self.f.types[test[0]] == ("i1", (), ""), op)
        self.agree(op, op.operands, before_args, ends)
        self.agree(op, test[1:], after_args, op.results)

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
