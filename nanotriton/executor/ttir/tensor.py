"""TTIR's operations on whole tensors: shapes, reductions, matrix products. See ops.py for values.

`build` at the end makes the step of any operation without control flow.
"""

import math
from collections.abc import Callable

import numpy as np

from . import access
from .assembly import inline_asm
from .memory import OutOfBounds
from .numbers import DTYPE, FLOATS, rounder, tf32
from .ops import AssertionFailed, Step, check, elementwise, full, integers, need
from .promises import assume
from .scaled import dot_scaled
from .types import Op, Type, Unsupported

NOTHING = frozenset(["tt.print", "gpu.barrier", "ttg.barrier", "ttg.local_barrier"])
# Turns the region of an operation into (run, slots that it yields).
CompileRegion = Callable[[list], tuple[Step, list[int]]]


def _lead(*xs: np.ndarray) -> list[np.ndarray]:
    """The same number of programs in all."""
    n = max(x.shape[0] for x in xs)
    return [np.broadcast_to(x, (n, *x.shape[1:])) for x in xs]


def _axis(op: Op, rank: int) -> int:
    axis = int(op.attrs.get("axis", "-1"))
    check(0 <= axis < rank, op)
    return axis


# --- shapes: each takes one tensor and only moves elements


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
    axis = _axis(op, len(target))
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
    axis = _axis(op, len(source.shape))
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


# --- reductions

HELD = (1, 2, 4, 8)  # neighbouring lanes that a thread may hold
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


def combiner(op: Op, compile_region: CompileRegion) -> Callable:
    """The region of tt.reduce or tt.scan as a function of two lists of arrays, applied element by element."""
    check(len(op.regions) == 1, op)
    check(len(op.regions[0]) == 1, op)
    block = op.regions[0][0]
    k = len(op.operands)
    check(len(block.args) == 2 * k == 2 * len(op.results) > 0, op)
    # they run on whole tensors, so only operations element by element are allowed
    for inner in block.ops[:-1]:
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


def _single(op: Op) -> np.ufunc | None:
    """The NumPy ufunc of a region that is one operation on its two arguments, or None."""
    block = op.regions[0][0]
    if len(block.ops) != 2 or len(op.operands) != 1:
        return None
    inner, end = block.ops
    if inner.results != end.operands or set(inner.operands) != set(block.args):
        return None
    elem = op.otypes[0].elem
    if elem == "i1" or rounder(elem) is not None:
        return None
    return UFUNC.get(inner.name)


def reduce(op: Op, compile_region: CompileRegion) -> Step:
    """By NumPy if the region is one operation that it knows, else lane by lane in an order that is drawn."""
    combine = combiner(op, compile_region)
    shape = op.otypes[0].shape
    axis = _axis(op, len(shape))
    reduced = shape[:axis] + shape[axis + 1 :]
    for source, target in zip(op.otypes, op.rtypes):
        check(source.shape == shape, op)
        check(target == source._replace(shape=reduced), op)
    ufunc = _single(op)
    if ufunc is None:
        return _reduce_in_drawn_order(op, combine, axis + 1)
    return _reduce_by_ufunc(op, ufunc, axis + 1)


def _reduce_by_ufunc(op: Op, ufunc: np.ufunc, axis: int) -> Step:
    (a,), (out,) = op.operands, op.results
    shape = op.otypes[0].shape
    size = shape[axis - 1]
    last = axis == len(shape)
    keeps_dtype = ufunc is np.add or ufunc is np.multiply

    def step(v, frame):
        x = v[a]
        if x.shape[axis] != size:
            whole = list(x.shape)
            whole[axis] = size
            x = np.broadcast_to(x, whole)
        if ufunc is np.add and not last:  # NumPy sums pairwise along the last axis only
            x = np.ascontiguousarray(np.moveaxis(x, axis, -1))
            v[out] = ufunc.reduce(x, -1, x.dtype)
        elif keeps_dtype:
            v[out] = ufunc.reduce(x, axis, x.dtype)
        else:
            v[out] = ufunc.reduce(x, axis)

    return step


def _reduce_in_drawn_order(op: Op, combine: Callable, axis: int) -> Step:
    """As a GPU does it: each thread combines the neighbours that it holds, in their order. Then the threads
    combine what they have, in an order that depends on layouts and on shuffles.

    Triton promises none of that, so it is drawn how many lanes a thread holds, and in which order threads
    are combined. An operation that does not commute is wrong then, as it is on a GPU.
    """
    shape = op.otypes[0].shape
    size = shape[axis - 1]
    possible = [held for held in HELD if size % held == 0 and held < size] or [1]

    def step(v, frame):
        luck = frame.evaluation.luck
        held = possible[luck.integers(len(possible))]
        order = luck.permutation(size // held)
        lanes = [np.moveaxis(full(v[i], shape), axis, -1) for i in op.operands]
        xs = [x[..., ::held] for x in lanes]
        for i in range(1, held):
            xs = combine(v, frame, xs, [x[..., i::held] for x in lanes])
        xs = [x[..., order] for x in xs]
        while len(order) > 1:
            half, odd = divmod(len(order), 2)
            both = combine(v, frame, [x[..., :half] for x in xs], [x[..., half : 2 * half] for x in xs])
            xs = [np.concatenate((y, x[..., 2 * half :]), -1) for x, y in zip(xs, both)] if odd else both
            order = order[: half + odd]
        for slot, x in zip(op.results, xs):
            v[slot] = x[..., 0]

    return step


def scan(op: Op, compile_region: CompileRegion) -> Step:
    """Inclusive, in log2(n) rounds (Hillis and Steele): after distance d an element combines 2d of them."""
    combine = combiner(op, compile_region)
    shape = op.otypes[0].shape
    axis = _axis(op, len(shape)) + 1
    check(op.otypes == op.rtypes, op)
    check(all(t.shape == shape for t in op.otypes), op)
    way = -1 if op.attrs.get("reverse") == "true" else 1

    def after(x: np.ndarray, y: np.ndarray, distance: int) -> np.ndarray:
        """The first elements of x as they were, then the combined ones."""
        first = np.broadcast_to(x[..., :distance], (*y.shape[:-1], distance))
        return np.concatenate((first, y), -1)

    def step(v, frame):
        xs = [np.moveaxis(full(v[i], shape), axis, -1) for i in op.operands]
        xs = [x[..., ::way] for x in xs]
        distance = 1
        while distance < shape[axis - 1]:
            left = [x[..., :-distance] for x in xs]
            right = [x[..., distance:] for x in xs]
            both = combine(v, frame, left, right)
            xs = [after(x, y, distance) for x, y in zip(xs, both)]
            distance *= 2
        for slot, x in zip(op.results, xs):
            v[slot] = np.moveaxis(x[..., ::way], -1, axis)

    return step


# --- matrix product

AT_ONCE = 32  # bytes of a row of the left operand that a tensor core's instruction multiplies
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}  # of an element; all others of a product have one


