"""The evaluator's operations against torch and Python integers, each through a real kernel lowered by Triton's front end."""

import inspect
import math
import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
from ttir_lowering import evaluate

from nanotriton.executor.ttir import libdevice as ours

N = 64
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def data(dtype=torch.float32, n=N, low=-3.0, high=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)


def close(got, want, ulps=4):
    """Within a few units of the last place of got's own type, NaN and infinities in the same places."""
    got64, want64 = got.double(), want.double()
    unit = torch.finfo(got.dtype).eps * want64.abs().clamp_min(torch.finfo(got.dtype).tiny)
    bad = ~((got64 - want64).abs() <= ulps * unit) & ~(got64 == want64) & ~(got64.isnan() & want64.isnan())
    assert not bad.any(), f"{got[bad][:4]} is not {want64[bad][:4]}"


@triton.jit
def unary(X, Y, F: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Y + o, F(tl.load(X + o)))


@triton.jit
def binary(X, Y, Z, F: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Z + o, F(tl.load(X + o), tl.load(Y + o)))


@triton.jit
def arith(X, Y, Z, OP: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    x, y = tl.load(X + o), tl.load(Y + o)
    if OP == "+":
        z = x + y
    elif OP == "-":
        z = x - y
    elif OP == "*":
        z = x * y
    elif OP == "/":
        z = x / y
    elif OP == "//":
        z = x // y
    elif OP == "%":
        z = x % y
    elif OP == "<<":
        z = x << y
    elif OP == ">>":
        z = x >> y
    elif OP == "&":
        z = x & y
    elif OP == "|":
        z = x | y
    elif OP == "^":
        z = x ^ y
    elif OP == "<":
        z = x < y
    elif OP == "<=":
        z = x <= y
    elif OP == ">":
        z = x > y
    elif OP == ">=":
        z = x >= y
    elif OP == "==":
        z = x == y
    elif OP == "!=":
        z = x != y
    tl.store(Z + o, z)


@pytest.mark.parametrize("dtype", FLOATS + (torch.float64,))
@pytest.mark.parametrize("op", ["+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!="])
def test_float_arithmetic(op, dtype):
    x, y = data(dtype), data(dtype, seed=1)
    x[:4] = torch.tensor([float("nan"), float("inf"), 0.0, 1.0])
    y[:4] = torch.tensor([1.0, float("-inf"), 0.0, float("nan")])
    f = {
        "+": torch.add,
        "-": torch.sub,
        "*": torch.mul,
        "/": torch.div,
        "%": torch.fmod,
        "<": torch.lt,
        "<=": torch.le,
        ">": torch.gt,
        ">=": torch.ge,
        "==": torch.eq,
        "!=": torch.ne,
    }[op]
    if op in "+-*/%":
        z, want = torch.empty_like(x), f(x, y)
        if op == "/" and dtype in (torch.float16, torch.bfloat16):
            want = f(x.float(), y.float()).to(dtype)
        evaluate(arith, (1,), x, y, z, OP=op, N=N)
        close(z, want, ulps=0)  # the same rounding: bit for bit
    else:
        z = torch.empty(N, dtype=torch.int32)
        evaluate(arith, (1,), x, y, z, OP=op, N=N)
        assert torch.equal(z, f(x, y).int())


def wrap(value: int, dtype: torch.dtype) -> int:
    bits = torch.iinfo(dtype).bits
    low = torch.iinfo(dtype).min
    return (value - low) % (1 << bits) + low


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("op", ["+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^", "<", ">=", "=="])
def test_integer_arithmetic(op, dtype):
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(max(info.min, -(2**62)), min(info.max, 2**62), (N,), generator=generator).to(dtype)
    y = torch.randint(max(info.min, -7), 8, (N,), generator=generator).to(dtype)
    x[:2] = torch.tensor([info.min, info.max])
    if op in ("//", "%"):
        y[y == 0] = 3
    if op in ("<<", ">>"):
        y = y.clamp(min=0)

    def python(a, b):
        if op == "//":
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if op == "%":
            return (
                int(math.fmod(a, b))
                if abs(a) < 2**52
                else a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))
            )
        return int(
            {
                "+": a + b,
                "-": a - b,
                "*": a * b,
                "<<": a << (b & 63),
                ">>": a >> (b & 63),
                "&": a & b,
                "|": a | b,
                "^": a ^ b,
                "<": a < b,
                ">=": a >= b,
                "==": a == b,
            }[op]
        )

    out = torch.int32 if op in ("<", ">=", "==") else dtype
    z = torch.empty(N, dtype=out)
    evaluate(arith, (1,), x, y, z, OP=op, N=N)
    assert z.tolist() == [wrap(python(a, b), out) for a, b in zip(x.tolist(), y.tolist())]


