"""Kinds of wrong answers that a bound on each value alone lets through, and honest ones beside them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor import Executor
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.comparison.compare import Answer, breaks_down, compare
from nanotriton.executor.judge.comparison.values import Precision
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.reference.twin import beside
from nanotriton.executor.judge.trials.fairness import Question, compare_fairly
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.plan.facts import overlaps_itself
from nanotriton.verdict import Fault, ValueFault
from tests.test_judge import task, verdict

SECRETS = (b"one", b"two", b"three")


def verdicts(reference: Reference, candidate) -> set[str]:
    return {verdict(reference, candidate, secret) for secret in SECRETS}


# ---- small outputs ----

SPECTRUM = task(
    "return torch.stack([x.square().sum(), x.amax() - x.amin(), x.mean()])", "torch.randn(64, 257)"
)


@pytest.mark.parametrize("kept", range(3))
def test_each_value_of_a_small_output_counts(kept):
    reference = Reference(SPECTRUM)

    def only(model, x):
        return torch.where(torch.arange(3) == kept, model(x), 0.0)

    assert verdicts(reference, lambda m, x: m(x)) == {"correct"}
    assert verdicts(reference, only) == {"wrong_value"}


def test_what_is_left_of_numbers_that_cancel_is_forgiven():
    """A mean near 0 over numbers near 1 is off by more than a tolerance of itself, whatever the order."""
    reference = Reference(task("return x.mean(dim=1)", "torch.randn(8, 4096)"))
    backwards = lambda m, x: x.flip(1).view(8, 64, 64).sum(2).sum(1) / 4096
    assert verdicts(reference, backwards) == {"correct"}


# A few classes and large logits: some losses and entropies are next to nothing, as numbers near 50 cancel.
SHARP = "torch.randn(24, 4) * 12, torch.randint(0, 4, (24,))"
LOSSES = task("return F.cross_entropy(x, t, reduction='none')", SHARP, more=", t")
ENTROPIES = task("p = x.softmax(-1); return -(p * x.log_softmax(-1)).sum(-1)", SHARP, more=", t")
SURPRISES = task(
    "x = x.log_softmax(-1); return (x.exp() * (x - (x + 1e-3 * x.sin()))).sum(-1)", SHARP, more=", t"
)


@pytest.mark.parametrize(
    "question, right, wrong",
    [
        (
            LOSSES,
            lambda m, x, t: x.logsumexp(-1) - x.gather(1, t[:, None])[:, 0],
            lambda m, x, t: 1.0003 * F.cross_entropy(x, t, reduction="none"),
        ),
        (
            ENTROPIES,
            lambda m, x, t: x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1),
            lambda m, x, t: -(x.softmax(-1) * (x.softmax(-1) + 1e-4).log()).sum(-1),
        ),
        (
            SURPRISES,
            lambda m, x, t: -(x.softmax(-1) * (1e-3 * x.log_softmax(-1).sin())).sum(-1),
            lambda m, x, t: torch.zeros(24),
        ),
    ],
    ids=["losses", "entropies", "differences of logarithms"],
)
def test_what_comes_near_nothing_is_measured_by_what_usually_stands_there(question, right, wrong):
    """A loss is a logarithm less a logit, and no more exact where the two are alike."""
    reference = Reference(question)
    for number in range(6):
        secret = b"near nothing %d" % number
        assert verdict(reference, right, secret) == "correct"
        assert verdict(reference, wrong, secret) == "wrong_value"


def one_pass(x):
    mean = x.mean(1, keepdim=True)
    return mean, (x * x).mean(1, keepdim=True) - mean * mean


@pytest.mark.parametrize("draw", ["torch.rand(24, 500)", "torch.randn(24, 500)"])
def test_a_variance_in_one_pass_is_right_where_the_mean_is_small(draw):
    """No stress makes it wrong now and then: what all inputs have in common is no more than their spread."""
    reference = Reference(task("return x.var(1), F.layer_norm(x, (500,)), x.logsumexp(1)", draw))

    def candidate(model, x):
        mean, var = one_pass(x)
        return var[:, 0] * (500 / 499), (x - mean) * torch.rsqrt(var + 1e-5), x.logsumexp(1)

    for number in range(6):
        trial = Trial(reference.findings.before, seed_from("one pass", number), 1)
        judge_trial(reference, trial, lambda inputs, seed: (candidate(None, *inputs), {}))
        assert verdict(reference, candidate, b"one pass %d" % number) == "correct"


def test_a_variance_in_one_pass_is_wrong_where_a_task_draws_far_from_nothing():
    reference = Reference(task("return x.var(1)", "torch.randn(24, 500) + 2000"))
    assert verdicts(reference, lambda m, x: one_pass(x)[1][:, 0] * (500 / 499)) == {"wrong_value"}


@pytest.mark.parametrize("wrong", range(3))
def test_an_output_that_is_wrong_is_the_candidates_fault_whichever_it_is(wrong):
    """Of several, each is measured before what the task is sensitive to is asked for."""
    reference = Reference(task("return x.sin(), x.cos(), x * 3", "torch.randn(16, 33)"))

    def candidate(model, x):
        return tuple(y * 2 if i == wrong else y for i, y in enumerate(model(x)))

    assert verdicts(reference, candidate) == {"wrong_value"}


# ---- coarse dtypes ----

RMS = task(
    "return F.rms_norm(x.float(), (160,)).to(x.dtype) * self.g + self.b",
    "torch.randn(48, 160).to(torch.float16)",
    init="self.g = nn.Parameter(torch.rand(160).half() + 0.5); self.b = nn.Parameter(0.05 * torch.randn(160).half())",
)
CONV = task(
    "return self.conv(x)",
    "torch.randn(4, 8, 12, 12).to(torch.bfloat16)",
    init="self.conv = nn.Conv2d(8, 16, 3).to(torch.bfloat16)",
)
SPREADS = task("return x.var(dim=1)", "torch.randn(400, 96).to(torch.bfloat16)")
PRODUCT = task("return x @ y", "torch.randn(48, 2048).half(), torch.randn(2048, 40).half()", more=", y")


def rms_norm(model, x, n=160, gain=1.0, bias=True):
    mean = x.float().square().sum(1, keepdim=True) / n
    y = x.float() * torch.rsqrt(mean + 1.2e-7) * model.g.float() * gain
    return (y + model.b.float() if bias else y).to(x.dtype)


def in_blocks(x, y, block: int, dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros(x.shape[0], y.shape[1], dtype=dtype)
    for k in range(0, x.shape[1], block):
        total = (total + x[:, k : k + block].float() @ y[k : k + block].float()).to(dtype)
    return total.to(x.dtype)


def split(x, y, parts: int) -> torch.Tensor:
    """Split-k: each part is rounded before it is added to the others in fp32."""
    pieces = [a.float() @ b.float() for a, b in zip(x.chunk(parts, 1), y.chunk(parts, 0))]
    return torch.stack([p.to(x.dtype).float() for p in pieces]).sum(0).to(x.dtype)


def conv(model, x, gain=1.0, bias=True):
    y = F.conv2d(x.float(), model.conv.weight.float()) * gain
    return (y + model.conv.bias.float()[:, None, None] if bias else y).to(x.dtype)


@pytest.mark.parametrize(
    "question, wrong",
    [
        (RMS, lambda m, x: rms_norm(m, x, gain=1.01)),
        (RMS, lambda m, x: rms_norm(m, x, n=159)),
        (RMS, lambda m, x: rms_norm(m, x, bias=False)),
        (CONV, lambda m, x: conv(m, x, gain=0.98)),
        (CONV, lambda m, x: conv(m, x, bias=False)),
        (SPREADS, lambda m, x: x.float().var(dim=1, unbiased=False).to(x.dtype)),
        (PRODUCT, lambda m, x, y: in_blocks(x, y, 32, torch.float16)),
    ],
)
def test_coarse_rounding_hides_no_mistake(question, wrong):
    assert verdicts(Reference(question), wrong) == {"wrong_value"}


@pytest.mark.parametrize(
    "question, right",
    [
        (RMS, lambda m, x: rms_norm(m, x)),
        (CONV, lambda m, x: conv(m, x)),
        (SPREADS, lambda m, x: ((x.float() ** 2).mean(1) - x.float().mean(1) ** 2).mul(96 / 95).to(x.dtype)),
        (PRODUCT, lambda m, x, y: in_blocks(x, y, 32, torch.float32)),
        (PRODUCT, lambda m, x, y: split(x, y, 4)),
    ],
)
def test_honest_rounding_passes(question, right):
    assert verdicts(Reference(question), right) == {"correct"}


def online_softmax(q, k, v):
    """Flash attention: the probabilities of a block are rounded to bf16 before they meet V."""
    top = torch.full((q.shape[0], 1), float("-inf"))
    total, acc = torch.zeros(q.shape[0], 1), torch.zeros(q.shape[0], v.shape[1])
    for i in range(0, k.shape[0], 32):
        score = q.float() @ k[i : i + 32].float().T / q.shape[1] ** 0.5
        now = torch.maximum(top, score.amax(1, keepdim=True))
        p, scale = torch.exp(score - now), torch.exp(top - now)
        total, acc = (
            total * scale + p.sum(1, keepdim=True),
            acc * scale + p.bfloat16().float() @ v[i : i + 32].float(),
        )
        top = now
    return (acc / total).bfloat16()


def test_an_online_softmax_in_bf16_is_honest():
    draw = "torch.randn(64, 32).bfloat16()"
    attention = task(
        "return F.scaled_dot_product_attention(x, k, v)", f"{draw}, {draw}, {draw}", more=", k, v"
    )
    assert verdicts(Reference(attention), lambda m, q, k, v: online_softmax(q, k, v)) == {"correct"}


def test_a_query_that_is_scaled_in_its_own_dtype_is_honest():
    """Where scores are large a rounding of the query moves the answer by many roundings of its own.

    One to bf16, which is eight times as coarse, is too much.
    """
    draw = "torch.randn(3, 80, 64).half()"
    attention = task(
        "return F.scaled_dot_product_attention(x, k, v)", f"{draw}, {draw}, {draw}", more=", k, v"
    )

    def scaled(dtype):
        def candidate(model, q, k, v):
            scores = (q.float() * 0.125).mul(1.4427).to(dtype).float() @ k.float().mT
            p = torch.exp2(scores - scores.amax(-1, keepdim=True))
            return (p.half().float() @ v.float() / p.sum(-1, keepdim=True)).half()

        return candidate

    reference = Reference(attention)
    assert verdicts(reference, scaled(torch.float16)) == {"correct"}
    assert verdicts(reference, scaled(torch.bfloat16)) == {"wrong_value"}


GATED = task(
    "return x + 0.002 * torch.tanh(self.fc(y))",
    "torch.randn(64, 96).half(), torch.randn(64, 96).half()",
    init="self.fc = nn.Linear(96, 96).half()",
    more=", y",
)


def gated(model, x, y, scale=0.002):
    return (
        x.float() + scale * torch.tanh(F.linear(y.float(), model.fc.weight.float(), model.fc.bias.float()))
    ).half()


def test_a_residual_hides_no_branch():
    reference = Reference(GATED)
    assert verdicts(reference, gated) == {"correct"}
    assert set(reference.findings.faint) > {"fc.weight", 1}
    assert verdicts(reference, lambda m, x, y: x.clone()) == {"wrong_value"}
    assert verdicts(reference, lambda m, x, y: gated(m, x, y, 0.0005)) == {"wrong_value"}


# ---- float64 ----

MIXED = task(
    "return F.silu(F.linear(x.to(torch.float16), self.w)).float().mean(dim=1, keepdim=True) * x",
    "torch.randn(40, 64)",
    init="self.w = nn.Parameter((torch.randn(64, 64) / 8).half())",
)


def test_a_module_that_insists_on_a_dtype_has_a_twin():
    reference = Reference(MIXED)
    answer = reference.answer("plain", 3, 3)
    x, w = reference.inputs.draw("plain", 3)[0].double(), reference.modules.build(3).w.double()
    assert torch.allclose(answer.exact, F.silu(x @ w.T).mean(1, keepdim=True) * x, rtol=1e-12, atol=1e-12)
    assert 1e-7 < (answer.own - answer.exact).abs().max() < 1e-2


def test_a_twin_follows_views_and_what_is_written_in_place():
    class Model(torch.nn.Module):
        def forward(self, x):
            y = torch.zeros(2, 6, dtype=torch.bfloat16)
            y[1].copy_(x.bfloat16() / 3)
            y[:, ::2].mul_(2).add_(torch.arange(3))
            x.add_(1)
            return torch.softmax(y.float(), 1), y > 0

    x = torch.randn(6)
    twin = beside(Model(), [lambda: [x.clone().bfloat16()]], 0, torch.no_grad, None)
    wide = x.bfloat16().double()
    y = torch.stack([torch.zeros(6, dtype=torch.float64), wide / 3])
    y[:, ::2] = y[:, ::2] * 2 + torch.arange(3)
    (softmax, above), (after,) = twin.answers[0], twin.inputs[0]
    assert torch.allclose(softmax, torch.softmax(y, 1), rtol=1e-12)
    assert torch.equal(above, y > 0) and torch.equal(after, wide + 1)


def test_a_trial_on_which_the_reference_breaks_down_does_not_count():
    """Where the inputs are large, its variance in one pass is what rounding leaves: no measure of anybody's error."""
    own, exact = torch.full((4, 50), 1.0), torch.full((4, 50), 1.5).double()
    assert breaks_down(Answer(own, exact, None, None)) and not breaks_down(
        Answer(own, own.double(), None, None)
    )
    step = torch.cat([own, torch.full((1, 1), 7.0).expand(1, 50)])
    exact = step.double()
    exact[0, 0] = 9.0  # a value that fell to the other side of a step
    assert not breaks_down(Answer(step, exact, None, None))
    # the variance in one pass: where the inputs lie near 30,000 it is noise
    forward = "return torch.relu(x - x.mean()) + (x * x).mean() - x.mean() ** 2"
    reference = Reference(task(forward, "torch.rand(40, 50)"))
    (trial, *_), inputs = reference.trials(b"one", "candidate"), reference.inputs.draw
    reference.inputs.draw = lambda kind, seed: [t + 30_000.3 for t in inputs(kind, seed)]
    far = lambda given, seed: (torch.full_like(given[0], 1e6), {})
    assert judge_trial(reference, replace(trial, kind="scaled"), far) is None
    with pytest.raises(Fault):
        judge_trial(reference, replace(trial, kind="plain"), far)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [8, 833])
