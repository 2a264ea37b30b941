"""The evaluator's atomics, locks, tensor descriptors and block pointers."""

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import data, evaluate, lower

from nanotriton.executor.ttir import Budget, Evaluator, FalsePromise, GlobalMemory, OutOfBounds

# --- atomics


@triton.jit
def sums(X, I, Y, n, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(Y + tl.load(I + o, mask=o < n), tl.load(X + o, mask=o < n), mask=o < n)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
)
def test_atomic_add(dtype):
    x = (data(100) * 4).to(dtype)
    i, y = (
        torch.randint(0, 8, (100,), generator=torch.Generator().manual_seed(0), dtype=torch.int32),
        torch.zeros(8, dtype=dtype),
    )
    evaluate(sums, (7,), x, i, y, 100, N=16)
    want = torch.zeros(8, dtype=torch.float64).index_add(0, i, x.double())
    torch.testing.assert_close(
        y.double(), want, rtol=0, atol=40 * torch.finfo(dtype).eps * 8 if dtype.is_floating_point else 0
    )


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
    f = {
        "max": torch.maximum,
        "min": torch.minimum,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
    }.get(op, lambda a, b: b)
    for row in x:
        want = f(want, row)
    if op == "xchg":  # anyone may come last
        assert any(torch.equal(y, row) for row in x)
    else:
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


@pytest.mark.parametrize("first, n", [(0, 27), (1, 28), (4, 30)])
def test_descriptors_are_aligned_as_the_gpu_wants_it(first, n):
    x, y = data(20 * n + first)[first:], torch.empty(20, n)
    with pytest.raises(FalsePromise, match="multiples of 16 bytes"):
        evaluate(descriptors, (2, 2), x, y, 20, n, BM=16, BN=16, PADDING="zero")


@triton.jit
def host_descriptor(X, Y, N: tl.constexpr):
    x = X.load([tl.program_id(0) * 8, 0])
    tl.store(Y + (tl.program_id(0) * 8 + tl.arange(0, 8))[:, None] * N + tl.arange(0, N)[None, :], x)


def test_descriptors_from_the_host():
    x, y, memory = data(24, 16), torch.empty(24, 16), GlobalMemory()
    kernel = Evaluator(lower(host_descriptor, ["tensordesc<fp32[8, 16]>", y], N=16))
    address = memory.add(x)
    kernel.run(
        (3,),
        [(address, (24, 16), (16, 1), "zero"), *(24, 16, 16, 1)[: len(kernel.signature) - 2], memory.add(y)],
        memory,
    )
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
