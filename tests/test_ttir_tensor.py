"""The evaluator's reductions, scans, shapes, matrix products and random numbers against torch, through real kernels."""

import pytest
import torch
import triton
import triton.language as tl
from test_ttir_ops import FLOATS, N, data, wrap
from ttir_lowering import evaluate

from nanotriton.executor.ttir import OutOfBounds

# --- reductions and scans


@triton.jit
def logaddexp(a, b):
    m = tl.maximum(a, b)
    return m + tl.log(tl.exp(a - m) + tl.exp(b - m))


@triton.jit
def welford(mean1, m1, w1, mean2, m2, w2):
    delta, w = mean2 - mean1, w1 + w2
    return mean1 + delta * w2 / w, m1 + m2 + delta * delta * w1 * w2 / w, w


@triton.jit
def reductions(X, Y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, OP: tl.constexpr):
    x = tl.load(X + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if OP == "sum":
        y = tl.sum(x, AXIS)
    elif OP == "max":
        y = tl.max(x, AXIS)
    elif OP == "min":
        y = tl.min(x, AXIS)
    elif OP == "argmax":
        y = tl.argmax(x, AXIS)
    elif OP == "argmin":
        y = tl.argmin(x, AXIS)
    elif OP == "xor":
        y = tl.xor_sum(x.to(tl.int32, bitcast=True), AXIS)
    elif OP == "logsumexp":
        y = tl.reduce(x, AXIS, logaddexp)
    elif OP == "variance":
        _, m, w = tl.reduce((x, tl.zeros_like(x), tl.full(x.shape, 1, x.dtype)), AXIS, welford)
        y = m / w
    tl.store(Y + tl.arange(0, M if AXIS == 1 else N), y)


EVERY = [(op, dtype) for op in ("sum", "max", "min", "argmax", "argmin") for dtype in FLOATS]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op,dtype", EVERY + [("logsumexp", torch.float32), ("variance", torch.float32)])
def test_reductions(op, dtype, axis):
    m, n = 16, 32
    x = data(dtype, n=m * n).view(m, n)
    y = torch.empty(n if axis == 0 else m, dtype=torch.int32 if op.startswith("arg") else dtype)
    evaluate(reductions, (1,), x, y, M=m, N=n, AXIS=axis, OP=op)
    wide = x.double()
    want = {
        "sum": wide.sum,
        "max": wide.amax,
        "min": wide.amin,
        "argmax": x.float().argmax,
        "argmin": x.float().argmin,
        "logsumexp": wide.logsumexp,
        "variance": lambda a: wide.var(a, unbiased=False),
    }[op](axis)
    if op in ("max", "min") or op.startswith("arg"):
        assert torch.equal(y.double(), want.double())
    else:
        assert torch.allclose(
            y.double(), want, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps
        )


@triton.jit
def steps(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def later(value1, place1, value2, place2):
    second = place2 >= 0
    return tl.where(second, value2, value1), tl.where(second, place2, place1)


@triton.jit
def largest_place(value1, place1, value2, place2):
    second = place2 > place1
    return tl.where(second, value2, value1), tl.where(second, place2, place1)


@triton.jit
def halfway(a, b):
    return 0.5 * (a + b)


@triton.jit
def largest_and_scaled_sum(m1, s1, m2, s2):
    m = tl.maximum(m1, m2)
    return m, s1 * tl.exp(m1 - m) + s2 * tl.exp(m2 - m)


@triton.jit
def custom_reductions(X, Y, N: tl.constexpr, OP: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    places = tl.where(x > 0, tl.arange(0, N), -1)
    if OP == "steps":
        _, y = tl.reduce((x, x), 0, steps)
    elif OP == "later":
        y, _ = tl.reduce((x, places), 0, later)
    elif OP == "largest_place":
        y, _ = tl.reduce((x, places), 0, largest_place)
    elif OP == "halfway":
        y = tl.reduce(x, 0, halfway)
    elif OP == "scan":
        _, all_ = tl.associative_scan((x, x), 0, steps)
        y = tl.sum(tl.where(tl.arange(0, N) == N - 1, all_, 0.0))
    else:
        m, s = tl.reduce((x, tl.full((N,), 1.0, tl.float32)), 0, largest_and_scaled_sum)
        y = m + tl.log(s)
    tl.store(Y, y)


def in_order(op: str, x: torch.Tensor) -> torch.Tensor:
    """What the reduction gives from left to right."""
    if op in ("later", "largest_place"):
        return x[x > 0][-1]
    if op == "softmax":
        return x.logsumexp(0)
    if op == "halfway":
        return x.mean()
    state = torch.zeros(())
    for value in x:
        state = value * state + value
    return state


@pytest.mark.parametrize("n", [2, 16, 128])
@pytest.mark.parametrize("op", ["largest_place", "softmax", "scan"])
def test_reductions_that_are_right_in_any_order(op, n):
    x = data(torch.float32, n=n)
    for seed in range(6):
        y = torch.empty(1)
        evaluate(custom_reductions, (1,), x, y, N=n, OP=op, seed=seed)
        torch.testing.assert_close(y[0], in_order(op, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["steps", "later", "halfway"])
def test_a_reduction_promises_no_order(op):
    """Neither an operation that does not commute nor one that is not associative is right."""
    x = data(torch.float32, n=32)
    answers = []
    for seed in range(12):
        y = torch.empty(1)
        evaluate(custom_reductions, (1,), x, y, N=32, OP=op, seed=seed)
        answers.append(y[0])
    wrong = [not torch.isclose(y, in_order(op, x), rtol=1e-4) for y in answers]
    assert sum(wrong) >= 6 and len({y.item() for y in answers}) > 2


def test_reduction_of_ties_and_nan():
    x = torch.zeros(2, 16)
    x[0, 5] = x[0, 9] = 1.0
    x[1, 3] = float("nan")
    y, i = torch.empty(2), torch.empty(2, dtype=torch.int32)
    evaluate(reductions, (1,), x, i, M=2, N=16, AXIS=1, OP="argmax")
    assert i[0] == 5
    evaluate(reductions, (1,), x, y, M=2, N=16, AXIS=1, OP="max")
    assert y.tolist() == [1.0, 0.0]  # maxnum: NaN loses
    z = torch.empty(2, dtype=torch.int32)
    evaluate(reductions, (1,), x, z, M=2, N=16, AXIS=1, OP="xor")
    assert z[0] == 0


@triton.jit
def first_order(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def scans(
    X, Y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr, OP: tl.constexpr
):
    o = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(X + o)
    if OP == "sum":
        y = tl.cumsum(x, AXIS, reverse=REVERSE)
    elif OP == "prod":
        y = tl.cumprod(x, AXIS, reverse=REVERSE)
    else:
        _, y = tl.associative_scan((x, x), AXIS, first_order, reverse=REVERSE)
    tl.store(Y + o, y)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["sum", "prod", "linear"])
def test_scans(op, axis, reverse):
    x = data(n=8 * 16, low=0.5, high=1.2).view(8, 16)
    y = torch.empty_like(x)
    evaluate(scans, (1,), x, y, M=8, N=16, AXIS=axis, REVERSE=reverse, OP=op)
    flip = (lambda t: t.flip(axis)) if reverse else (lambda t: t)
    wide = flip(x.double())
    if op == "linear":
        want, state = torch.empty_like(wide), torch.zeros_like(wide.select(axis, 0))
        for i in range(wide.shape[axis]):
            state = wide.select(axis, i) * state + wide.select(axis, i)
            want.select(axis, i).copy_(state)
    else:
        want = (wide.cumsum if op == "sum" else wide.cumprod)(axis)
    assert torch.allclose(y.double(), flip(want), rtol=1e-5)


# --- shapes


@triton.jit
def shapes(X, Y, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    flat = tl.arange(0, M * N)
    x = tl.load(X + o)
    if OP == "trans":
        tl.store(Y + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], tl.trans(x))
    elif OP == "reshape":
        tl.store(Y + flat, tl.reshape(x, (M * N,)))
    elif OP == "permute":
        tl.store(Y + flat, tl.reshape(tl.permute(tl.reshape(x, (M, 2, N // 2)), (1, 2, 0)), (M * N,)))
    elif OP == "join":
        tl.store(Y + tl.arange(0, 2 * M * N), tl.reshape(tl.join(x, -x), (2 * M * N,)))
    elif OP == "split":
        a, b = tl.split(tl.reshape(x, (M, N // 2, 2)))
        tl.store(Y + flat, tl.reshape(tl.join(b, a), (M * N,)))
    elif OP == "cat":
        y = tl.reshape(x, (M * N,))
        tl.store(Y + tl.arange(0, 2 * M * N), tl.cat(y, -y, can_reorder=True))
    elif OP == "flip":
        tl.store(Y + o, tl.flip(x, 1))
    elif OP == "sort":
        tl.store(Y + o, tl.sort(x, 1))
    elif OP == "broadcast":
        row = tl.load(X + tl.arange(0, N))
        tl.store(Y + o, tl.broadcast_to(row[None, :], (M, N)))
    elif OP == "interleave":
        tl.store(Y + tl.arange(0, 2 * M * N), tl.reshape(tl.interleave(x, x + 1), (2 * M * N,)))


@pytest.mark.parametrize(
    "op,want",
    [
        ("trans", lambda x: x.T),
        ("reshape", lambda x: x),
        ("permute", lambda x: x.view(8, 2, 8).permute(1, 2, 0)),
        ("join", lambda x: torch.stack([x, -x], -1)),
        ("split", lambda x: x.view(8, 8, 2).flip(-1)),
        ("cat", lambda x: torch.cat([x.view(-1), -x.view(-1)])),
        ("flip", lambda x: x.flip(1)),
        ("sort", lambda x: x.sort(1)[0]),
        ("broadcast", lambda x: x[:1].expand(8, 16)),
        ("interleave", lambda x: torch.stack([x, x + 1], -1)),
    ],
)
def test_shapes(op, want):
    x = data(n=128).view(8, 16)
    expected = want(x).contiguous()
    y = torch.empty(expected.numel())
    evaluate(shapes, (1,), x, y, OP=op, M=8, N=16)
    assert torch.equal(y, expected.view(-1))


@triton.jit
def gathers(X, I, Y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    o = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(Y + o, tl.gather(tl.load(X + o), tl.load(I + o), AXIS))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis):
    x, y = data(n=128).view(8, 16), torch.empty(8, 16)
    i = torch.randint(
        0, (8, 16)[axis], (8, 16), generator=torch.Generator().manual_seed(0), dtype=torch.int32
    )
    evaluate(gathers, (1,), x, i, y, M=8, N=16, AXIS=axis)
    assert torch.equal(y, x.gather(axis, i.long()))
    i[0, 0] = 99
    with pytest.raises(OutOfBounds, match="outside the"):
        evaluate(gathers, (1,), x, i, y, M=8, N=16, AXIS=axis)


@triton.jit
def histograms(X, Y, Z, N: tl.constexpr, BINS: tl.constexpr):
    p = tl.program_id(0)
    x = tl.load(X + p * N + tl.arange(0, N))
    tl.store(Y + p * BINS + tl.arange(0, BINS), tl.histogram(x, BINS))
    tl.store(Z + p * BINS + tl.arange(0, BINS), tl.histogram(x, BINS, mask=x > 3))


def test_histogram():
    x = torch.randint(0, 16, (3, N), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    y, z = torch.empty(3, 16, dtype=torch.int32), torch.empty(3, 16, dtype=torch.int32)
    evaluate(histograms, (3,), x, y, z, N=N, BINS=16)
    want = torch.stack([torch.bincount(r, minlength=16) for r in x])
    assert torch.equal(y.long(), want)
    want[:, :4] = 0
    assert torch.equal(z.long(), want)


# --- tl.dot


@triton.jit
def dots(
    A, B, C, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr
):
    a = tl.load(A + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :])
    b = tl.load(B + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
    c = tl.dot(a, b, input_precision=PRECISION, out_dtype=OUT)
    tl.store(C + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], c)


@pytest.mark.parametrize("precision,error", [("ieee", 2e-6), ("tf32x3", 2e-6), ("tf32", 3e-3)])
def test_dot_of_float32(precision, error):
    a, b, c = data(n=32 * 64).view(32, 64), data(n=64 * 16, seed=1).view(64, 16), torch.empty(32, 16)
    evaluate(dots, (1,), a, b, c, M=32, N=16, K=64, PRECISION=precision, OUT=tl.float32)
    want = a.double() @ b.double()
    worst = ((c - want).abs() / want.square().mean().sqrt()).max().item()
    assert worst < error and (worst > 1e-4 or precision != "tf32")  # tf32 must be seen to be tf32
    if precision == "tf32":
        cut = lambda t: (t.view(torch.int32) & ~0x1FFF).view(torch.float32).double()
        assert torch.allclose(c.double(), cut(a) @ cut(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn])
def test_dot_of_narrow_floats_accumulates_in_float32(dtype):
    a, b, c = (
        data(n=512).to(dtype).view(16, 32),
        data(n=1024, seed=1).to(dtype).view(32, 32),
        torch.empty(16, 32),
    )
    evaluate(dots, (1,), a, b, c, M=16, N=32, K=32, PRECISION=None, OUT=tl.float32)
    assert torch.allclose(c.double(), a.double() @ b.double(), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype, at_once", [(torch.float16, 16), (torch.float8_e5m2, 32)])
def test_an_accumulator_of_halves_is_rounded_after_each_instruction(dtype, at_once):
    """4096 and then 1 seven times: next to 4096 the numbers of fp16 lie 4 apart."""
    a = torch.zeros(16, 8, at_once)
    a[:, 0] = 4096 / at_once
    a[:, 1:, 0] = 1
    a, b = a.to(dtype).view(16, 8 * at_once), torch.ones(8 * at_once, 16).to(dtype)
    for out, want in ((tl.float16, 4096), (tl.float32, 4103)):
        c = torch.empty(16, 16)
        evaluate(dots, (1,), a, b, c, M=16, N=16, K=8 * at_once, PRECISION=None, OUT=out)
        assert (c == want).all(), c


def test_dot_of_int8_is_exact():
    a, b = (
        torch.randint(-128, 128, s, generator=torch.Generator().manual_seed(1), dtype=torch.int8)
        for s in ((16, 64), (64, 16))
    )
    c = torch.empty(16, 16, dtype=torch.int32)
    evaluate(dots, (1,), a, b, c, M=16, N=16, K=64, PRECISION=None, OUT=tl.int32)
    assert torch.equal(c, a.int() @ b.int())


# --- random numbers


@triton.jit
def randoms(Y, Z, I, seed, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Y + o, tl.rand(seed, o))
    tl.store(Z + o, tl.randn(seed, o))
    tl.store(I + o, tl.randint(seed, o))


def philox(seed: int, counter: int) -> list[int]:
    """Philox 4x32-10 (Salmon et al., SC11)."""
    mask, c, k = 2**32 - 1, [counter, 0, 0, 0], [seed & (2**32 - 1), seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & mask, (p >> 32) ^ c[3] ^ k[1], p & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def test_random_numbers_are_philox():
    y, z, i = torch.empty(N), torch.empty(N), torch.empty(N, dtype=torch.int32)
    evaluate(randoms, (1,), y, z, i, 1234, N=N)
    assert i.tolist() == [wrap(philox(1234, k)[0], torch.int32) for k in range(N)]
    assert y.min() >= 0 and y.max() < 1 and 0.3 < y.mean() < 0.7
    assert z.mean().abs() < 0.5 and 0.6 < z.std() < 1.4
