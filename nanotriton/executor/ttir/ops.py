"""What TTIR's operations do, for all programs at once.

A value is a NumPy array with the program first: [n, *shape] for a tensor, [n] for a scalar. Any axis may have length 1 where
the value does not vary along it (so a uniform scalar is [1], tt.splat and tt.broadcast cost nothing, and a row's mask is
computed once for all rows): NumPy's broadcasting does the rest, and `full` spreads a tensor where an operation needs it all.

`build(op, function)` turns an operation into a step, a closure `step(v, frame)` over the list of values v; it checks types, so
that a step can't go wrong in a way that depends on values. Region-bearing operations of `scf` and calls are in kernel.py.
"""

from typing import NamedTuple

import numpy as np

from . import libdevice
from .memory import SIZES
from .numbers import (
    CMPF,
    CMPI,
    DTYPE,
    FLOATS,
    clamp,
    decoder,
    div_signed,
    div_unsigned,
    encoder,
    erf,
    float_to_int,
    floor_mod,
    fma,
    mul_high,
    round_away,
    rounder,
    rsqrt,
    to_zero,
    unsigned,
)
from .types import Op, ParseError, TTIRError, Type, Unsupported


class AssertionFailed(TTIRError):
    """A tl.device_assert that does not hold."""


class Descriptor(NamedTuple):
    """A tensor descriptor: base address, sizes and strides (in elements) of each dimension, all [n] or [1]."""

    base: np.ndarray
    shape: tuple[np.ndarray, ...]
    strides: tuple[np.ndarray, ...]
    padding: str = "zero"  # what is outside: zero or nan


