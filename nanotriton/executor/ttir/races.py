"""Races between the programs of a launch: is the answer up to the scheduler?

Of each buffer that a kernel both changes and reads it is noted who touched which bytes. `Race` means one of

- two programs store different values at one address,
- one program loads or overwrites what another stores, or loads what another changes by an atomic,

and no atomic puts the two in order (clocks.py). The history of an element is its last store, and the loads
and atomics since then, as in FastTrack (Flanagan and Freund, 2009). Atomics do not race with each
other, unless one is of scope cta: for other programs that is none. A volatile load is an atomic that changes
nothing.
"""

from dataclasses import dataclass

import numpy as np

from .clocks import Clocks
from .types import TTIRError

MANY = -1  # several programs, in no order
NARROW = "changes by an atomic of scope cta"
LONGEST = 1 << 22  # accesses in a history's log. What is beyond them is not watched


class Race(TTIRError):
    """Programs of one launch depend on each other's order."""


class History:
    """Who made one kind of access to each unit of a buffer.

    A program is named by its owner number, or with clocks by its segment. last: for each unit the one that
    all others came before, 0 for none, MANY if there is no such one. Then `log` has (units, who) of them all.
    alike: what many programs did together they all did alike, so that it is as if each had done it alone.
    """

    def __init__(self, units: int, alike: bool = False):
        self.units = units
        self.alike = alike
        self.last: np.ndarray | None = None  # until there is an access
        self.log: list[tuple[np.ndarray, np.ndarray]] = []
        self.logged = 0

    def add(self, unit: np.ndarray, who: np.ndarray, owner: np.ndarray, clocks: Clocks | None) -> None:
        last = self.touched()
        before = last[unit]
        first = (before == 0) | (before == who)
        if clocks is not None and not first.all():
            rest = np.flatnonzero(~first & (before != MANY))
            first[rest] = clocks.knows(owner[rest], before[rest])
        last[unit] = np.where(first, who, MANY)
        # where several programs touch one unit at once, `last` has kept one of them
        several = (last[unit] != who) | ~first
        if not several.any():
            return
        last[unit[several]] = MANY
        if clocks is None:
            return
        several = last[unit] == MANY
        self._write(unit[several], who[several])
        earlier = several & (before > 0)
        self._write(unit[earlier], before[earlier])

    def _write(self, unit: np.ndarray, who: np.ndarray) -> None:
        self.log.append((unit, who))
        self.logged += len(unit)
        if self.logged > LONGEST:
            self.log, self.logged = [], 0

    def touched(self) -> np.ndarray:
        if self.last is None:
            self.last = np.zeros(self.units, np.int32)
        return self.last

    def forget(self, unit: np.ndarray) -> None:
        if self.last is not None:
            self.last[unit] = 0

    def split(self, finer: int) -> None:
        """Each unit becomes so many."""
        self.units *= finer
        if self.last is not None:
            self.last = np.repeat(self.last, finer)
        self.log = [_split(units, who, finer) for units, who in self.log]

    def unordered(
        self, unit: np.ndarray, who: np.ndarray, owner: np.ndarray, clocks: Clocks | None
    ) -> np.ndarray | None:
        """For each access whether another program has made one of this kind that does not come before it.

        None if that is so of no access.
        """
        if self.last is None:
            return None
        others = self.last[unit]
        bad = (others != 0) & (others != who)
        if not self.alike:
            bad |= others == MANY
        if clocks is not None and bad.any():
            self._order(bad, others, unit, owner, clocks)
        return bad if bad.any() else None

    def _order(self, bad, others, unit, owner, clocks: Clocks) -> None:
        """Clear `bad` where the clocks say that all others come before the access."""
        single = np.flatnonzero(bad & (others != MANY))
        bad[single] = ~clocks.knows(owner[single], others[single])
        many = np.flatnonzero(others == MANY)
        if len(many):
            bad[many] = self._unordered_in_log(unit[many], owner[many], clocks)

    def _unordered_in_log(self, unit: np.ndarray, owner: np.ndarray, clocks: Clocks) -> np.ndarray:
        if not self.log:  # it grew too long
            return np.zeros(len(unit), bool)
        if len(self.log) > 1:
            units, who = (np.concatenate(column) for column in zip(*self.log))
            self.log = [(units, who)]
        units, who = self.log[0]
        order = np.argsort(unit, kind="stable")
        ranked = unit[order]
        low = np.searchsorted(ranked, units, "left")
        high = np.searchsorted(ranked, units, "right")
        bad = np.zeros(len(unit), bool)
        while (low < high).any():  # once for each time that the same unit is among the accesses
            entry = np.flatnonzero(low < high)
            access = order[low[entry]]
            open_ = ~clocks.knows(owner[access], who[entry])
            bad[access[open_]] = True
            low[entry] += 1
        return bad