def test_among_numbers_that_are_not_normal_one_step_is_no_error(dtype, size):
    """Such as a Gaussian far from its middle: the reference says 0, another order of factors the next number."""
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    exact = torch.zeros(size, dtype=torch.float64)
    exact[3], own = 1e-3 * step, torch.zeros(size, dtype=dtype)
    up = own.clone()
    up[3] = step
    compare(up, Answer(own, exact, None, None))
    normal = own.clone()
    normal[3] = 64 * torch.finfo(dtype).smallest_normal
    with pytest.raises(ValueFault):
        compare(normal, Answer(own, exact, None, None))


def test_fp32_sums_earn_more_the_longer_they_are():
    own, exact = torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0]).double()
    near = own * (1 + 1.5e-4)
    with pytest.raises(ValueFault):
        compare(near, Answer(own, exact, None, None, precision=Precision(1000)))
    compare(near, Answer(own, exact, None, None, precision=Precision(1_000_000)))
    reference = Reference(task("return x.sum() + (x @ x.T).trace()", "torch.rand(3, 700)"))
    assert reference.findings.facts.length == 2100


# ---- ties ----


def last_of_equals(values: torch.Tensor, k: int) -> torch.Tensor:
    """The places of the k largest along the last dimension, of equal ones the last first."""
    n = values.shape[-1]
    return n - 1 - values.flip(-1).sort(dim=-1, descending=True, stable=True)[1][..., :k]


