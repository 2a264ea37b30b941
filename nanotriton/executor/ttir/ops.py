"""TTIR's operations that work element by element, for all programs at once, and the form of their values.

A value is a NumPy array with the program first: [n, *shape] for a tensor, [n] for a scalar. Any axis may
have length 1 where the value does not vary along it. So a uniform scalar is [1], tt.splat and tt.broadcast
cost nothing, and a row's mask is computed once for all rows. NumPy's broadcasting does the rest, and `full`
spreads a tensor where an operation needs all of it.

Each builder here and in tensor.py, shapes.py and access.py turns an operation into a step: a closure
`step(v, frame)` over the list of values v. It checks types, so that a step can't go wrong in a way that
depends on values. Operations of `scf` with regions, and calls, are in flow.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import libdevice
from .memory import SIZES
from .numbers import (
    CMPF,
    CMPI,
    DTYPE,
    FLOATS,
    bf16_to_zero,
    by_scalar,
    clamp,
    decoder,
    div_signed,
    div_unsigned,
    encoder,
    erf,
    f16_to_zero,
    float_to_int,
    fma,
    mul_high,
    round_away,
    rounder,
    rsqrt,
    unsigned,
)
from .types import Op, ParseError, TTIRError, Type, Unsupported

Step = Callable[[list, object], None]  # step(v, frame)


class AssertionFailed(TTIRError):
    """A tl.device_assert that does not hold."""


class Descriptor(NamedTuple):
    """A tensor descriptor: base address, sizes and strides (in elements) by dimension, all [n] or [1]."""

    base: np.ndarray
    shape: tuple[np.ndarray, ...]
    strides: tuple[np.ndarray, ...]
    padding: str = "zero"  # of elements outside: zero or nan


def full(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of this shape with all its elements."""
    return x if x.shape[1:] == shape else np.broadcast_to(x, x.shape[:1] + shape)


def integers(text: str) -> list[int]:
    """`array<i32: 1, 0>` -> [1, 0]."""
    if ":" not in text:
        return []
    _, _, items = text.partition(":")
    return [int(x) for x in items.strip(" >").split(",")]


# --- element by element

INT2 = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "shli": np.left_shift,
    "shrsi": np.right_shift,
    "maxsi": np.maximum,
    "minsi": np.minimum,
    "shrui": lambda a, b: (unsigned(a) >> unsigned(b)).view(a.dtype),
    "divsi": by_scalar(div_signed),
    "divui": by_scalar(div_unsigned),
    "remsi": by_scalar(np.fmod),
    "remui": by_scalar(lambda a, b: (unsigned(a) % unsigned(b)).view(a.dtype)),
    "floordivsi": by_scalar(np.floor_divide),
    "maxui": lambda a, b: np.maximum(unsigned(a), unsigned(b)).view(a.dtype),
    "minui": lambda a, b: np.minimum(unsigned(a), unsigned(b)).view(a.dtype),
    "ceildivsi": by_scalar(lambda a, b: -(-a // b)),
}
BOOL2 = {  # i1: true is -1 where it is signed
    "addi": np.logical_xor,
    "subi": np.logical_xor,
    "muli": np.logical_and,
    "andi": np.logical_and,
    "ori": np.logical_or,
    "xori": np.logical_xor,
    "maxui": np.logical_or,
    "minui": np.logical_and,
    "maxsi": np.logical_and,
    "minsi": np.logical_or,
}
FLOAT2 = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "tt.precise_divf": np.divide,
    "math.powf": np.power,
    "math.atan2": np.arctan2,
    "math.copysign": np.copysign,
}
FLOAT1 = {
    "arith.negf": np.negative,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.expm1": np.expm1,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.sqrt": np.sqrt,
    "math.rsqrt": rsqrt,
    "math.erf": erf,
    "math.absf": np.abs,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.round": round_away,
    "math.roundeven": np.rint,
    "tt.precise_sqrt": np.sqrt,
    "math.cbrt": np.cbrt,
    "math.sinh": np.sinh,
    "math.cosh": np.cosh,
    "math.asin": np.arcsin,
    "math.acos": np.arccos,
    "math.atan": np.arctan,
}
INTEGERS = frozenset(("i1", "i8", "i16", "i32", "i64", "index"))
CASTS = {  # name: (from a float, to a float); bitcasts take any
    "arith.extsi": (False, False),
    "arith.extui": (False, False),
    "arith.trunci": (False, False),
    "arith.index_cast": (False, False),
    "tt.int_to_ptr": (False, False),
    "tt.ptr_to_int": (False, False),
    "arith.sitofp": (False, True),
    "arith.uitofp": (False, True),
    "arith.fptosi": (True, False),
    "arith.fptoui": (True, False),
    "arith.extf": (True, True),
    "arith.truncf": (True, True),
    "tt.fp_to_fp": (True, True),
    "arith.bitcast": None,
    "tt.bitcast": None,
}


