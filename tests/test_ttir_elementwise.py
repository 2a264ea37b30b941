"""tl.map_elementwise: a function of scalars, with branches and loops, on each element of tensors."""

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import data, evaluate

pytestmark = pytest.mark.skipif(not hasattr(tl, "map_elementwise"), reason="this Triton has none")


@triton.jit
def larger_and_smaller(x, y):
    if x > y:
        return x * 2, y
    else:
        return y * 2, x


@triton.jit
def pairs(X, Y, A, B, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.map_elementwise(larger_and_smaller, tl.load(X + o), tl.load(Y + o))
    tl.store(A + o, a)
    tl.store(B + o, b)


def test_branches_and_two_results():
    x, y = data(64), data(64, seed=1)
    a, b = torch.empty(64), torch.empty(64)
    evaluate(pairs, (4,), x, y, a, b, N=16)
    assert torch.equal(a, torch.maximum(x, y) * 2) and torch.equal(b, torch.minimum(x, y))


@triton.jit
def steps_of_collatz(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count


@triton.jit
def collatz(X, Y, N: tl.constexpr):
    o = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(Y + o, tl.map_elementwise(steps_of_collatz, tl.load(X + o)))


def test_a_loop_that_takes_another_time_for_each_element():
    x = torch.arange(1, 65, dtype=torch.int32)
    y = torch.empty_like(x)
    evaluate(collatz, (1,), x, y, N=8)

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert y.tolist() == [steps(n) for n in x.tolist()]


@triton.jit
def doubled(a, b):
    return a * 2, b * 2


@triton.jit
def packed(X, Y, N: tl.constexpr):
    o = tl.arange(0, N)
    found = tl.map_elementwise(doubled, tl.load(X + o), pack=2)
    tl.store(Y + o, found[0])


def test_several_elements_at_once():
    x, y = data(16), torch.empty(16)
    evaluate(packed, (1,), x, y, N=16)
    assert torch.equal(y, x * 2)


@triton.jit
def scaled(x, factor):
    if x > 0:
        return x * factor
    return x


@triton.jit
def leaky(X, Y, factor, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + o, tl.map_elementwise(scaled, tl.load(X + o), factor + tl.program_id(0)))


def test_scalars_beside_tensors():
    x, y = data(3, 16), torch.empty(3, 16)
    evaluate(leaky, (3,), x, y, 0.5, N=16)
    factor = torch.arange(3)[:, None] + 0.5
    torch.testing.assert_close(y, torch.where(x > 0, x * factor, x))
