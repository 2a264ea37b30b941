"""libdevice's directed rounding (`__nv_fadd_rd`, `__nv_int2float_ru`, ..): down (rd), up (ru), to zero (rz).

Each result is first rounded to nearest. Then the sign of what is left, exact minus rounded, says whether it
has to move by one step. That sign is exact: products of two float32 are exact in float64, and float64 has
error-free sums (Knuth) and products (Dekker). Of float64's fused multiply-add it is not known: it is missing.
"""

from collections.abc import Callable

import numpy as np

Left = Callable[..., tuple[np.ndarray, np.ndarray]]  # operands -> (rounded to nearest, sign of what is left)


def directed(left: Left, mode: str) -> Callable:
    def rounded(*xs):
        near, sign = left(*xs)
        finite = np.logical_and.reduce([np.isfinite(np.asarray(x, np.float64)) for x in xs])
        sign = np.where(np.isinf(near) & finite & ~np.isnan(sign), -np.sign(near), sign)
        down, up = near.dtype.type(-np.inf), near.dtype.type(np.inf)
        if mode == "rz":
            inward = (sign * np.sign(near) < 0) & np.isfinite(sign)
            return np.where(inward, np.nextafter(near, near.dtype.type(0)), near)
        if mode == "rd":
            return np.where(sign < 0, np.nextafter(near, down), near)
        return np.where(sign > 0, np.nextafter(near, up), near)

    return rounded


def _sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64: (the sum, its error). Knuth's two-sum."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64: (the product, its error). Dekker's product."""
    high, low = _halves(a)
    high2, low2 = _halves(b)
    total = a * b
    return total, ((high * high2 - total) + high * low2 + low * high2) + low * low2


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = x * 134217729.0  # 2**27 + 1
    high = wide - (wide - x)
    return high, x - high


def _narrow(total: np.ndarray, error: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """A float64 number and its error, rounded to float32."""
    near = total.astype(np.float32)
    rest = total - near
    return near, np.where(rest != 0, np.sign(rest), np.sign(error))


def add(a, b):
    total, error = _sum(a.astype(np.float64), b.astype(np.float64))
    return _narrow(total, error) if a.dtype == np.float32 else (total, np.sign(error))


def subtract(a, b):
    return add(a, -b)


def multiply(a, b):
    if a.dtype == np.float32:
        return _narrow(a.astype(np.float64) * b)
    total, error = _product(a, b)
    return total, np.sign(error)


def multiply_add(a, b, c):
    """Of float32."""
    return _narrow(*_sum(a.astype(np.float64) * b, c.astype(np.float64)))


def divide(a, b):
    near = a / b
    total, error = _product(near.astype(np.float64), b.astype(np.float64))
    rest = (a - total) - error
    return near, np.sign(rest) * np.sign(b)


def reciprocal(b):
    return divide(np.ones_like(b), b)


def square_root(a):
    near = np.sqrt(a)
    total, error = _product(near.astype(np.float64), near.astype(np.float64))
    return near, np.sign((a - total) - error)


def _convert(dtype, signed: bool) -> Left:
    """An integer, or a float64, to a float. x86's long double holds each of them exactly."""

    def left(x):
        if x.dtype.kind == "i" and not signed:
            x = x.view(f"u{x.dtype.itemsize}")
        near = x.astype(dtype)
        return near, np.sign(x.astype(np.longdouble) - near).astype(np.float64)

    return left


LEFT: dict[str, Left] = {"fmaf": multiply_add}
for _kind in ("f", "d"):
    LEFT |= {
        f"{_kind}add": add,
        f"{_kind}sub": subtract,
        f"{_kind}mul": multiply,
        f"{_kind}div": divide,
        f"{_kind}rcp": reciprocal,
        f"{_kind}sqrt": square_root,
    }
for _name, _signed in (("int", True), ("uint", False), ("ll", True), ("ull", False)):
    LEFT[f"{_name}2float"] = _convert(np.float32, _signed)
    LEFT[f"{_name}2double"] = _convert(np.float64, _signed)
LEFT["double2float"] = _convert(np.float32, True)
DIRECTED = {
    f"{name}_{mode}": directed(left, mode) for name, left in LEFT.items() for mode in ("rd", "ru", "rz")
}
