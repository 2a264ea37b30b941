"""Arguments that are equal, one tensor, or expanded in all that a task draws: in one trial each element is one of its own."""

import pytest
import torch

from nanotriton.executor.judge.inputs import moves
from nanotriton.executor.judge.inputs.kinds import MOVED, OTHER_NUMBERS
from nanotriton.executor.judge.reference.reference import Reference
from tests.test_draws import refused, task

TWICE = "*[torch.randn(7, 12)] * 2"
TRIANGLE = "torch.ones(6, 6).tril().bool().expand(4, 6, 6)"
ARGUMENTS = {
    "one tensor": (TWICE, "return x @ y.T", lambda m, x, y: x @ x.T, "apart"),
    "a copy": ("*(lambda t: (t, t.clone()))(torch.rand(9, 5))", "return (x - y).abs().sum(1) + x.sum(1)", lambda m, x, y: x.sum(1), "apart"),
    "one truth": ("*[torch.rand(40) > 0.5] * 2", "return (x ^ y).float() + x", lambda m, x, y: x.float(), "apart"),
    "an expanded row": ("torch.randn(9, 5), torch.randn(5).expand(9, 5)", "return x * y.exp()", lambda m, x, y: x * y[0].exp(), "unfold"),
    "an expanded constant": ("torch.randn(9, 5), torch.linspace(0.1, 1, 5).expand(9, 5)", "return x * y.exp()", lambda m, x, y: x * y[3].exp(), "unfold"),
    "an expanded mask": ("torch.randn(4, 6, 6), " + TRIANGLE, "return torch.where(y, x, -1.0).cumsum(2)", lambda m, x, y: torch.where(y[2], x, -1.0).cumsum(2), "unfold"),
    "expanded places": ("torch.randn(3, 8), torch.arange(8).expand(3, 8)", "return x * y", lambda m, x, y: x * y[1], "unfold"),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, wrong, way", ARGUMENTS.values(), ids=ARGUMENTS)
def test_equal_arguments_differ(inputs, forward, wrong, way):
    reference = Reference(task(forward, inputs, "x, y"))
    assert reference.findings.moves.ways == {1: way}
    assert refused(reference, wrong)
    assert not refused(reference, reference.code.names["Model"].forward)


def test_what_is_no_longer_expanded_takes_a_recording_of_its_own():
    reference = Reference(task("return x + y", "torch.randn(9, 5), torch.randn(5).expand(9, 5)", "x, y"))
    moved = next(t for t in reference.trials(b"", "") if t.kind.startswith(MOVED))
    assert moved.weights & OTHER_NUMBERS
    description, _ = reference.described(moved.weights)
    assert [stride for _, stride, _ in description[1]] == [[5, 1], [5, 1]]
    description, _ = reference.described(1)
    assert [stride for _, stride, _ in description[1]] == [[5, 1], [0, 1]]


def test_a_huge_expanded_tensor_stays():
    assert moves.unfolding(torch.zeros(1).expand(1 << 20)) == ("unfold",)
    assert (
        moves.unfolding(torch.zeros(1).expand(1 << 30))
        == ()
        == moves.unfolding(torch.zeros(1, 1).expand(1, 1))
    )


def test_a_matrix_that_must_be_the_other_one_stays():
    """The reference has no answer for two that differ."""
    inputs = "*(lambda t: (t, t.clone()))(torch.rand(5, 5))"
    reference = Reference(task("assert torch.equal(x, y); return x @ y", inputs, "x, y"))
    assert reference.findings.moves.ways == {}
