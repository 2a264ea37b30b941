"""TTIR's operations on memory: pointers, loads, stores, atomics, descriptors. See ops.py for values."""

import math
from collections.abc import Callable

import numpy as np

from .analysis import narrow, volatile
from .memory import SIZES, Sync
from .numbers import DTYPE, FLOATS, decoder, encoder, rounder
from .ops import Descriptor, Step, check, full, need
from .promises import FalsePromise
from .types import Op, Type, Unsupported

SIZE_TYPES = (Type("i32"), Type("i64"))  # of a descriptor's shape and strides
TMA_ALIGNMENT = 16  # bytes, of a descriptor's base and of its strides, save the last


def addptr(op: Op) -> Step:
    need(op, 2, 1)
    (p, i), (out,) = op.operands, op.results
    pointer, offset = op.otypes
    check(pointer.elem == "ptr", op)
    check(pointer == op.rtypes[0], op)
    check(offset.shape == pointer.shape, op)
    check(offset.elem in ("i8", "i16", "i32", "i64"), op)
    size = np.int64(SIZES[pointer.target().elem])

    def step(v, frame):
        v[out] = v[p] + v[i] * size

    return step


def _mask(op: Op, number: int) -> int | None:
    """The slot of the mask, if operand `number` is there."""
    if len(op.operands) <= number:
        return None
    check(op.otypes[number] == ("i1", op.otypes[0].shape, ""), op)
    return op.operands[number]


def load(op: Op) -> Step:
    """Where the mask is off the result is `other`, or else 0, as in Triton's code for NVIDIA GPUs."""
    need(op, len(op.operands), 1)
    check(len(op.operands) <= 3, op)
    pointer, kind = op.otypes[0], op.rtypes[0]
    check(pointer.elem == "ptr", op)
    check(kind == pointer.target(), op)
    p, (out,) = op.operands[0], op.results
    mask = _mask(op, 1)
    other = None
    if len(op.operands) > 2:
        check(op.otypes[2] == kind, op)
        other = op.operands[2]
    decode, size = decoder(kind.elem), SIZES[kind.elem]
    zero = DTYPE[kind.elem].type(0)
    looks = volatile(op)

    def step(v, frame):
        wanted = None if mask is None else v[mask]
        raw, on = frame.evaluation.memory.load(frame, op, v[p], wanted, size, looks)
        x = decode(raw)
        if on is not None:
            x = np.where(on, x, zero if other is None else v[other])
        v[out] = x

    return step


def store(op: Op) -> Step:
    need(op, len(op.operands), 0)
    check(2 <= len(op.operands) <= 3, op)
    pointer, kind = op.otypes[0], op.otypes[1]
    check(pointer.elem == "ptr", op)
    check(kind == pointer.target(), op)
    p, x = op.operands[:2]
    mask = _mask(op, 2)
    encode, size = encoder(kind.elem), SIZES[kind.elem]

    def step(v, frame):
        on = None if mask is None else v[mask]
        frame.evaluation.memory.store(frame, op, v[p], on, encode(v[x]), size)

    return step


# --- atomics

ATOMIC = frozenset(("i16", "i32", "i64", "f16", "bf16", "f32", "f64"))
RMW = {  # name: the new value of a register, from the old one and the operand
    "fadd": np.add,
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": np.maximum,
    "umin": np.minimum,
    "exch": lambda old, x: x,
}
ON_RAW_WORDS = ("umax", "umin", "and", "or", "xor")


def _update(name: str, elem: str) -> tuple[Callable, tuple[np.ufunc, np.dtype] | None]:
    """(function of raw words old and x -> new, the ufunc and its dtype that do it in place, or None)."""
    f = RMW[name]
    if name == "exch":
        return f, None
    if name in ON_RAW_WORDS:
        return f, (f, np.dtype(f"u{SIZES[elem]}"))
    encode, decode = encoder(elem), decoder(elem)
    near = rounder(elem)

    def update(old, x):
        new = f(decode(old), decode(x))
        return encode(new if near is None else near(new))

    if elem == "bf16":  # NumPy has none
        return update, None
    return update, (f, np.dtype(np.float16) if elem == "f16" else DTYPE[elem])