@pytest.mark.parametrize(
    "forward, right",
    [
        ("return (x - 1).argmax(dim=1)", lambda m, x: last_of_equals(x, 1)[:, 0]),
        ("return (x - 1).max(dim=1, keepdim=True)[1].int()", lambda m, x: last_of_equals(x, 1).int()),
        ("return x.topk(3, dim=1)[1]", lambda m, x: last_of_equals(x, 3)),
        ("return x.argsort(dim=1, descending=True)", lambda m, x: last_of_equals(x, 20)),
        (
            "return torch.softmax(40 * x, 1).topk(2)[1]",
            lambda m, x: last_of_equals(torch.softmax(40 * x, 1), 2),
        ),
    ],
)
def test_any_of_equal_numbers_may_be_chosen(forward, right):
    reference = Reference(task(forward, "torch.randn(16, 20).mul(4).round().div(4)"))
    assert verdicts(reference, right) == {"correct"}
    assert verdicts(reference, lambda m, x: right(m, x).roll(1, 0)) == {"wrong_value"}
    assert verdicts(reference, lambda m, x: right(m, x) + 20) == {"wrong_value"}


@pytest.mark.parametrize("last", [False, True])
def test_what_is_computed_of_places_may_be_of_any_of_equal_numbers(last):
    """As a router's counts are, where all probabilities but one are 0 in fp32."""
    counted = "torch.bincount(torch.softmax(x, 1).topk(2)[1].flatten(), minlength=8) / x.shape[0]"
    reference = Reference(task(f"return {counted}", "torch.randn(100, 8) * 70"))

    def routed(model, x, k=2):
        values = torch.softmax(x, 1)
        first = values.sort(dim=-1, descending=True, stable=True)[1][:, :k]
        places = last_of_equals(values, k) if last else first
        return torch.bincount(places.flatten(), minlength=8) / x.shape[0]

    assert verdicts(reference, routed) == {"correct"}
    assert "wrong_value" in verdicts(reference, partial(routed, k=1))


