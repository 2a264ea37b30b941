"""A cast in forward leaves the reference a float64 twin, and so its own errors, which earn a candidate room."""

import math

import pytest
import torch

from nanotriton.executor.judge.comparison.values import FLOOR
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.fairness import nudges
from tests.test_draws import accepted_by_many, check, refused, task

HALF = "torch.randn(20, 33, dtype=torch.bfloat16)"
# name: (inputs, forward, the same in float64)
CASTS = {
    "float()": ("torch.randn(20, 33)", "return torch.sin(x.float() * 77)", lambda x: torch.sin(x * 77)),
    "to(dtype)": (
        "torch.randn(20, 33)",
        "return x.to(torch.float32).cumsum(1).exp()",
        lambda x: x.cumsum(1).exp(),
    ),
    "integers": (
        "torch.randint(0, 900, (20, 33))",
        "return torch.cos(x.float() * 0.123)",
        lambda x: torch.cos(x * 0.123),
    ),
    "a table": (
        "torch.randn(20, 33)",
        "return torch.sin(x * torch.arange(33, dtype=torch.float32) / 0.7)",
        lambda x: torch.sin(x * torch.arange(33) / 0.7),
    ),
    "and back": (HALF, "return torch.softmax(x.float(), 1).bfloat16()", lambda x: torch.softmax(x, 1)),
    "half of the way": (HALF, "return torch.relu(x).to(torch.bfloat16) / 3", lambda x: torch.relu(x) / 3),
}


@pytest.mark.parametrize("inputs, forward, exactly", CASTS.values(), ids=CASTS)
def test_the_twin_is_in_float64(inputs, forward, exactly):
    reference = Reference(task(forward, inputs))
    (x,) = reference.inputs.draw("plain", 5)
    found = reference.answer("plain", 5, 5).exact
    assert found.dtype == torch.float64
    assert torch.allclose(found, exactly(x.double()), rtol=1e-5 if "0." in forward else 1e-12, atol=1e-4)


def test_a_cast_that_rounds_for_the_answer_stays():
    for inputs, forward in (
        ("torch.randn(20, 33)", "return x.bfloat16().float()"),
        ("torch.randn(20, 33)", "return x.half()"),
        ("torch.randn(20, 33, dtype=torch.float64)", "return x.float().double()"),
        (HALF, "return x.float().to(torch.float8_e4m3fn).float()"),
    ):
        answer = Reference(task(forward, inputs)).answer("plain", 5, 5)
        assert torch.equal(answer.own.double(), answer.exact.double())


def test_bits_of_a_cast_are_those_of_the_task():
    forward = "return (x.float().view(torch.int32) & -65536).view(torch.float32)"
    answer = Reference(task(forward, "torch.randn(20, 33)")).answer("plain", 5, 5)
    assert answer.own.shape == answer.exact.shape and torch.equal(answer.own.double(), answer.exact.double())


EMBEDDING = """f = torch.exp(-math.log(10000) * torch.arange(0, 32, dtype=torch.float32) / 32)
        a = x[:, None].float() * f
        return torch.cat([torch.cos(a), torch.sin(a)], 1)"""


def test_angles_may_have_another_kernels_rounding():
    """Frequencies as powers of 2, as most kernels compute them, are off by some 1e-7 and angles by 1e-4."""

    def embedding(scale):
        def forward(m, x):
            power = torch.arange(32, dtype=torch.float32) * torch.tensor(-math.log2(10000) / 32)
            a = x[:, None] * torch.exp2(power) * scale
            return torch.cat([torch.cos(a), torch.sin(a)], 1)

        return forward

    reference = Reference(task(EMBEDDING, "torch.randint(0, 4000, (80,))", head="import math"))
    x = reference.inputs.draw("plain", 5)[0]
    wanted = reference.answer("plain", 5, 5).exact
    assert (embedding(1.0)(None, x) - wanted).abs().max() > 2 * FLOOR[torch.float32]
    accepted_by_many(reference, embedding(1.0))
    assert refused(reference, embedding(1.0001))


@pytest.mark.parametrize("forward, share", [("x.float() / 3", 2e-5), ("torch.tanh(x.float() * 1e-6)", 0.4)])
def test_a_nudge_moves_what_is_behind_a_cast(forward, share):
    """By the floor, and where a function has few digits, by some roundings of 1."""
    reference = Reference(task(f"return {forward}", "torch.randn(8, 75)"))
    still = reference.exactly("plain", 5, 5)[0]
    for nudge in nudges(reference.device, 5)[:2]:
        moved = reference.exactly("plain", 5, 5, nudge=nudge)[0]
        assert share / 3 < (moved / still - 1).abs().median() < share * 3


QUANTISED = """s = x.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
        y = (x / s).to(torch.float8_e4m3fn).float() * s"""
# name: (what follows in forward, the constructor's body, the same of a module and y)
FLOAT8 = {
    "widened": ("return y", "", lambda m, x, y: y),
    "beside": (
        "return y + 1e-4 * (x.bfloat16() @ self.w).float()",
        "self.w = nn.Parameter(torch.randn(32, 32).bfloat16())",
        lambda m, x, y: y + 1e-4 * (x.bfloat16() @ m.w).float(),
    ),
}


@pytest.mark.parametrize("rest, init, then", FLOAT8.values(), ids=FLOAT8)
def test_a_cast_to_float8_may_not_be_left_out(rest, init, then):
    """What rounds to another number in float8 is forgiven where it lies at an edge, and nowhere else."""

    def scale(x):
        return x.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448

    def multiplying(m, x):
        y = (x * (1 / scale(x))).to(torch.float8_e4m3fn).float() * scale(x)
        return then(m, x, y)

    def leaving_it_out(m, x):
        return then(m, x, x.clone())

    source = task(f"{QUANTISED}\n        {rest}", "torch.randn(20, 32)", init=init)
    accepted_by_many(check(source, multiplying, leaving_it_out), multiplying)
