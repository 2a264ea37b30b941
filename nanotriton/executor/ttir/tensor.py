"""TTIR's operations on whole tensors: reductions and matrix products. See ops.py for single values, and
shapes.py for what only moves them.

`build` at the end makes the step of any operation without control flow.
"""

from collections.abc import Callable

import numpy as np

from . import access, shapes
from .assembly import inline_asm
from .numbers import DTYPE, FLOATS, rounder, tf32
from .ops import AssertionFailed, Step, check, elementwise, full, need
from .promises import assume
from .scaled import dot_scaled
from .shapes import axis_of
from .types import Op, Type, Unsupported

NOTHING = frozenset(["tt.print", "gpu.barrier", "ttg.barrier", "ttg.local_barrier"])
# Turns the region of an operation into (run, slots that it yields).
CompileRegion = Callable[[list], tuple[Step, list[int]]]


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
    axis = axis_of(op, len(shape))
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
    axis = axis_of(op, len(shape)) + 1
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
    **shapes.BUILD,
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
