"""What a kernel promises its compiler is checked, and fast intrinsics have the error of a GPU."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
from ttir_lowering import data, evaluate

from nanotriton.executor.ttir import FalsePromise
from nanotriton.executor.ttir import libdevice as ours


@triton.jit
def shifted(X, Y, SHIFT: tl.constexpr, MULTIPLE: tl.constexpr, CONTIGUOUS: tl.constexpr, B: tl.constexpr):
    o = tl.program_id(0) * B + SHIFT + tl.arange(0, B)
    o = tl.max_contiguous(tl.multiple_of(o, MULTIPLE), CONTIGUOUS)
    tl.store(Y + o, tl.load(X + o))


@pytest.mark.parametrize("shift,multiple,holds", [(0, 32, True), (8, 8, True), (8, 16, False), (3, 2, False)])
def test_the_first_of_consecutive_numbers_is_a_multiple(shift, multiple, holds):
    x, y = data(128), torch.zeros(128)
    run = lambda: evaluate(shifted, (3,), x, y, SHIFT=shift, MULTIPLE=multiple, CONTIGUOUS=32, B=32)
    if not holds:
        with pytest.raises(FalsePromise, match=rf"multiple_of\({multiple}\)"):
            run()
        return
    run()
    assert torch.equal(y[shift : shift + 96], x[shift : shift + 96])


@triton.jit
def strided(
    X, Y, STRIDE: tl.constexpr, MULTIPLE: tl.constexpr, CONTIGUOUS: tl.constexpr, CONSTANT: tl.constexpr
):
    o = tl.arange(0, 16) // CONSTANT * STRIDE
    o = tl.multiple_of(o, MULTIPLE)
    if CONTIGUOUS > 1:
        o = tl.max_contiguous(o, CONTIGUOUS)
    o = tl.max_constancy(o, 4)
    tl.store(Y + tl.arange(0, 16), tl.load(X + o))


@pytest.mark.parametrize(
    "stride,multiple,contiguous,constant,broken",
    [
        (4, 4, 1, 4, None),
        (4, 8, 1, 4, "multiple_of"),
        (4, 4, 2, 4, "max_contiguous"),
        (4, 4, 1, 2, "max_constancy"),
    ],
)
def test_each_promise_of_a_tensor(stride, multiple, contiguous, constant, broken):
    run = lambda: evaluate(
        strided,
        (1,),
        data(64),
        torch.zeros(16),
        STRIDE=stride,
        MULTIPLE=multiple,
        CONTIGUOUS=contiguous,
        CONSTANT=constant,
    )
    if broken is None:
        run()
    else:
        with pytest.raises(FalsePromise, match=broken):
            run()


@triton.jit
def wrapped(X, Y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    rows = tl.max_contiguous(tl.multiple_of(o % n, B), B)
    tl.store(Y + o, tl.load(X + rows), mask=o < n)


def test_rows_that_wrap_around_are_let_off():
    x, y = data(37), torch.zeros(37)
    evaluate(wrapped, (2,), x, y, 37, B=32)
    assert torch.equal(y, x)


@triton.jit
def plane(X, Y, n, MULTIPLE: tl.constexpr):
    rows, columns = tl.arange(0, 8)[:, None], tl.arange(0, 16)[None, :]
    o = tl.max_contiguous(tl.multiple_of(rows * n + columns, [1, MULTIPLE]), [1, 16])
    tl.store(Y + rows * 16 + columns, tl.load(X + o))


def test_promises_by_axis():
    evaluate(plane, (1,), data(8, 24), torch.zeros(8, 16), 24, MULTIPLE=8)
    with pytest.raises(FalsePromise, match=r"multiple_of\(16\)"):
        evaluate(plane, (1,), data(8, 24), torch.zeros(8, 16), 24, MULTIPLE=16)


@triton.jit
def stepping(X, Y, n, step, B: tl.constexpr):
    start = 0
    for _ in range(n):
        start = tl.multiple_of(start, 8)
        o = start + tl.arange(0, B)
        tl.store(Y + o, tl.load(X + o))
        start += step


def test_a_promise_about_what_a_loop_carries():
    x, y = data(64), torch.zeros(64)
    evaluate(stepping, (1,), x, y, 4, 16, B=16)
    assert torch.equal(x, y)
    with pytest.raises(FalsePromise, match=r"multiple_of\(8\)"):
        evaluate(stepping, (1,), x, y, 4, 12, B=16)


@triton.jit
def assuming(X, Y, n, B: tl.constexpr):
    tl.assume(n % 32 == 0)
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(Y + o, tl.load(X + o, mask=o < n), mask=o < n)


def test_an_assumption():
    x, y = data(64), torch.zeros(64)
    evaluate(assuming, (2,), x, y, 64, B=32)
    with pytest.raises(FalsePromise, match=r"tl\.assume"):
        evaluate(assuming, (2,), x, y, 63, B=32)


# --- fast intrinsics


@triton.jit
def unary(X, Y, F: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Y + o, F(tl.load(X + o)))


def worst(name: str, reference, low: float, high: float) -> float:
    """The largest error of a fast function on an interval, absolute where the values are below 1."""
    x = torch.linspace(low, high, 1024)
    y = torch.empty_like(x)
    evaluate(unary, (1,), x, y, F=getattr(libdevice, name), N=1024)
    want = reference(x.double())
    return float(((y.double() - want).abs() / want.abs().clamp_min(1)).max())


@pytest.mark.parametrize(
    "name,reference,low,high,least,most",
    [  # the error is not below `least`, and not above the bound of the PTX ISA or of the code around it
        ("fast_sinf", torch.sin, -math.pi, math.pi, 2**-25, 2**-20.5),
        ("fast_cosf", torch.cos, -300, 300, 2**-18, 2**-14.7),
        ("fast_sinf", torch.sin, 320, 900, 0.5, 2),
        ("fast_tanf", torch.tan, -1.3, 1.3, 2**-24, 2**-18),
        ("fast_expf", torch.exp, 20, 80, 2**-20, 2**-16),
        ("fast_log2f", torch.log2, 0.6, 1.9, 2**-25, 2**-22),
        ("fast_logf", torch.log, 3, 1e6, 2**-25, 2**-21),
        ("fast_exp10f", lambda x: 10**x, -3, 30, 2**-22, 2**-17),
    ],
)
def test_fast_functions_have_the_error_of_a_gpu(name, reference, low, high, least, most):
    assert least < worst(name, reference, low, high) < most


def test_fast_division_by_a_huge_number_is_zero():
    x = np.array([2.0**127, 2.0**120, 2.0**120], np.float32)
    y = np.array([2.0**127, 2.0**120, 3.0], np.float32)
    found = ours.find("__nv_fast_fdividef")(x, y)
    assert found[0] == 0 and found[1] == 1 and abs(found[2] / 2.0**120 * 3 - 1) < 1e-6


def test_a_fast_logarithm_near_one_loses_bits():
    x = np.float32(1) + np.arange(1, 9, dtype=np.float32) * np.float32(2.0**-23)
    found, exact = ours.find("__nv_fast_logf")(x), np.log(x.astype(np.float64))
    assert np.abs(found / exact - 1).max() > 0.1
    assert np.abs(found - exact).max() < 2.0**-22
