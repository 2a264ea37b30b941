"""TTIR's operations on memory: pointers, loads, stores, atomics, tensor descriptors. See ops.py for what a value is."""

import math

import numpy as np

from .memory import SIZES
from .numbers import DTYPE, FLOATS, decoder, encoder, rounder
from .ops import Descriptor, check, full, need
from .types import Op, Unsupported


def addptr(op: Op):
    need(op, 2, 1)
    (p, i), (out,), (pointer, offset) = op.operands, op.results, op.otypes
    check(pointer.elem == "ptr" and pointer == op.rtypes[0] and offset.shape == pointer.shape, op)
    check(offset.elem in ("i8", "i16", "i32", "i64"), op)
    size = np.int64(SIZES[pointer.target().elem])

    def step(v, frame):
        v[out] = v[p] + v[i] * size

    return step


def _mask_shape(op: Op, i: int) -> None:
    check(op.otypes[i] == ("i1", op.otypes[0].shape, ""), op)


def load(op: Op):
    """Where the mask is off: `other`, or 0, which is what Triton's code for NVIDIA GPUs puts into the register first."""
    need(op, len(op.operands), 1)
    pointer, kind, p = op.otypes[0], op.rtypes[0], op.operands[0]
    check(pointer.elem == "ptr" and kind == pointer.target() and len(op.operands) <= 3, op)
    if len(op.operands) > 1:
        _mask_shape(op, 1)
    if len(op.operands) > 2:
        check(op.otypes[2] == kind, op)
    (out,), decode, size, zero = op.results, decoder(kind.elem), SIZES[kind.elem], DTYPE[kind.elem].type(0)
    mask, other = (op.operands[1:] + [None, None])[:2]

    def step(v, frame):
        raw, on = frame.launch.memory.load(frame, op, v[p], None if mask is None else v[mask], size)
        x = decode(raw)
        v[out] = x if on is None else np.where(on, x, zero if other is None else v[other])

    return step


def store(op: Op):
    need(op, len(op.operands), 0)
    check(2 <= len(op.operands) <= 3, op)
    pointer, kind, (p, x) = op.otypes[0], op.otypes[1], op.operands[:2]
    check(pointer.elem == "ptr" and kind == pointer.target(), op)
    if len(op.operands) > 2:
        _mask_shape(op, 2)
    encode, size, mask = (
        encoder(kind.elem),
        SIZES[kind.elem],
        op.operands[2] if len(op.operands) > 2 else None,
    )

    def step(v, frame):
        frame.launch.memory.store(frame, op, v[p], None if mask is None else v[mask], encode(v[x]), size)

    return step