def _sync(op: Op, used: bool) -> Sync:
    """What the words of an atomic say of order: (the operation,) acq_rel | acquire | release | relaxed, and
    gpu | sys | cta.

    Nobody knows what an atomic acquires whose result is not used. One of scope cta orders nothing between
    programs, and is no atomic for another one.
    """
    if narrow(op):
        return Sync(False, False, narrow=True)
    both = "acq_rel" in op.words
    return Sync(used and (both or "acquire" in op.words), both or "release" in op.words)


def atomic_rmw(op: Op, used: bool) -> Step:
    """used: whether some operation reads the old values."""
    need(op, len(op.operands), 1)
    name = op.words[0] if op.words else ""
    check(name in RMW, op)
    check(2 <= len(op.operands) <= 3, op)
    pointer, kind = op.otypes[0], op.otypes[1]
    check(pointer.elem == "ptr", op)
    check(kind == pointer.target() == op.rtypes[0], op)
    check(kind.elem in ATOMIC, op)
    check(name != "fadd" or kind.elem in FLOATS, op)
    (p, x), (out,) = op.operands[:2], op.results
    mask = _mask(op, 2)
    encode, decode = encoder(kind.elem), decoder(kind.elem)
    size = SIZES[kind.elem]
    update, ufunc = _update(name, kind.elem)
    if used:
        ufunc = None
    sync = _sync(op, used)

    def step(v, frame):
        on = None if mask is None else v[mask]
        words = (full(encode(v[x]), kind.shape),)
        old = frame.evaluation.memory.atomic(frame, op, v[p], on, size, update, words, ufunc, sync)
        v[out] = None if old is None else decode(old)

    return step


def _swap(old, expected, new):
    return np.where(old == expected, new, old)


def atomic_cas(op: Op, used: bool) -> Step:
    need(op, 3, 1)
    pointer, kind = op.otypes[0], op.rtypes[0]
    check(pointer.elem == "ptr", op)
    check(op.otypes[1:] == [kind, kind], op)
    check(kind == pointer.target(), op)
    (p, expected, new), (out,) = op.operands, op.results
    encode, decode = encoder(kind.elem), decoder(kind.elem)
    size = SIZES[kind.elem]
    sync = _sync(op, used)

    def step(v, frame):
        words = tuple(full(encode(v[i]), kind.shape) for i in (expected, new))
        old = frame.evaluation.memory.atomic(frame, op, v[p], None, size, _swap, words, None, sync)
        v[out] = decode(old)

    return step


# --- descriptors


def make_descriptor(op: Op) -> Step:
    """Operands: base, then the shape, then the strides. The GPU's memory units want them aligned."""
    rank = (len(op.operands) - 1) // 2
    need(op, 1 + 2 * rank, 1)
    kind, (out,) = op.rtypes[0], op.results
    base, *sizes = op.operands
    padding = {"1": "zero", "2": "nan"}[op.attrs.get("padding", "1")]
    check(op.otypes[0] == ("ptr", (), kind.pointee), op)
    check(kind.elem == "desc", op)
    check(len(kind.shape) == rank, op)
    check(all(t in SIZE_TYPES for t in op.otypes[1:]), op)

    size = SIZES[kind.pointee]

    def step(v, frame):
        numbers = tuple(v[i].astype(np.int64) for i in sizes)
        starts = [v[base], *(stride * size for stride in numbers[rank:-1])]
        if any((start % TMA_ALIGNMENT).any() for start in starts):
            at = frame.evaluation.at(op)
            raise FalsePromise(
                f"{at}: a descriptor's base and strides (not the last) are multiples of {TMA_ALIGNMENT} bytes"
            )
        v[out] = Descriptor(v[base], numbers[:rank], numbers[rank:], padding)

    return step


