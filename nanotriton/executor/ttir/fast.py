"""CUDA's fast intrinsics (`__nv_fast_sinf`, ...) with the error that they have on a GPU.

Source: the code that libdevice has for them and ptxas makes for sm_90, and the bounds of the PTX ISA
(sin.approx, cos.approx, ex2.approx, lg2.approx, div.approx, all with ftz). Each is a product or two in
float32 around one operation of the special function unit. The products' rounding is done as it is there: it
is most of the error for large arguments. A result of the unit itself is correct to some 22 bits: here it is
rounded to as many. For sines and cosines beyond 100 pi the PTX ISA promises nothing, so what comes out here
is no sine.

All take and return float32 arrays.
"""

import numpy as np

SMALLEST = np.float32(2.0**-126)  # of the normal numbers
LARGEST_DIVISOR = np.float32(2.0**126)
TO_TURNS = np.float32(0.15915494)  # 1 / (2 pi), as log2(e) and the others below in float32
LOG2_E = np.float32(1.442695)
LOG2_10 = np.float32(3.321928)
LN_2 = np.float32(0.6931472)
LOG10_2 = np.float32(0.30103)
BITS = 22  # of a result that are correct
TURNS = 50  # 100 pi: beyond so many nothing is promised of a sine


def _flush(x: np.ndarray) -> np.ndarray:
    """Numbers too small to be normal become 0 (ftz)."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)


def _kept(x: np.ndarray) -> np.ndarray:
    """A float64 result with BITS bits, as float32."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2.0**BITS), exponent - BITS).astype(np.float32)


def _turns(x: np.ndarray) -> np.ndarray:
    """x / (2 pi) in float32, rounded toward zero: the argument is reduced by nothing else."""
    exact = _flush(x).astype(np.float64) * np.float64(TO_TURNS)
    near = exact.astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(exact)
    return np.where(over, np.nextafter(near, np.float32(0)), near)


def _wave(f, x: np.ndarray) -> np.ndarray:
    """f of a whole turn, with an absolute error: 2**-22 at most is from this step.

    Beyond TURNS its phase is off by a quarter of a turn.
    """
    turns = _turns(x).astype(np.float64)
    turns = np.where(np.abs(turns) > TURNS, turns + 0.25, turns)
    return (np.rint(f(2 * np.pi * np.fmod(turns, 1)) * 2.0**BITS) * 2.0**-BITS).astype(np.float32)


def sin(x):
    return _wave(np.sin, x)


def cos(x):
    return _wave(np.cos, x)


def divide(x, y):
    """x times 1 / y. Beyond 2**126 the reciprocal is too small to be normal, and so is 0."""
    x, y = _flush(x), _flush(y)
    reciprocal = _kept(1 / y.astype(np.float64))
    reciprocal = np.where(np.abs(y) > LARGEST_DIVISOR, np.copysign(np.float32(0), y), reciprocal)
    return _flush(x * reciprocal)


def tan(x):
    return divide(sin(x), cos(x))


def exp2(x):
    return _flush(_kept(np.exp2(_flush(x).astype(np.float64))))


def log2(x):
    """Between 1/2 and 2 its error is absolute: near 1 few bits of the result are left."""
    x = _flush(x)
    exact = np.log2(x.astype(np.float64))
    absolute = (np.rint(exact * 2.0**BITS) * 2.0**-BITS).astype(np.float32)
    return np.where((x > 0.5) & (x < 2), absolute, _kept(exact))


def exp(x):
    return exp2(x * LOG2_E)


def exp10(x):
    return exp2(x * LOG2_10)


def log(x):
    return log2(x) * LN_2


def log10(x):
    return log2(x) * LOG10_2


def power(x, y):
    return exp2(y * log2(x))


FAST = {
    "fast_sinf": sin,
    "fast_cosf": cos,
    "fast_tanf": tan,
    "fast_expf": exp,
    "fast_exp10f": exp10,
    "fast_log2f": log2,
    "fast_logf": log,
    "fast_log10f": log10,
    "fast_powf": power,
    "fast_fdividef": divide,
}