RMW = {  # name: (function of registers, unsigned)
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


def _update(name: str, elem: str):
    """Raw words old, x -> raw words new; and the ufunc that does it in place, or None."""
    f, encode, decode = RMW[name], encoder(elem), decoder(elem)
    if name in ("exch", "umax", "umin", "and", "or", "xor"):
        ufunc = None if name == "exch" else (f, np.dtype(f"u{SIZES[elem]}"))
        return f, ufunc
    near = rounder(elem) or (lambda x: x)
    native = np.dtype(np.float16) if elem == "f16" else None if elem == "bf16" else DTYPE[elem]
    return lambda old, x: encode(near(f(decode(old), decode(x)))), native and (f, native)


def atomic_rmw(op: Op, used: bool):
    need(op, len(op.operands), 1)
    name = op.words[0] if op.words else ""
    check(name in RMW and 2 <= len(op.operands) <= 3, op)
    pointer, kind, (p, x), (out,) = op.otypes[0], op.otypes[1], op.operands[:2], op.results
    check(pointer.elem == "ptr" and kind == pointer.target() == op.rtypes[0], op)
    check(
        kind.elem in ("i16", "i32", "i64", "f16", "bf16", "f32", "f64")
        and (name == "fadd") <= (kind.elem in FLOATS),
        op,
    )
    if len(op.operands) > 2:
        _mask_shape(op, 2)
    encode, decode, size, mask = (
        encoder(kind.elem),
        decoder(kind.elem),
        SIZES[kind.elem],
        (op.operands[2:] + [None])[0],
    )
    update, ufunc = _update(name, kind.elem)

    def step(v, frame):
        memory, on = frame.launch.memory, None if mask is None else v[mask]
        old = memory.atomic(
            frame, op, v[p], on, size, update, (full(encode(v[x]), kind.shape),), None if used else ufunc
        )
        v[out] = None if old is None else decode(old)

    return step


def atomic_cas(op: Op):
    need(op, 3, 1)
    pointer, kind, (p, expected, x), (out,) = op.otypes[0], op.rtypes[0], op.operands, op.results
    check(pointer.elem == "ptr" and op.otypes[1:] == [kind, kind] and kind == pointer.target(), op)
    encode, decode, size = encoder(kind.elem), decoder(kind.elem), SIZES[kind.elem]
    update = lambda old, wanted, new: np.where(old == wanted, new, old)

    def step(v, frame):
        words = (full(encode(v[expected]), kind.shape), full(encode(v[x]), kind.shape))
        v[out] = decode(frame.launch.memory.atomic(frame, op, v[p], None, size, update, words))

    return step


# --- descriptors


def make_descriptor(op: Op):
    rank = (len(op.operands) - 1) // 2
    need(op, 1 + 2 * rank, 1)
    kind, (out,), args = op.rtypes[0], op.results, op.operands
    padding = {"1": "zero", "2": "nan"}[op.attrs.get("padding", "1")]
    check(op.otypes[0] == ("ptr", (), kind.pointee) and kind.elem == "desc" and len(kind.shape) == rank, op)
    check(all(t in (("i32", (), ""), ("i64", (), "")) for t in op.otypes[1:]), op)

    def step(v, frame):
        sizes = tuple(v[i].astype(np.int64) for i in args[1:])
        v[out] = Descriptor(v[args[0]], sizes[:rank], sizes[rank:], padding)

    return step


def descriptor_access(op: Op):
    """Outside the tensor loads are 0 (or NaN, as the descriptor says) and stores do nothing; reductions are atomic.

    What the descriptor lets through is checked against memory, as for pointers.
    """
    kind, name = op.otypes[0], op.name
    rank = len(kind.shape)
    loads = name == "tt.descriptor_load"
    need(op, 1 + rank + (not loads), int(loads))
    d, starts = op.operands[0], op.operands[1 : 1 + rank]
    check(
        kind.elem == "desc"
        and all(op.otypes[1 + i].elem == "i32" and not op.otypes[1 + i].shape for i in range(rank)),
        op,
    )
    if not loads:
        check(op.otypes[-1] == (kind.pointee, kind.shape, ""), op)
    elem, size = kind.pointee, SIZES[kind.pointee]
    encode, decode, number = encoder(elem), decoder(elem), DTYPE[elem].type
    target = op.rtypes[0] if loads else None
    if loads:  # leading dimensions of 1 may be dropped
        check(target.elem == elem and math.prod(target.shape) == math.prod(kind.shape), op)
    ranges = [
        np.arange(n).reshape([1] + [n if i == j else 1 for j in range(rank)])
        for i, n in enumerate(kind.shape)
    ]
    spread = (-1,) + (1,) * rank
    reduction = None
    if name == "tt.descriptor_reduce":
        rule = op.words[0] if op.words else ""
        rule = {"add": "fadd", "inc": "", "dec": ""}.get(rule, rule) if elem in FLOATS else rule
        if rule not in RMW:
            raise Unsupported(f"{name} {rule[:20]} of {elem}")
        reduction = _update(rule, elem)

    def step(v, frame):
        desc, memory = v[d], frame.launch.memory
        address, on = desc.base.reshape(spread), True
        for start, along, length, stride in zip(starts, ranges, desc.shape, desc.strides):
            index = v[start].reshape(spread).astype(np.int64) + along
            on = on & (index >= 0) & (index < length.reshape(spread))
            address = address + index * stride.reshape(spread) * size
        if loads:
            raw, mask = memory.load(frame, op, address, on, size)
            outside = np.nan if desc.padding == "nan" and elem in FLOATS else 0
            x = decode(raw) if mask is None else np.where(mask, decode(raw), number(outside))
            v[op.results[0]] = (
                x if target.shape == kind.shape else full(x, kind.shape).reshape((-1,) + target.shape)
            )
        elif reduction is None:
            memory.store(frame, op, address, on, encode(v[op.operands[-1]]), size)
        else:
            memory.atomic(
                frame,
                op,
                address,
                on,
                size,
                reduction[0],
                (full(encode(v[op.operands[-1]]), kind.shape),),
                reduction[1],
            )

    return step


BUILD = {
    "tt.addptr": addptr,
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_cas": atomic_cas,
    "tt.make_tensor_descriptor": make_descriptor,
    "tt.descriptor_load": descriptor_access,
    "tt.descriptor_store": descriptor_access,
    "tt.descriptor_reduce": descriptor_access,
}
