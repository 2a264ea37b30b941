"""Masks whose rows are never empty or full in what a task draws: in one trial a row is all True, one all False, and one has a single True."""

import pytest
import torch

from nanotriton.executor.judge.inputs import moves, structure
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.verdict import Fault
from tests.test_draws import MANY, accepted_by_many, judge, refused, task

PAIRS = "torch.randn(10, 24, 3), torch.rand(10, 24) > 0.5"
FLOATS = "torch.randn(12, 30), (torch.rand(12, 30) > 0.6).float()"


def share(m, x, y):
    """A softmax over what is kept, by sums."""
    weights = torch.where(y, x.exp(), 0.0)
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-6)


def minimum(start):
    return lambda m, x, y: torch.where(y, x, start).amin(1)


# name: (inputs, forward, right, wrong)
MASKS = {
    "pooling": (PAIRS, "return (x * y[..., None]).sum(1) / y.sum(1).clamp(min=1)[:, None]", lambda m, x, y: torch.einsum("btc,bt->bc", x, y.float()) / y.sum(1).clamp(min=1)[:, None], lambda m, x, y: (x * y[..., None]).sum(1) / y.sum(1)[:, None]),
    "a mask of floats": (FLOATS, "return (x * y).sum(1) / (y.sum(1) + 1e-8)", lambda m, x, y: (x * (y / (y.sum(1, keepdim=True) + 1e-8))).sum(1), lambda m, x, y: (x * y).sum(1) / y.sum(1)),
    "a mask of integers that became floats": ("torch.randn(12, 30), torch.randint(0, 2, (12, 30)).float()", "return (x * y).sum(1) / y.sum(1).clamp(min=1)", None, lambda m, x, y: (x * y).sum(1) / y.sum(1)),
    "an infinite minimum": (PAIRS.replace(", 3", ""), "return x.masked_fill(~y, torch.inf).amin(1)", minimum(torch.inf), minimum(1e30)),
    "fewer than all": (PAIRS.replace(", 3", ""), "return x.sum(1), (~y).any(1)", lambda m, x, y: (x.sum(1), y.sum(1) < 24), lambda m, x, y: (x.sum(1), torch.ones(10, dtype=torch.bool))),
    "a spread of one": (FLOATS, "n = y.sum(1); d = (x - ((x * y).sum(1) / n.clamp(min=1))[:, None]) * y; return (d * d).sum(1) / (n - 1).clamp(min=1)", None, lambda m, x, y: (((x - ((x * y).sum(1) / y.sum(1).clamp(min=1))[:, None]) * y) ** 2).sum(1) / (y.sum(1) - 1)),
    "padding of -1e9": (PAIRS.replace(", 3", ""), "return torch.softmax(x.masked_fill(~y, -1e9), 1)", lambda m, x, y: torch.where(y.any(1, keepdim=True), torch.softmax(x.masked_fill(~y, -torch.inf), 1), 1 / 24), lambda m, x, y: torch.softmax(x.masked_fill(~y, -torch.inf), 1).nan_to_num(0.0)),
    "all there in every draw": ("torch.randn(6, 20), torch.ones(6, 20).bool()", "return (x * y).sum(1) / y.sum(1).clamp(min=1)", lambda m, x, y: torch.where(y, x, 0.0).sum(1) / y.sum(1).clamp(min=1), lambda m, x, y: (x * y).sum(1) / y.sum(1)),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, right, wrong", MASKS.values(), ids=MASKS)
def test_rows_are_empty_and_full(inputs, forward, right, wrong):
    reference = Reference(task(forward, inputs, "x, y"))
    assert refused(reference, wrong)
    accepted_by_many(reference, right or reference.code.names["Model"].forward)


def test_where_an_empty_row_is_nan_one_is_full():
    inputs = "torch.randn(9, 16), torch.randint(0, 2, (9, 16)).bool()"
    reference = Reference(
        task("return torch.softmax(x.masked_fill(~y, -torch.inf), 1), y.all(1)", inputs, "x, y")
    )
    assert reference.findings.moves.ways == {1: "full_rows"}

    def never(m, x, y):
        return torch.softmax(x.masked_fill(~y, -torch.inf), 1), torch.zeros(9, dtype=torch.bool)

    assert refused(reference, never)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(5, 8), (2, 1, 1, 6), (3, 4, 7, 1), (2, 3)])
def test_bare_rows(shape, dtype):
    mask = torch.tensor([1, 0, 1, 1], dtype=dtype).repeat(100)[: torch.Size(shape).numel()].reshape(shape)
    rows = moves.moved(mask, "bare_rows", 3).squeeze()
    counts = rows.reshape(-1, rows.shape[-1]).sum(1).tolist()
    assert rows.shape[-1] in counts and 0 in counts


@pytest.mark.parametrize(
    "inputs, head",
    [
        ("torch.randn(8, 5), F.one_hot(torch.randint(0, 5, (8,)), 5).float()", ""),  # one class each
        ("torch.randn(8), torch.rand(8) > 0.5", ""),  # no rows
        ("torch.randn(8, 8), (lambda t: t | t.T)(torch.rand(8, 8) > 0.7)", "# a symmetric relation"),
    ],
)
def test_other_zeros_and_ones_stay(inputs, head):
    assert Reference(task("return x * y", inputs, "x, y", head=head)).findings.moves.ways == {}


def test_a_mask_that_is_not_looked_at_shows():
    x = torch.zeros(4, 5)
    assert not structure.is_mask(x) and not structure.is_mask(x + 0.5)
    x[1, 2:] = 1
    assert structure.is_mask(x)


def test_infinities_count_only_where_float64_has_them():
    """exp overflows in float32 alone: such a trial says nothing, and no kernel is blamed for it."""
    inputs = "torch.randn(8, 16), torch.rand(8, 16) > 0.5"
    reference = Reference(task("return (x * y * 30).exp()", inputs, "x, y"))
    for secret in MANY:
        try:
            judge(
                reference,
                reference.trials(secret, ""),
                lambda m, x, y: (x * y * 30).clamp(max=80).exp(),
                twice=False,
            )
        except Fault as fault:
            assert fault.status != "not_finite"


@pytest.mark.parametrize("shape", ["2, 3, 40, 32", "40, 32", "1, 1, 64, 128"])
def test_a_million_is_infinity_for_scores(shape):
    """Triton's own tutorial adds -1e6 to the scores that a causal mask leaves out."""

    def tutorial(m, q, k, v, least=-1e6):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:]).triu(1)
        return torch.softmax(scores + later * least, -1) @ v

    three = ", ".join([f"torch.randn({shape})"] * 3)
    forward = "return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    reference = Reference(task(forward, three, "q, k, v"))
    accepted_by_many(reference, tutorial)
    assert refused(reference, lambda m, q, k, v: tutorial(m, q, k, v, least=-50.0))
