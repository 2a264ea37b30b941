"""Kernels whose programs wait for each other: locks, flags, barriers of the whole grid.

On a GPU the programs of a launch run at once, as many as there is room for, started in the order of their
numbers. Here one runs at a time, and another takes over where it can make no headway (a spin) or, by chance,
after an atomic. Who starts, who goes on and when is drawn from a seed that no candidate knows. So a kernel is
right only if it is right in any order; what may still go unseen in one order the clocks see (clocks.py).

A function is run as a generator, for one program. It yields SPIN at the end of an iteration that has changed
nothing, neither in memory nor in what the loop carries, and POINT after any other atomic or iteration.
"""

import random
from collections.abc import Generator, Iterator

import numpy as np

from .analysis import called, volatile, walk
from .flow import Body, Budget
from .frames import Frame, Values, put
from .memory import GlobalMemory
from .ops import Descriptor
from .types import Block, Op

POINT, SPIN = False, True
SWITCH = 1 / 8  # how often another program takes over at a POINT
WIDE = 1024  # elements of an access: what is wider is not remembered, and wakes nobody in time
LOOK = 1 / 16  # how often a program that has been woken goes before others
ROOM = 1 << 26  # elements of all values of the programs in flight. Beyond it the first to start is the lowest

Steps = Generator[bool, None, None]


class Turn:
    """A program in flight.

    seen: (address, bytes, word) of what its iteration has looked at. changed: whether its iteration has
    written to memory. cells: addresses // 8 at which it sleeps.
    """

    def __init__(self, schedule: "Schedule", number: int, program: Steps):
        self.schedule = schedule
        self.number = number
        self.program = program
        self.cells: set[int] = set()
        self.clear()

    def clear(self) -> None:
        """An iteration begins."""
        self.seen: list[tuple[int, int, int]] = []
        self.changed = False

    def see(self, addresses: np.ndarray, words: np.ndarray, size: int) -> None:
        if addresses.size <= WIDE:
            self.seen += zip(addresses.tolist(), [size] * addresses.size, words.tolist())

    def store(self, addresses: np.ndarray) -> None:
        if addresses.size:
            self.changed = True
            self.schedule.wake(addresses)

    def atomic(self, memory: GlobalMemory, addresses: np.ndarray, old: np.ndarray | None, size: int) -> None:
        """old: the words before; None if they are not known."""
        if old is None or addresses.size > WIDE:
            self.store(addresses)
            return
        words = np.array([memory.word(address, size) for address in addresses.tolist()], old.dtype)
        self.see(addresses, words, size)
        self.store(addresses[words != old])