def test_division_by_zero_and_its_overflow_spoil_no_other_element():
    x, y = torch.tensor([5, -(2**31), 7, 9]).int(), torch.tensor([0, -1, 2, 4]).int()
    for op, right in (("//", [3, 2]), ("%", [1, 1])):
        z = torch.zeros(4, dtype=torch.int32)
        evaluate(arith, (1,), x, y, z, OP=op, N=4)
        assert z[2:].tolist() == right


@triton.jit
def more_functions(X, Y, OP: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.load(X + o)
    if OP == "fma":
        y = tl.fma(x, x, x)
    elif OP == "clamp":
        y = tl.clamp(x, -1.0, 2.0)
    elif OP == "clamp_nan":
        y = tl.clamp(x, -1.0, 2.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "max_nan":
        y = tl.maximum(x, 0.5, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "max":
        y = tl.maximum(x, 0.5)
    elif OP == "min":
        y = tl.minimum(x, 0.5)
    elif OP == "div_rn":
        y = tl.div_rn(1.0, x)
    elif OP == "sqrt_rn":
        y = tl.sqrt_rn(x)
    elif OP == "sigmoid":
        y = tl.sigmoid(x)
    elif OP == "where":
        y = tl.where(x > 0, x, 2 * x)
    tl.store(Y + o, y)


@pytest.mark.parametrize(
    "name,want",
    [
        ("fma", lambda x: (x.double() * x.double() + x.double()).float()),
        ("clamp", lambda x: torch.where(x.isnan(), -1.0, x.clamp(-1, 2))),
        ("clamp_nan", lambda x: x.clamp(-1, 2)),
        ("max_nan", lambda x: torch.maximum(x, torch.tensor(0.5))),
        ("max", lambda x: torch.fmax(x, torch.tensor(0.5))),
        ("min", lambda x: torch.fmin(x, torch.tensor(0.5))),
        ("div_rn", lambda x: 1 / x),
        ("sqrt_rn", torch.sqrt),
        ("sigmoid", torch.sigmoid),
        ("where", lambda x: torch.where(x > 0, x, 2 * x)),
    ],
)
def test_functions_of_the_language(name, want):
    x = data()
    x[0] = float("nan")
    y = torch.empty_like(x)
    evaluate(more_functions, (1,), x, y, OP=name, N=N)
    close(y, want(x))


@pytest.mark.parametrize(
    "name", ["exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "abs", "floor", "ceil"]
)
def test_math(name):
    x = data(low=0.01 if name in ("log", "log2", "sqrt", "rsqrt") else -3.0)
    y = torch.empty_like(x)
    evaluate(unary, (1,), x, y, F=getattr(tl, name), N=N)
    close(y, getattr(torch, name)(x.double()))


LIBDEVICE = {  # name: (reference in float64, low, high)
    "tanh": (torch.tanh, -3, 3),
    "exp": (torch.exp, -3, 3),
    "expm1": (torch.expm1, -1, 1),
    "log1p": (torch.log1p, -0.9, 3),
    "log10": (torch.log10, 0.1, 9),
    "erf": (torch.erf, -2, 2),
    "erfc": (torch.erfc, -2, 2),
    "erfinv": (torch.erfinv, -0.9, 0.9),
    "lgamma": (torch.lgamma, 0.2, 9),
    "tgamma": (lambda x: torch.tensor([math.gamma(v) for v in x], dtype=torch.float64), -2.7, 5),
    "asin": (torch.asin, -1, 1),
    "acos": (torch.acos, -1, 1),
    "atan": (torch.atan, -3, 3),
    "sinh": (torch.sinh, -3, 3),
    "cosh": (torch.cosh, -3, 3),
    "asinh": (torch.asinh, -3, 3),
    "acosh": (torch.acosh, 1.1, 5),
    "atanh": (torch.atanh, -0.9, 0.9),
    "cbrt": (lambda x: torch.tensor(np.cbrt(x.numpy())), -3, 3),
    "rcbrt": (lambda x: torch.tensor(1 / np.cbrt(x.numpy())), 0.5, 3),
    "rsqrt": (torch.rsqrt, 0.1, 4),
    "sinpi": (lambda x: torch.sin(math.pi * x), -3, 3),
    "tan": (torch.tan, -1, 1),
    "cyl_bessel_i0": (torch.special.i0, -2, 2),
    "j0": (torch.special.bessel_j0, -4, 4),
    "y1": (torch.special.bessel_y1, 0.5, 4),
    "normcdf": (torch.special.ndtr, -2, 2),
    "normcdfinv": (torch.special.ndtri, 0.1, 0.9),
    "erfcx": (torch.special.erfcx, -1, 2),
    "rint": (torch.round, -5, 5),
    "trunc": (torch.trunc, -5, 5),
    "round": (lambda x: torch.trunc(x + 0.5 * x.sign()), -5, 5),
    "exp10": (lambda x: 10**x, -3, 3),
    "fast_expf": (torch.exp, -3, 3),
    "fast_sinf": (torch.sin, -3, 3),
}


@pytest.mark.parametrize("name", LIBDEVICE)
def test_libdevice(name):
    reference, low, high = LIBDEVICE[name]
    x = data(low=low, high=high)
    y = torch.empty_like(x)
    evaluate(unary, (1,), x, y, F=getattr(libdevice, name), N=N)
    want = reference(x.double())
    assert torch.allclose(y.double(), want, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(
    "name,reference",
    [
        ("pow", torch.pow),
        ("atan2", torch.atan2),
        ("hypot", torch.hypot),
        ("fmod", torch.fmod),
        ("copysign", torch.copysign),
    ],
)
def test_libdevice_of_two(name, reference):
    x, y = data(low=0.1), data(seed=1)
    z = torch.empty_like(x)
    evaluate(binary, (1,), x, y, z, F=getattr(libdevice, name), N=N)
    assert torch.allclose(z.double(), reference(x.double(), y.double()), rtol=3e-6, atol=1e-6)


def test_libdevice_of_integers():
    x = torch.tensor([0, 1, -1, 12, 2**30, -(2**31), 255, 7], dtype=torch.int32)
    unsigned = [v % 2**32 for v in x.tolist()]
    want = {
        "clz": [32 - v.bit_length() for v in unsigned],
        "popc": [bin(v).count("1") for v in unsigned],
        "ffs": [(v & -v).bit_length() for v in unsigned],
        "brev": [wrap(int(f"{v:032b}"[::-1], 2), torch.int32) for v in unsigned],
    }
    for name, expected in want.items():
        y = torch.empty_like(x)
        evaluate(unary, (1,), x, y, F=getattr(libdevice, name), N=8)
        assert y.tolist() == expected, name


def test_libdevice_is_covered():
    """Every function of triton.language.extra.libdevice but Bessel functions of integer order, and two oddities."""
    symbols = set(re.findall(r'"(__nv_\w+)"', inspect.getsource(libdevice)))
    missing = {s for s in symbols if ours.find(s) is None}
    assert all(re.fullmatch(r"__nv_(fma_r[duz]|[jy]nf?|rcp64h)", s) for s in missing), missing
    assert len(symbols) - len(missing) > 300


@triton.jit
def cast(X, Y, N: tl.constexpr, BITCAST: tl.constexpr, ROUNDING: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.load(X + o)
    tl.store(Y + o, x.to(Y.dtype.element_ty, fp_downcast_rounding=ROUNDING, bitcast=BITCAST))


CASTS = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]


@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("was", CASTS)
def test_casts(was, to):
    x = data(torch.float64, low=-120, high=120).to(was)
    y = torch.empty(N, dtype=to)
    evaluate(cast, (1,), x, y, N=N, BITCAST=False, ROUNDING=None)
    assert torch.equal(y, x.to(to))


def test_bfloat16_rounds_to_nearest_even_and_keeps_its_specials():
    bits = torch.tensor(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x00000001, -0x80000000],
        dtype=torch.int64,
    )
    x = bits.to(torch.int32).view(torch.float32)
    y = torch.empty(8, dtype=torch.bfloat16)
    evaluate(cast, (1,), x, y, N=8, BITCAST=False, ROUNDING=None)
    assert (
        torch.equal(y.view(torch.int16)[x == x], x.to(torch.bfloat16).view(torch.int16)[x == x])
        and y[5].isnan()
    )


def test_rounding_toward_zero():
    x = data()
    for dtype in (torch.float16, torch.bfloat16):
        y = torch.empty(N, dtype=dtype)
        evaluate(cast, (1,), x, y, N=N, BITCAST=False, ROUNDING="rtz")
        unit = torch.finfo(dtype).eps * x.abs()
        assert (y.float().abs() <= x.abs()).all() and (x.abs() - y.float().abs() < unit).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype):
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    y = torch.empty(256)
    evaluate(cast, (1,), every, y, N=256, BITCAST=False, ROUNDING=None)
    assert torch.equal(y.nan_to_num(nan=7e7), every.float().nan_to_num(nan=7e7))
    x = torch.cat([data(n=254, low=-60, high=60), torch.tensor([1e9, -1e9])])
    z = torch.empty(256, dtype=dtype)
    evaluate(cast, (1,), x, z, N=256, BITCAST=False, ROUNDING="rtne")
    assert torch.equal(z.float()[:254], x.to(dtype).float()[:254])
    largest = torch.finfo(dtype).max
    assert z.float()[254:].tolist() == [largest, -largest]  # saturates, as the GPU's cvt does


def test_bitcast():
    x = data()
    y = torch.empty(N, dtype=torch.int32)
    evaluate(cast, (1,), x, y, N=N, BITCAST=True, ROUNDING=None)
    assert torch.equal(y, x.view(torch.int32))
    h, i = data(torch.bfloat16), torch.empty(N, dtype=torch.int16)
    evaluate(cast, (1,), h, i, N=N, BITCAST=True, ROUNDING=None)
    assert torch.equal(i, h.view(torch.int16))


def test_floats_to_integers_saturate_and_nan_is_zero():
    x = torch.tensor([1e20, -1e20, float("nan"), 2.9, -2.9, float("inf"), -0.5, 3e9])
    y, z = torch.empty(8, dtype=torch.int32), torch.empty(8, dtype=torch.int64)
    evaluate(cast, (1,), x, y, N=8, BITCAST=False, ROUNDING=None)
    evaluate(cast, (1,), x, z, N=8, BITCAST=False, ROUNDING=None)
    top, long = 2**31 - 1, 2**63 - 1
    assert y.tolist() == [top, -top - 1, 0, 2, -2, top, 0, top]
    assert z.tolist() == [long, -long - 1, 0, 2, -2, long, 0, 3_000_000_000]


@triton.jit
def constants(X, Y, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Y + o, tl.load(X + o) * 0.1 + tl.full((N,), 0.3, X.dtype.element_ty))


@pytest.mark.parametrize("dtype", FLOATS)
def test_constants_have_their_type(dtype):
    x, y = data(dtype), torch.empty(N, dtype=dtype)
    evaluate(constants, (1,), x, y, N=N)
    assert torch.equal(y, x * torch.tensor(0.1, dtype=dtype) + torch.tensor(0.3, dtype=dtype))


@triton.jit
def booleans(X, Y, N: tl.constexpr):
    o = tl.arange(0, N)
    a, b = tl.load(X + o) > 0, tl.load(X + o) < 1
    tl.store(Y + o, a & b)
    tl.store(Y + N + o, a | b)
    tl.store(Y + 2 * N + o, a ^ b)
    tl.store(Y + 3 * N + o, ~a)
    tl.store(Y + 4 * N + o, a.to(tl.int32) + 1)


def test_booleans():
    x, y = data(), torch.empty(5, N, dtype=torch.int32)
    evaluate(booleans, (1,), x, y, N=N)
    a, b = x > 0, x < 1
    assert torch.equal(y, torch.stack([a & b, a | b, a ^ b, ~a, a.int() + 1]).int())


@triton.jit
def boolean_tensors(X, Y, N: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.load(X + o)
    tl.store(Y + o, x & (o < 10))


def test_tensors_of_booleans():
    x, y = data() > 0, torch.empty(N, dtype=torch.bool)
    evaluate(boolean_tensors, (1,), x, y, N=N)
    assert torch.equal(y, x & (torch.arange(N) < 10))