def check(ok: bool, op: Op) -> None:
    """Raise ParseError unless the operation is well-formed in this respect."""
    if not ok:
        kinds = [" ".join(map(str, t)) for t in (*op.otypes, *op.rtypes)]
        raise ParseError(f"TTIR line {op.line}: malformed {op.name[:40]} ({', '.join(kinds)[:200]})")


def need(op: Op, operands: int, results: int) -> None:
    check(len(op.operands) == operands, op)
    check(len(op.results) == results, op)


def same(op: Op, kinds: frozenset) -> str:
    """All operands and the result have one type, of `kinds`. Returns its element."""
    kind = op.rtypes[0]
    check(all(t == kind for t in op.otypes), op)
    check(kind.elem in kinds, op)
    return kind.elem


def apply(op: Op, f: Callable, elem: str = "") -> Step:
    """A step that writes f(operands), rounded to `elem`."""
    (out,), args = op.results, op.operands
    near = rounder(elem)

    def rounded(*xs):
        return near(f(*xs))

    g = f if near is None else rounded
    if len(args) == 1:
        (a,) = args

        def step(v, frame):
            v[out] = g(v[a])

    elif len(args) == 2:
        a, b = args

        def step(v, frame):
            v[out] = g(v[a], v[b])

    else:

        def step(v, frame):
            v[out] = g(*[v[i] for i in args])

    return step


def elementwise(op: Op) -> Step | None:
    """The step of an operation of arith or math, casts included. None for any other operation."""
    dialect, _, name = op.name.partition(".")
    if op.name in FLOAT2:
        need(op, 2, 1)
        return apply(op, FLOAT2[op.name], same(op, FLOATS))
    if op.name in FLOAT1:
        need(op, 1, 1)
        return apply(op, FLOAT1[op.name], same(op, FLOATS))
    if dialect == "arith" and name in INT2:
        return binary_integer(op, name)
    if op.name in CASTS:
        return cast(op)
    return OTHERS[op.name](op) if op.name in OTHERS else None


def binary_integer(op: Op, name: str) -> Step:
    need(op, 2, 1)
    elem = same(op, INTEGERS)
    if elem != "i1":
        return apply(op, INT2[name])
    if name not in BOOL2:
        raise Unsupported(f"{op.name} of i1")
    return apply(op, BOOL2[name])


def compare(op: Op) -> Step:
    """arith.cmpi and arith.cmpf."""
    need(op, 2, 1)
    predicate = op.words[0] if op.words else ""
    kind = op.otypes[0]
    table, kinds = (CMPF, FLOATS) if op.name == "arith.cmpf" else (CMPI, INTEGERS | {"ptr"})
    check(predicate in table, op)
    check(kind.elem in kinds, op)
    check(op.otypes[1] == kind, op)
    check(op.rtypes[0] == ("i1", kind.shape, ""), op)
    f = table[predicate]
    if kind.elem == "i1" and predicate[0] == "s":  # true is -1
        return apply(op, lambda a, b: f(b, a))
    return apply(op, f)


def select(op: Op) -> Step:
    need(op, 3, 1)
    condition, kind = op.otypes[0], op.rtypes[0]
    check(condition.elem == "i1", op)
    check(condition.shape in ((), kind.shape), op)
    check(op.otypes[1:] == [kind, kind], op)
    check(kind.elem != "desc", op)
    if condition.shape != kind.shape:  # a scalar chooses between tensors
        spread = (-1,) + (1,) * len(kind.shape)
        return apply(op, lambda c, a, b: np.where(c.reshape(spread), a, b))
    return apply(op, np.where)


def fused_multiply_add(op: Op) -> Step:
    need(op, 3, 1)
    return apply(op, fma, same(op, FLOATS))


def clamp_float(op: Op) -> Step:
    need(op, 3, 1)
    nan = op.attrs.get("propagateNan") == "all"
    return apply(op, lambda x, low, high: clamp(x, low, high, nan), same(op, FLOATS))


def multiply_high(op: Op) -> Step:
    need(op, 2, 1)
    same(op, frozenset(("i32", "i64")))
    return apply(op, mul_high)


def absolute_or_count(op: Op) -> Step:
    """math.absi and math.ctpop."""
    need(op, 1, 1)
    same(op, INTEGERS - {"i1"})
    if op.name == "math.absi":
        return apply(op, np.abs)
    return apply(op, lambda x: np.bitwise_count(unsigned(x)).astype(x.dtype))


def external(op: Op) -> Step:
    """A function of libdevice."""
    check(len(op.results) == 1, op)
    kind = op.rtypes[0]
    check(all(t.shape == kind.shape and t.elem != "desc" for t in op.otypes), op)
    symbol = op.attrs.get("symbol", "")
    f = libdevice.find(symbol)
    if f is None:
        raise Unsupported(f"external function {symbol[:60]}")
    dtype = DTYPE[kind.elem]
    return apply(op, lambda *xs: f(*xs).astype(dtype, copy=False), kind.elem)


OTHERS = {
    "arith.cmpi": compare,
    "arith.cmpf": compare,
    "arith.select": select,
    "math.fma": fused_multiply_add,
    "tt.clampf": clamp_float,
    "tt.mulhiui": multiply_high,
    "math.absi": absolute_or_count,
    "math.ctpop": absolute_or_count,
    "tt.extern_elementwise": external,
}