class _Window:
    """The elements of a tensor that one access through a descriptor reaches.

    Operands of the operation: the descriptor, then the first index of each dimension.
    """

    def __init__(self, op: Op):
        kind = op.otypes[0]
        check(kind.elem == "desc", op)
        rank = len(kind.shape)
        self.descriptor, *starts = op.operands[: 1 + rank]
        check(all(t == ("i32", (), "") for t in op.otypes[1 : 1 + rank]), op)
        self.size = SIZES[kind.pointee]
        self.spread = (-1,) + (1,) * rank
        self.ranges = []  # (slot of the first index, offsets from it along the dimension)
        for i, n in enumerate(kind.shape):
            shape = [1] * (1 + rank)
            shape[1 + i] = n
            self.ranges.append((starts[i], np.arange(n).reshape(shape)))

    def places(self, v) -> tuple[np.ndarray, np.ndarray]:
        """(addresses, mask of those inside of the tensor)."""
        descriptor = v[self.descriptor]
        address, on = descriptor.base.reshape(self.spread), True
        for (start, along), length, stride in zip(self.ranges, descriptor.shape, descriptor.strides):
            index = v[start].reshape(self.spread).astype(np.int64) + along
            on = on & (index >= 0) & (index < length.reshape(self.spread))
            address = address + index * stride.reshape(self.spread) * self.size
        return address, on


# Outside the tensor a load through a descriptor gives 0 (or NaN, as the descriptor says) and a store does
# nothing. Reductions are atomic. An access that the descriptor lets through is checked as one by pointers.


def descriptor_load(op: Op) -> Step:
    kind, target = op.otypes[0], op.rtypes[0]
    need(op, 1 + len(kind.shape), 1)
    window = _Window(op)
    elem = kind.pointee
    # leading dimensions of 1 may be dropped
    check(target.elem == elem, op)
    check(math.prod(target.shape) == math.prod(kind.shape), op)
    decode, number = decoder(elem), DTYPE[elem].type
    out = op.results[0]

    def step(v, frame):
        address, on = window.places(v)
        raw, mask = frame.evaluation.memory.load(frame, op, address, on, window.size)
        x = decode(raw)
        if mask is not None:
            nan = v[window.descriptor].padding == "nan" and elem in FLOATS
            x = np.where(mask, x, number(np.nan if nan else 0))
        if target.shape != kind.shape:
            x = full(x, kind.shape).reshape((-1, *target.shape))
        v[out] = x

    return step


def _window_and_value(op: Op) -> tuple[_Window, int]:
    """The window of a descriptor, and the slot of the value that goes into it."""
    kind = op.otypes[0]
    need(op, 2 + len(kind.shape), 0)
    window = _Window(op)
    check(op.otypes[-1] == (kind.pointee, kind.shape, ""), op)
    return window, op.operands[-1]


def descriptor_store(op: Op) -> Step:
    window, x = _window_and_value(op)
    encode = encoder(op.otypes[0].pointee)

    def step(v, frame):
        address, on = window.places(v)
        frame.evaluation.memory.store(frame, op, address, on, encode(v[x]), window.size)

    return step


def descriptor_reduce(op: Op) -> Step:
    window, x = _window_and_value(op)
    kind = op.otypes[0]
    elem = kind.pointee
    rule = op.words[0] if op.words else ""
    if elem in FLOATS:
        rule = {"add": "fadd", "inc": "", "dec": ""}.get(rule, rule)
    if rule not in RMW:
        raise Unsupported(f"{op.name} {rule[:20]} of {elem}")
    encode = encoder(elem)
    update, ufunc = _update(rule, elem)

    def step(v, frame):
        address, on = window.places(v)
        words = (full(encode(v[x]), kind.shape),)
        frame.evaluation.memory.atomic(frame, op, address, on, window.size, update, words, ufunc)

    return step


BUILD = {
    "tt.addptr": addptr,
    "tt.load": load,
    "tt.store": store,
    "tt.make_tensor_descriptor": make_descriptor,
    "tt.descriptor_load": descriptor_load,
    "tt.descriptor_store": descriptor_store,
    "tt.descriptor_reduce": descriptor_reduce,
}
