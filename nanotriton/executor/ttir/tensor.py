"""TTIR's operations that are neither element by element nor on memory: shapes, reductions, matrix products. See ops.py for
what a value is."""

import math

import numpy as np

from . import access
from .memory import OutOfBounds
from .numbers import DTYPE, FLOATS, rounder, tf32
from .ops import AssertionFailed, check, elementwise, full, integers, need
from .types import Op, Unsupported

NOTHING = frozenset(
    ["tt.print", "gpu.barrier", "ttg.barrier", "ttg.local_barrier", "llvm.intr.assume", "tt.assume"]
)


def _lead(*xs: np.ndarray) -> list[np.ndarray]:
    """The same number of programs in all."""
    n = max(x.shape[0] for x in xs)
    return [x if x.shape[0] == n else np.broadcast_to(x, (n,) + x.shape[1:]) for x in xs]


def _axis(op: Op, rank: int) -> int:
    axis = int(op.attrs.get("axis", "-1"))
    check(0 <= axis < rank, op)
    return axis


# --- shapes


def view(op: Op):
    """Operations that take and give one tensor and only move elements."""
    need(op, 1, 1)
    (a,), (out,), source, target = op.operands, op.results, op.otypes[0], op.rtypes[0]
    check(source.elem == target.elem and source.elem != "desc", op)
    rank, name = len(target.shape), op.name
    if name == "tt.splat":
        check(source.shape == (), op)
        shape = (-1,) + (1,) * rank
        f = lambda x: x.reshape(shape)
    elif name == "tt.broadcast":
        check(len(source.shape) == rank and all(s in (1, t) for s, t in zip(source.shape, target.shape)), op)
        f = lambda x: x
    elif name == "tt.expand_dims":
        axis = _axis(op, rank)
        check(target.shape == source.shape[:axis] + (1,) + source.shape[axis:], op)
        f = lambda x: np.expand_dims(x, axis + 1)
    elif name == "tt.trans":
        order = integers(op.attrs.get("order", ""))
        check(
            sorted(order) == list(range(rank)) and target.shape == tuple(source.shape[i] for i in order), op
        )
        axes = (0, *(i + 1 for i in order))
        f = lambda x: x.transpose(axes)
    else:  # tt.reshape, tt.unsplat
        check(math.prod(source.shape) == math.prod(target.shape), op)
        whole, ones = (-1,) + target.shape, (-1,) + (1,) * rank
        f = lambda x: x.reshape(ones) if x.size == len(x) else full(x, source.shape).reshape(whole)

    def step(v, frame):
        v[out] = f(v[a])

    return step


def join(op: Op):
    need(op, 2, 1)
    (a, b), (out,), source, target = op.operands, op.results, op.otypes[0], op.rtypes[0]
    shape, cat = source.shape, op.name == "tt.cat"
    check(
        op.otypes[1] == source and source.elem == target.elem != "desc" and (len(shape) == 1 or not cat), op
    )
    check(target.shape == ((2 * shape[0],) if cat else (*shape, 2)), op)

    def step(v, frame):
        x, y = _lead(full(v[a], shape), full(v[b], shape))
        v[out] = np.concatenate((x, y), 1) if cat else np.stack((x, y), -1)

    return step


def split(op: Op):
    need(op, 1, 2)
    (a,), (left, right), source = op.operands, op.results, op.otypes[0]
    check(
        source.shape[-1:] == (2,)
        and all(t.shape == source.shape[:-1] and t.elem == source.elem for t in op.rtypes),
        op,
    )

    def step(v, frame):
        x = v[a]
        v[left], v[right] = x[..., 0], x[..., -1]

    return step


def gather(op: Op):
    need(op, 2, 1)
    (a, i), (out,), (source, index), target = op.operands, op.results, op.otypes, op.rtypes[0]
    axis = _axis(op, len(source.shape))
    check(target.elem == source.elem and index.elem in ("i32", "i64") and target.shape == index.shape, op)
    check(
        all(s == t for k, (s, t) in enumerate(zip(source.shape, index.shape)) if k != axis)
        and len(index.shape) == len(source.shape),
        op,
    )

    def step(v, frame):
        x, where = _lead(full(v[a], source.shape), full(v[i], index.shape))
        if where.min() < 0 or where.max() >= source.shape[axis]:
            raise OutOfBounds(
                f"{frame.launch.at(op)}: index outside the {source.shape[axis]} elements of the axis"
            )
        v[out] = np.take_along_axis(x, where, axis + 1)

    return step


