"""The global memory of a TTIR evaluation: torch CPU tensors at virtual addresses, every access checked.

Buffer i starts at address (i + 1) << 40. So a pointer that leaves its buffer lands in none (a terabyte of
guard on both sides), and the buffer of an address is one shift away. Two things are checked, exactly and
for every element that is not masked off:

- Bounds and alignment. `OutOfBounds` names the kernel's argument, the element and the program.
- Races between the programs of one launch (races.py).

In the methods below `frame` says which programs access memory, and `at` is their operation in the kernel.
`mask` is None, or False for elements that are not accessed. Address, mask and values have a lazily
broadcast shape (ops.py).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from .analysis import Reach
from .clocks import Clocks
from .races import MANY, Race, Watch
from .types import TTIRError

SHIFT = 40
SIZES = dict.fromkeys(("i1", "i8", "f8E4M3FN", "f8E5M2"), 1)
SIZES |= {"i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8, "ptr": 8, "index": 8}
RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
EVERYONE = 1 << 20  # accesses: more of an operation that every program does alike are not told apart


class OutOfBounds(TTIRError):
    """An access outside every tensor, or misaligned. On a GPU it is illegal, or silently corrupts memory."""


class Sync(NamedTuple):
    """What an atomic, or a volatile load, does for the order of programs.

    narrow: it is of scope cta, and so it is an atomic for its own program alone.
    """

    acquires: bool
    releases: bool
    narrow: bool = False


class Buffer:
    """A tensor's storage.

    views: its bytes as words, by the size of a word. keep: an object that keeps the memory alive.
    watched: loads and atomics are noted, because another access of this launch may race with them.
    notes: whether it is noted which bytes are loaded. loaded: for each byte, whether any launch has loaded it
    (0 or 255); None if none has, or that is not noted.
    """

    def __init__(self, base: int, data: np.ndarray, keep: object, notes: bool = False):
        self.base = base
        self.notes = notes
        self.data = data
        self.nbytes = data.size
        self.keep = keep
        self.views: dict[int, np.ndarray] = {}
        for size, raw in RAW.items():
            whole = data.size // size * size
            self.views[size] = data[:whole].view(raw)
        self.loaded: np.ndarray | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the last launch."""
        self.name = "a tensor"
        self.watched = False

    def note_loaded(self, index, mask, size: int) -> None:
        """index, mask: of the elements that are loaded, as in GlobalMemory.load."""
        if not self.notes:
            return
        if self.loaded is None:
            self.loaded = np.zeros(self.nbytes, np.uint8)
        if mask is not None:
            index, mask = np.broadcast_arrays(index, mask)
            index = index[mask]
        words = self.loaded[: self.nbytes // size * size].view(RAW[size])
        words[index] = np.iinfo(RAW[size]).max


class GlobalMemory:
    """The buffers that kernels can reach.

    notes: which bytes are loaded is noted (Buffer.loaded). turn: of a launch whose programs wait for each
    other, what the program that is running has seen and done (waiting.py).
    """

    def __init__(self, notes: bool = False) -> None:
        self.notes = notes
        self.buffers: list[Buffer] = []
        self.by_storage: dict[int, Buffer] = {}
        self.watch = Watch(None)
        self.turn = None

    def add(self, tensor: torch.Tensor | np.ndarray) -> int:
        """The address of a CPU tensor's first element.

        Kernels load and store the tensor's own storage. Views of one storage share a buffer.
        """
        if isinstance(tensor, np.ndarray):
            return self._buffer(tensor.reshape(-1).view(np.uint8), tensor).base
        storage = tensor.untyped_storage()
        buffer = self.by_storage.get(storage.data_ptr()) if storage.nbytes() else None
        if buffer is None:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            buffer = self.by_storage[storage.data_ptr()] = self._buffer(data, storage)
        return buffer.base + tensor.storage_offset() * tensor.element_size()

    def _buffer(self, data: np.ndarray, keep: object) -> Buffer:
        self.buffers.append(Buffer((len(self.buffers) + 1) << SHIFT, data, keep, self.notes))
        return self.buffers[-1]

    def find(self, address: int) -> Buffer | None:
        index = (address >> SHIFT) - 1
        return self.buffers[index] if 0 <= index < len(self.buffers) else None

    def begin(self, pointers: dict[int, tuple[int, str]], reach: Reach, clocks: Clocks | None) -> None:
        """A launch starts.

        pointers: number of an argument -> (address, name). clocks: of a kernel that synchronises by atomics.
        """
        self.watch = Watch(clocks)
        self.turn = None
        for buffer in self.buffers:
            buffer.reset()
        reached: dict[int, int] = {}  # a buffer -> bits of its arguments
        for i, (address, name) in pointers.items():
            if buffer := self.find(address):
                buffer.name = name
                reached[buffer.base] = reached.get(buffer.base, 0) | 1 << i
        for buffer in self.buffers:
            bits = reached.get(buffer.base, 0)
            stored, loaded, atomics, narrow = (mask == -1 or bool(mask & bits) for mask in reach)
            buffer.watched = stored + loaded + atomics > 1 or narrow

    # --- access

    def load(self, frame, at, address, mask, size: int, volatile: bool = False):
        """(raw unsigned elements, the mask or None if it is all on).

        Where the mask is off an element is anything.
        """
        if volatile and self.watch.clocks is not None:  # it acquires what was released at the address
            flat, _, owner = self._flat(frame, address, mask, address)
            self.watch.clocks.meet(owner, flat, acquires=True, releases=False)
            frame.evaluation.spend(flat.size)
        raw, mask = self._load(frame, at, address, mask, size, volatile)
        if self.turn is not None:
            flat, words, _ = self._flat(frame, address, mask, raw)
            self.turn.see(flat, words, size)
        return raw, mask

    def _load(self, frame, at, address, mask, size: int, volatile: bool):
        if mask is not None and mask.all():
            mask = None
        elif mask is not None and not mask.any():
            return np.zeros((1,) * address.ndim, RAW[size]), mask
        buffer = self._guess(address, mask)
        offset = address - buffer.base
        bad = self._bad(buffer, offset, size)
        if bad and mask is not None:
            offset = np.where(mask, offset, 0)  # a pointer that is masked off may point anywhere
            bad = self._bad(buffer, offset, size)
        if bad:
            return self._scattered_load(frame, at, address, mask, size, volatile), mask
        index = offset >> (size.bit_length() - 1)
        if buffer.watched:
            flat, _, owner = self._flat(frame, index, mask, index)
            self.watch.load(frame, at, buffer, flat, size, owner, volatile)
        buffer.note_loaded(index, mask, size)
        return buffer.views[size].take(index), mask

    def store(self, frame, at, address, mask, raw, size: int) -> None:
        address, raw, owner = self._flat(frame, address, mask, raw, stores=True)
        for buffer, index, part in self._split(frame, at, address, size, owner):
            self._store(frame, at, buffer, index, raw[part], size, owner[part])
        if self.turn is not None:
            self.turn.store(address)

    def _store(self, frame, at, buffer: Buffer, index, raw, size: int, owner) -> None:
        self.watch.store(frame, at, buffer, index, raw, size, owner)
        view = buffer.views[size]
        view[index] = raw
        lost = view[index] != raw
        if lost.any():
            who = frame.evaluation.program(owner[lost][0])
            raise Race(
                f"{frame.evaluation.at(at)}: different values are stored at one address of {buffer.name} "
                f"at once (element {index[lost][0]}, by {who})"
            )

    def atomic(
        self,
        frame,
        at,
        address,
        mask,
        size: int,
        update: Callable,
        values: tuple[np.ndarray, ...],
        ufunc: tuple[np.ufunc, np.dtype] | None = None,
        sync: Sync = Sync(False, False),
    ) -> np.ndarray | None:
        """For each element, in order of program and position: old = memory, memory = update(old, *values).

        All are raw words. ufunc: (a NumPy ufunc, its dtype) that does the same to memory if nobody reads the
        old values. Returns the old values, or None with `ufunc`.
        """
        arrays = (address, *values)
        programs = np.broadcast_shapes((frame.n,), *(x.shape[:1] for x in arrays))
        tails = [x.shape[1:] for x in arrays]
        if mask is not None:
            tails.append(mask.shape[1:])
        tail = np.broadcast_shapes(*tails)
        shape = programs + tail

        on = np.ones(shape, bool).ravel() if mask is None else np.broadcast_to(mask, shape).ravel()

        def active(x: np.ndarray) -> np.ndarray:
            return np.broadcast_to(x, shape).ravel()[on]

        address = active(address)
        values = [active(x) for x in values]
        owner = active(frame.owner.reshape(-1, *[1] * len(tail)))
        old = np.zeros(on.size, RAW[size])
        places = on.nonzero()[0]
        who = self._order(frame, owner, address, sync)
        for buffer, index, part in self._split(frame, at, address, size, owner):
            view = buffer.views[size]
            buffer.note_loaded(index, None, size)
            if buffer.watched:
                segments = None if who is None else who[part]
                self.watch.atomic(frame, at, buffer, index, size, owner[part], segments, sync.narrow)
            mine = [x[part] for x in values]
            if ufunc is not None:
                function, dtype = ufunc
                function.at(view.view(dtype), index, mine[0].view(dtype))
                continue
            for turn in _turns(index):
                frame.evaluation.spend(turn.size + 1000)
                before = view[index[turn]]
                old[places[part][turn]] = before
                view[index[turn]] = update(before, *(x[turn] for x in mine))
        if self.turn is not None:
            self.turn.atomic(self, address, None if ufunc is not None else old[places], size)
        return None if ufunc is not None else old.reshape(shape)

    def _order(self, frame, owner, address, sync: Sync) -> np.ndarray | None:
        """Put the programs in order by an atomic. Returns the segments that they were in before."""
        clocks = self.watch.clocks
        if clocks is None:
            return None
        who = clocks.now[owner]
        if sync.acquires or sync.releases:
            frame.evaluation.spend(100 * len(owner))
            clocks.meet(owner, address, sync.acquires, sync.releases)
        return who

    def word(self, address: int, size: int) -> int:
        """The raw word at an address that was accessed before."""
        buffer = self.find(address)
        return int(buffer.views[size][(address - buffer.base) // size])

    # --- addresses

    def _guess(self, address, mask) -> Buffer:
        """The buffer of one active element, or NOWHERE."""
        if mask is None:
            first = address.item(0)
        else:
            address, mask = np.broadcast_arrays(address, mask)
            first = address.item(int(mask.argmax()))
        return self.find(first) or NOWHERE

    @staticmethod
    def _bad(buffer: Buffer, offset, size: int) -> bool:
        """Whether some offset is negative, beyond the buffer or misaligned."""
        bits = int(np.bitwise_or.reduce(offset, axis=None))
        if bits < 0 or bits & (size - 1):
            return True
        return int(offset.max()) > buffer.nbytes - size

    def _flat(self, frame, address, mask, other, stores: bool = False):
        """The active elements of (address, other) and their owners, each along one axis.

        Where every program does the same, the owner is MANY. With clocks programs are told apart even so; of
        stores, which all store the same, the last one is named.
        """
        arrays = (address, other) if mask is None else (address, other, mask)
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        owner = frame.owner
        if shape[0] == 1 and frame.n > 1:
            if self.watch.clocks is None:
                owner = np.full(1, MANY, np.int32)
            elif stores or frame.n * np.prod(shape) > EVERYONE:
                owner = owner[-1:]
            else:
                shape = (frame.n, *shape[1:])
        owner = owner.reshape(-1, *[1] * (len(shape) - 1))
        flat = [np.broadcast_to(x, shape).ravel() for x in (address, other, owner)]
        if mask is not None:
            on = np.broadcast_to(mask, shape).ravel()
            flat = [x[on] for x in flat]
        return flat

    def _split(self, frame, at, address, size: int, owner) -> Iterator[tuple[Buffer, np.ndarray, object]]:
        """For each buffer of flat addresses: (buffer, element indices, which of the addresses they are).

        Raises OutOfBounds.
        """
        if not address.size:
            return
        buffer = self.find(address.item(0)) or NOWHERE
        offset = address - buffer.base
        if not self._bad(buffer, offset, size):
            yield buffer, offset >> (size.bit_length() - 1), slice(None)
            return
        numbers = address >> SHIFT
        for number in np.unique(numbers):
            part = numbers == number
            buffer = self.find(int(number) << SHIFT) or NOWHERE
            offset = address[part] - buffer.base
            misaligned = offset & (size - 1) != 0
            bad = (offset < 0) | (offset > buffer.nbytes - size) | misaligned
            if bad.any():
                wrong, owners = address[part][bad], owner[part][bad]
                self._out_of_bounds(frame, at, wrong, size, owners, address.size)
            yield buffer, offset >> (size.bit_length() - 1), part

    def _scattered_load(self, frame, at, address, mask, size: int, volatile: bool):
        """Elements of several buffers in one load."""
        shape = address.shape if mask is None else np.broadcast_shapes(address.shape, mask.shape)
        if shape[0] == 1 and self.watch.clocks is not None:
            shape = (frame.n, *shape[1:])
            address = np.broadcast_to(address, shape)
        out = np.zeros(shape, RAW[size])
        flat, _, owner = self._flat(frame, address, mask, np.zeros((1,) * len(shape), bool))
        values = np.zeros(flat.size, RAW[size])
        for buffer, index, part in self._split(frame, at, flat, size, owner):
            values[part] = buffer.views[size][index]
            buffer.note_loaded(index, None, size)
            if buffer.watched:
                self.watch.load(frame, at, buffer, index, size, owner[part], volatile)
        if mask is None:
            return values.reshape(shape)
        out[np.broadcast_to(mask, shape)] = values
        return out

    # --- messages

    def _out_of_bounds(self, frame, at, bad, size: int, owner, total: int) -> None:
        address = int(bad[0])
        where = f"address {address & (2**64 - 1):#x}, which belongs to no tensor"
        near = self.find(address + (1 << (SHIFT - 1)))
        if near is not None:
            offset = address - near.base
            if offset % size:
                where = f"byte {offset} of {near.name}, misaligned for {size}-byte elements"
            else:
                where = f"element {offset // size} of {near.name}, which has {near.nbytes // size}"
        # how many programs are evaluated together is nobody's business, but that none of their elements is
        # inside says that no mask will help
        count = f"{'all ' if bad.size == total else ''}{bad.size} elements"
        raise OutOfBounds(
            f"{frame.evaluation.at(at)}: {count} out of bounds: {where} "
            f"({frame.evaluation.program(owner[0])})"
        )


def _turns(index: np.ndarray) -> Iterator[np.ndarray]:
    """Positions in groups of which none has an address twice. An address's positions keep their order."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    start = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    if start.all():
        yield order
        return
    position = np.arange(len(order))
    rank = position - np.maximum.accumulate(np.where(start, position, 0))  # among those of its address
    by_rank = np.argsort(rank, kind="stable")
    ends = np.flatnonzero(np.diff(rank[by_rank])) + 1
    for group in np.split(by_rank, ends):
        yield order[group]


NOWHERE = Buffer(-1 << 60, np.zeros(0, np.uint8), None)
