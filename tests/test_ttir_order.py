"""Programs run in an order that is drawn, take turns where they wait, and race unless an atomic lies between."""

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import data, evaluate

from nanotriton.executor.ttir import Budget, Race

SEEDS = range(6)


def zeros(n: int = 1, dtype=torch.int32) -> torch.Tensor:
    return torch.zeros(n, dtype=dtype)


def holes(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"))


# --- right in any order


@triton.jit
def add_under_a_lock(X, Y, Lock, Count, N: tl.constexpr):
    """As the layer norm of Triton's tutorials adds up the gradients of its weights."""
    o = tl.arange(0, N)
    x = tl.load(X + tl.program_id(0) * N + o)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    if tl.load(Count) == 0:
        tl.atomic_xchg(Count, 1)
    else:
        x += tl.load(Y + o)
    tl.store(Y + o, x)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def look_back(X, Y, State, Value, Prefix, Ticket, N: tl.constexpr, TICKETS: tl.constexpr):
    """Prefix sums in one pass (Merrill and Garland, 2016): 1 says that a block's sum is there, 2 its prefix."""
    i = tl.atomic_add(Ticket, 1) if TICKETS else tl.program_id(0)
    o = i * N + tl.arange(0, N)
    x = tl.load(X + o)
    tl.store(Value + i, tl.sum(x))
    tl.debug_barrier()
    tl.atomic_xchg(State + i, 1)
    before = 0.0
    j = i - 1
    while j >= 0:
        state = tl.atomic_add(State + j, 0)
        if state == 2:
            before += tl.load(Prefix + j)
            j = -1
        elif state == 1:
            before += tl.load(Value + j)
            j -= 1
    tl.store(Prefix + i, before + tl.sum(x))
    tl.debug_barrier()
    tl.atomic_xchg(State + i, 2)
    tl.store(Y + o, before + tl.cumsum(x))


@triton.jit
def barrier(Arrived, n):
    tl.debug_barrier()
    tl.atomic_add(Arrived, 1)
    while tl.atomic_add(Arrived, 0) < n:
        pass


@triton.jit
def softmax_of_a_grid(X, M, S, Y, Arrived, G: tl.constexpr, N: tl.constexpr):
    """Two barriers of the whole grid, in a function of its own, and partial results that all read."""
    o = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + o)
    tl.store(M + tl.program_id(0), tl.max(x))
    barrier(Arrived, G)
    e = tl.exp(x - tl.max(tl.load(M + tl.arange(0, G))))
    tl.store(S + tl.program_id(0), tl.sum(e))
    barrier(Arrived, 2 * G)
    tl.store(Y + o, e / tl.sum(tl.load(S + tl.arange(0, G))))


@triton.jit
def in_place_steps(X, Arrived, G: tl.constexpr, STEPS: tl.constexpr):
    """Each program reads its neighbours' numbers, and stores its own once all have read."""
    i = tl.program_id(0)
    for step in range(STEPS):
        new = tl.load(X + (i + 1) % G) + tl.load(X + (i + G - 1) % G)
        tl.debug_barrier()
        tl.atomic_add(Arrived, 1)
        while tl.load(Arrived, volatile=True) < (2 * step + 1) * G:
            pass
        tl.store(X + i, new)
        tl.debug_barrier()
        tl.atomic_add(Arrived, 1)
        while tl.load(Arrived, volatile=True) < (2 * step + 2) * G:
            pass


@triton.jit
def last_one_sums(X, P, Count, Y, N: tl.constexpr, G: tl.constexpr, SEM: tl.constexpr):
    p = tl.program_id(0)
    tl.store(P + p, tl.sum(tl.load(X + p * N + tl.arange(0, N))))
    tl.debug_barrier()
    if tl.atomic_add(Count, 1, sem=SEM) == G - 1:
        tl.store(Y, tl.sum(tl.load(P + tl.arange(0, G))))


@triton.jit
def total_then_share(X, Total, Count, Y, G: tl.constexpr, SEM: tl.constexpr):
    p = tl.program_id(0)
    tl.atomic_add(Total, tl.load(X + p), sem=SEM)
    if tl.atomic_add(Count, 1) == G - 1:
        o = tl.arange(0, G)
        tl.store(Y + o, tl.load(X + o) / tl.load(Total))