def histogram(op: Op):
    need(op, len(op.operands), 1)
    source, target, out = op.otypes[0], op.rtypes[0], op.results[0]
    check(
        len(source.shape) == len(target.shape) == 1
        and target.elem == "i32"
        and source.elem in ("i8", "i16", "i32", "i64"),
        op,
    )
    check(len(op.operands) == 1 or (len(op.operands) == 2 and op.otypes[1] == ("i1", source.shape, "")), op)
    (bins,), a, mask = target.shape, op.operands[0], op.operands[1:]

    def step(v, frame):
        x, *on = _lead(*(full(v[i], source.shape) for i in (a, *mask)))
        inside = (x >= 0) & (x < bins)
        if on:
            inside &= on[0]
        flat = (x + np.arange(len(x))[:, None] * bins)[inside]
        v[out] = np.bincount(flat, minlength=len(x) * bins).reshape(-1, bins).astype(np.int32)

    return step


# --- reductions

UFUNC = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


def combiner(op: Op, compile_region):
    """The region of tt.reduce or tt.scan as a function of two lists of arrays, applied element by element."""
    check(len(op.regions) == 1 and len(op.regions[0]) == 1, op)
    block = op.regions[0][0]
    k = len(op.operands)
    check(len(block.args) == 2 * k == 2 * len(op.results) > 0, op)
    for inner in block.ops[:-1]:  # they run on whole tensors, which only operations element by element allow
        if inner.regions or inner.name in BUILD or inner.name.startswith(("tt.call", "tt.atomic")):
            raise Unsupported(f"{inner.name[:40]} inside {op.name}")
        check(all(not t.shape for t in inner.rtypes), inner)
    run, ends = compile_region(op.regions[0])
    check(len(ends) == k, op)

    def combine(v, frame, left, right):
        for slot, x in zip(block.args, left + right):
            v[slot] = x
        run(v, frame)
        return [v[i] for i in ends]

    return combine


def _single(op: Op):
    """The NumPy ufunc of a region that is one operation on its two arguments, or None."""
    block = op.regions[0][0]
    if len(block.ops) == 2 and len(op.operands) == 1:
        inner, end = block.ops
        elem = op.otypes[0].elem
        if (
            inner.results == end.operands
            and set(inner.operands) == set(block.args)
            and elem != "i1"
            and rounder(elem) is None
        ):
            return UFUNC.get(inner.name)
    return None


def reduce(op: Op, compile_region):
    """Pairs of neighbours, then pairs of pairs: a tree like the GPU's, in the order that an associative operation needs."""
    combine = combiner(op, compile_region)
    shape, args, outs = op.otypes[0].shape, op.operands, op.results
    axis = _axis(op, len(shape)) + 1
    check(all(t.shape == shape and t.elem == r.elem for t, r in zip(op.otypes, op.rtypes)), op)
    check(all(r.shape == shape[: axis - 1] + shape[axis:] for r in op.rtypes), op)
    ufunc, last = _single(op), len(shape)

    def step(v, frame):
        x = v[args[0]]
        if x.shape[axis] != shape[axis - 1]:
            x = np.broadcast_to(x, x.shape[:axis] + shape[axis - 1 : axis] + x.shape[axis + 1 :])
        if axis != last and ufunc is np.add:  # NumPy sums pairwise along the last axis only
            x = np.ascontiguousarray(np.moveaxis(x, axis, -1))
            v[outs[0]] = ufunc.reduce(x, -1, x.dtype)
        else:
            v[outs[0]] = (
                ufunc.reduce(x, axis, x.dtype)
                if ufunc is np.add or ufunc is np.multiply
                else ufunc.reduce(x, axis)
            )

    def tree(v, frame):
        xs = [np.moveaxis(full(v[i], shape), axis, -1) for i in args]
        while xs[0].shape[-1] > 1:
            size = xs[0].shape[-1]
            both = combine(v, frame, [x[..., 0 : size - 1 : 2] for x in xs], [x[..., 1::2] for x in xs])
            if size % 2:
                both = [np.concatenate((y, x[..., -1:]), -1) for y, x in zip(both, xs)]
            xs = both
        for i, x in zip(outs, xs):
            v[i] = x[..., 0]

    return tree if ufunc is None else step


