"""Directed rounding against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
from ttir_lowering import evaluate

from nanotriton.executor.ttir import libdevice as ours

RNG = np.random.default_rng(0)


def rounded(exact: Fraction, dtype, mode: str) -> float:
    """The number of `dtype` next to an exact one, in a direction."""
    near = dtype(float(exact))  # one of the two neighbours
    while Fraction(float(near)) > exact:
        near = np.nextafter(near, dtype(-np.inf))
    while Fraction(float(np.nextafter(near, dtype(np.inf)))) <= exact:
        near = np.nextafter(near, dtype(np.inf))
    if Fraction(float(near)) == exact or mode == "rd" or (mode == "rz" and exact > 0):
        return float(near)
    return float(np.nextafter(near, dtype(np.inf)))


def operands(dtype, count: int) -> list[np.ndarray]:
    """Numbers of very different sizes, and some whose results are exact."""
    found = []
    for _ in range(count):
        x = RNG.standard_normal(64) * 2.0 ** RNG.integers(-30, 30, 64)
        x[:8] = RNG.integers(1, 9, 8)
        found.append(x.astype(dtype))
    return found


ARITHMETIC = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "div": (2, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a),
}


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
@pytest.mark.parametrize("kind,dtype", [("f", np.float32), ("d", np.float64)])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name, kind, dtype, mode):
    count, exact = ARITHMETIC[name]
    xs = operands(dtype, count)
    found = ours.find(f"__nv_{kind}{name}_{mode}")(*xs)
    assert found.dtype == dtype
    for got, *each in zip(found, *xs):
        assert float(got) == rounded(exact(*(Fraction(float(x)) for x in each)), dtype, mode)


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
def test_fused_multiply_add_and_square_root(mode):
    a, b, c = operands(np.float32, 3)
    found = ours.find(f"__nv_fmaf_{mode}")(a, b, c)
    for got, *each in zip(found, a, b, c):
        x, y, z = (Fraction(float(v)) for v in each)
        assert float(got) == rounded(x * y + z, np.float32, mode)
    for kind, dtype in (("f", np.float32), ("d", np.float64)):
        x = np.abs(operands(dtype, 1)[0])
        root = ours.find(f"__nv_{kind}sqrt_{mode}")(x)
        step = np.nextafter(root, dtype(0 if mode == "ru" else np.inf))
        for got, other, square in zip(root, step, x):
            low, high = sorted((Fraction(float(got)) ** 2, Fraction(float(other)) ** 2))
            exact = Fraction(float(square))
            assert low <= exact <= high
            assert exact != Fraction(float(other)) ** 2


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
def test_conversions(mode):
    wide = RNG.integers(-(2**63), 2**63, 32)
    for symbol, x, dtype in (
        ("int2float", (wide >> 32).astype(np.int32), np.float32),
        ("ll2float", wide, np.float32),
        ("ll2double", wide, np.float64),
        ("double2float", RNG.standard_normal(32), np.float32),
    ):
        found = ours.find(f"__nv_{symbol}_{mode}")(x)
        for got, exact in zip(found, x):
            assert float(got) == rounded(Fraction(exact.item()), dtype, mode)
    unsigned = ours.find(f"__nv_uint2float_{mode}")(np.array([-1], np.int32))
    assert float(unsigned[0]) == (2**32 if mode == "ru" else 2**32 - 256)


@np.errstate(all="ignore")
def test_overflow_stops_at_the_largest_number():
    big = np.array([3e38], np.float32)
    largest = float(np.finfo(np.float32).max)
    assert float(ours.find("__nv_fadd_rd")(big, big)[0]) == largest
    assert float(ours.find("__nv_fadd_rz")(-big, -big)[0]) == -largest
    assert math.isinf(ours.find("__nv_fadd_ru")(big, big)[0])
    infinite = np.array([np.inf], np.float32)
    assert math.isinf(ours.find("__nv_fadd_rd")(infinite, big)[0])
    assert math.isnan(ours.find("__nv_fmul_ru")(infinite, np.zeros(1, np.float32))[0])


@triton.jit
def interval(X, Low, High, N: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.load(X + o)
    tl.store(Low + o, libdevice.mul_rd(x, x))
    tl.store(High + o, libdevice.mul_ru(x, x))


def test_a_kernel_that_rounds_both_ways():
    x = torch.linspace(0.1, 3, 32)
    low, high = torch.empty(32), torch.empty(32)
    evaluate(interval, (1,), x, low, high, N=32)
    exact = x.double() ** 2
    assert (low.double() <= exact).all() and (exact <= high.double()).all() and (low < high).any()