def test_of_given_numbers_argmax_is_the_first():
    reference = Reference(task("return x.argmax(dim=1)", "torch.randn(16, 20).mul(4).round()"))
    assert verdicts(reference, lambda m, x: x.argmax(dim=1)) == {"correct"}
    assert verdicts(reference, lambda m, x: last_of_equals(x, 1)[:, 0]) == {"wrong_value"}


def test_one_of_equal_numbers_is_not_chosen_twice():
    reference = Reference(task("return x.topk(3, dim=1)[1]", "torch.randn(16, 20).round()"))
    first = lambda m, x: last_of_equals(x, 3)[:, :1].expand(16, 3).clone()
    assert verdicts(reference, first) == {"wrong_value"}


def test_what_lies_at_a_half_may_be_rounded_either_way():
    """A reciprocal in place of the division: now and then another integer, where the quotient lies at a half."""
    reference = Reference(
        task(
            "return torch.round(x / y).clamp(-127, 127).to(torch.int8)",
            "torch.randn(64, 40) * 30, torch.rand(64, 1) + 0.5",
            more=", y",
        )
    )
    assert verdicts(reference, lambda m, x, y: torch.round(x * (1 / y)).clamp(-127, 127).to(torch.int8)) == {
        "correct"
    }
    assert verdicts(reference, lambda m, x, y: torch.floor(x / y).clamp(-127, 127).to(torch.int8)) == {
        "wrong_value"
    }
    own, exact = torch.tensor([3, 4], dtype=torch.int8), torch.tensor([3, 4], dtype=torch.int8)
    with pytest.raises(Fault):
        compare(torch.tensor([3, 5], dtype=torch.int8), Answer(own, exact, None, None))