class Schedule:
    """The programs of one launch, one after another and in turns.

    ready: those that can go on. asleep: address // 8 -> those that spin until something there changes. awake:
    those for which it did. They come after the others, or a barrier of n programs would take n^2 looks at it.
    live: how many have started and not ended. progress: counts all that is new, so that a deadlock shows.
    """

    def __init__(self, evaluation, main: Body, values: Values, luck: random.Random, resident: int):
        self.evaluation = evaluation
        self.walk = Walk(main)
        self.values = values
        self.luck = luck
        self.resident = max(1, resident)
        self.few = max(2, ROOM // main.live)
        x, y, z = evaluation.grid
        self.coming: Iterator[int] = iter(range(x * y * z))
        self.next: list[int] = []  # programs that may start now
        self.ready: list[Turn] = []
        self.awake: list[Turn] = []
        self.asleep: dict[int, set[Turn]] = {}
        self.live = 0
        self.progress = 0
        self.stalled = -1

    def run(self) -> None:
        memory: GlobalMemory = self.evaluation.memory
        while turn := self.choose():
            memory.turn = turn
            for spins in turn.program:
                if spins:
                    self.sleep(turn)
                elif self.luck.random() < SWITCH:
                    self.ready.append(turn)
                else:
                    continue
                break
            else:
                self.live -= 1
                self.progress += 1
        memory.turn = None

    def choose(self) -> Turn | None:
        """Who goes on, or starts. None: all have ended."""
        self.look_ahead()
        if not (self.next or self.ready or self.awake):
            if not self.live:
                return None
            self.wake_all()
        if self.awake and (not (self.next or self.ready) or self.luck.random() < LOOK):
            return self._take(self.awake)
        if self.next and (not self.ready or (self.live < self.few and self.luck.random() < 0.5)):
            return self.start()
        return self._take(self.ready)

    def look_ahead(self) -> None:
        """As many programs may start as there is room for, the lowest numbers first."""
        while self.live + len(self.next) < self.resident:
            program = next(self.coming, None)
            if program is None:
                return
            self.next.append(program)

    def start(self) -> Turn:
        if self.live < self.few:
            program = self._take(self.next)
        else:
            program = min(self.next)
            self.next.remove(program)
        frame = self.evaluation.start(np.array([program]), alone=False)
        self.live += 1
        self.progress += 1
        return Turn(self, program, self.walk.call(frame, self.values))

    def _take(self, turns: list):
        i = self.luck.randrange(len(turns))
        turns[i], turns[-1] = turns[-1], turns[i]
        return turns.pop()

    def sleep(self, turn: Turn) -> None:
        """A program spins. It sleeps, unless what it has seen has changed since."""
        memory: GlobalMemory = self.evaluation.memory
        if any(memory.word(address, size) != word for address, size, word in turn.seen):
            self.ready.append(turn)
            return
        turn.cells = {address >> 3 for address, _, _ in turn.seen} or {-1}
        for cell in turn.cells:
            self.asleep.setdefault(cell, set()).add(turn)

    def wake(self, addresses: np.ndarray) -> None:
        """Something was written there."""
        self.progress += 1
        if not self.asleep:
            return
        low, high = int(addresses.min()) >> 3, int(addresses.max()) >> 3
        near = [cell for cell in self.asleep if low <= cell <= high]
        written = set((addresses >> 3).tolist()) if near else set()
        self._rouse([cell for cell in near if cell in written])

    def wake_all(self) -> None:
        """All programs in flight spin. If that changes nothing they spin for ever."""
        if self.stalled == self.progress:
            raise Budget("a deadlock: all programs that have room wait for others")
        self.stalled = self.progress
        self._rouse(list(self.asleep))

    def _rouse(self, cells: list[int]) -> None:
        for cell in cells:
            for turn in sorted(self.asleep.pop(cell, ()), key=lambda turn: turn.number):
                self.awake.append(turn)
                for other in turn.cells - {cell}:
                    self.asleep[other].discard(turn)


class Walk:
    """A function as a generator, for a frame of one program."""

    def __init__(self, body: Body):
        self.body = body
        self.functions = body.evaluator.functions
        self.pausing: dict[int, bool] = {}

    def pauses(self, op: Op) -> bool:
        """Whether an operation, or one inside of it, is a point at which programs may take turns."""
        found = self.pausing.get(id(op))
        if found is None:
            inside = [op, *called([op], self.functions)]
            for region in op.regions:
                inside += called(walk(region), self.functions)
            found = self.pausing[id(op)] = any(map(is_point, inside))
        return found

    def call(self, frame: Frame, args: Values) -> Generator[bool, None, Values]:
        body = self.body
        v = frame.v = body.template.copy()
        put(v, body.f.args, args)
        label = body.f.body[0].label
        while True:
            block, _, end = body.blocks[label]
            yield from self.block(block, frame)
            if end.name == "tt.return":
                return [v[i] for i in end.operands]
            other = end.name == "cf.cond_br" and not v[end.operands[0]].all()
            label, operands = end.targets[1 if other else 0]
            put(v, body.blocks[label][0].args, [v[i] for i in operands])

    def block(self, block: Block, frame: Frame) -> Steps:
        part = self.body.parts[id(block)]
        frame.evaluation.spend(part.fixed + part.each)
        for op, step in part.steps:
            if op.name in WAYS and self.pauses(op):
                yield from WAYS[op.name](self, op, frame)
                continue
            step(frame.v, frame)
            if is_point(op):
                yield POINT

    def inner(self, op: Op, frame: Frame) -> Steps:
        callee = self.body.evaluator.compiled[op.words[0][1:].strip('"')]
        inner = Frame([], 1, frame.owner, frame.ids, frame.evaluation)
        values = yield from Walk(callee).call(inner, [frame.v[i] for i in op.operands])
        put(frame.v, op.results, values)

    def scf_if(self, op: Op, frame: Frame) -> Steps:
        v = frame.v
        number = 0 if v[op.operands[0]].all() else 1
        if number == len(op.regions):
            return
        (block,) = op.regions[number]
        yield from self.block(block, frame)
        put(v, op.results, [v[i] for i in block.ops[-1].operands])

    def scf_for(self, op: Op, frame: Frame) -> Steps:
        v = frame.v
        low, high, by = (int(v[i][0]) for i in op.operands[:3])
        if by <= 0 and low < high:
            raise Budget(f"{frame.evaluation.at(op)}: a loop whose step is not positive never ends")
        (block,) = op.regions[0]
        counter, *args = block.args
        values = [v[i] for i in op.operands[3:]]
        for count in range(low, high, max(by, 1)):
            v[counter] = np.array([count], v[op.operands[0]].dtype)
            put(v, args, values)
            for slot, test in self.body.promises(op, block.args):
                test(v[slot], frame)
            yield from self.block(block, frame)
            values = [v[i] for i in block.ops[-1].operands]
        put(v, op.results, values)

    def scf_while(self, op: Op, frame: Frame) -> Steps:
        v = frame.v
        (before,), (after,) = op.regions
        values = [v[i] for i in op.operands]
        while True:
            turn = frame.evaluation.memory.turn
            turn.clear()
            put(v, before.args, values)
            yield from self.block(before, frame)
            going, *passed = [v[i] for i in before.ops[-1].operands]
            if not going.all():
                turn.schedule.progress += 1
                put(v, op.results, passed)
                return
            put(v, after.args, passed)
            yield from self.block(after, frame)
            carried = [v[i] for i in after.ops[-1].operands]
            spins = not turn.changed and all(map(_same, values, carried))
            values = carried
            yield SPIN if spins else POINT


# operations that may have points inside of them
WAYS = {"scf.if": Walk.scf_if, "scf.for": Walk.scf_for, "scf.while": Walk.scf_while, "tt.call": Walk.inner}


def is_point(op: Op) -> bool:
    return op.name.startswith("tt.atomic") or volatile(op) or op.name == "scf.while"


def _same(x, y) -> bool:
    if x is y or isinstance(x, Descriptor):
        return x is y
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
