"""What CUDA would assert inside a kernel is an exception before the launch.

The operators are called on a CPU, whose own checks have other messages.
"""

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.judge.task.asserts import Asserts

X, ROWS, P = torch.randn(5, 6), torch.randn(5, 7), torch.rand(5, 6)
LABELS = (P > 0.5).float()
FINE, OFF = torch.tensor([0, 4, 2]), torch.tensor([0, 5, 2])  # of five rows
INDEX = torch.zeros(5, 6, dtype=torch.long)
CLASSES = torch.tensor([0, 5, 1, -100, 2])  # of six; -100 is left out
MASK = torch.tensor([[True, False], [True, False], [True, False]])
POOLED = torch.zeros(1, 1, 2, 2, dtype=torch.long)
# name: an operator of one operand, operands that are fine, operands that are not
CALLS = {
    "binary_cross_entropy": (
        lambda p: F.binary_cross_entropy(p, LABELS),
        [P, P.round()],
        [P - 0.5, P + 0.5, P * float("nan")],
    ),
    "bernoulli": (torch.bernoulli, [P], [X]),
    "bernoulli_": (lambda p: torch.empty(5, 6).bernoulli_(p), [P, 0.5], [P + 1]),
    "multinomial": (lambda p: torch.multinomial(p, 2), [P], [X, torch.zeros(5, 6), P / 0]),
    "poisson": (torch.poisson, [P], [-P]),
    "cross_entropy": (
        lambda t: F.cross_entropy(X, t),
        [CLASSES],
        [CLASSES + (CLASSES == 5), CLASSES - (CLASSES == 0).long()],
    ),
    "cross_entropy_2d": (
        lambda t: F.cross_entropy(torch.randn(2, 3, 4, 4), t),
        [torch.full((2, 4, 4), 2)],
        [torch.full((2, 4, 4), 3)],
    ),
    "multi_margin_loss": (
        lambda t: F.multi_margin_loss(X, t),
        [torch.full((5,), 5)],
        [torch.full((5,), 6)],
    ),
    "embedding": (lambda i: F.embedding(i, ROWS), [FINE], [OFF, FINE - 1]),
    "embedding_bag": (lambda i: F.embedding_bag(i[None], ROWS), [FINE], [OFF]),
    "one_hot": (lambda i: F.one_hot(i, 5), [FINE], []),
    "gather": (lambda i: X.gather(0, i), [INDEX + 4], [INDEX + 5, INDEX - 1]),
    "scatter": (lambda i: X.scatter(1, i, 1.0), [INDEX + 5], [INDEX + 6]),
    "scatter_add_": (lambda i: torch.zeros(5, 6).scatter_add_(0, i, X), [INDEX], [INDEX + 5]),
    "index_select": (lambda i: X.index_select(0, i), [FINE], [OFF]),
    "index_add": (lambda i: X.index_add(0, i, X[:3]), [FINE], [OFF]),
    "index_fill_": (lambda i: X.clone().index_fill_(0, i, 1.0), [FINE], [OFF]),
    "take": (lambda i: X.take(i), [FINE - 30, FINE + 25], [FINE + 27, FINE - 31]),
    "index": (lambda i: X[i], [FINE, FINE - 5], [OFF, FINE - 6]),
    "index_behind": (lambda i: X[:, i], [FINE + 1], [OFF + 1]),
    "index_behind_a_mask": (lambda i: torch.randn(3, 2, 5)[MASK, i], [FINE], [OFF]),
    "index_put_": (lambda i: X.clone().index_put_((i,), torch.ones(())), [FINE], [OFF]),
    "max_unpool2d": (
        lambda i: F.max_unpool2d(torch.randn(1, 1, 2, 2), i, 2),
        [POOLED + 15],
        [POOLED + 16],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operand_out_of_range_is_an_exception(name):
    call, fine, wrong = CALLS[name]
    asserts = Asserts()
    for operand in fine:
        with asserts:
            call(operand)
    assert asserts.met
    for operand in wrong:
        with pytest.raises(RuntimeError, match="an operand is not between"), asserts:
            call(operand)


def test_probabilities_are_looked_at_in_both_operands():
    with pytest.raises(RuntimeError, match="an operand is not between"), Asserts():
        F.binary_cross_entropy(P, LABELS + 1)


def test_on_a_cpu_operators_look_for_themselves():
    asserts = Asserts(looks=False)
    with pytest.raises(IndexError), asserts:
        F.embedding(OFF, ROWS)
    assert asserts.met


def test_most_operators_assert_nothing():
    asserts = Asserts()
    with asserts:
        torch.softmax(torch.nn.Linear(6, 4)(X).relu(), 1).sort().values[1:3].sum()
    assert not asserts.met
