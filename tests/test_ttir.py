"""The evaluator of TTIR on whole kernels: programs, branches, loops, calls; and how long a small one takes."""

import time

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import data, evaluate, lower

from nanotriton.executor.ttir import Evaluator, GlobalMemory


@triton.jit
def softmax(X, Y, n, BLOCK: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + row * n + o, e / tl.sum(e, 0), mask=o < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_softmax(dtype):
    x = data(7, 50, dtype=dtype)
    y = torch.full_like(x, float("nan"))
    evaluate(softmax, (7,), x, y, 50, BLOCK=64)
    torch.testing.assert_close(y.double(), x.double().softmax(1), rtol=0, atol=2 * torch.finfo(dtype).eps)


@triton.jit
def matmul(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(A + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        b = tl.load(B + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(
        C + rm[:, None] * N + rn[None, :],
        acc.to(C.dtype.element_ty),
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


@pytest.mark.parametrize("m,n,k", [(50, 40, 70), (16, 16, 16), (33, 65, 17)])
def test_matmul(m, n, k):
    a, b, c = data(m, k), data(k, n, seed=1), torch.full((m, n), float("nan"))
    evaluate(matmul, (triton.cdiv(m, 32), triton.cdiv(n, 16)), a, b, c, m, n, k, BM=32, BN=16, BK=16)
    torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-5)


@triton.jit
def causal_attention(Q, K, V, O, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start = tl.program_id(0) * BM
    rows, d = start + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + rows[:, None] * D + d[None, :], mask=rows[:, None] < T, other=0.0)
    best, norm, acc = (
        tl.full((BM,), -float("inf"), tl.float32),
        tl.zeros((BM,), tl.float32),
        tl.zeros((BM, D), tl.float32),
    )
    for s in range(0, tl.minimum(start + BM, T), BN):  # another number of iterations in every program
        columns = s + tl.arange(0, BN)
        k = tl.load(K + columns[None, :] * D + d[:, None], mask=columns[None, :] < T, other=0.0)
        v = tl.load(V + columns[:, None] * D + d[None, :], mask=columns[:, None] < T, other=0.0)
        score = tl.where(
            rows[:, None] >= columns[None, :], tl.dot(q, k, input_precision="ieee") / D**0.5, -float("inf")
        )
        new = tl.maximum(best, tl.max(score, 1))
        p, scale = tl.exp(score - new[:, None]), tl.exp(best - new)
        norm, acc, best = norm * scale + tl.sum(p, 1), acc * scale[:, None], new
        acc = tl.dot(p, v, acc, input_precision="ieee")
    tl.store(O + rows[:, None] * D + d[None, :], acc / norm[:, None], mask=rows[:, None] < T)


def test_attention_whose_programs_loop_differently():
    q, k, v, o = data(75, 16), data(75, 16, seed=1), data(75, 16, seed=2), torch.full((75, 16), float("nan"))
    evaluate(causal_attention, (triton.cdiv(75, 16),), q, k, v, o, 75, D=16, BM=16, BN=16)
    want = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    torch.testing.assert_close(o, want, rtol=1e-5, atol=1e-5)


# --- programs and control flow


@triton.jit
def ids(Y):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    tl.store(Y + x + nx * (y + ny * z), x + 10 * y + 100 * z + 1000 * nz)


def test_program_ids():
    y = torch.zeros(2, 3, 4, dtype=torch.int32)
    evaluate(ids, (4, 3, 2), y)
    assert y.tolist() == [
        [[x + 10 * j + 100 * k + 2000 for x in range(4)] for j in range(3)] for k in range(2)
    ]


def test_many_programs_go_in_chunks():
    x = data(200_000)
    y = torch.empty_like(x)
    evaluate(copy, (x.numel() // 4,), x, y, N=4)
    assert torch.equal(x, y)


@triton.jit
def copy(X, Y, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + o, tl.load(X + o))


@triton.jit
def branches(X, Y, n):
    p = tl.program_id(0)
    x = tl.load(X + p)
    if x > 0:
        if p % 2 == 0:
            y = x * 2
        else:
            y = x * 3
            tl.store(Y + n + p, x)
    else:
        y = -x
    tl.store(Y + p, y)


def test_branches_that_differ_between_programs():
    x, y = data(20), torch.zeros(40)
    evaluate(branches, (20,), x, y, 20)
    p = torch.arange(20)
    odd = (x > 0) & (p % 2 == 1)
    assert torch.equal(y[:20], torch.where(x > 0, torch.where(p % 2 == 0, x * 2, x * 3), -x))
    assert torch.equal(y[20:], torch.where(odd, x, 0.0))


@triton.jit
def early_return(X, Y, n):
    p = tl.program_id(0)
    if p >= n:
        return
    x = tl.load(X + p)
    if x < 0:
        tl.store(Y + p, 0.0)
        return
    tl.store(Y + p, x)


def test_early_returns():
    x, y = data(8), torch.full((8,), 9.0)
    evaluate(early_return, (12,), x, y, 8)
    assert torch.equal(y, x.relu())


@triton.jit
def collatz(X, Y):
    n, steps = tl.load(X + tl.program_id(0)), 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    tl.store(Y + tl.program_id(0), steps)


def test_while_loops_that_differ_between_programs():
    x = torch.arange(1, 28, dtype=torch.int32)
    y = torch.empty_like(x)
    evaluate(collatz, (27,), x, y)

    def steps(n):
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert y.tolist() == [steps(n) for n in range(1, 28)]


@triton.jit
def nested(Y, n):
    p, total = tl.program_id(0), 0
    for i in range(p, n, 2):
        for j in range(i):
            if (i + j) % 3 == 0:
                total += i * j
    for k in tl.static_range(3):
        total += k
    for m in range(10, 0, -3):
        total += m
    tl.store(Y + p, total)


def test_nested_loops():
    y = torch.empty(5, dtype=torch.int32)
    evaluate(nested, (5,), y, 9)
    assert y.tolist() == [
        3 + 22 + sum(i * j for i in range(p, 9, 2) for j in range(i) if (i + j) % 3 == 0) for p in range(5)
    ]


@triton.jit(noinline=True)
def fast_power(x, n):
    y = 1
    while n > 0:
        if n % 2 == 1:
            y = y * x
        x, n = x * x, n // 2
    return y


@triton.jit
def calls(Y):
    p = tl.program_id(0)
    tl.store(Y + p, fast_power(p * 0 + 3, p) + fast_power(p, p * 0 + 2))


def test_calls_of_functions_that_are_not_inlined():
    y = torch.empty(10, dtype=torch.int32)
    kernel = evaluate(calls, (10,), y)
    assert len(kernel.functions) > 1 and y.tolist() == [3**p + p**2 for p in range(10)]


# --- speed


def test_small_kernels_take_microseconds():
    x, y, memory = data(4, 64), torch.empty(4, 64), GlobalMemory()
    kernel, args = Evaluator(lower(softmax, [x, y, 64], BLOCK=64)), [memory.add(x), memory.add(y), 64]
    kernel.run((4,), args, memory)
    best = min(timed(lambda: kernel.run((4,), args, memory)) for _ in range(20))
    assert best < 1e-3, f"{best * 1e6:.0f} us"


def timed(f) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start
