"""CUDA's libdevice in NumPy: the functions of `tt.extern_elementwise {symbol = "__nv_tanhf"}`.

Source: CUDA libdevice user's guide. A function is found by its symbol without `__nv_` and, for float,
without the final f. Functions of an integer order (`__nv_jnf`) are missing: `find` answers None for them.
"""

import numpy as np
import torch

from .fast import FAST
from .numbers import (
    clamp,
    float_to_int,
    fma,
    mul_high,
    mul_high_signed,
    round_away,
    rsqrt,
    through_torch,
    unsigned,
)
from .rounding import DIRECTED


def _norm(*xs):
    squares = sum(x.astype(np.float64) ** 2 for x in xs)
    return np.sqrt(squares).astype(xs[0].dtype)


def _reciprocal(x):
    return 1 / x


def _period_two(x):
    """pi x, with x reduced to a period first."""
    return np.pi * np.fmod(x.astype(np.float64), 2)


def _saturate(x):
    """Clamped to [0, 1], NaN to 0."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    return clamp(np.where(np.isnan(x), zero, x), zero, one, False)


def _positive_difference(x, y):
    return np.where(np.isnan(x - y), x - y, np.maximum(x - y, 0))


def _tgamma(x):
    """|Gamma| from lgamma, with its sign: negative on (-1, 0), (-3, -2), ..; NaN at negative integers."""
    wide = x.astype(np.float64)
    size = np.exp(_lgamma(wide))
    negative = (wide < 0) & (np.floor(wide) % 2 == 1)
    pole = (wide < 0) & (wide == np.floor(wide))
    value = np.where(negative, -size, size)
    return np.where(pole, np.nan, value).astype(x.dtype)


def _count_bits(x):
    return np.bitwise_count(unsigned(x)).astype(np.int32)


def _leading_zeros(x):
    bits = unsigned(x)
    shift = 1
    while shift < 8 * bits.itemsize:  # smear the highest bit downwards
        bits = bits | (bits >> bits.dtype.type(shift))
        shift *= 2
    return np.int32(8 * bits.itemsize) - np.bitwise_count(bits).astype(np.int32)


def _first_set(x):
    below = (x & -x) - 1  # ones below the lowest bit
    return np.where(x == 0, 0, _count_bits(below) + 1).astype(np.int32)


def _reverse(x):
    """The bits in reverse order."""
    octets = np.ascontiguousarray(x)[..., None].view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")
    words = np.packbits(bits, axis=-1).view(f">i{x.itemsize}")
    return words[..., 0].astype(x.dtype)


def _byte_perm(x, y, s):
    """The four bytes of y:x that the four nibbles of s select."""
    both = (unsigned(y).astype(np.uint64) << np.uint64(32)) | unsigned(x)
    selector = unsigned(s).astype(np.uint64)
    out = np.zeros(both.shape, np.uint64)
    for i in range(4):
        nibble = (selector >> np.uint64(4 * i)) & np.uint64(7)
        byte = (both >> (nibble * np.uint64(8))) & np.uint64(255)
        out = out | (byte << np.uint64(8 * i))
    return out.astype(np.uint32).view(np.int32)


def _remainder(x, y):
    """IEEE: x - n y with n the integer nearest x / y."""
    by = y.astype(np.float64)
    left = np.fmod(x.astype(np.float64), by)
    return (left - by * np.rint(left / by)).astype(x.dtype)


def _mean(a, b, signed: bool, up: int):
    """(a + b + up) / 2, rounded down."""
    wide = np.int64 if signed else np.uint64
    a, b = (a, b) if signed else (unsigned(a), unsigned(b))
    total = a.astype(wide) + b.astype(wide) + wide(up)
    return (total >> wide(1)).astype(np.int32)


def _difference(a, b, c, signed: bool):
    """|a - b| + c."""
    a, b = (a, b) if signed else (unsigned(a), unsigned(b))
    distance = np.abs(a.astype(np.int64) - b.astype(np.int64))
    return (distance + unsigned(c)).astype(np.int32)


def _low24(x, signed: bool):
    """The low 24 bits of an i32 as a number."""
    high = x << np.int32(8)
    if not signed:
        high = unsigned(high)
    return (high >> high.dtype.type(8)).astype(np.int64)


def _mul24(a, b, signed: bool):
    return (_low24(a, signed) * _low24(b, signed)).astype(np.int32)


def _integer(test):
    return lambda *xs: test(*xs).astype(np.int32)


def _exponent(x):
    return (np.frexp(x)[1] - 1).astype(np.int32)


_lgamma, _special = through_torch(torch.lgamma), torch.special
FLOAT = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "expm1": np.expm1,
    "fabs": np.abs,
    "floor": np.floor,
    "fmod": np.fmod,
    "fma": fma,
    "fdim": _positive_difference,
    "hypot": lambda x, y: _norm(x, y),
    "rhypot": lambda x, y: 1 / _norm(x, y),
    "norm3d": _norm,
    "norm4d": _norm,
    "rnorm3d": lambda *x: 1 / _norm(*x),
    "rnorm4d": lambda *x: 1 / _norm(*x),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "pow": np.power,
    "powi": np.power,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "nextafter": np.nextafter,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "remainder": _remainder,
    "rint": np.rint,
    "nearbyint": np.rint,
    "round": round_away,
    "rsqrt": rsqrt,
    "trunc": np.trunc,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
    "ldexp": np.ldexp,
    "scalbn": np.ldexp,
    "sinpi": lambda x: np.sin(_period_two(x)).astype(x.dtype),
    "cospi": lambda x: np.cos(_period_two(x)).astype(x.dtype),
    "logb": lambda x: np.floor(np.log2(np.abs(x.astype(np.float64)))).astype(x.dtype),
    "ilogb": _exponent,
    "erf": through_torch(torch.erf),
    "erfc": through_torch(torch.erfc),
    "erfinv": through_torch(torch.erfinv),
    "erfcinv": through_torch(lambda x: torch.erfinv(1 - x.double()).to(x.dtype)),
    "erfcx": through_torch(_special.erfcx),
    "lgamma": _lgamma,
    "tgamma": _tgamma,
    "normcdf": through_torch(_special.ndtr),
    "normcdfinv": through_torch(_special.ndtri),
    "cyl_bessel_i0": through_torch(_special.i0),
    "cyl_bessel_i1": through_torch(_special.i1),
    "j0": through_torch(_special.bessel_j0),
    "j1": through_torch(_special.bessel_j1),
    "y0": through_torch(_special.bessel_y0),
    "y1": through_torch(_special.bessel_y1),
    "saturate": _saturate,
    "llrint": lambda x: float_to_int(np.dtype(np.int64))(np.rint(x)),
    "llround": lambda x: float_to_int(np.dtype(np.int64))(round_away(x)),
    "fdivide": np.divide,
}
EXACT = {
    "abs": np.abs,
    "llabs": np.abs,
    "brev": _reverse,
    "brevll": _reverse,
    "byte_perm": _byte_perm,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "ffs": _first_set,
    "ffsll": _first_set,
    "popc": _count_bits,
    "popcll": _count_bits,
    "mulhi": mul_high_signed,
    "mul64hi": mul_high_signed,
    "umulhi": mul_high,
    "umul64hi": mul_high,
    "mul24": lambda a, b: _mul24(a, b, True),
    "umul24": lambda a, b: _mul24(a, b, False),
    "hadd": lambda a, b: _mean(a, b, True, 0),
    "rhadd": lambda a, b: _mean(a, b, True, 1),
    "uhadd": lambda a, b: _mean(a, b, False, 0),
    "urhadd": lambda a, b: _mean(a, b, False, 1),
    "sad": lambda a, b, c: _difference(a, b, c, True),
    "usad": lambda a, b, c: _difference(a, b, c, False),
    "float_as_int": lambda x: x.view(np.int32),
    "float_as_uint": lambda x: x.view(np.int32),
    "int_as_float": lambda x: x.view(np.float32),
    "uint_as_float": lambda x: x.view(np.float32),
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
    "double2hiint": lambda x: (x.view(np.int64) >> 32).astype(np.int32),
    "double2loint": lambda x: x.view(np.int64).astype(np.int32),
    "hiloint2double": lambda h, l: ((h.astype(np.int64) << 32) | unsigned(l)).view(np.float64),
    "isnanf": _integer(np.isnan),
    "isnand": _integer(np.isnan),
    "isinff": _integer(np.isinf),
    "isinfd": _integer(np.isinf),
    "finitef": _integer(np.isfinite),
    "isfinited": _integer(np.isfinite),
    "signbitf": _integer(np.signbit),
    "signbitd": _integer(np.signbit),
    "frsqrt_rn": rsqrt,
    "fmaf_rn": fma,
    "fma_rn": fma,
}
for _kind in ("f", "d"):  # __nv_fadd_rn and __nv_dadd_rn round as everything does
    EXACT[f"{_kind}add_rn"] = np.add
    EXACT[f"{_kind}sub_rn"] = np.subtract
    EXACT[f"{_kind}mul_rn"] = np.multiply
    EXACT[f"{_kind}div_rn"] = np.divide
    EXACT[f"{_kind}sqrt_rn"] = np.sqrt
    EXACT[f"{_kind}rcp_rn"] = _reciprocal


def _to_integer(round_, dtype, signed: bool):
    convert = float_to_int(np.dtype(dtype), signed)
    return lambda x: convert(round_(x))


def _to_float(dtype, signed: bool):
    return lambda x: (x if signed else unsigned(x)).astype(dtype)


_INTEGERS = {
    "int": (np.int32, True),
    "uint": (np.int32, False),
    "ll": (np.int64, True),
    "ull": (np.int64, False),
}
_ROUND = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}
for _name, (_dtype, _signed) in _INTEGERS.items():
    for _mode, _round in _ROUND.items():
        EXACT[f"float2{_name}_{_mode}"] = _to_integer(_round, _dtype, _signed)
        EXACT[f"double2{_name}_{_mode}"] = _to_integer(_round, _dtype, _signed)
    EXACT[f"{_name}2float_rn"] = _to_float(np.float32, _signed)
    EXACT[f"{_name}2double_rn"] = _to_float(np.float64, _signed)
EXACT["double2float_rn"] = _to_float(np.float32, True)


def find(symbol: str):
    """The function of a libdevice symbol, or None."""
    name = symbol.removeprefix("__nv_")
    exact = EXACT.get(name) or DIRECTED.get(name)
    return FAST.get(name) or exact or FLOAT.get(name) or FLOAT.get(name.removesuffix("f"))