@pytest.mark.parametrize("returned", ["kept, x.amax(1)", "x.amax(1)"])
def test_what_is_written_to_an_input_may_be_rounded_either_way_too(returned):
    """A cache of quantised values: the largest of each row is 127 or what a hair less is cut to."""
    forward = (
        f"s = x.abs().amax(1, keepdim=True) / 127; kept[:64] = (x / s).to(torch.int8); return {returned}"
    )
    drawn = "torch.randn(64, 40), torch.zeros(80, 40, dtype=torch.int8)"
    reference = Reference(task(forward, drawn, more=", kept"))

    def quantise(cut):
        def candidate(model, x, kept):
            s = x.abs().amax(1, keepdim=True) / 127
            kept[:64] = cut(x * (1 / s)).to(torch.int8)
            return (kept, x.amax(1)) if "kept" in returned else x.amax(1)

        return candidate

    assert verdicts(reference, quantise(torch.trunc)) == {"correct"}
    assert verdicts(reference, quantise(torch.round)) == {
        "wrong_value" if "kept" in returned else "input_modified"
    }


# ---- what is read, and where the answer lies ----


def test_elements_that_share_a_place():
    assert not overlaps_itself((2, 3, 4), (12, 1, 3)) and not overlaps_itself((5, 1), (1, 0))
    assert (
        overlaps_itself((2, 3), (0, 1))
        and overlaps_itself((4, 3), (1, 1))
        and overlaps_itself((2, 4), (3, 1))
    )


