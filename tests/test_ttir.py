"""The evaluator of TTIR as a machine: programs, control flow, memory, bounds, races, atomics, budgets, hostile text."""

import random
import re
import time

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import evaluate, lower

from nanotriton.executor.ttir import Budget, Kernel, Memory, OutOfBounds, ParseError, Race, TTIRError, Unsupported


def data(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- whole kernels


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
    tl.store(C + rm[:, None] * N + rn[None, :], acc.to(C.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


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
    best, norm, acc = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for s in range(0, tl.minimum(start + BM, T), BN):  # another number of iterations in every program
        columns = s + tl.arange(0, BN)
        k = tl.load(K + columns[None, :] * D + d[:, None], mask=columns[None, :] < T, other=0.0)
        v = tl.load(V + columns[:, None] * D + d[None, :], mask=columns[:, None] < T, other=0.0)
        score = tl.where(rows[:, None] >= columns[None, :], tl.dot(q, k, input_precision="ieee") / D**0.5, -float("inf"))
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
    assert y.tolist() == [[[x + 10 * j + 100 * k + 2000 for x in range(4)] for j in range(3)] for k in range(2)]


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
    assert y.tolist() == [3 + 22 + sum(i * j for i in range(p, 9, 2) for j in range(i) if (i + j) % 3 == 0) for p in range(5)]


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


# --- memory


def test_views_share_their_storage():
    x = data(4, 10)
    y = x[:, 5:]
    memory = Memory()
    assert memory.add(y) == memory.add(x) + 20 and len(memory.buffers) == 1
    z = torch.empty(4)
    assert memory.add(z) % 16 == 0 and memory.add(z) != memory.add(x)


@triton.jit
def masked(X, Y, n, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Y + o, tl.load(X + o, mask=o < n))


def test_masked_off_elements_are_zero_as_on_the_gpu():
    x, y = data(5), torch.full((16,), float("nan"))
    evaluate(masked, (1,), x, y, 5, N=16)
    assert torch.equal(y, torch.cat([x, torch.zeros(11)]))


@triton.jit
def pointer_table(P, Y, N: tl.constexpr):
    i, o = tl.program_id(0), tl.arange(0, N)
    p = tl.load(P + i).to(tl.pointer_type(tl.float32))
    tl.store(Y + i * N + o, tl.load(p + o))


def test_a_table_of_pointers():
    memory, xs, y = Memory(), [data(16, seed=s) for s in range(3)], torch.empty(3, 16)
    table = torch.tensor([memory.add(x) for x in xs])
    Kernel(lower(pointer_table, [table, y], N=16)).run((3,), [memory.add(table), memory.add(y)], memory)
    assert torch.equal(y, torch.stack(xs))


@triton.jit
def pointers_to_pointers(P, Y, N: tl.constexpr):
    i, o = tl.program_id(0), tl.arange(0, N)
    tl.store(Y + i * N + o, tl.load(tl.load(P + i) + o))


def test_pointers_to_pointers():
    memory, xs, y = Memory(), [data(16, seed=s) for s in range(3)], torch.empty(3, 16)
    table = torch.tensor([memory.add(x) for x in xs])
    Kernel(lower(pointers_to_pointers, ["**fp32", y], N=16)).run((3,), [memory.add(table), memory.add(y)], memory)
    assert torch.equal(y, torch.stack(xs))


@triton.jit
def choose(X, Y, Z, N: tl.constexpr):
    o = tl.arange(0, N)
    p = tl.where(o % 2 == 0, X + o, Y + o)
    tl.store(Z + o, tl.load(p))


def test_one_load_from_two_tensors():
    x, y, z = data(16), data(16, seed=1), torch.empty(16)
    evaluate(choose, (1,), x, y, z, N=16)
    assert torch.equal(z, torch.where(torch.arange(16) % 2 == 0, x, y))
    with pytest.raises(OutOfBounds, match=r"of Y, which has 9"):
        evaluate(choose, (1,), x, y[:9].clone(), z, N=16)


@triton.jit
def shifted(X, Y, offset, n, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + o, tl.load(X + o + offset, mask=o < n))


def test_out_of_bounds():
    x, y = data(60), torch.empty(64)
    evaluate(shifted, (4,), x, y, 0, 60, N=16)
    with pytest.raises(OutOfBounds) as error:
        evaluate(shifted, (4,), x, y, 3, 60, N=16)
    assert re.fullmatch(r"tt.load, line \d+: 3 of \d+ elements out of bounds: element 60 of X, which has 60 \(program \(3, 0, 0\)\)", str(error.value))
    with pytest.raises(OutOfBounds, match=r"element -1 of X, which has 60 \(program \(0, 0, 0\)\)"):
        evaluate(shifted, (4,), x, y, -1, 60, N=16)
    with pytest.raises(OutOfBounds, match=r"tt.store.*: 16 of 80 elements out of bounds: element 64 of Y, which has 64 \(program \(4, 0, 0\)\)"):
        evaluate(shifted, (5,), x, y, 0, 60, N=16)
    with pytest.raises(OutOfBounds):  # into the next buffer is as far as the moon
        evaluate(shifted, (1,), x, y, 64, 60, N=16)
    with pytest.raises(OutOfBounds):
        evaluate(shifted, (1,), x, y, 2**31 - 20, 60, N=16)
    with pytest.raises(OutOfBounds):
        evaluate(shifted, (1,), torch.empty(0), y, 0, 60, N=16)


@triton.jit
def wild(P, Y):
    tl.store(Y, tl.load(P.to(tl.pointer_type(tl.float32))))


@pytest.mark.parametrize("address", [0, 8, -4, 2**62, -(2**63), 2**40 * 50])
def test_made_up_pointers(address):
    y = torch.empty(4)
    with pytest.raises(OutOfBounds, match=r"belongs to no tensor|of Y"):
        memory = Memory()
        Kernel(lower(wild, ["i64", y])).run((1,), [address, memory.add(y)], memory)


def test_misaligned():
    memory, y = Memory(), torch.empty(4)
    with pytest.raises(OutOfBounds, match="byte 2 of Y, misaligned for 4-byte elements"):
        Kernel(lower(wild, ["i64", y])).run((1,), [memory.add(y) + 2, memory.add(y)], memory)


# --- races


@triton.jit
def overlapping(X, Y, step, N: tl.constexpr):
    p, o = tl.program_id(0), tl.arange(0, N)
    tl.store(Y + p * step + o, tl.load(X + p * step + o) + tl.load(X + p))


def test_programs_that_store_different_values_race():
    x, y = data(64), torch.empty(64)
    evaluate(overlapping, (4,), x, y, 16, N=16)
    with pytest.raises(Race, match=r"to element|at one address of Y"):
        evaluate(overlapping, (4,), x, y, 8, N=16)
    evaluate(overlapping, (4,), torch.ones(64), y, 8, N=16)  # the same values: whoever wins


def test_races_are_seen_across_chunks(monkeypatch):
    monkeypatch.setattr("nanotriton.executor.ttir.kernel.CHUNK", 16)
    x, y = data(64), torch.empty(64)
    evaluate(overlapping, (4,), x, y, 16, N=16)
    with pytest.raises(Race, match=r"program \(1, 0, 0\) and another program store different values to element 8 of Y"):
        evaluate(overlapping, (4,), x, y, 8, N=16)


@triton.jit
def in_place(X, shift, n, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + o + shift, mask=o + shift < n)
    tl.store(X + o, x + 1, mask=o < n)


def test_in_place():
    x = data(60)
    want = x + 1
    evaluate(in_place, (4,), x, 0, 60, N=16)
    assert torch.equal(x, want)
    with pytest.raises(Race, match=r"which another program of the launch"):
        evaluate(in_place, (4,), x, 1, 60, N=16)
    evaluate(in_place, (1,), data(60), 1, 60, N=64)  # alone


@triton.jit
def twice(X, Y, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + o, 0.0)
    tl.store(Y + o, tl.load(X + o) + tl.load(Y + o))


def test_a_program_may_rewrite_and_read_its_own():
    x, y = data(64), torch.empty(64)
    evaluate(twice, (4,), x, y, N=16)
    assert torch.equal(y, x)


@triton.jit
def same_address(X, Y, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(Y + o // 2, tl.load(X + o))


def test_one_store_of_different_values_to_one_address_races():
    with pytest.raises(Race, match=r"at one address of Y at once"):
        evaluate(same_address, (1,), data(16), torch.empty(16), N=16)
    evaluate(same_address, (1,), torch.ones(16), torch.empty(16), N=16)


@triton.jit
def everyone(X, Y):
    tl.store(Y, tl.load(X))


@triton.jit
def accumulate(X, Y):
    tl.store(Y, tl.load(Y) + tl.load(X))


def test_uniform_stores():
    x, y = data(1), torch.zeros(1)
    evaluate(everyone, (8,), x, y)
    assert torch.equal(x, y)
    with pytest.raises(Race):
        evaluate(accumulate, (8,), x, y)
    evaluate(accumulate, (1,), x, y)


def test_aliased_arguments_are_one_buffer():
    x = data(64)
    with pytest.raises(Race):
        evaluate(shifted, (4,), x, x, 1, 60, N=16)


# --- atomics


@triton.jit
def sums(X, I, Y, n, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(Y + tl.load(I + o, mask=o < n), tl.load(X + o, mask=o < n), mask=o < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_atomic_add(dtype):
    x = (data(100) * 4).to(dtype)
    i, y = torch.randint(0, 8, (100,), generator=torch.Generator().manual_seed(0), dtype=torch.int32), torch.zeros(8, dtype=dtype)
    evaluate(sums, (7,), x, i, y, 100, N=16)
    want = torch.zeros(8, dtype=torch.float64).index_add(0, i, x.double())
    torch.testing.assert_close(y.double(), want, rtol=0, atol=40 * torch.finfo(dtype).eps * 8 if dtype.is_floating_point else 0)


@triton.jit
def atomics(X, Y, N: tl.constexpr, OP: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.load(X + tl.program_id(0) * N + o)
    if OP == "max":
        tl.atomic_max(Y + o, x)
    elif OP == "min":
        tl.atomic_min(Y + o, x)
    elif OP == "and":
        tl.atomic_and(Y + o, x)
    elif OP == "or":
        tl.atomic_or(Y + o, x)
    elif OP == "xor":
        tl.atomic_xor(Y + o, x)
    elif OP == "xchg":
        tl.atomic_xchg(Y + o, x)


@pytest.mark.parametrize("op", ["max", "min", "and", "or", "xor", "xchg"])
def test_other_atomics(op):
    x = torch.randint(-99, 99, (5, 16), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    y = torch.full((16,), 7, dtype=torch.int32)
    evaluate(atomics, (5,), x, y, N=16, OP=op)
    want = torch.full((16,), 7, dtype=torch.int32)
    f = {"max": torch.maximum, "min": torch.minimum, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}.get(op, lambda a, b: b)
    for row in x:
        want = f(want, row)
    assert torch.equal(y, want)


@pytest.mark.parametrize("op,f", [("max", torch.amax), ("min", torch.amin)])
def test_float_atomics_of_both_signs(op, f):
    x, y = data(5, 16), torch.full((16,), 0.0)
    evaluate(atomics, (5,), x, y, N=16, OP=op)
    assert torch.equal(y, f(torch.cat([x, torch.zeros(1, 16)]), 0))


@triton.jit
def tickets(Y, C):
    tl.store(Y + tl.atomic_add(C, 1), tl.program_id(0))


def test_atomics_return_the_old_value():
    y, c = torch.full((9,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    evaluate(tickets, (9,), y, c)
    assert sorted(y.tolist()) == list(range(9)) and c.item() == 9


@triton.jit
def locked(X, Y, L):
    while tl.atomic_cas(L, 0, 1) == 1:
        pass
    tl.store(Y, tl.load(Y) + tl.load(X + tl.program_id(0)))
    tl.atomic_xchg(L, 0)


def test_a_lock():
    x, y, lock = data(20), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    evaluate(locked, (20,), x, y, lock)
    torch.testing.assert_close(y[0], x.sum())
    with pytest.raises(Budget):
        evaluate(locked, (20,), x, y, torch.ones(1, dtype=torch.int32), budget=10_000_000)


@triton.jit
def last_one_sums(X, P, C, Y, N: tl.constexpr, G: tl.constexpr):
    p = tl.program_id(0)
    tl.store(P + p, tl.sum(tl.load(X + p * N + tl.arange(0, N))))
    if tl.atomic_add(C, 1) == G - 1:
        tl.store(Y, tl.sum(tl.load(P + tl.arange(0, G))))


def test_the_last_program_reads_what_the_others_stored():
    x, y = data(8, 16), torch.empty(1)
    evaluate(last_one_sums, (8,), x, torch.empty(8), torch.zeros(1, dtype=torch.int32), y, N=16, G=8)
    torch.testing.assert_close(y[0], x.sum())


# --- tensor descriptors and block pointers


@triton.jit
def descriptors(X, Y, M, N, BM: tl.constexpr, BN: tl.constexpr, PADDING: tl.constexpr):
    x = tl.make_tensor_descriptor(X, [M, N], [N, 1], [BM, BN], padding_option=PADDING)
    y = tl.make_tensor_descriptor(Y, [M, N], [N, 1], [BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    t = x.load([i, j])
    y.store([i, j], t * 2 + tl.sum(tl.where(t != t, 1.0, 0.0)))


@pytest.mark.parametrize("padding,outside", [("zero", 0.0), ("nan", 1.0)])
def test_descriptors_stop_at_their_tensor(padding, outside):
    x, y = data(20, 28), torch.full((20, 28), float("nan"))
    evaluate(descriptors, (2, 2), x, y, 20, 28, BM=16, BN=16, PADDING=padding)
    inside = torch.zeros(20, 28)
    for i in (0, 16):
        for j in (0, 16):
            part = inside[i : i + 16, j : j + 16]
            part += outside * (256 - part.numel())
    torch.testing.assert_close(y, x * 2 + inside)


def test_descriptors_are_checked_against_memory():
    with pytest.raises(OutOfBounds):
        evaluate(descriptors, (2, 2), data(20, 28), torch.empty(20, 27), 20, 28, BM=16, BN=16, PADDING="zero")


@triton.jit
def host_descriptor(X, Y, N: tl.constexpr):
    x = X.load([tl.program_id(0) * 8, 0])
    tl.store(Y + (tl.program_id(0) * 8 + tl.arange(0, 8))[:, None] * N + tl.arange(0, N)[None, :], x)


def test_descriptors_from_the_host():
    x, y, memory = data(24, 16), torch.empty(24, 16), Memory()
    kernel = Kernel(lower(host_descriptor, ["tensordesc<fp32[8, 16]>", y], N=16))
    address = memory.add(x)
    kernel.run((3,), [(address, (24, 16), (16, 1), "zero"), *(24, 16, 16, 1)[: len(kernel.signature) - 2], memory.add(y)], memory)
    assert torch.equal(x, y)


@triton.jit
def block_pointers(X, Y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    p = tl.make_block_ptr(X, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    acc = tl.zeros((BM,), tl.float32)
    for _ in range(0, N, BN):
        acc += tl.sum(tl.load(p, boundary_check=(0, 1), padding_option="zero"), 1)
        p = tl.advance(p, (0, BN))
    o = tl.program_id(0) * BM + tl.arange(0, BM)
    tl.store(Y + o, acc, mask=o < M)


@pytest.mark.skipif(not hasattr(tl, "make_block_ptr"), reason="block pointers are gone from this Triton")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_block_pointers():
    x, y = data(20, 50), torch.empty(20)
    evaluate(block_pointers, (3,), x, y, 20, 50, BM=8, BN=16)
    torch.testing.assert_close(y, x.sum(1), rtol=1e-5, atol=1e-5)


# --- budgets


@triton.jit
def endless(X):
    i = 0
    while i >= 0:
        i = (i + 1) % 7
    tl.store(X, i)


@triton.jit
def far(X, n):
    acc = 0.0
    for _ in range(n):
        acc += tl.load(X)
    tl.store(X, acc)


def test_endless_loops_end():
    start = time.process_time()
    with pytest.raises(Budget, match="endless loop"):
        evaluate(endless, (4,), torch.zeros(1, dtype=torch.int32), budget=20_000_000)
    with pytest.raises(Budget):
        evaluate(far, (1,), torch.zeros(1), 2**31 - 1, budget=20_000_000)
    with pytest.raises(Budget):
        evaluate(everyone, (2**31 - 1, 60_000, 60_000), torch.zeros(1), torch.zeros(1), budget=20_000_000)
    assert time.process_time() - start < 5


def test_a_loop_whose_step_is_zero():
    body = """
    %c = arith.constant 0 : i32
    %d = arith.constant 5 : i32
    scf.for %i = %c to %d step %c  : i32 {
    }"""
    with pytest.raises((Budget, ParseError)):
        Kernel(module(body)).run((1,), [0], Memory())


# --- hostile text


def module(body: str, arguments: str = "%p: !tt.ptr<f32>") -> str:
    return "module {\n  tt.func public @k(" + arguments + ") attributes {noinline = false} {" + body + "\n    tt.return\n  }\n}\n"


@pytest.mark.parametrize(
    "code",
    [
        "", "tt.func", "module {", "\0", "tt.func public @k(%p: !tt.ptr<f32>) {", module("\n    %x = arith.addi %y, %y : i32"),
        module("\n    %x = arith.constant dense<1> : tensor<99999999999x8xi32>"), module("\n    %x = arith.constant dense<1> : tensor<0xi32>"),
        module("\n    %x:99999999 = tt.split %p : i32"), module("\n    %x = tt.load %p : !tt.ptr<f64>"),
        module("\n    %x = tt.make_range {end = 1000000000 : i32, start = 0 : i32} : tensor<4xi32>"), module("\n    cf.br ^bb7"),
        module("\n" + "    scf.if %p {\n" * 100), module('\n    tt.print "' + "\\" * 1000), module("\n    %x = arith.constant 99e99999 : i32"),
        module("\n    tt.call @k(%p) : (!tt.ptr<f32>) -> ()"), module("\n    tt.call @gone(%p) : (!tt.ptr<f32>) -> ()"),
        module("\n    %x = arith.constant " + "9" * 5000 + " : i32"), "(" * 100_000, "{" * 100_000, module("\n    %x = tt.splat %p : !tt.ptr<f32> -> tensor<4xf32>"),
    ],
)  # fmt: skip
def test_malformed_text(code):
    with pytest.raises(TTIRError) as error:
        Kernel(code).run((1,), [0], Memory())
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


def test_mutations_raise_nothing_but_our_errors():
    """Lines dropped, swapped and repeated, tokens replaced by others: never another exception, never long."""
    rng = random.Random(0)
    tensors = [data(64), data(64, seed=1), torch.empty(64), torch.zeros(4, dtype=torch.int32)]
    a, b, c, i = tensors
    kernels = [(softmax, [a, c, 50], {"BLOCK": 64}), (matmul, [a, b, c, 8, 8, 8], {"BM": 16, "BN": 16, "BK": 16}), (branches, [a, c, 5], {}),
               (locked, [a, c, i], {}), (collatz, [i, i], {}), (early_return, [a, c, 4], {}),
               (descriptors, [a, c, 4, 4], {"BM": 16, "BN": 16, "PADDING": "zero"})]  # fmt: skip
    texts = [lower(kernel, args, locations=False, **constexprs) for kernel, args, constexprs in kernels]
    token = re.compile(r"%?[\w.]+|\S")
    outcomes = {}
    for _ in range(400):
        code = rng.choice(texts)
        lines = code.split("\n")
        for _ in range(rng.choice([1, 1, 2, 5])):
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            kind = rng.randrange(4)
            if kind == 0:
                lines[i] = ""
            elif kind == 1:
                lines[i], lines[j] = lines[j], lines[i]
            elif kind == 2:
                lines.insert(i, lines[j])
            elif spots := list(token.finditer(lines[i])):
                spot, other = rng.choice(spots), rng.choice(token.findall(code) + ["0", "-1", "99999999999999999999", "f64", "tensor<3xi1>"])
                lines[i] = lines[i][: spot.start()] + other + lines[i][spot.end() :]
        memory = Memory()
        try:
            kernel = Kernel("\n".join(lines))
            pointers = iter([memory.add(t) for t in tensors] * 9)
            kernel.run((3,), [next(pointers) if t.elem == "ptr" else rng.choice([0, 5, 50]) for t in kernel.signature], memory, budget=3_000_000)
            outcome = "ran"
        except TTIRError as error:
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["ParseError"] > 50 and outcomes["ran"] > 10, outcomes


def test_wrong_arguments():
    kernel = Kernel(module(""))
    with pytest.raises(ParseError, match="takes 1 argument"):
        kernel.run((1,), [], Memory())
    with pytest.raises(ParseError, match="no kernel"):
        Kernel(module(""), "other")
    assert [str(t.elem) for t in kernel.signature] == ["ptr"]


def test_work_of_one_program_is_bounded_in_memory():
    body = "".join(f"\n    %x{i} = arith.constant dense<{i}.0> : tensor<1048576xf32>" for i in range(200))
    with pytest.raises(Unsupported, match="elements a program"):
        Kernel(module(body))


def test_small_kernels_take_microseconds():
    x, y, memory = data(4, 64), torch.empty(4, 64), Memory()
    kernel, args = Kernel(lower(softmax, [x, y, 64], BLOCK=64)), [memory.add(x), memory.add(y), 64]
    kernel.run((4,), args, memory)
    best = min(timed(lambda: kernel.run((4,), args, memory)) for _ in range(20))
    assert best < 1e-3, f"{best * 1e6:.0f} us"


def timed(f) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start