@triton.jit
def compact(X, Y, Count, N: tl.constexpr):
    """What is positive, in any order."""
    x = tl.load(X + tl.program_id(0) * N + tl.arange(0, N))
    kept = x > 0
    place = tl.atomic_add(Count + tl.zeros((N,), tl.int32), 1, mask=kept)
    tl.store(Y + place, x, mask=kept)


@triton.jit
def work_queue(X, Y, Next, n, N: tl.constexpr):
    """Programs take blocks until there are none."""
    i = tl.atomic_add(Next, 1)
    while i < n:
        o = i * N + tl.arange(0, N)
        tl.store(Y + o, tl.load(X + o) * 2)
        i = tl.atomic_add(Next, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_that_synchronise_are_right_in_any_order(seed):
    x = data(16, 8, seed=seed)
    y = holes(8)
    evaluate(add_under_a_lock, (16,), x, y, zeros(), zeros(), N=8, seed=seed)
    torch.testing.assert_close(y, x.sum(0))
    for tickets in (False, True):
        y = holes(16, 8)
        parts = zeros(16), holes(16), holes(16), zeros()
        evaluate(look_back, (16,), x, y, *parts, N=8, TICKETS=tickets, seed=seed)
        torch.testing.assert_close(y.view(-1), x.view(-1).cumsum(0), rtol=1e-5, atol=1e-5)
    y = holes(16, 8)
    evaluate(softmax_of_a_grid, (16,), x, holes(16), holes(16), y, zeros(), G=16, N=8, seed=seed)
    torch.testing.assert_close(y.view(-1), x.view(-1).softmax(0))
    for sem in ("acq_rel", "release", "relaxed"):
        y = holes(16)
        evaluate(
            total_then_share,
            (16,),
            x[:, 0].contiguous(),
            zeros(1, torch.float32),
            zeros(),
            y,
            G=16,
            SEM=sem,
            seed=seed,
        )
        torch.testing.assert_close(y, x[:, 0] / x[:, 0].sum(), rtol=1e-4, atol=1e-4)
    y = holes(1)
    evaluate(last_one_sums, (16,), x, holes(16), zeros(), y, N=8, G=16, SEM="acq_rel", seed=seed)
    torch.testing.assert_close(y[0], x.sum())


@pytest.mark.parametrize("seed", SEEDS)
def test_other_ways_to_share_work(seed):
    x = data(12, 8, seed=seed)
    y, count = holes(96), zeros()
    evaluate(compact, (12,), x, y, count, N=8, seed=seed)
    assert torch.equal(y[: count.item()].sort().values, x[x > 0].sort().values)
    y = holes(12, 8)
    evaluate(work_queue, (5,), x, y, zeros(), 12, N=8, seed=seed)
    assert torch.equal(y, x * 2)
    want = x[:, 0].clone()
    y = want.clone()
    for _ in range(3):
        want = want.roll(-1) + want.roll(1)
    evaluate(in_place_steps, (12,), y, zeros(), G=12, STEPS=3, seed=seed)
    torch.testing.assert_close(y, want)


# --- wrong: an atomic is there, and puts nothing in order


@triton.jit
def signals_before_it_stores(X, P, Count, Y, G: tl.constexpr):
    p = tl.program_id(0)
    arrived = tl.atomic_add(Count, 1)
    tl.store(P + p, tl.load(X + p))
    if arrived == G - 1:
        tl.store(Y, tl.sum(tl.load(P + tl.arange(0, G))))


@triton.jit
def highest_number_sums(X, P, Count, Y, G: tl.constexpr):
    p = tl.program_id(0)
    tl.store(P + p, tl.load(X + p))
    tl.atomic_add(Count, 1)
    if p == G - 1:
        tl.store(Y, tl.sum(tl.load(P + tl.arange(0, G))))


@triton.jit
def waits_for_the_wrong_one(X, P, Flag, Y, G: tl.constexpr):
    p = tl.program_id(0)
    tl.store(P + p, tl.load(X + p))
    tl.debug_barrier()
    tl.atomic_xchg(Flag + p, 1)
    while tl.atomic_add(Flag + p, 0) == 0:
        pass
    tl.store(Y + p, tl.load(P + (p + 1) % G))


@triton.jit
def lets_go_too_soon(X, P, Lock, Y, G: tl.constexpr):
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    before = tl.load(Y)
    tl.atomic_xchg(Lock, 0)
    tl.store(Y, before + tl.load(X + tl.program_id(0)))


@triton.jit
def lock_without_order(X, P, Lock, Y, G: tl.constexpr):
    while tl.atomic_cas(Lock, 0, 1, sem="relaxed") == 1:
        pass
    tl.store(Y, tl.load(Y) + tl.load(X + tl.program_id(0)))
    tl.atomic_xchg(Lock, 0, sem="relaxed")


@triton.jit
def flag_by_a_plain_store(X, P, Flag, Y, G: tl.constexpr):
    p = tl.program_id(0)
    tl.store(P + p, tl.load(X + p))
    tl.store(Flag + p, 1)
    while tl.load(Flag + (p + 1) % G, volatile=True) == 0:
        pass
    tl.store(Y + p, tl.load(P + (p + 1) % G))


@triton.jit
def total_without_waiting(X, Total, Count, Y, G: tl.constexpr):
    p = tl.program_id(0)
    tl.atomic_add(Total, tl.load(X + p))
    tl.store(Y + p, tl.load(X + p) / tl.load(Total))


@triton.jit
def overwrites_what_others_read(X, P, Count, Y, G: tl.constexpr):
    p = tl.program_id(0)
    x = tl.sum(tl.load(X + tl.arange(0, G)))
    ticket = tl.atomic_add(Count, 1)
    tl.store(X + p, x + ticket)


WRONG = [
    signals_before_it_stores,
    highest_number_sums,
    waits_for_the_wrong_one,
    lets_go_too_soon,
    lock_without_order,
    flag_by_a_plain_store,
    total_without_waiting,
    overwrites_what_others_read,
]


@pytest.mark.parametrize("kernel", WRONG, ids=lambda k: k.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_no_atomic_puts_in_order_races(kernel, seed):
    buffers = data(8, seed=1), torch.zeros(8), zeros(8), torch.zeros(8)
    with pytest.raises(Race, match=r"another program"):
        evaluate(kernel, (8,), *buffers, G=8, seed=seed)


# --- wrong: an atomic of scope cta is one for its own program alone


@triton.jit
def counts_in_bins(X, Bins, Spare, N: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    p = tl.program_id(0)
    x = tl.load(X + p * N + tl.arange(0, N))
    if p % 2 == 0:
        tl.atomic_add(Bins + x, 1, scope=FIRST)
    else:
        tl.atomic_add(Bins + x, 1, scope=SECOND)


@triton.jit
def counts_in_bins_of_its_own(X, Bins, Spare, N: tl.constexpr, SCOPE: tl.constexpr):
    p = tl.program_id(0)
    x = tl.load(X + p * N + tl.arange(0, N))
    tl.atomic_add(Bins + p * 4 + x, 1, scope=SCOPE)
    tl.atomic_add(Bins + p * 4 + x, 1, scope=SCOPE)


@triton.jit
def counts_one_after_another(X, Bins, Lock, N: tl.constexpr, SCOPE: tl.constexpr):
    x = tl.load(X + tl.program_id(0) * N + tl.arange(0, N))
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    tl.atomic_add(Bins + x, 1, scope=SCOPE)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


def indices(programs: int, n: int) -> torch.Tensor:
    return (torch.arange(programs * n) * 7 % 5 % 4).to(torch.int32)


@pytest.mark.parametrize("scopes", [("cta", "cta"), ("cta", "gpu"), ("gpu", "cta")])
@pytest.mark.parametrize("seed", SEEDS)
def test_atomics_of_one_program_race_with_those_of_others(scopes, seed):
    with pytest.raises(Race, match="of scope cta"):
        evaluate(
            counts_in_bins,
            (6,),
            indices(6, 8),
            zeros(4),
            zeros(),
            N=8,
            FIRST=scopes[0],
            SECOND=scopes[1],
            seed=seed,
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics_of_one_program_on_memory_that_is_its_own(seed):
    x = indices(6, 8)
    want = torch.stack([torch.bincount(row, minlength=4) for row in x.view(6, 8)]).to(torch.int32)
    bins = zeros(24)
    evaluate(counts_in_bins_of_its_own, (6,), x, bins, zeros(), N=8, SCOPE="cta", seed=seed)
    assert torch.equal(bins.view(6, 4), 2 * want)
    for scope in ("cta", "gpu"):  # at any time one program has the lock
        bins = zeros(4)
        evaluate(counts_one_after_another, (6,), x, bins, zeros(), N=8, SCOPE=scope, seed=seed)
        assert torch.equal(bins, want.sum(0).to(torch.int32))
    for scope in ("gpu", "sys"):
        bins = zeros(4)
        evaluate(counts_in_bins, (6,), x, bins, zeros(), N=8, FIRST=scope, SECOND=scope, seed=seed)
        assert torch.equal(bins, want.sum(0).to(torch.int32))


# --- wrong, and no race: only another order shows it


@triton.jit
def prefix_from_a_total(X, Total, Y):
    p = tl.program_id(0)
    x = tl.load(X + p)
    tl.store(Y + p, x + tl.atomic_add(Total, x))


@triton.jit
def all_see_the_total(X, Total, Y):
    p = tl.program_id(0)
    x = tl.load(X + p)
    tl.atomic_add(Total, x)
    tl.store(Y + p, x / tl.atomic_add(Total, 0.0))


@triton.jit
def all_see_the_total_by_a_volatile_load(X, Total, Y):
    p = tl.program_id(0)
    x = tl.load(X + p)
    tl.atomic_add(Total, x)
    tl.store(Y + p, x / tl.load(Total, volatile=True))


@pytest.mark.parametrize(
    "kernel,want",
    [
        (prefix_from_a_total, lambda x: x.cumsum(0)),
        (all_see_the_total, lambda x: x / x.sum()),
        (all_see_the_total_by_a_volatile_load, lambda x: x / x.sum()),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_holds_in_one_order_only_is_wrong(kernel, want, seed):
    x, y = torch.arange(1, 25, dtype=torch.float32), holes(24)
    evaluate(kernel, (24,), x, zeros(1, torch.float32), y, seed=seed)
    assert not torch.allclose(y, want(x))


@triton.jit
def tickets(Y, C):
    tl.store(Y + tl.atomic_add(C, 1), tl.program_id(0))


def test_the_order_is_another_one_for_each_seed():
    orders = []
    for seed in SEEDS:
        y, c = torch.full((40,), -1, dtype=torch.int32), zeros()
        evaluate(tickets, (40,), y, c, seed=seed)
        assert c.item() == 40 and sorted(y.tolist()) == list(range(40))
        orders.append(tuple(y.tolist()))
    assert len(set(orders)) == len(SEEDS)
    again = torch.full((40,), -1, dtype=torch.int32)
    evaluate(tickets, (40,), again, zeros(), seed=SEEDS[0])
    assert tuple(again.tolist()) == orders[0]


# --- waiting


@triton.jit
def meet_all(Arrived, Y, n):
    tl.atomic_add(Arrived, 1)
    while tl.atomic_add(Arrived, 0) < n:
        pass
    tl.store(Y + tl.program_id(0), 1)


def test_programs_that_wait_for_one_that_never_comes_are_a_deadlock():
    with pytest.raises(Budget, match="deadlock"):
        evaluate(meet_all, (6,), zeros(), zeros(6), 7)


def test_a_barrier_of_more_programs_than_there_is_room_for_is_a_deadlock():
    y = zeros(200)
    evaluate(meet_all, (200,), zeros(), y, 200, resident=200, budget=20_000_000)
    assert y.all()
    with pytest.raises(Budget, match="deadlock"):
        evaluate(meet_all, (200,), zeros(), y, 200, resident=199)


@triton.jit
def gives_up(Flag, Y):
    tries = 0
    while (tl.atomic_add(Flag, 0) == 0) & (tries < 50):
        tries += 1
    tl.store(Y + tl.program_id(0), tries)


def test_a_program_that_counts_its_tries_is_not_asleep():
    y = zeros(3)
    evaluate(gives_up, (3,), zeros(), y)
    assert y.tolist() == [50, 50, 50]


@triton.jit
def chain(X, Y, Flag):
    """Each waits for the one before it: no order of starting makes this slow."""
    p = tl.program_id(0)
    while tl.atomic_add(Flag + p, 0) == 0:
        pass
    tl.store(Y + p + 1, tl.load(Y + p) + tl.load(X + p))
    tl.debug_barrier()
    tl.atomic_xchg(Flag + p + 1, 1)


def test_a_long_chain():
    x, y, flags = data(300), torch.zeros(301), zeros(301)
    flags[0] = 1
    evaluate(chain, (300,), x, y, flags, budget=30_000_000)
    torch.testing.assert_close(y[1:], x.cumsum(0), rtol=1e-4, atol=1e-4)
