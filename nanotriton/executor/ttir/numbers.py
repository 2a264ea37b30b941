"""Number formats and functions of TTIR in NumPy: numbers in registers, their rounding, numbers in memory.

In registers integers are signed NumPy integers, i1 is bool, pointers are int64, f32 and f64 themselves.
Narrower floats (bf16, f16, fp8) are float32 arrays that hold representable values only, and are rounded to
nearest even after each operation. In memory everything is raw unsigned words. No function raises for a
value: overflow wraps, and x / 0 is anything.
"""

from collections.abc import Callable

import numpy as np
import torch

F8 = ("f8E4M3FN", "f8E5M2")
FLOATS = frozenset(("f16", "bf16", "f32", "f64", *F8))
# the NumPy dtype of an element in a register
DTYPE = {elem: np.dtype(np.float32) for elem in ("f16", "bf16", "f32", *F8)}
DTYPE |= {"f64": np.dtype(np.float64), "i1": np.dtype(bool)}
DTYPE |= {"i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32)}
DTYPE |= {"i64": np.dtype(np.int64), "ptr": np.dtype(np.int64), "index": np.dtype(np.int64)}

Function = Callable[[np.ndarray], np.ndarray]


def unsigned(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == bool else x.view(f"u{x.dtype.itemsize}")


# --- formats


def _bf16_bits(x: np.ndarray) -> np.ndarray:
    """To nearest even: 0x7FFF, and 1 more if the kept half of the word is odd, carries into that half."""
    half = np.uint32(16)
    u = x.view(np.uint32)
    odd = (u >> half) & np.uint32(1)
    bits = (u + np.uint32(0x7FFF) + odd) >> half
    return np.where(np.isnan(x), np.uint32(0x7FC0), bits).astype(np.uint16)


def _bf16_value(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _f8_table(name: str) -> np.ndarray:
    """All 256 values of an OCP 8-bit float (OCP 8-bit Floating Point Specification, 2023)."""
    mantissa_bits, bias = (3, 7) if name == "f8E4M3FN" else (2, 15)
    code = np.arange(256)
    exponent = (code & 0x7F) >> mantissa_bits
    mantissa = code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    sign = np.where(code & 0x80, -1.0, 1.0)
    value = sign * fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
    if name == "f8E4M3FN":
        value[(code & 0x7F) == 0x7F] = np.nan
    else:
        value[(exponent == 31) & (mantissa == 0)] *= np.inf
        value[(exponent == 31) & (mantissa != 0)] = np.nan
    return value.astype(np.float32)


_F8_VALUE = {name: _f8_table(name) for name in F8}
_F8_FINITE = {"f8E4M3FN": 0x7F, "f8E5M2": 0x7C}  # how many codes are finite and not negative


def _f8_middles(name: str) -> np.ndarray:
    """The numbers halfway between neighbours, by the code of the lower one."""
    values = _F8_VALUE[name][: _F8_FINITE[name]].astype(np.float64)
    return (values[:-1] + values[1:]) / 2


_F8_MIDDLE = {name: _f8_middles(name) for name in F8}


def _f8_bits(name: str) -> Function:
    """Nearest even, saturating to the largest finite value, as `cvt.rn.satfinite` does on the GPU."""
    middle = _F8_MIDDLE[name]

    def bits(x: np.ndarray) -> np.ndarray:
        size = np.abs(x).astype(np.float64)
        code = np.searchsorted(middle, size)  # ties fall to the lower code
        code += (code & 1) & (size == middle[np.minimum(code, len(middle) - 1)])
        signed = code | (np.signbit(x) * 0x80)
        return np.where(np.isnan(x), 0x7F, signed).astype(np.uint8)

    return bits


def encoder(elem: str) -> Function:
    """Register -> raw memory words."""
    if elem == "bf16":
        return _bf16_bits
    if elem == "f16":
        return lambda x: x.astype(np.float16).view(np.uint16)
    if elem in F8:
        return _f8_bits(elem)
    return lambda x: x.view(f"u{x.dtype.itemsize}")


def decoder(elem: str) -> Function:
    """Raw memory words -> register."""
    if elem == "bf16":
        return _bf16_value
    if elem == "f16":
        return lambda raw: raw.view(np.float16).astype(np.float32)
    if elem in F8:
        return _F8_VALUE[elem].take
    if elem == "i1":
        return lambda raw: raw != 0
    dtype = DTYPE[elem]
    return lambda raw: raw.view(dtype)


def rounder(elem: str) -> Function | None:
    """The function that rounds a float32 result to `elem`, or None if there is nothing to do."""
    if elem == "bf16":
        return lambda x: _bf16_value(_bf16_bits(x))
    if elem == "f16":
        return lambda x: x.astype(np.float16).astype(np.float32)
    if elem in F8:
        bits, value = _f8_bits(elem), _F8_VALUE[elem]
        return lambda x: value.take(bits(x))
    return None


def tf32(x: np.ndarray) -> np.ndarray:
    """The 10 mantissa bits that a tensor core reads of a float32.

    Triton feeds it raw words. It drops the rest unrounded.
    """
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def bf16_to_zero(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bf16 toward zero (tt.fp_to_fp with rounding = rtz)."""
    kept = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), x, kept)


def f16_to_zero(x: np.ndarray) -> np.ndarray:
    """float32 rounded to f16 toward zero."""
    near = x.astype(np.float16)
    over = np.abs(near.astype(np.float32)) > np.abs(x)
    return np.where(over, np.nextafter(near, np.float16(0)), near).astype(np.float32)


# --- integers


def div_signed(a, b):
    """C division: toward zero. Division by zero is 0."""
    return (a - np.fmod(a, b)) // b


def div_unsigned(a, b):
    return (unsigned(a) // unsigned(b)).view(a.dtype)


def by_scalar(f):
    """`f` of a divisor that is one number takes NumPy's fast path for scalars."""
    return lambda a, b: f(a, b.reshape(()) if b.size == 1 else b)


def mul_high(a, b):
    """High half of the unsigned product of i32 or i64."""
    x, y = unsigned(a), unsigned(b)
    if a.dtype.itemsize == 4:
        return ((x.astype(np.uint64) * y) >> np.uint64(32)).astype(np.uint32).view(np.int32)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)  # long multiplication in halves of a word
    x1, x0 = x >> half, x & low
    y1, y0 = y >> half, y & low
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    return (x1 * y1 + (middle >> half) + (other >> half)).view(np.int64)


def mul_high_signed(a, b):
    """High half of the signed product: the unsigned one, corrected for each negative factor."""
    correction = np.where(a < 0, b, 0).astype(a.dtype) + np.where(b < 0, a, 0).astype(a.dtype)
    return mul_high(a, b) - correction


def float_to_int(dtype: np.dtype, signed: bool = True) -> Function:
    """Toward zero, saturating, NaN to 0, as PTX's cvt.rzi does. i8 and i16 keep the low bits of the i32."""
    bits = max(dtype.itemsize * 8, 32)
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    wide = np.dtype(f"{'i' if signed else 'u'}{bits // 8}")
    ends = np.iinfo(wide)

    def convert(x: np.ndarray) -> np.ndarray:
        whole = np.trunc(x.astype(np.float64))
        inside = (whole >= low) & (whole < high)
        out = np.where(inside, whole, 0).astype(wide)
        if not inside.all():
            out = np.where(whole < low, ends.min, out)
            out = np.where(whole >= high, ends.max, out).astype(wide)
        return out.view(f"i{bits // 8}").astype(dtype)

    return convert


# --- floats


def round_away(x):
    """To the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    away = (np.abs(x - whole) >= 0.5).astype(x.dtype)
    return whole + np.copysign(away, x)


def fma(a, b, c):
    """One rounding for f32 (a double holds the product exactly); two for f64."""
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def through_torch(f):
    """A torch function of one array (special functions that NumPy lacks)."""
    return lambda x: f(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def rsqrt(x):
    return 1 / np.sqrt(x)


erf = through_torch(torch.erf)


def clamp(x, low, high, nan: bool):
    if nan:
        return np.minimum(np.maximum(x, low), high)
    return np.fmin(np.fmax(x, low), high)


# --- comparisons

CMPI = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
}


def _of_unsigned(f):
    return lambda a, b: f(unsigned(a), unsigned(b))


for _name in ("lt", "le", "gt", "ge"):
    CMPI[f"u{_name}"] = _of_unsigned(CMPI[f"s{_name}"])
# NumPy's comparisons are ordered (false for NaN) but for !=. Unordered is the negation of the opposite.
CMPF = {
    "oeq": np.equal,
    "ogt": np.greater,
    "oge": np.greater_equal,
    "olt": np.less,
    "ole": np.less_equal,
    "une": np.not_equal,
    "one": lambda a, b: (a < b) | (a > b),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
}
