"""TTIR's operations that move elements of tensors, and the histogram, which counts them."""

import math
from collections.abc import Callable

import numpy as np

from .memory import OutOfBounds
from .ops import Step, check, full, integers, need
from .types import Op


def _lead(*xs: np.ndarray) -> list[np.ndarray]:
    """The same number of programs in all."""
    n = max(x.shape[0] for x in xs)
    return [np.broadcast_to(x, (n, *x.shape[1:])) for x in xs]


def axis_of(op: Op, rank: int) -> int:
    """The axis of an operation on tensors of this rank."""
    axis = int(op.attrs.get("axis", "-1"))
    check(0 <= axis < rank, op)
    return axis


def _view(op: Op, move: Callable[[np.ndarray], np.ndarray]) -> Step:
    (a,), (out,) = op.operands, op.results

    def step(v, frame):
        v[out] = move(v[a])

    return step


def _shapes(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the operand and of the result, of one element type."""
    need(op, 1, 1)
    source, target = op.otypes[0], op.rtypes[0]
    check(source.elem == target.elem, op)
    check(source.elem != "desc", op)
    return source.shape, target.shape


def splat(op: Op) -> Step:
    source, target = _shapes(op)
    check(source == (), op)
    shape = (-1,) + (1,) * len(target)
    return _view(op, lambda x: x.reshape(shape))


def broadcast(op: Op) -> Step:
    """Nothing is to be done: an axis of length 1 stands for any length."""
    source, target = _shapes(op)
    check(len(source) == len(target), op)
    check(all(s in (1, t) for s, t in zip(source, target)), op)
    return _view(op, lambda x: x)


def expand_dims(op: Op) -> Step:
    source, target = _shapes(op)
    axis = axis_of(op, len(target))
    check(target == source[:axis] + (1,) + source[axis:], op)
    return _view(op, lambda x: np.expand_dims(x, axis + 1))


def transpose(op: Op) -> Step:
    source, target = _shapes(op)
    order = integers(op.attrs.get("order", ""))
    check(sorted(order) == list(range(len(target))), op)
    check(target == tuple(source[i] for i in order), op)
    axes = (0, *(i + 1 for i in order))
    return _view(op, lambda x: x.transpose(axes))


def reshape(op: Op) -> Step:
    """tt.reshape and tt.unsplat."""
    source, target = _shapes(op)
    check(math.prod(source) == math.prod(target), op)
    whole = (-1, *target)
    ones = (-1,) + (1,) * len(target)

    def move(x: np.ndarray) -> np.ndarray:
        if x.size == len(x):  # one element a program stands for all
            return x.reshape(ones)
        return full(x, source).reshape(whole)

    return _view(op, move)


def join(op: Op) -> Step:
    """tt.join along a new last axis, tt.cat along the only one."""
    need(op, 2, 1)
    (a, b), (out,) = op.operands, op.results
    source, target = op.otypes[0], op.rtypes[0]
    shape = source.shape
    cat = op.name == "tt.cat"
    check(op.otypes[1] == source, op)
    check(source.elem == target.elem != "desc", op)
    check(len(shape) == 1 or not cat, op)
    check(target.shape == ((2 * shape[0],) if cat else (*shape, 2)), op)

    def step(v, frame):
        x, y = _lead(full(v[a], shape), full(v[b], shape))
        v[out] = np.concatenate((x, y), 1) if cat else np.stack((x, y), -1)

    return step


def split(op: Op) -> Step:
    need(op, 1, 2)
    (a,), (left, right) = op.operands, op.results
    source = op.otypes[0]
    check(source.shape[-1:] == (2,), op)
    for half in op.rtypes:
        check(half.shape == source.shape[:-1], op)
        check(half.elem == source.elem, op)

    def step(v, frame):
        x = v[a]
        v[left] = x[..., 0]
        v[right] = x[..., -1]

    return step


def gather(op: Op) -> Step:
    need(op, 2, 1)
    (a, i), (out,) = op.operands, op.results
    (source, index), target = op.otypes, op.rtypes[0]
    axis = axis_of(op, len(source.shape))
    check(target.elem == source.elem, op)
    check(index.elem in ("i32", "i64"), op)
    check(target.shape == index.shape, op)
    check(len(index.shape) == len(source.shape), op)
    for k, (size, picked) in enumerate(zip(source.shape, index.shape)):
        check(size == picked or k == axis, op)

    def step(v, frame):
        x, where = _lead(full(v[a], source.shape), full(v[i], index.shape))
        if where.min() < 0 or where.max() >= source.shape[axis]:
            at = frame.evaluation.at(op)
            raise OutOfBounds(f"{at}: index outside the {source.shape[axis]} elements of the axis")
        v[out] = np.take_along_axis(x, where, axis + 1)

    return step


def histogram(op: Op) -> Step:
    need(op, len(op.operands), 1)
    source, target = op.otypes[0], op.rtypes[0]
    (out,) = op.results
    check(len(source.shape) == len(target.shape) == 1, op)
    check(target.elem == "i32", op)
    check(source.elem in ("i8", "i16", "i32", "i64"), op)
    check(op.otypes[1:] in ([], [("i1", source.shape, "")]), op)
    (bins,) = target.shape

    def step(v, frame):
        x, *mask = _lead(*(full(v[i], source.shape) for i in op.operands))
        inside = (x >= 0) & (x < bins)
        if mask:
            inside &= mask[0]
        programs = len(x)
        flat = (x + np.arange(programs)[:, None] * bins)[inside]
        counts = np.bincount(flat, minlength=programs * bins)
        v[out] = counts.reshape(-1, bins).astype(np.int32)

    return step


BUILD = {
    "tt.splat": splat,
    "tt.broadcast": broadcast,
    "tt.expand_dims": expand_dims,
    "tt.trans": transpose,
    "tt.reshape": reshape,
    "tt.unsplat": reshape,
    "tt.join": join,
    "tt.cat": join,
    "tt.split": split,
    "tt.gather": gather,
    "tt.histogram": histogram,
}
