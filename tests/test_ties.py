"""Elements that tie, in tasks that sort or take the largest: where the answer does not depend on which of them comes first."""

import pytest
import torch

from nanotriton.executor.judge.reference.reference import Reference
from tests.test_draws import refused, task


def largest(m, x):
    """The sum of the three largest, where equal ones are taken together."""
    total = 0.0
    for _ in range(3):
        top = x.amax(-1, keepdim=True)
        total = total + top.squeeze(-1)
        x = torch.where(x == top, -torch.inf, x)
    return total


def by_rank(m, x):
    """Sorted by how many are smaller: of equal ones all but one are lost."""
    rank = (x[:, None, :] < x[:, :, None]).sum(-1)
    return torch.zeros_like(x).scatter(-1, rank, x)


def from_the_fifth_on(m, x):
    """Keeps the five largest numbers, and not the five largest elements."""
    rest = x
    for _ in range(4):
        rest = torch.where(rest == rest.amax(-1, keepdim=True), -torch.inf, rest)
    return x * (x >= rest.amax(-1, keepdim=True))


TIED = {
    "the largest": ("return x.topk(3, dim=-1).values.sum(-1)", largest),
    "a limit": ("return x * (x >= x.topk(5, dim=-1).values[:, -1:])", from_the_fifth_on),
    "in order": ("return x.sort(dim=-1).values", by_rank),
}


@pytest.mark.parametrize("forward, wrong", TIED.values(), ids=TIED)
def test_equal_elements_are_not_one(forward, wrong):
    reference = Reference(task(forward, "torch.randn(30, 40)"))
    assert "equals" in reference.findings.kinds
    assert refused(reference, wrong)
    assert not refused(reference, reference.code.names["Model"].forward)


def test_places_of_equal_elements_are_a_choice():
    reference = Reference(task("return x.topk(3, dim=-1)", "torch.randn(30, 40)"))
    assert "equals" in reference.findings.kinds
    assert not refused(reference, lambda m, x: tuple(t[:, :3] for t in x.sort(stable=True, descending=True)))


CHOOSING = {
    "what goes by places": "return torch.bincount(x.topk(3, dim=-1).indices.flatten(), minlength=40).float() + x[0]",
    "what is not asked": "return x.median(dim=-1).values",
}


@pytest.mark.parametrize("forward", CHOOSING.values(), ids=CHOOSING)
def test_where_the_choice_shows_nothing_ties(forward):
    kinds = Reference(task(forward, "torch.randn(30, 40)")).findings.kinds
    assert not any(kind.startswith(("tied", "equals")) for kind in kinds)
