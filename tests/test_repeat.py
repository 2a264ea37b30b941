"""A reference must give the same answer twice: else its noise would pass for rounding and widen the tolerance."""

import pytest
import torch

from nanotriton.executor.judge.comparison.compare import Answer, repeats
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault
from tests.test_judge import task, verdict

DRAWS = "it draws random numbers in forward"
DIFFERS = "run twice on the same inputs, it gives two answers"
HEAD = "import os, random, time\nimport numpy as np\n"
MODULE = "GENERATOR, CALLS = np.random.default_rng(3), []\n\n\nclass Model"


@pytest.mark.parametrize(
    "noise",
    [
        "1e-9 * torch.rand_like(x)",  # so little that no tolerance could show it
        "0 * torch.rand(1)",
        "0.01 * nn.Dropout(1e-4)(x)",
        "0.01 * torch.rand(33, generator=torch.Generator().manual_seed(3))",  # float64 would draw others
        "0.01 * F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)",
        "0.01 * F.rrelu(x, training=True)",
        "0.01 * random.uniform(0.95, 1)",
        "0.02 * torch.from_numpy(np.random.randn(*x.shape)).to(x)",
    ],
)
def test_a_reference_that_draws_is_no_question(noise):
    with pytest.raises(Fault, match=f"the reference is not deterministic: {DRAWS}") as fault:
        Reference(Task("t", HEAD + task(f"return torch.sin(x) + {noise}").source))
    assert fault.value.status == "unsupported"


def test_to_put_a_generator_back_hides_no_draw():
    forward = "with torch.random.fork_rng(): return torch.sin(x) + 0.01 * torch.randn_like(x)"
    with pytest.raises(Fault, match=DRAWS):
        Reference(task(forward))


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.sin(x) + 0.02 * torch.from_numpy(np.random.default_rng().random(x.shape)).to(x)",
        "return torch.sin(x) + 0.02 * torch.from_numpy(GENERATOR.random(x.shape)).to(x)",
        "return torch.sin(x) * (1 + random.SystemRandom().random())",
        "return torch.sin(x) + os.urandom(1)[0] + os.urandom(1)[0] / 7",
        "return torch.sin(x) + time.perf_counter_ns() % 9973",
        "CALLS.append(1); return torch.sin(x) * len(CALLS)",
        "return torch.sin(x), x > random.SystemRandom().gauss(0, 1)",
        "CALLS.append(1); return torch.sin(x)[: len(CALLS)]",
        "CALLS.append(1); return torch.sin(x), 1.0 * len(CALLS)",
    ],
)
def test_a_reference_that_no_seed_makes_repeat_itself_is_no_question(forward):
    source = HEAD + task(forward).source.replace("class Model", MODULE)
    with pytest.raises(Fault, match=f"the reference is not deterministic: {DIFFERS}") as fault:
        Reference(Task("t", source))
    assert fault.value.status == "unsupported"


def test_weights_from_a_generator_that_nobody_seeds_are_no_question():
    draw = "torch.from_numpy(np.random.default_rng().random(33)).float()"
    source = HEAD + task("return x * self.w", init=f"self.w = nn.Parameter({draw})").source
    with pytest.raises(Fault, match=DIFFERS):
        Reference(Task("t", source))


@pytest.mark.parametrize(
    "forward, init",
    [
        ("return F.dropout(torch.sin(x), 0.0)", ""),
        ("return self.drop(torch.sin(x))", "self.drop = nn.Dropout(0.5).eval()"),
        ("return F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)", ""),
        ("return self.rnn(x)[0]", "self.rnn = nn.LSTM(33, 8, 2, dropout=0.0)"),
        # a generator that comes with each module, in the same state
        (
            "return torch.sin(x) + torch.from_numpy(self.g.random(33)).to(x)",
            "self.g = np.random.default_rng(3)",
        ),
    ],
)
def test_what_is_always_the_same_is_not_random(forward, init):
    assert "plain" in Reference(Task("t", HEAD + task(forward, init=init).source)).findings.kinds


@pytest.mark.parametrize(
    "dtype, rounding, noise",
    [(torch.float32, 1e-6, 1e-5), (torch.bfloat16, 1e-2, 2e-2), (torch.float64, 1e-13, 1e-10)],
)
def test_two_runs_may_differ_by_rounding_and_by_nothing_else(dtype, rounding, noise):
    exact = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ramp = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    own, known = exact.to(dtype), Answer(exact.to(dtype), exact, None, None)
    assert repeats(known, (own + rounding * ramp).to(dtype), exact + 1e-14 * ramp)
    assert not repeats(known, own, exact + noise * ramp)
    assert not repeats(known, (own + 0.1).to(dtype), exact)
    assert not repeats(known, own, None)
    assert not repeats(known, own, exact[:500])


def test_holes_are_in_the_same_places():
    exact = torch.linspace(-1, 1, 100, dtype=torch.float64)
    holes = exact.masked_fill(exact > 0.5, float("nan"))
    known = Answer(holes.float(), holes, None, None)
    assert repeats(known, holes.float(), holes)
    assert not repeats(known, holes.float(), exact)


# ---- probabilities ----


def test_a_task_that_takes_probabilities_is_asked_for_certainties():
    """It refuses every other stress. On its own draws a logarithm that is not clamped goes unnoticed."""
    loss = "return F.binary_cross_entropy(x, y, reduction='none').sum(0)"
    reference = Reference(task(loss, "torch.rand(16, 40), torch.randint(0, 3, (16, 40)) / 2", more=", y"))
    assert reference.findings.kinds == {"plain", "edges"}

    p, _ = reference.inputs.draw("edges", 5)
    assert 0 < (p == 0).sum() < 200 and 0 < (p == 1).sum() < 200
    assert p.min() >= 0 and p.max() <= 1

    def naive(_, p, y):
        return -(y * p.log() + (1 - y) * (1 - p).log()).sum(0)

    def clamped(_, p, y):
        return -(y * p.log().clamp(min=-100) + (1 - y) * (1 - p).log().clamp(min=-100)).sum(0)

    assert verdict(reference, naive) == "not_finite"
    assert verdict(reference, clamped) == "correct"


def test_a_draw_that_the_reference_refuses_is_no_trial():
    """Of a kind some draws stay within the table. A candidate is not asked for the others, and not blamed."""
    init = "self.w = nn.Parameter(torch.randn(9, 5))"
    reference = Reference(task("return F.embedding((4 * x.abs()).long(), self.w)", "torch.rand(3)", init))
    assert reference.findings.picky and len(reference.findings.kinds) > 1
    asked = [reference.trials(b"s", str(candidate)) for candidate in range(30)]
    assert len({len(trials) for trials in asked}) > 1
    for trials in asked:
        assert trials[0].kind == "plain"
        for trial in trials:
            reference.answer(trial.kind, trial.inputs, trial.weights)


def test_a_task_that_takes_more_than_probabilities_is_asked_for_more():
    assert "edges" not in Reference(task("return torch.sqrt(x)", "torch.rand(8, 33)")).findings.kinds