def scan(op: Op, compile_region):
    """Inclusive, in log2(n) rounds: after the round of distance d an element combines 2d of them (Hillis and Steele)."""
    combine = combiner(op, compile_region)
    shape, args, outs = op.otypes[0].shape, op.operands, op.results
    axis = _axis(op, len(shape)) + 1
    check(op.otypes == op.rtypes and all(t.shape == shape for t in op.otypes), op)
    way = -1 if op.attrs.get("reverse") == "true" else 1

    def step(v, frame):
        xs = [np.moveaxis(full(v[i], shape), axis, -1)[..., ::way] for i in args]
        distance = 1
        while distance < shape[axis - 1]:
            both = combine(v, frame, [x[..., :-distance] for x in xs], [x[..., distance:] for x in xs])
            xs = [
                np.concatenate((np.broadcast_to(x[..., :distance], y.shape[:-1] + (distance,)), y), -1)
                for x, y in zip(xs, both)
            ]
            distance *= 2
        for i, x in zip(outs, xs):
            v[i] = np.moveaxis(x[..., ::way], -1, axis)

    return step


# --- matrix product


def dot(op: Op):
    """[.., M, K] @ [.., K, N] + [.., M, N], accumulated in float32 (f64 in f64; int8 exactly)."""
    need(op, 3, 1)
    (a, b, c), (out,), (left, right, acc) = op.operands, op.results, op.otypes
    check(acc == op.rtypes[0] and len(left.shape) == len(right.shape) == len(acc.shape) >= 2, op)
    check(left.shape[-1] == right.shape[-2] and acc.shape == left.shape[:-1] + right.shape[-1:], op)
    check(
        all(
            (t.elem in FLOATS) == (acc.elem in FLOATS) and t.elem not in ("ptr", "desc", "i1")
            for t in op.otypes
        ),
        op,
    )
    integer, near = acc.elem not in FLOATS, rounder(acc.elem)
    wide = np.float64 if integer or acc.elem == "f64" else np.float32
    truncate = left.elem == "f32" and op.attrs.get("inputPrecision", "ieee") == "tf32"

    def step(v, frame):
        x, y = full(v[a], left.shape), full(v[b], right.shape)
        if truncate:
            x, y = tf32(x), tf32(y)
        product = np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False))
        if integer:
            product = product.astype(np.int64).astype(DTYPE[acc.elem])
        product = v[c] + product
        v[out] = product if near is None else near(product)

    return step


# --- the rest


def program(op: Op):
    need(op, 0, 1)
    check(op.words[:1] in (["x"], ["y"], ["z"]) and op.rtypes[0] == ("i32", (), ""), op)
    (out,), axis, ids = op.results, "xyz".index(op.words[0]), op.name == "tt.get_program_id"

    def step(v, frame):
        v[out] = frame.ids[axis] if ids else np.array([frame.launch.grid[axis]], np.int32)

    return step


def assertion(op: Op):
    check(len(op.operands) == 1 and op.otypes[0].elem == "i1", op)
    (a,), message = op.operands, (op.words or [""])[0][:80]

    def step(v, frame):
        if not v[a].all():
            raise AssertionFailed(f"{frame.launch.at(op)}: device_assert failed: {message}")

    return step


BUILD = dict.fromkeys(
    ["tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.unsplat"], view
)
BUILD |= {
    "tt.join": join,
    "tt.cat": join,
    "tt.split": split,
    "tt.gather": gather,
    "tt.histogram": histogram,
    "tt.dot": dot,
    "tt.assert": assertion,
    "tt.get_program_id": program,
    "tt.get_num_programs": program,
    **access.BUILD,
}


def build(op: Op, compile_region, used: bool):
    """The step of any operation without control flow. `used`: somebody reads its results."""
    if op.name in NOTHING:
        return None
    if op.name in ("tt.reduce", "tt.scan"):
        return (reduce if op.name == "tt.reduce" else scan)(op, compile_region)
    if op.name == "tt.atomic_rmw":
        return access.atomic_rmw(op, used)
    if op.name in BUILD:
        return BUILD[op.name](op)
    step = elementwise(op)
    if step is None:
        raise Unsupported(f"operation {op.name[:60]}")
    return step
