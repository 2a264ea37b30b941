"""tt.elementwise_inline_asm: straight PTX on registers of 32 bits, an element at a time.

Source: PTX ISA, Instructions. What has a branch, a predicate, memory, a special register or more than one
element in a register is `Unsupported`. So is an instruction that is not in the tables. Approximate ones have
the error of fast.py.
"""

import re
from collections.abc import Callable

import numpy as np

from . import fast
from .libdevice import EXACT
from .numbers import float_to_int, fma, rsqrt, unsigned
from .ops import Step, check, full
from .types import Op, Unsupported

ELEMENTS = {"f32": np.float32, "i32": np.int32}
TANH_BITS = 11  # of tanh.approx


def _tanh(x: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(np.tanh(x.astype(np.float64)))
    return np.ldexp(np.rint(mantissa * 2.0**TANH_BITS), exponent - TANH_BITS).astype(np.float32)


def _shift(f: Callable) -> Callable:
    """A shift by 32 or more shifts everything out."""
    return lambda x, n: f(x.astype(np.int64), np.minimum(unsigned(n), np.uint32(32)).astype(np.int64)).astype(
        np.int32
    )


def _of_unsigned(f: Callable) -> Callable:
    return lambda *xs: f(*(unsigned(x) for x in xs)).view(np.int32)


FLOAT = {  # of float32, without .ftz and rounding to nearest
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": fma,
    "div": np.divide,
    "div.full": np.divide,
    "div.approx": fast.divide,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.fmin,
    "max": np.fmax,
    "sqrt": np.sqrt,
    "sqrt.approx": np.sqrt,
    "rsqrt.approx": rsqrt,
    "rcp": lambda x: 1 / x,
    "rcp.approx": lambda x: 1 / x,
    "ex2.approx": fast.exp2,
    "lg2.approx": fast.log2,
    "sin.approx": fast.sin,
    "cos.approx": fast.cos,
    "tanh.approx": _tanh,
}
INTEGER = {
    "add.s32": np.add,
    "sub.s32": np.subtract,
    "mul.lo.s32": np.multiply,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "mul.hi.s32": EXACT["mulhi"],
    "mul.hi.u32": EXACT["umulhi"],
    "min.s32": np.minimum,
    "max.s32": np.maximum,
    "min.u32": _of_unsigned(np.minimum),
    "max.u32": _of_unsigned(np.maximum),
    "neg.s32": np.negative,
    "abs.s32": np.abs,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "not.b32": np.bitwise_not,
    "shl.b32": _shift(np.left_shift),
    "shr.s32": _shift(np.right_shift),
    "shr.u32": lambda x, n: _shift(np.right_shift)(unsigned(x), n),
    "popc.b32": EXACT["popc"],
    "clz.b32": EXACT["clz"],
    "brev.b32": EXACT["brev"],
    "prmt.b32": EXACT["byte_perm"],
}
for _name in ("add", "sub", "mul.lo", "mad.lo"):  # alike for both, as only the low half is kept
    INTEGER[f"{_name}.u32"] = INTEGER[f"{_name}.s32"]
INTEGER["shr.b32"] = INTEGER["shr.u32"]
CONVERSIONS = {  # name: (function, takes floats)
    "cvt.rn.f32.s32": (lambda x: x.astype(np.float32), False),
    "cvt.rn.f32.u32": (lambda x: unsigned(x).astype(np.float32), False),
    "cvt.rzi.s32.f32": (float_to_int(np.dtype(np.int32)), True),
    "cvt.rzi.u32.f32": (float_to_int(np.dtype(np.int32), False), True),
    "cvt.rni.s32.f32": (lambda x: float_to_int(np.dtype(np.int32))(np.rint(x)), True),
    "cvt.rni.f32.f32": (np.rint, True),
    "cvt.rmi.f32.f32": (np.floor, True),
    "cvt.rpi.f32.f32": (np.ceil, True),
    "cvt.rzi.f32.f32": (np.trunc, True),
}
_MOVES = frozenset(("mov.b32", "mov.u32", "mov.s32", "mov.f32"))
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_OPERAND = re.compile(r"\$\d+|0[fF][0-9a-fA-F]{8}|-?0[xX][0-9a-fA-F]{1,8}|-?\d{1,10}|%?[A-Za-z_]\w*")


def inline_asm(op: Op) -> Step:
    check(len(op.results) == 1 and bool(op.words), op)
    kind = op.rtypes[0]
    kinds = (kind, *op.otypes)
    if op.attrs.get("packed_element", "1") != "1" or any(t.elem not in ELEMENTS for t in kinds):
        raise Unsupported(f"{op.name} of other elements than f32 and i32, one at a time")
    check(all(t.shape == kind.shape for t in kinds), op)
    code = [parsed(line) for line in statements(op.words[0])]
    dtype, out = ELEMENTS[kind.elem], op.results[0]

    def step(v, frame):
        registers = {f"${i}": full(v[slot], kind.shape) for i, slot in enumerate(op.operands, 1)}
        for f, takes, target, operands in code:
            xs = [value(registers, x).view(takes) for x in operands]
            registers[target] = np.asarray(f(*xs))
        v[out] = np.broadcast_to(value(registers, "$0"), registers["$0"].shape).view(dtype)

    return step


def statements(text: str) -> list[str]:
    """The instructions of a text, without comments, blocks' braces and declarations of registers."""
    text = text.strip('"').replace("\\0A", "\n").replace("\\09", " ").replace("\\n", "\n").replace("\\t", " ")
    lines = [" ".join(s.split()) for s in re.split(r"[;{}]", _COMMENT.sub(" ", text))]
    return [line for line in lines if line and not line.startswith(".reg")]


def parsed(line: str) -> tuple[Callable, type, str, list[str]]:
    """(function, dtype of its operands, target register, operands) of one instruction."""
    name, _, rest = line.partition(" ")
    target, *operands = [x.strip() for x in rest.split(",")]
    for operand in (target, *operands):
        special = operand.startswith("%") or not _OPERAND.fullmatch(operand)
        if special:
            raise Unsupported(f"inline assembly: {line[:60]}")
    plain = name.replace(".ftz", "")
    if plain in _MOVES and len(operands) == 1:
        return (lambda x: x), np.int32, target, operands
    if plain in CONVERSIONS:
        f, floats = CONVERSIONS[plain]
        return f, np.float32 if floats else np.int32, target, operands
    if plain in INTEGER:
        return INTEGER[plain], np.int32, target, operands
    base = plain.removesuffix(".f32").removesuffix(".rn")
    if plain.endswith(".f32") and base in FLOAT:
        return FLOAT[base], np.float32, target, operands
    raise Unsupported(f"inline assembly: instruction {name[:40]}")


def value(registers: dict[str, np.ndarray], operand: str) -> np.ndarray:
    if operand in registers:
        return np.ascontiguousarray(registers[operand])
    if operand[:2] in ("0f", "0F"):
        return np.array([int(operand[2:], 16)], np.uint32).view(np.float32)
    if operand[0].isdigit() or operand[0] == "-":
        return np.array([int(operand, 0) & 0xFFFFFFFF], np.uint32).view(np.int32)
    raise Unsupported(f"inline assembly: register {operand[:40]} is read before it is written")
