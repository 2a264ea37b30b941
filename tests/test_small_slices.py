"""A column, a channel or a half of small values beside large ones counts for itself."""

import pytest
import torch

from nanotriton.executor.judge.reference.reference import Reference
from tests.test_draws import accepted_by_many, refused, task


def joined(small, like):
    """Pixels beside something small, in x's dtype."""

    def forward(m, x):
        wide = x.float()
        return torch.cat([wide[:, :6] * 1000, small(wide[:, 6:])], 1).to(like)

    return forward


PIXELS = "return torch.cat([x[:, :6] * 1000, torch.sigmoid(x[:, 6:])], 1)"
half, single = torch.bfloat16, torch.float32
# name: (inputs, forward, right, wrong)
SLICES = {
    "one column of seven": (
        "torch.randn(200, 7, dtype=torch.bfloat16)",
        PIXELS,
        joined(torch.sigmoid, half),
        joined(lambda s: 1 - torch.sigmoid(s), half),
    ),
    "a channel of images": (
        "torch.randn(3, 7, 6, 10, dtype=torch.bfloat16)",
        PIXELS,
        joined(lambda s: 1 / (1 + torch.exp(-s)), half),
        joined(lambda s: s * 0, half),
    ),
    "a step of a recurrence": (
        "torch.randn(40, 12)",
        "return torch.stack([torch.sin(x) * 30.0**k for k in range(5)], 1)",
        lambda m, x: torch.stack([torch.sin(x) * 30.0**k for k in range(5)], 1),
        lambda m, x: torch.stack([torch.sin(x) * 30.0**k * (k > 0) for k in range(5)], 1),
    ),
}


@pytest.mark.parametrize("inputs, forward, right, wrong", SLICES.values(), ids=SLICES)
def test_a_slice_of_small_values_counts(inputs, forward, right, wrong):
    reference = Reference(task(forward, inputs))
    assert refused(reference, wrong)
    accepted_by_many(reference, right)
