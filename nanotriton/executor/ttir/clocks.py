"""What each program of a launch knows of the others, by the atomics that it has seen: vector clocks.

Programs of a launch run in any order. What one stores another may load only if an atomic lies between. The
first program releases (tl.atomic_add, tl.atomic_xchg, .. after the store), and the second acquires at the
same address, later, by an atomic whose result it uses or by a volatile load. Triton's atomics do both unless
`sem` says otherwise. That is happens-before of the C++ and PTX memory models. The clocks are those of Mattern
(Virtual Time and Global States of Distributed Systems, 1989), with addresses in place of processes.

A program's life is cut into segments: each release ends one. A segment is known to another program once that
has acquired the release that ended it, or a later one of the same program. Releases at one address are
numbered, so that what a program knows is a number for each address.

Numbers of programs here are those in which they were started, from 1 on ("owner").
"""

import numpy as np

COLUMNS = 64  # addresses that are told apart. More share columns, so that some races go unseen
PLACES = 4096  # addresses of which it is remembered whether anything was released there


class Clocks:
    """Segments by number, from 1 on: owner, then where and as which release they ended (column -1: not yet).

    following: the owner's next segment. alone: the release was no acquire, so that its owner's clock does
    not say that it knows it; whoever knows the following segment's end knows this one too.
    now: the segment that each owner is in. known: for each owner in flight, from `first` on, the last release
    that it knows in each column. left: what one learns who acquires in a column. releases: how many there
    were in it.
    """

    def __init__(self) -> None:
        self.segments = 1
        self.owner = np.zeros(1024, np.int32)
        self.column = np.full(1024, -1, np.int32)
        self.release = np.zeros(1024, np.int32)
        self.following = np.zeros(1024, np.int32)
        self.alone = np.zeros(1024, bool)
        self.now = np.zeros(1024, np.int32)
        self.first = 1
        self.known = np.zeros((0, COLUMNS), np.int32)
        self.left = np.zeros((COLUMNS, COLUMNS), np.int32)
        self.releases = np.zeros(COLUMNS, np.int32)
        self.columns: dict[int, int] = {}

    def start(self, owners: np.ndarray, alone: bool) -> None:
        """Programs start, numbered in a row. alone: those before have ended, and their clocks can go."""
        fresh = self._segments(owners)
        self.now = _room(self.now, int(owners[-1]) + 1)
        self.now[owners] = fresh
        if alone:
            self.first = int(owners[0])
            self.known = np.zeros((len(owners), COLUMNS), np.int32)
            return
        size = int(owners[-1]) - self.first + 1
        self.known = _room(self.known, size)

    def meet(self, owners: np.ndarray, addresses: np.ndarray, acquires: bool, releases: bool) -> None:
        """Programs run an atomic, in this order.

        owners, addresses: flat, of all elements; a program may have several, one after another.
        """
        if not releases and not self.columns:
            return
        if len(addresses) == 1 and releases:  # as programs do that take turns
            self._turn(owners, self._column(int(addresses[0]), True), acquires)
            return
        columns = self._columns_of(addresses, releases)
        there = columns >= 0
        pairs = np.stack((owners[there], columns[there]), 1)
        _, index = np.unique(pairs, axis=0, return_index=True)
        pairs = pairs[np.sort(index)]
        if not releases:
            self._acquire(pairs)
            return
        owners, columns = pairs.T
        if (np.diff(np.sort(owners)) == 0).any():  # an atomic on many addresses: program by program
            for owner, column in pairs:
                self._turn(np.array([owner]), int(column), acquires)
            return
        for column in np.unique(columns):
            self._turn(owners[columns == column], int(column), acquires)

    def knows(self, owners: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """Whether each owner knows the segment (of the same place in the other array) to be over."""
        segments = segments.copy()
        known = self.owner[segments] == owners
        open_ = ~known & (segments > 0)
        rows = owners - self.first
        while open_.any():
            at = np.flatnonzero(open_)
            here = segments[at]
            column = self.column[here]
            ended = column >= 0
            seen = ended & (self.known[rows[at], column] >= self.release[here])
            known[at[seen]] = True
            further = ended & ~seen & self.alone[here]
            segments[at] = self.following[here]
            open_ = np.zeros_like(open_)
            open_[at[further]] = True
        return known

    # --- one column

    def _turn(self, owners: np.ndarray, column: int, acquires: bool) -> None:
        """Different programs, one after another, release at one address."""
        rows = owners - self.first
        mine = self.known[rows]
        past = np.concatenate((self.left[column : column + 1], mine))
        np.maximum.accumulate(past, 0, out=past)  # what the programs before each have left
        numbers = self.releases[column] + 1 + np.arange(len(owners), dtype=np.int32)
        if acquires:
            mine = np.maximum(mine, past[:-1])
            mine[:, column] = numbers
            self.known[rows] = mine
        self.left[column] = past[-1]
        self.left[column, column] = self.releases[column] = numbers[-1]
        ended, fresh = self.now[owners], self._segments(owners)
        self.column[ended] = column
        self.release[ended] = numbers
        self.following[ended] = fresh
        self.alone[ended] = not acquires
        self.now[owners] = fresh

    def _acquire(self, pairs: np.ndarray) -> None:
        for column in np.unique(pairs[:, 1]):
            rows = pairs[pairs[:, 1] == column, 0] - self.first
            self.known[rows] = np.maximum(self.known[rows], self.left[column])

    def _columns_of(self, addresses: np.ndarray, releases: bool) -> np.ndarray:
        """The column of each address; -1 if nothing was ever released there, and nothing is now."""
        places, index = np.unique(addresses, return_inverse=True)
        columns = np.array([self._column(place, releases) for place in places.tolist()], np.int32)
        return columns[index.reshape(-1)]

    def _column(self, place: int, releases: bool) -> int:
        column = self.columns.get(place)
        if column is not None:
            return column
        count = len(self.columns)
        column = count if count < COLUMNS else place // 4 % COLUMNS
        if not releases:
            return column if count == PLACES else -1
        if count < PLACES:
            self.columns[place] = column
        return column

    def _segments(self, owners: np.ndarray) -> np.ndarray:
        """New segments of these owners."""
        fresh = np.arange(self.segments, self.segments + len(owners), dtype=np.int32)
        self.segments += len(owners)
        for name in ("owner", "column", "release", "following", "alone"):
            setattr(self, name, _room(getattr(self, name), self.segments, -1 if name == "column" else 0))
        self.owner[fresh] = owners
        return fresh


def _room(array: np.ndarray, size: int, filler: int = 0) -> np.ndarray:
    """The array, or a longer copy if it has fewer than `size` rows."""
    if len(array) >= size:
        return array
    longer = np.full((max(size, 2 * len(array)), *array.shape[1:]), filler, array.dtype)
    longer[: len(array)] = array
    return longer