def dot(op: Op) -> Step:
    """[.., M, K] @ [.., K, N] + [.., M, N], accumulated in float32 (f64 in f64; int8 exactly).

    Where the accumulator is f16 (tl.dot's out_dtype) a tensor core rounds it after each of its instructions,
    of which one takes 32 bytes of a row: m16n8k16 of PTX's mma for halves, k32 for bytes.
    """
    need(op, 3, 1)
    (a, b, c), (out,) = op.operands, op.results
    left, right, acc = op.otypes
    check_product(op)
    integer = acc.elem not in FLOATS
    near = rounder(acc.elem)
    wide = np.float64 if integer or acc.elem == "f64" else np.float32
    truncate = left.elem == "f32" and op.attrs.get("inputPrecision", "ieee") == "tf32"
    depth = left.shape[-1]
    at_once = AT_ONCE // BYTES.get(left.elem, 1) if acc.elem == "f16" else max(1, depth)

    def step(v, frame):
        x = full(v[a], left.shape)
        y = full(v[b], right.shape)
        if truncate:
            x, y = tf32(x), tf32(y)
        x = x.astype(wide, copy=False)
        y = y.astype(wide, copy=False)
        total = v[c]
        for at in range(0, depth, at_once):
            product = np.matmul(x[..., at : at + at_once], y[..., at : at + at_once, :])
            if integer:
                product = product.astype(np.int64).astype(DTYPE[acc.elem])
            total = total + product
            if near is not None:
                total = near(total)
        v[out] = total

    return step


def check_product(op: Op) -> None:
    """The shapes and the element types of a matrix product's operands."""
    left, right, acc = op.otypes
    check(acc == op.rtypes[0], op)
    check(len(left.shape) == len(right.shape) == len(acc.shape) >= 2, op)
    check(left.shape[-1] == right.shape[-2], op)
    check(acc.shape == left.shape[:-1] + right.shape[-1:], op)
    for kind in op.otypes:
        check((kind.elem in FLOATS) == (acc.elem in FLOATS), op)
        check(kind.elem not in ("ptr", "desc", "i1"), op)


# --- the rest


def program(op: Op) -> Step:
    """tt.get_program_id and tt.get_num_programs."""
    need(op, 0, 1)
    check(op.words[:1] in (["x"], ["y"], ["z"]), op)
    check(op.rtypes[0] == Type("i32"), op)
    (out,) = op.results
    axis = "xyz".index(op.words[0])

    def number(v, frame):
        v[out] = frame.ids[axis]

    def count(v, frame):
        v[out] = np.array([frame.evaluation.grid[axis]], np.int32)

    return number if op.name == "tt.get_program_id" else count


def assertion(op: Op) -> Step:
    check(len(op.operands) == 1, op)
    check(op.otypes[0].elem == "i1", op)
    (a,) = op.operands
    message = op.words[0][:80] if op.words else ""

    def step(v, frame):
        if not v[a].all():
            raise AssertionFailed(f"{frame.evaluation.at(op)}: device_assert failed: {message}")

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
    "tt.dot": dot,
    "tt.dot_scaled": dot_scaled,
    "tt.elementwise_inline_asm": inline_asm,
    "tt.assert": assertion,
    "llvm.intr.assume": assume,
    "tt.assume": assume,
    "tt.get_program_id": program,
    "tt.get_num_programs": program,
    **access.BUILD,
}


def build(op: Op, compile_region: CompileRegion, used: bool) -> Step | None:
    """The step of any operation without control flow, or None if it does nothing.

    used: whether some operation reads its results. Raises Unsupported for an operation that is not known.
    """
    if op.name in NOTHING:
        return None
    if op.name == "tt.reduce":
        return reduce(op, compile_region)
    if op.name == "tt.scan":
        return scan(op, compile_region)
    if op.name == "tt.atomic_rmw":
        return access.atomic_rmw(op, used)
    if op.name == "tt.atomic_cas":
        return access.atomic_cas(op, used)
    if op.name in BUILD:
        return BUILD[op.name](op)
    step = elementwise(op)
    if step is None:
        raise Unsupported(f"operation {op.name[:60]}")
    return step
