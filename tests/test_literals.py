"""Numbers that stand in a task's text are among its inputs where it decides at edges."""

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.judge.inputs import stress
from nanotriton.executor.judge.inputs.literals import literals, single, within_limits
from nanotriton.executor.judge.reference.reference import Reference
from tests.test_draws import MANY, accepted_by_many, judge, refused, task


def counted(m, x, last=None):
    """Bins of 1/4 from 0 to 1; of the upper edge itself only if there is a `last`."""
    inside = (x >= 0) & ((x < 1) if last is None else (x <= 1))
    return torch.bincount((x[inside] * 4).long().clamp(max=3), minlength=4).float() + 0 * x.sum()


# name: (inputs, forward, right, wrong)
EDGES = {
    "a mask": ("torch.rand(30, 40)", "return torch.where(x < 0.35, x * 2, x)", lambda m, x: torch.where(x < 0.35, x * 2, x), lambda m, x: torch.where(x <= 0.35, x * 2, x)),
    "a negative edge": ("torch.randn(30, 40)", "return x * (x >= -1.1)", lambda m, x: torch.where(x >= -1.1, x, 0.0), lambda m, x: torch.where(x > -1.1, x, 0.0)),
    "a spike": ("torch.randn(30, 40)", "return x + (x == 0.7).float()", lambda m, x: torch.where(x == 0.7, x + 1, x), lambda m, x: x.clone()),
    "a limit": ("torch.randn(30, 40)", "return F.threshold(x, 0.15, -3.0)", lambda m, x: torch.where(x > 0.15, x, -3.0), lambda m, x: torch.where(x >= 0.15, x, -3.0)),
    "a histogram": ("torch.rand(600)", "return torch.histc(x, 4, 0.0, 1.0)", lambda m, x: counted(m, x, last=3), counted),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, right, wrong", EDGES.values(), ids=EDGES)
def test_what_lies_at_an_edge_counts(inputs, forward, right, wrong):
    reference = Reference(task(forward, inputs))
    assert refused(reference, wrong)
    accepted_by_many(reference, right)


def test_an_edge_that_a_half_type_cannot_hold_is_anyones():
    """One kernel compares in bfloat16, another in float32."""
    reference = Reference(task("return F.hardshrink(x, 0.3)", "torch.randn(30, 40, dtype=torch.bfloat16)"))
    for secret in MANY:
        for wide in (torch.bfloat16, torch.float32):
            right = lambda m, x: torch.where(x.to(wide).abs() > 0.3, x, 0.0)  # noqa: B023
            judge(reference, reference.trials(secret, ""), right, twice=False)


def test_a_sample_between_two_pixels_is_drawn():
    inputs = "torch.randn(1, 1, 5, 5), torch.rand(1, 30, 30, 2) * 2 - 1"
    forward = "return F.grid_sample(x, y, mode='nearest', align_corners=True)"
    reference = Reference(task(forward, inputs, "x, y"))
    assert reference.findings.chosen(("tied beside faint",)) and refused(
        reference, lambda m, x, y: F.grid_sample(x, y + 1e-6, mode="nearest", align_corners=True)
    )


def test_which_numbers_of_a_text_count():
    assert literals("x = f(-0.3, 6, 1000, True, 'a', 0)\ny = 0.3 + 1e9 + 2j") == (6.0, 0.3)
    assert literals("x = (") == () == literals("x = 0.5 # \ud83d")
    assert single(0.3) == float(torch.tensor(0.3)) and single(3) == 3 and single("a") == "a"


def test_numbers_stay_within_the_range_of_what_was_drawn():
    x = torch.rand(50, 40, generator=torch.Generator().manual_seed(1))
    stress.distort(x, "tied positive", torch.Generator().manual_seed(1), (0.3, 40.0))
    assert (x == 0.3).any() and not (x < 0).any() and not (x == 40).any()


# ---- numbers that follow from a dtype ----

LARGEST = [("float32", 3.4e37), ("float16", 6550.0), ("bfloat16", 65504.0)]


@pytest.mark.parametrize("dtype, other", LARGEST)
def test_in_place_of_infinity_stands_the_largest_number_of_the_tasks_dtype(dtype, other):
    reference = Reference(task("return x.nan_to_num() * 0.5", f"torch.randn(30, 40, dtype=torch.{dtype})"))
    right = lambda m, x: x.nan_to_num() * 0.5
    wrong = lambda m, x: x.nan_to_num(0.0, other, -other) * 0.5
    assert not refused(reference, right)
    assert refused(reference, wrong) and refused(reference, lambda m, x: x * 0.5)


def test_a_limit_that_is_given_stays():
    assert within_limits((1, 0.5), {"posinf": 3.0}, torch.float16) == (
        (1,),
        {"nan": 0.5, "posinf": 3.0, "neginf": -65504.0},
    )