# --- casts


def cast(op: Op) -> Step:
    need(op, 1, 1)
    (source,), (target,) = op.otypes, op.rtypes
    check(source.shape == target.shape, op)
    check("desc" not in (source.elem, target.elem), op)
    was, to = source.elem, target.elem
    if op.name.endswith(".bitcast"):
        return bitcast(op, was, to)
    check(CASTS[op.name] == (was in FLOATS, to in FLOATS), op)
    if was in FLOATS:
        return cast_float(op, was, to)
    return cast_integer(op, was, to)


def bitcast(op: Op, was: str, to: str) -> Step:
    check(SIZES[was] == SIZES[to], op)
    check((was == "i1") == (to == "i1"), op)
    if was == to:
        return apply(op, lambda x: x)
    encode, decode = encoder(was), decoder(to)
    return apply(op, lambda x: decode(encode(x)))


def cast_float(op: Op, was: str, to: str) -> Step:
    name = op.name.partition(".")[2]
    dtype = DTYPE[to]
    if name == "extf":
        return apply(op, lambda x: x.astype(dtype, copy=False))
    if name in ("fptosi", "fptoui"):
        if to == "i1":
            return apply(op, lambda x: x != 0)
        return apply(op, float_to_int(dtype, name == "fptosi"))
    toward_zero = {"f16": f16_to_zero, "bf16": bf16_to_zero}
    if op.attrs.get("rounding") == "rtz" and to in toward_zero:
        near = toward_zero[to]
        return apply(op, lambda x: near(x.astype(dtype, copy=False)))
    if was == "f64" and to == "f16":  # in one step: two roundings may differ
        return apply(op, lambda x: x.astype(np.float16).astype(np.float32))
    return apply(op, lambda x: x.astype(dtype, copy=False), to)


def cast_integer(op: Op, was: str, to: str) -> Step:
    """From an integer or a pointer. i1 is -1 where the cast is signed."""
    name = op.name.partition(".")[2]
    dtype = DTYPE[to]
    if was == "i1":
        if name in ("extsi", "sitofp"):
            return apply(op, lambda x: -x.astype(dtype))
        return apply(op, lambda x: x.astype(dtype))
    if name == "trunci" and to == "i1":
        return apply(op, lambda x: (x & 1) != 0)
    if name in ("extui", "uitofp"):
        return apply(op, lambda x: unsigned(x).astype(dtype), to)
    return apply(op, lambda x: x.astype(dtype), to)


# --- constants: no step, the value is in every frame from the start


def constant(op: Op) -> np.ndarray | None:
    """The value of a constant operation, lazily broadcast. None for any other operation."""
    if op.name == "tt.make_range":
        need(op, 0, 1)
        start = int(op.attrs.get("start", "x"))
        end = int(op.attrs.get("end", "x"))
        check(op.rtypes[0] == Type("i32", (end - start,)), op)
        return np.arange(start, end, dtype=np.int32)[None]
    if op.name == "ub.poison":
        need(op, 0, 1)
        kind = op.rtypes[0]
        value = np.nan if kind.elem in FLOATS else 0
        return np.full((1,) * (1 + len(kind.shape)), value, DTYPE[kind.elem])
    if op.name == "arith.constant":
        need(op, 0, 1)
        return literal(op)
    return None


def literal(op: Op) -> np.ndarray:
    """The value of arith.constant: a number, `dense<1.0>` or `dense<[1, 2]>`."""
    kind = op.rtypes[0]
    text = op.words[0] if op.words else ""
    if text.startswith("dense<"):
        if '"' in text:  # a string of hexadecimal digits
            raise Unsupported(f"constant {text[:40]}")
        items = text[6:-1].strip("[]").split(",")
        if len(items) != 1 and len(kind.shape) != 1:
            raise Unsupported(f"constant {text[:40]}")
        shape = (1,) * len(kind.shape) if len(items) == 1 else (len(items),)
        check(shape in ((1,) * len(kind.shape), kind.shape), op)
    else:
        items, shape = [text], ()
        check(not kind.shape, op)
    numbers = [number(item.strip(), kind.elem) for item in items]
    value = np.array(numbers, DTYPE[kind.elem]).reshape((1, *shape))
    near = rounder(kind.elem)  # decimals are printed with few digits
    return value if near is None else near(value)


def number(text: str, elem: str):
    """A literal of one element. A float may be written as its bits, in hexadecimal."""
    if text in ("true", "false"):
        return text == "true"
    if elem in FLOATS:
        if not text.startswith(("0x", "0X")):
            return float(text)
        raw = np.array([int(text, 16)], f"u{SIZES[elem]}")
        return decoder(elem)(raw)[0]
    value = int(text, 0)
    if elem == "i1":
        return bool(value)
    half = 1 << (8 * SIZES[elem] - 1)
    return ((value + half) & (2 * half - 1)) - half  # wraps around