class Watched:
    """What is noted of one buffer in a launch, for each `unit` bytes of it."""

    def __init__(self, buffer, size: int):
        self.buffer = buffer
        self.unit = size
        units = buffer.nbytes // size + 1
        self.stores = History(units, alike=True)
        self.loads = History(units)
        self.atomics = History(units)
        self.narrow = History(units)  # those of the atomics that are of scope cta

    def histories(self) -> tuple[History, ...]:
        return self.stores, self.loads, self.atomics, self.narrow

    def units(self, index: np.ndarray, size: int, *others: np.ndarray) -> list[np.ndarray]:
        """Element indices of `size` bytes -> indices of units, and the other columns beside them."""
        if size < self.unit:  # a finer access than any before: split the known units
            finer = self.unit // size
            for history in self.histories():
                history.split(finer)
            self.unit = size
        many = size // self.unit
        if many == 1:
            return [index, *others]
        index = (index[:, None] * many + np.arange(many)).ravel()
        return [index, *(np.repeat(x, many) for x in others)]


def _split(units: np.ndarray, who: np.ndarray, finer: int) -> tuple[np.ndarray, np.ndarray]:
    return (units[:, None] * finer + np.arange(finer)).ravel(), np.repeat(who, finer)


class Watch:
    """The accesses of one launch so far. Owners are flat, one an element.

    clocks: of a kernel whose programs may synchronise by atomics; else None, and nothing is in order.
    """

    def __init__(self, clocks: Clocks | None):
        self.clocks = clocks
        self.watched: dict[int, Watched] = {}

    def load(self, frame, at, buffer, index, size: int, owner, volatile: bool) -> None:
        access = self._access(frame, at, buffer, index, size, owner)
        access.check(access.watched.stores, "loads", "stores")
        if volatile:
            return
        access.check(access.watched.atomics, "loads", "changes by an atomic")
        access.add(access.watched.loads)

    def store(self, frame, at, buffer, index, raw, size: int, owner) -> None:
        """Before it is done. Stores of the same value do not race."""
        access = self._access(frame, at, buffer, index, size, owner)
        watched = access.watched
        access.check(watched.loads, "stores to", "loads")
        access.check(watched.atomics, "stores to", "changes by an atomic")
        bad = access.unordered(watched.stores)
        if bad is not None:
            changed = buffer.views[size][index] != raw
            bad = bad.reshape(len(index), -1).any(1) & changed
            if bad.any():
                program = frame.evaluation.program(owner[bad][0])
                raise Race(
                    f"{frame.evaluation.at(at)}: {program} and another program store different values to "
                    f"element {index[bad][0]} of {buffer.name}"
                )
        watched.stores.touched()[access.unit] = access.who
        for history in (watched.loads, watched.atomics, watched.narrow):
            history.forget(access.unit)

    def atomic(self, frame, at, buffer, index, size: int, owner, who, narrow: bool) -> None:
        """who: the segments in which the programs were before the atomic, or None without clocks.

        narrow: it is of scope cta.
        """
        access = self._access(frame, at, buffer, index, size, owner, who)
        watched = access.watched
        access.check(watched.stores, "changes by an atomic", "stores")
        access.check(watched.loads, "changes by an atomic", "loads")
        access.check(watched.narrow, "changes by an atomic", NARROW)
        access.add(watched.atomics)
        if narrow:
            access.add(watched.narrow)  # its own programs may race with each other
            access.check(watched.atomics, "changes by an atomic of scope cta", "changes by an atomic")

    def _access(self, frame, at, buffer, index, size: int, owner, who=None) -> "_Access":
        watched = self.watched.get(buffer.base)
        if watched is None:
            watched = self.watched[buffer.base] = Watched(buffer, size)
        if who is None:
            who = owner if self.clocks is None else self.clocks.now[owner]
        unit, who, owner = watched.units(index, size, who, owner)
        return _Access(self.clocks, frame, at, watched, size, unit, who, owner)


@dataclass
class _Access:
    """One operation's elements, in units: of each who touches it."""

    clocks: Clocks | None
    frame: object
    at: object
    watched: Watched
    size: int
    unit: np.ndarray
    who: np.ndarray
    owner: np.ndarray

    def unordered(self, history: History) -> np.ndarray | None:
        return history.unordered(self.unit, self.who, self.owner, self.clocks)

    def add(self, history: History) -> None:
        history.add(self.unit, self.who, self.owner, self.clocks)

    def check(self, history: History, doing: str, what: str) -> None:
        """Raise Race if another program's access of that kind is in no order with this one."""
        bad = self.unordered(history)
        if bad is None:
            return
        evaluation = self.frame.evaluation
        element = int(self.unit[bad][0]) * self.watched.unit // self.size
        name = self.watched.buffer.name
        text = f"{doing} element {element} of {name}, which another program of the launch {what}"
        if self.clocks is not None:
            text += ", and no atomic puts the two in order (release after one, acquire before the other)"
        raise Race(f"{evaluation.at(self.at)}: {evaluation.program(self.owner[bad][0])} {text}")