def full(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return x if x.shape[1:] == shape else np.broadcast_to(x, x.shape[:1] + shape)


def integers(text: str) -> list[int]:
    """`array<i32: 1, 0>` -> [1, 0]."""
    return [int(x) for x in text.partition(":")[2].strip(" >").split(",")] if ":" in text else []


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
    "divsi": floor_mod(div_signed),
    "divui": floor_mod(div_unsigned),
    "remsi": floor_mod(np.fmod),
    "remui": floor_mod(lambda a, b: (unsigned(a) % unsigned(b)).view(a.dtype)),
    "floordivsi": floor_mod(np.floor_divide),
    "maxui": lambda a, b: np.maximum(unsigned(a), unsigned(b)).view(a.dtype),
    "minui": lambda a, b: np.minimum(unsigned(a), unsigned(b)).view(a.dtype),
    "ceildivsi": floor_mod(lambda a, b: -(-a // b)),
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
    if not ok:
        kinds = [" ".join(map(str, t)) for t in (*op.otypes, *op.rtypes)]
        raise ParseError(f"TTIR line {op.line}: malformed {op.name[:40]} ({', '.join(kinds)[:200]})")


def need(op: Op, operands: int, results: int) -> None:
    check(len(op.operands) == operands and len(op.results) == results, op)


def same(op: Op, kinds: frozenset) -> str:
    """All operands and the result have one type, of `kinds`; returns its element."""
    kind = op.rtypes[0]
    check(all(t == kind for t in op.otypes) and kind.elem in kinds, op)
    return kind.elem


def apply(op: Op, f, elem: str = ""):
    """A step that writes f(operands), rounded to `elem`."""
    (out,), args, near = op.results, op.operands, rounder(elem)
    g = f if near is None else lambda *xs: near(f(*xs))
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


def elementwise(op: Op):
    """Steps of arith and math, casts included; None when `op` is something else."""
    dialect, _, name = op.name.partition(".")
    if op.name in FLOAT2:
        need(op, 2, 1)
        return apply(op, FLOAT2[op.name], same(op, FLOATS))
    if op.name in FLOAT1:
        need(op, 1, 1)
        return apply(op, FLOAT1[op.name], same(op, FLOATS))
    if dialect == "arith" and name in INT2:
        need(op, 2, 1)
        elem = same(op, INTEGERS)
        if elem == "i1" and name not in BOOL2:
            raise Unsupported(f"{op.name} of i1")
        return apply(op, (BOOL2 if elem == "i1" else INT2)[name])
    if op.name in ("arith.cmpi", "arith.cmpf"):
        need(op, 2, 1)
        return compare(op, name)
    if op.name == "arith.select":
        need(op, 3, 1)
        return select(op)
    if op.name in ("math.fma", "tt.clampf"):
        need(op, 3, 1)
        elem = same(op, FLOATS)
        nan = op.attrs.get("propagateNan") == "all"
        return apply(op, fma if name == "fma" else lambda x, lo, hi: clamp(x, lo, hi, nan), elem)
    if op.name == "tt.mulhiui":
        need(op, 2, 1)
        same(op, frozenset(("i32", "i64")))
        return apply(op, mul_high)
    if op.name in ("math.absi", "math.ctpop"):
        need(op, 1, 1)
        same(op, INTEGERS - {"i1"})
        return apply(
            op, np.abs if name == "absi" else lambda x: np.bitwise_count(unsigned(x)).astype(x.dtype)
        )
    if op.name == "tt.extern_elementwise":
        check(
            len(op.results) == 1
            and all(t.shape == op.rtypes[0].shape and t.elem != "desc" for t in op.otypes),
            op,
        )
        f = libdevice.find(op.attrs.get("symbol", ""))
        if f is None:
            raise Unsupported(f"external function {op.attrs.get('symbol', '')[:60]}")
        out = DTYPE[op.rtypes[0].elem]
        return apply(op, lambda *xs: f(*xs).astype(out, copy=False), op.rtypes[0].elem)
    return cast(op) if op.name in CASTS else None


def compare(op: Op, name: str):
    predicate, kind = op.words[0] if op.words else "", op.otypes[0]
    table, kinds = (CMPF, FLOATS) if name == "cmpf" else (CMPI, INTEGERS | {"ptr"})
    check(predicate in table and kind.elem in kinds, op)
    check(op.otypes[1] == kind and op.rtypes[0] == ("i1", kind.shape, ""), op)
    f = table[predicate]
    if kind.elem == "i1" and predicate[0] == "s":  # true is -1
        return apply(op, lambda a, b: f(b, a))
    return apply(op, f)


def select(op: Op):
    condition, kind = op.otypes[0], op.rtypes[0]
    check(condition.elem == "i1" and condition.shape in ((), kind.shape), op)
    check(op.otypes[1:] == [kind, kind] and kind.elem != "desc", op)
    if condition.shape != kind.shape:  # a scalar chooses between tensors
        spread = (-1,) + (1,) * len(kind.shape)
        return apply(op, lambda c, a, b: np.where(c.reshape(spread), a, b))
    return apply(op, np.where)


def cast(op: Op):
    need(op, 1, 1)
    (source,), (target,) = op.otypes, op.rtypes
    name = op.name.partition(".")[2]
    check(source.shape == target.shape and "desc" not in (source.elem, target.elem), op)
    to, was, dtype = target.elem, source.elem, DTYPE[target.elem]
    if name == "bitcast":
        check(SIZES[was] == SIZES[to] and (was == "i1") == (to == "i1"), op)
        encode, decode = encoder(was), decoder(to)
        return apply(op, (lambda x: x) if DTYPE[was] == dtype and was == to else lambda x: decode(encode(x)))
    check(CASTS[op.name] == (was in FLOATS, to in FLOATS), op)
    if name == "extf":
        return apply(op, lambda x: x.astype(dtype, copy=False))
    if name in ("truncf", "fp_to_fp"):
        toward_zero = op.attrs.get("rounding") == "rtz" and to in ("f16", "bf16")
        if was == "f64" and to == "f16" and not toward_zero:
            return apply(op, lambda x: x.astype(np.float16).astype(np.float32))
        near = to_zero(to) if toward_zero else rounder(to) or (lambda x: x)
        return apply(op, lambda x: near(x.astype(dtype, copy=False)))
    if name in ("fptosi", "fptoui"):
        return apply(op, float_to_int(dtype, name == "fptosi") if to != "i1" else lambda x: x != 0)
    if was == "i1":
        return apply(
            op, (lambda x: -x.astype(dtype)) if name in ("extsi", "sitofp") else lambda x: x.astype(dtype)
        )
    if name == "trunci" and to == "i1":
        return apply(op, lambda x: (x & 1) != 0)
    if name in ("extui", "uitofp"):
        return apply(op, lambda x: unsigned(x).astype(dtype), to if to in FLOATS else "")
    return apply(op, lambda x: x.astype(dtype), to if to in FLOATS else "")


# --- constants: no step, the value is in every frame from the start


def constant(op: Op) -> np.ndarray | None:
    """The value of a constant operation, lazily broadcast, or None."""
    if op.name == "tt.make_range":
        need(op, 0, 1)
        start, end = int(op.attrs.get("start", "x")), int(op.attrs.get("end", "x"))
        check(op.rtypes[0] == Type("i32", (end - start,)), op)
        return np.arange(start, end, dtype=np.int32)[None]
    if op.name == "ub.poison":
        need(op, 0, 1)
        kind = op.rtypes[0]
        return np.full((1,) + (1,) * len(kind.shape), np.nan if kind.elem in FLOATS else 0, DTYPE[kind.elem])
    if op.name != "arith.constant":
        return None
    need(op, 0, 1)
    kind, text = op.rtypes[0], op.words[0] if op.words else ""
    if text.startswith("dense<"):
        items = text[6:-1].strip("[]").split(",") if '"' not in text else None
        if items is None or (len(items) != 1 and len(kind.shape) != 1):
            raise Unsupported(f"constant {text[:40]}")
        shape = (1,) * (1 + len(kind.shape)) if len(items) == 1 else (1, len(items))
        check(shape[1:] in ((1,) * len(kind.shape), kind.shape), op)
    else:
        items, shape = [text], (1,)
        check(not kind.shape, op)
    value = np.array([number(x.strip(), kind.elem) for x in items], DTYPE[kind.elem]).reshape(shape)
    near = rounder(kind.elem)  # decimals are printed with few digits
    return value if near is None else near(value)


def number(text: str, elem: str):
    if text in ("true", "false"):
        return text == "true"
    if elem in FLOATS and text.startswith(("0x", "0X")):  # the bits
        raw = np.array([int(text, 16)], f"u{SIZES[elem]}")
        return decoder(elem)(raw)[0]
    if elem in FLOATS:
        return float(text)
    value, bits = int(text, 0), 8 * SIZES[elem]
    return (
        bool(value) if elem == "i1" else ((value + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
    )