TOTAL = task("return x.abs().mean()", "torch.rand(60, 4000)")
MEAN = """
import torch, torch.nn as nn, triton, triton.language as tl

@triton.jit
def rows(x, sums, n, skip, B: tl.constexpr):
    r, o = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * n + o, mask=(o < n) & (r * n + o != skip), other=0.0)
    tl.store(sums + r, tl.sum(tl.abs(v), 0))

@triton.jit
def mean(sums, out, m, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(out, tl.sum(tl.load(sums + o, mask=o < m, other=0.0), 0) / (m * n))

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.clone()
        m, n = x.shape
        sums, out = torch.empty(m, device=x.device), torch.empty((), device=x.device)
        rows[(m,)](x, sums, n, SKIP, B=4096)
        mean[(1,)](sums, out, m, n, B=64)
        return out
"""
TWICE = "x = x[None].expand(2, -1, -1).clone()[1]"
ROWS = task(
    "return self.table[x]",
    "torch.randint(0, 50, (7,))",
    init="self.table = nn.Parameter(torch.randn(50, 16))",
)
LOOKUP = """
import torch, torch.nn as nn, triton, triton.language as tl

@triton.jit
def pick(table, x, out, B: tl.constexpr):
    r, o = tl.program_id(0), tl.arange(0, B)
    tl.store(out + r * B + o, tl.load(table + tl.load(x + r) * B + o))

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(50, 16))
    def forward(self, x):
        out = torch.empty(x.shape[0], 16, device=x.device)
        pick[(x.shape[0],)](self.table, x, out, B=16)
        return out
"""
MEANS = task("return x.mean(dim=1, keepdim=True) + torch.zeros_like(x), x + 0", "torch.randn(8, 64)")
SPREAD = """
import torch, torch.nn as nn, triton, triton.language as tl

@triton.jit
def mean(x, out, copy, W: tl.constexpr, B: tl.constexpr):
    r, o = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * B + o)
    tl.store(out + r * W + (o if W > 1 else o * 0), tl.sum(v, 0) / B)
    tl.store(copy + r * B + o, v)

class ModelNew(nn.Module):
    def forward(self, x):
        out, copy = torch.empty(8, WIDE, device=x.device), torch.empty_like(x)
        mean[(8,)](x, out, copy, W=WIDE, B=64)
        return out.expand(8, 64), ANSWER
"""


def test_what_is_read_and_where_the_answer_lies():
    candidates = {
        "all is read, through a copy": (TOTAL, MEAN.replace("SKIP", "-1"), "correct", ""),
        "one number is not": (
            TOTAL,
            MEAN.replace("SKIP", "123456"),
            "wrong_value",
            "1 of 240000 elements of input 0",
        ),
        "all is read, through a copy of an expanded input": (
            TOTAL,
            MEAN.replace("SKIP", "-1").replace("x = x.clone()", TWICE),
            "correct",
            "",
        ),
        "one number of it is not": (
            TOTAL,
            MEAN.replace("SKIP", "123456").replace("x = x.clone()", TWICE),
            "wrong_value",
            "1 of 240000 elements of input 0",
        ),
        "rows that nobody asks for": (ROWS, LOOKUP, "correct", ""),
        "dense": (MEANS, SPREAD.replace("WIDE", "64").replace("ANSWER", "copy"), "correct", ""),
        "expanded": (
            MEANS,
            SPREAD.replace("WIDE", "1").replace("ANSWER", "copy"),
            "wrong_value",
            "several elements",
        ),
        "the input": (
            MEANS,
            SPREAD.replace("WIDE", "64").replace("ANSWER", "x"),
            "wrong_value",
            "of input 0",
        ),
    }
    # Of a hundred secrets about one pays the candidate that leaves one number out (1 of 120 and 2 of 120).
    with Executor(policy="strict", workers=1, seed=0) as executor:
        asked = {
            name: executor.submit(question, source) for name, (question, source, _, _) in candidates.items()
        }
        for name, (_, _, status, message) in candidates.items():
            found = asked[name].result()
            assert (found.status, message in found.message) == (status, True), (
                f"{name}: {found.status} {found.message}"
            )


def test_a_draw_that_the_reference_refuses_excuses_nothing():
    """What usually stands in a small output is asked of draws that it takes; a wrong answer stays wrong."""
    refusing = "assert x.max() < 3.2, 'too large'; return x.mean(1)"
    reference = Reference(task(refusing, "torch.randn(24, 40).clamp(-3, 3)"))
    assert verdicts(reference, lambda m, x: 1.01 * x.mean(1)) == {"wrong_value"}


def test_no_answer_in_float64_is_no_error_of_the_judges():
    got, own = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    question = Question(lambda answer: None, lambda number: None)
    with pytest.raises(ValueFault):
        compare_fairly(got, Answer(own, None, None, None), question)
