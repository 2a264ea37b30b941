"""Inputs are moved where something is rounded, and nowhere else."""

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.judge.comparison.nudging import TF32_UNIT, Nudge, Nudging
from nanotriton.executor.judge.reference.reference import Reference
from tests.test_draws import task

X = torch.arange(1, 65, dtype=torch.float32) / 8


def all_up(t: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(t, dtype=torch.float64)


class Thousandth(Nudge):
    """Larger than FLOOR, so that it is told from what a result moves by itself."""

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        return t.double() * 1.001


def run(forward, x=X, nudge=Thousandth(all_up)):
    """forward's answer in float64, with operands moved by a thousandth."""
    mode, wide = Nudging(nudge), x.double()
    mode.follow(wide, x.dtype)
    with mode:
        return forward(wide)


@pytest.mark.parametrize(
    "exact",
    [
        lambda x: x * 4,
        lambda x: torch.round(x * 4).int(),
        lambda x: x >= 0.5,
        lambda x: (x.view(8, 8).T * 2 - 1).sum(0),
        lambda x: x.clone().mul_(2).add_(x),
    ],
)
def test_what_is_exact_is_left_alone(exact):
    assert torch.equal(run(exact), exact(X.double()))


@pytest.mark.parametrize(
    "rounding",
    [
        lambda x: x / 3,
        lambda x: (x * 4) / 3,
        lambda x: torch.exp(-x),
        lambda x: x.clone().div_(3),
        lambda x: torch.nn.functional.linear(x.view(8, 8), torch.full((8, 8), 1 / 3, dtype=torch.float64)),
    ],
)
def test_what_rounds_gets_moved_operands(rounding):
    moved, plain = run(rounding), rounding(X.double())
    off = ((moved - plain) / plain).abs()
    assert 5e-4 < float(off.median()) < 1e-2


def test_of_one_operator_only_the_elements_that_round_are_moved():
    moved, plain = run(lambda x: x / 3), X.double() / 3
    assert torch.equal(moved[23::24], plain[23::24])  # 3, 6: divided by 3 without rest
    assert (moved != plain).sum() > 40


def test_operands_are_moved_once_where_they_first_round():
    x = X[:20]  # of these 3, 6 ... are exact after the first step, none after the second
    assert torch.allclose(run(lambda x: x / 3 / 7 * 11, x), x.double() / 3 / 7 * 11 * 1.001, rtol=1e-6)


def test_another_dtype_rounds_elsewhere():
    third = lambda x: x * 1.0625  # needs five bits more
    x = X.bfloat16()
    assert torch.equal(run(third), third(X.double()))
    assert not torch.equal(run(third, x), third(x.double()))


def test_every_result_moves_by_its_own_rounding():
    """Of x + 1000 so much is left as that has digits for: more than what x was moved by."""
    x = X / 3
    left = run(lambda x: x.add(1000).sub(1000), x) - x.double()
    assert 2e-5 < float(left.abs().median()) < 1e-3


@pytest.mark.parametrize(
    "normalise",
    [
        lambda x: torch.nn.functional.layer_norm(x, (8,)),
        lambda x: torch.nn.functional.group_norm(x.view(2, 8, 4), 2),
        lambda x: torch.nn.functional.instance_norm(x.view(2, 4, 8)),
        lambda x: torch.nn.functional.batch_norm(x.view(2, 4, 8), None, None, training=True),
        lambda x: x - x.mean(-1, keepdim=True),
    ],
)
def test_equal_numbers_have_a_mean_beside_themselves(normalise):
    """0 is what comes out of rows that are one number over and over, and in another order nearly 0."""
    x = torch.full((8, 8), 100.0)
    moved = run(normalise, x)
    assert float(normalise(x.double()).abs().max()) < 1e-9 < float(moved.abs().max()) < 0.1


@pytest.mark.parametrize("function", [torch.tanh, torch.erf, torch.sin, F.elu, F.celu, torch.selu_])
def test_near_zero_a_function_is_as_exact_as_a_number_near_one(function):
    """Its digits there may be those of a difference: 2 * sigmoid(2 * x) - 1."""
    x = -X / 8e6
    off = run(function, x) - function(x.double()) * 1.001
    assert 2e-8 < float(off.abs().median()) < 1e-6


@pytest.mark.parametrize(
    "function, at", [(F.softplus, -14.0), (F.logsigmoid, 14.0), (F.mish, -15.0), (F.gelu, -5.0)]
)
def test_far_tails_are_as_exact_as_a_number_near_one(function, at):
    """Their digits may be those of a sum with 1: log(1 + exp(x)), 1 + erf(x)."""
    x = at + X / 8
    off = run(function, x) - function(x.double())
    assert 2e-8 < float(off.abs().median()) < 1e-6


def test_float64_has_digits_that_single_precision_has_not():
    """In float64 tanh(1e-8) is 1e-8 to the last digit, and elu(1e-8) is 1e-8 in any precision."""
    x = torch.tensor([1e-8, -1e-8, 0.0])
    moved = [(run(function, x) - x).abs() > 1e-7 for function in (torch.tanh, F.elu)]
    assert [m.tolist() for m in moved] == [[True, True, False], [False, True, False]]


def test_attention_takes_no_random_numbers_without_a_dropout():
    """Its operators are marked as those that do, and so it seemed as if nothing depended on its operands."""
    x = X.view(1, 1, 8, 8).sin()
    attention = lambda x, p=0.0: F.scaled_dot_product_attention(x, x, x, dropout_p=p)
    off = run(attention, x) / attention(x.double()) - 1
    assert 3e-4 < float(off.abs().median()) < 3e-3
    dropped = lambda x: attention(x, 0.5)
    torch.manual_seed(2)
    moved = run(dropped, x)
    torch.manual_seed(2)
    assert (moved - dropped(x.double())).abs().max() < 0.02  # else it would be another draw


def test_attention_has_a_twin_in_float64_beside_it():
    """In a module that insists on a dtype."""
    asked = "x = x @ self.w.float(); return F.scaled_dot_product_attention(x, x, x) + (x.bfloat16() @ self.w)[:1] * 0"
    reference = Reference(
        task(asked, "torch.randn(2, 3, 20, 16)", init="self.w = nn.Parameter(torch.randn(16, 16).bfloat16())")
    )
    exact = reference.answer("plain", 5, 5).exact
    (x,), m = reference.inputs.draw("plain", 5), reference.modules.build(5)
    x = x.double() @ m.w.double()
    wanted = F.scaled_dot_product_attention(x, x, x)
    assert (exact - wanted).abs().max() < 1e-9


def test_operands_of_a_product_in_tf32_move_by_its_unit_the_weights_too():
    weight = torch.full((8, 8), 1 / 3, dtype=torch.float64)
    product = lambda x: x.view(8, 8) @ weight
    long = torch.sqrt(X + 0.3)
    off = run(product, long, Nudge(all_up, frozenset(["mm"]))) / product(long.double()) - 1
    assert float((off - 2 * TF32_UNIT).abs().max()) < TF32_UNIT / 100
    off = run(product, X, Nudge(all_up, frozenset(["mm"]))) / product(X.double()) - 1  # TF32 holds X
    assert float((off - TF32_UNIT).abs().max()) < TF32_UNIT / 20
    assert float((run(product, X, Nudge(all_up)) / product(X.double()) - 1).abs().max()) < TF32_UNIT / 20
