"""What CUDA would assert inside a kernel is an exception before the launch. The operators are called on a CPU, which has checks of its own."""

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.asserts import Asserts

X, I, ROWS = torch.randn(5, 6), torch.tensor([0, 4, 2]), torch.randn(5, 7)
OFF = torch.tensor([0, 5, 2])  # of five rows
INDEX = torch.zeros(5, 6, dtype=torch.long)
P = torch.rand(5, 6)
CALLS = {  # name: the operator, operands that are fine, operands that are not
    "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p, (P > 0.5).float()), (P, P.round()), (P - 0.5, P + 0.5, P.log(), P / 0 * 0)),
    "bernoulli": (torch.bernoulli, (P,), (X,)),
    "bernoulli_": (lambda p: torch.empty(5, 6).bernoulli_(p), (P, 0.5), (P + 1,)),
    "multinomial": (lambda p: torch.multinomial(p, 2), (P,), (X, torch.zeros(5, 6), P / 0)),
    "poisson": (torch.poisson, (P,), (-P,)),
    "cross_entropy": (lambda t: F.cross_entropy(X, t), (torch.tensor([0, 5, 1, -100, 2]),), (torch.tensor([0, 6, 1, 1, 1]), torch.tensor([0, -1, 1, 1, 1]))),
    "cross_entropy_2d": (lambda t: F.cross_entropy(torch.randn(2, 3, 4, 4), t), (torch.full((2, 4, 4), 2),), (torch.full((2, 4, 4), 3),)),
    "multi_margin_loss": (lambda t: F.multi_margin_loss(X, t), (torch.full((5,), 5),), (torch.full((5,), 6),)),
    "embedding": (lambda i: F.embedding(i, ROWS), (I,), (OFF, I - 1)),
    "embedding_bag": (lambda i: F.embedding_bag(i[None], ROWS), (I,), (OFF,)),
    "one_hot": (lambda i: F.one_hot(i, 5), (I,), ()),
    "gather": (lambda i: X.gather(0, i), (INDEX + 4,), (INDEX + 5, INDEX - 1)),
    "scatter": (lambda i: X.scatter(1, i, 1.0), (INDEX + 5,), (INDEX + 6,)),
    "scatter_add_": (lambda i: torch.zeros(5, 6).scatter_add_(0, i, X), (INDEX,), (INDEX + 5,)),
    "index_select": (lambda i: X.index_select(0, i), (I,), (OFF,)),
    "index_add": (lambda i: X.index_add(0, i, X[:3]), (I,), (OFF,)),
    "index_fill_": (lambda i: X.clone().index_fill_(0, i, 1.0), (I,), (OFF,)),
    "take": (lambda i: X.take(i), (I - 30, I + 25), (I + 27, I - 31)),
    "index": (lambda i: X[i], (I, I - 5), (OFF, I - 6)),
    "index_behind": (lambda i: X[:, i], (I + 1,), (OFF + 1,)),
    "index_behind_a_mask": (lambda i: torch.randn(3, 2, 5)[torch.tensor([[True, False], [True, False], [True, False]]), i], (I,), (OFF,)),
    "index_put_": (lambda i: X.clone().index_put_((i,), torch.ones(())), (I,), (OFF,)),
    "max_unpool2d": (lambda i: F.max_unpool2d(torch.randn(1, 1, 2, 2), i, 2), (torch.full((1, 1, 2, 2), 15),), (torch.full((1, 1, 2, 2), 16),)),
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


def test_most_operators_assert_nothing():
    asserts = Asserts()
    with asserts:
        torch.softmax(torch.nn.Linear(6, 4)(X).relu(), 1).sort().values[1:3].sum()
    assert not asserts.met
