"""The evaluator's memory: views, masks, bounds, alignment, and races between the programs of a launch."""

import re

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import data, evaluate, lower

from nanotriton.executor.ttir import Evaluator, GlobalMemory, OutOfBounds, Race


def test_views_share_their_storage():
    x = data(4, 10)
    y = x[:, 5:]
    memory = GlobalMemory()
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
    memory, xs, y = GlobalMemory(), [data(16, seed=s) for s in range(3)], torch.empty(3, 16)
    table = torch.tensor([memory.add(x) for x in xs])
    Evaluator(lower(pointer_table, [table, y], N=16)).run((3,), [memory.add(table), memory.add(y)], memory)
    assert torch.equal(y, torch.stack(xs))


@triton.jit
def pointers_to_pointers(P, Y, N: tl.constexpr):
    i, o = tl.program_id(0), tl.arange(0, N)
    tl.store(Y + i * N + o, tl.load(tl.load(P + i) + o))


def test_pointers_to_pointers():
    memory, xs, y = GlobalMemory(), [data(16, seed=s) for s in range(3)], torch.empty(3, 16)
    table = torch.tensor([memory.add(x) for x in xs])
    Evaluator(lower(pointers_to_pointers, ["**fp32", y], N=16)).run(
        (3,), [memory.add(table), memory.add(y)], memory
    )
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
    assert re.fullmatch(
        r"tt.load, line \d+: 3 elements out of bounds: element 60 of X, which has 60 \(program \(3, 0, 0\)\)",
        str(error.value),
    )
    with pytest.raises(OutOfBounds, match=r"element -1 of X, which has 60 \(program \(0, 0, 0\)\)"):
        evaluate(shifted, (4,), x, y, -1, 60, N=16)
    with pytest.raises(
        OutOfBounds,
        match=r"tt.store.*: 16 elements out of bounds: element 64 of Y, which has 64 \(program \(4, 0, 0\)\)",
    ):
        evaluate(shifted, (5,), x, y, 0, 60, N=16)
    # into the next buffer is as far as the moon
    with pytest.raises(OutOfBounds, match="all 16 elements out of bounds"):
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
        memory = GlobalMemory()
        Evaluator(lower(wild, ["i64", y])).run((1,), [address, memory.add(y)], memory)


def test_misaligned():
    memory, y = GlobalMemory(), torch.empty(4)
    with pytest.raises(OutOfBounds, match="byte 2 of Y, misaligned for 4-byte elements"):
        Evaluator(lower(wild, ["i64", y])).run((1,), [memory.add(y) + 2, memory.add(y)], memory)


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
    monkeypatch.setattr("nanotriton.executor.ttir.evaluator.CHUNK", 16)
    x, y = data(64), torch.empty(64)
    evaluate(overlapping, (4,), x, y, 16, N=16)
    with pytest.raises(
        Race, match=r"program \(1, 0, 0\) and another program store different values to element 8 of Y"
    ):
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
