"""Draws that a candidate cannot foresee: what each stress kind does, what it is for, and what no draw of a task varies."""

import numpy as np
import pytest
import torch

from nanotriton.executor.common.training import every_parameter, parameters_of, train_
from nanotriton.executor.judge.inputs import draws, moves, stress
from nanotriton.executor.judge.inputs.kinds import MOVED, OTHER_NUMBERS
from nanotriton.executor.judge.reference.constants import NAMED
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.calls import Calls, calls_of, judge_calls
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.plan.trees import identical
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault

SECRETS = [b"one", b"two", b"three"]
MANY = [str(number).encode() for number in range(12)]


def task(forward, inputs, arguments="x", init="", init_inputs="", head=""):
    """A task in KernelBench's format. init: the constructor's body; it gets `c` if there are init_inputs."""
    parameters = "self, c" if init_inputs else "self"
    return Task(
        "t",
        f"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
{head}

class Model(nn.Module):
    def __init__({parameters}):
        super().__init__()
        {init or "pass"}

    def forward(self, {arguments}):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [{init_inputs}]
""",
    )


def judge(reference, trials, candidate, twice=True):
    """Judge a function of (module, *inputs) on trials, as the worker does. Raises Fault."""

    def run(inputs, weights):
        with torch.no_grad():
            return candidate(reference.modules.build(weights), *inputs), {}

    for trial in trials:
        judge_trial(reference, trial, run)
    if twice:
        judge_calls(reference, calls_of(reference, trials[0])[:2], Stateless(run, trials[0].weights))


class Stateless:
    """Calls of a candidate that keeps nothing, as `judge_calls` asks for them."""

    def __init__(self, run, weights):
        self.run, self.weights = run, weights

    def calls(self, draws, training, least):
        return Calls([self.run(draw(), self.weights)[0] for draw in draws], [{} for _ in draws])


def refused(reference, candidate):
    """Whether a candidate is refused with each of the secrets."""
    found = []
    for secret in SECRETS:
        try:
            judge(reference, reference.trials(secret, ""), candidate)
            found.append(False)
        except Fault:
            found.append(True)
    assert len(set(found)) == 1, "by luck"
    return found[0]


def accepted_by_many(reference, candidate):
    """Raises Fault if a candidate is refused in the trials of one of a dozen secrets."""
    for secret in MANY:
        judge(reference, reference.trials(secret, ""), candidate, twice=False)


def check(source, right, wrong):
    """The right candidate is accepted, the wrong one refused, whatever the draw."""
    reference = Reference(source)
    assert not refused(reference, right)
    assert refused(reference, wrong)
    return reference


# ---- each step of a kind ----


@pytest.mark.parametrize("kind", stress.KINDS)
def test_a_kind_repeats_for_its_seed_and_leaves_integers_alone(kind):
    def draw(seed):
        x = torch.rand(9, 40, generator=torch.Generator().manual_seed(1))
        stress.distort(x, kind, torch.Generator().manual_seed(seed))
        return x

    assert identical([draw(3)], [draw(3)])
    assert identical([draw(3)], [draw(4)]) == (kind == "plain")
    whole = torch.arange(6)
    stress.distort(whole, kind, torch.Generator().manual_seed(1))
    assert torch.equal(whole, torch.arange(6))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 7), (3, 1, 4), (0, 3)])
@pytest.mark.parametrize("kind", stress.KINDS)
def test_a_kind_takes_any_shape(kind, shape):
    for dtype in (torch.float64, torch.float32, torch.float16):
        stress.distort(torch.ones(shape, dtype=dtype), kind, torch.Generator().manual_seed(1))
        zeros = torch.zeros(shape, dtype=dtype)
        stress.distort(zeros, kind, torch.Generator().manual_seed(1))
        assert kind in ("wild", "holes") or not zeros.isnan().any()


@pytest.mark.parametrize("kind", sorted(set(stress.KINDS) - {"wild", "infinite", "holes"}))
def test_fp16_has_room_for_what_a_kind_makes_large(kind):
    for seed in range(40):
        x = torch.randn(4, 40, 64, generator=torch.Generator().manual_seed(seed)).half()
        stress.distort(x, kind, torch.Generator().manual_seed(seed))
        assert x.isfinite().all()


def test_what_does_not_differ_is_sunk_too():
    same = torch.ones(4, 5, dtype=torch.float16)
    stress.sink(same, stress.Luck(torch.Generator(), same.device))
    assert (same < -200).all() and torch.isfinite(same).all()


def stressed(kind, draw, seed=1):
    with draws.stressed(kind, seed):
        torch.manual_seed(5)
        return draw()


def test_what_each_kind_is_for():
    def normal():
        return torch.randn(40, 60)

    for draw in (normal, lambda: torch.rand(40, 60), lambda: torch.empty(40, 60).normal_(0, 1e-3)):
        sunk = stressed("sunk", draw)
        assert (sunk < -200).all() and sunk.var() > sunk.mean() ** 2 / 20
    wild = stressed("wild", normal)
    assert wild.isnan().any() and (wild == torch.inf).any() and (wild == -torch.inf).any()
    tied = stressed("tied", normal)
    assert ((tied * 64 == (tied * 64).round()).float().mean() > 0.2) and (tied * 2 % 2 == 1).any()
    edges = stressed("edges", lambda: torch.rand(40, 60))
    assert all((edges == value).any() for value in (0, 0.5, 1)) and stress.within(edges, 0, 1)
    assert torch.equal(stressed("edges", lambda: torch.randn(40)), stressed("plain", lambda: torch.randn(40)))
    scaled = stressed("scaled", normal)
    assert (scaled >= 0).all(0).any() and (scaled >= 0).all(1).any()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.empty(50).log_normal_(),
        lambda: torch.empty(50).cauchy_(),
        lambda: torch.empty(50).exponential_(),
        lambda: torch.distributions.Laplace(0.0, 1.0).sample((50,)),
        lambda: torch.normal(torch.zeros(50), torch.ones(50)),
        lambda: torch.ones(50).uniform_(0, 1),
    ],
)
def test_whatever_draws_is_distorted(draw):
    assert not torch.equal(stressed("scaled", draw), stressed("plain", draw))


def test_a_factory_that_was_imported_before_is_distorted():
    from torch import rand

    assert (stressed("scaled", lambda: rand(40)) < 0).any()


def test_memory_of_numpy_is_not_written_to():
    kept = np.ones(8, dtype=np.float32)
    assert stressed("uneven", lambda: torch.from_numpy(kept))[0] < 1
    assert (kept == 1).all()


# ---- draws that no factory makes ----


@pytest.mark.parametrize(
    "inputs",
    [
        "torch.randint(0, 64, (30, 20)).double().div(64).float()",
        "torch.from_numpy(np.random.rand(30, 20).astype(np.float32))",
        "torch.tensor([[__import__('random').random() for _ in range(20)] for _ in range(30)])",
    ],
)
def test_what_no_factory_drew_is_distorted_once_it_is_returned(inputs):
    check(task("return F.elu(x)", inputs), lambda m, x: torch.nn.functional.elu(x), lambda m, x: x.clone())


def test_labels_become_soft():
    source = task(
        "return F.mse_loss(x, y, reduction='none').mean(1)",
        "torch.randn(20, 30), torch.randint(0, 2, (20, 30)).float()",
        "x, y",
    )
    reference = check(
        source,
        lambda m, x, y: (x - y).square().mean(1),
        lambda m, x, y: torch.where(y > 0.5, (x - 1).square(), x.square()).mean(1),
    )
    trial = reference.trials(b"s", "")[2]
    labels = reference.inputs.draw(trial.kind, trial.inputs)[1]
    assert stress.within(labels, 0, 1) and (labels == 1).any() and ((labels > 0) & (labels < 1)).any()


# ---- one sign, NaN, bounded domains, ties ----


@pytest.mark.parametrize("n, above", [(2, 0), (3, 1), (8, 1), (16, 1), (40, 2), (256, 16)])
@pytest.mark.parametrize("seed", range(4))
def test_some_columns_lie_apart(n, above, seed):
    x = torch.zeros(50, n).uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
    stress.apart(x, stress.Luck(torch.Generator().manual_seed(seed), x.device))
    assert int((x.mean(0) > 0.6).sum()) == int((x.mean(0) < -0.6).sum()) == above


@pytest.mark.parametrize("experts", [4, 16])
def test_a_capacity_is_reached_whatever_the_draw(experts):
    """A third of the tokens fit into one expert, and chance alone sends no more."""
    chosen = f"m = F.one_hot(x.argmax(-1), {experts})"
    asked = task(
        f"{chosen}; return torch.sigmoid(x) * m * (m.cumsum(0) <= 40)", f"torch.randn(96, {experts})"
    )

    def gated(m, x, capacity=40):
        hot = torch.eye(experts, dtype=torch.long)[x.argmax(1)]
        return torch.sigmoid(x) * hot * (hot.cumsum(0) <= capacity)

    check(asked, gated, lambda m, x: gated(m, x, capacity=96))


def test_rows_of_one_sign():
    lse = task("return torch.logsumexp(x, 1)", "torch.randn(12, 50)")
    check(
        lse,
        lambda m, x: torch.logsumexp(x, 1),
        lambda m, x: x.clamp(min=0).amax(1) + (x - x.clamp(min=0).amax(1, True)).exp().sum(1).log(),
    )
    padded = lambda m, x: torch.cat([x, torch.zeros(12, 6)], 1)
    least = task("return torch.amin(x, 1)", "torch.randn(12, 50)")
    check(least, lambda m, x: x.amin(1), lambda m, x: padded(m, x).amin(1))
    most = task("return x.max()", "torch.randn(12, 50)")
    check(most, lambda m, x: x.max(), lambda m, x: padded(m, x).max())


@pytest.mark.parametrize(
    "forward, wrong",
    [
        (
            "return torch.fmax(x, torch.zeros_like(x)) + 1",
            lambda m, x: torch.maximum(x, torch.zeros_like(x)) + 1,
        ),
        ("return torch.where(x == x, x, 0.0) * 2", lambda m, x: x * 2),
        ("return torch.where(torch.isinf(x), 1.0, x).nan_to_num(0.5)", lambda m, x: x.nan_to_num(0.5)),
        ("return x.masked_fill(~x.isfinite(), 2.0)", lambda m, x: x.nan_to_num(2.0, 2.0)),
    ],
)
def test_tasks_that_look_for_nan_or_infinity_meet_it(forward, wrong):
    assert refused(Reference(task(forward, "torch.randn(30, 20)")), wrong)


def test_other_tasks_meet_no_nan():
    kinds = Reference(task("return torch.tanh(x)", "torch.randn(30, 20)")).findings.kinds
    assert not kinds & {"wild", "holes", "infinite"}


def test_probabilities_reach_their_edges():
    # the entropy of a coin
    source = task("return -(torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x))", "torch.rand(20, 30)")
    reference = check(
        source,
        lambda m, x: -(torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x)),
        lambda m, x: -(x * x.log() + (1 - x) * (1 - x).log()),
    )
    assert "edges" in reference.findings.kinds and "scaled" not in reference.findings.kinds


@pytest.mark.parametrize(
    "forward, right, wrong",
    [
        ("return torch.round(x * 4).int()", lambda m, x: (x * 4).round().int(), lambda m, x: (x * 4 + 0.5).floor().int()),
        ("return torch.floor(x * 2).int()", lambda m, x: (x * 2).floor().int(), lambda m, x: ((x * 2).ceil() - 1).int()),
        ("return x >= 0.5", lambda m, x: x >= 0.5, lambda m, x: x > 0.5),
        ("return (x * 16).int() // 3", lambda m, x: (x * 16).int() // 3, lambda m, x: torch.div((x * 16).int(), 3, rounding_mode="trunc")),
    ],
)  # fmt: skip
def test_edges_of_rounding_and_comparison(forward, right, wrong):
    check(task(forward, "torch.randn(40, 60)"), right, wrong)


@pytest.mark.parametrize(
    "name, dtype",
    [("trunc", torch.float32), ("frac", torch.float32), ("round", torch.float16), ("floor", torch.bfloat16)],
)
def test_what_is_rounded_may_be_larger_than_an_integer(name, dtype):
    """A cast to int32 and back rounds too, up to 2**31 (a half up to 65504: to int16)."""
    rounds = getattr(torch, name)
    narrow = torch.int16 if dtype == torch.float16 else torch.int32

    def cast(m, x):
        limits = torch.iinfo(narrow)
        whole = x.double().clamp(limits.min, limits.max)
        whole = whole - whole.frac() if name == "frac" else rounds(whole)
        return (x - whole.to(dtype) if name == "frac" else whole.to(dtype)) / 2

    check(
        task(f"return torch.{name}(x) / 2", f"torch.randn(40, 50, dtype={dtype})"),
        lambda m, x: rounds(x) / 2,
        cast,
    )


def test_what_becomes_an_integer_stays_small():
    """Beyond its range a cast gives anything, and so does the rest of a large quotient."""
    for forward in ("return torch.floor(x * 9).int()", "return torch.floor(x) + torch.remainder(x, 0.3)"):
        assert "beyond" not in Reference(task(forward, "torch.randn(30, 20)")).findings.kinds


def test_elements_that_may_be_sorted_in_any_order_do_not_tie():
    kinds = Reference(
        task("return torch.topk(x, 3)[1] + (x[:, :3] > 0).long()", "torch.randn(20, 30)")
    ).findings.kinds
    assert not kinds & {"tied", "padded", "edges"}


# ---- arguments that never differ ----

WINDOW = "torch.ones(24, 24).tril().triu(-5).bool()"


@pytest.mark.parametrize(
    "inputs, forward, wrong",
    [
        (f"torch.randn(24, 24), {WINDOW}", "return torch.where(y, x, 0.0)", lambda m, x, y: x.tril().triu(-5)),
        ("torch.randn(6, 20), torch.arange(19, -1, -1)", "return x[:, y].cumsum(1)", lambda m, x, y: x.flip(1).cumsum(1)),
        ("torch.randn(20, 6), torch.arange(20)", "return x * y[:, None]", lambda m, x, y: x * torch.arange(20)[:, None]),
        ("torch.randn(4, 20), torch.tensor([5, 20, 9, 13])", "return x * (torch.arange(20) < y[:, None])", lambda m, x, y: x * (torch.arange(20) < torch.tensor([5, 20, 9, 13])[:, None])),
        ("torch.randn(4, 20), torch.full((4,), 20)", "return x * (torch.arange(20) < y[:, None])", lambda m, x, y: x.clone()),
        ("torch.randn(4, 20), torch.eye(20)", "return x @ y", lambda m, x, y: x.clone()),
        ("torch.randn(4, 20), torch.linspace(0, 1, 20)", "return torch.lerp(x, -x, y)", lambda m, x, y: x * (1 - 2 * torch.linspace(0, 1, 20))),
        ("torch.randn(4, 20), 0.7", "return x.abs() ** y", lambda m, x, y: x.abs() ** 0.7),
        ("torch.randn(4, 20), 3", "return torch.tanh(x / y)", lambda m, x, y: torch.tanh(x / 3)),
    ],
)  # fmt: skip
def test_constant_arguments_are_moved(inputs, forward, wrong):
    reference = Reference(task(forward, inputs, "x, y"))
    assert reference.findings.unvaried == [] and list(reference.findings.moves.ways) == [1]
    assert refused(reference, wrong)
    assert not refused(reference, reference.code.names["Model"].forward)


FITTING = """def parts(x, offsets, lengths):
    assert torch.equal(offsets.diff(), lengths), "lengths and offsets differ"
    return x * lengths.repeat_interleave(lengths, output_size=9)"""


@pytest.mark.parametrize("rows", [9, 12])
def test_arguments_that_have_to_fit_each_other_are_not_moved_apart(rows):
    draw = f"torch.randn({rows}, 9), torch.tensor([0, 2, 5, 9]), torch.tensor([2, 3, 4])"
    reference = Reference(task("return parts(x, y, z)", draw, "x, y, z", head=FITTING))
    assert not reference.findings.moves and reference.findings.unvaried == ["inputs[1]", "inputs[2]"]


def test_what_cannot_be_moved_is_named():
    reference = Reference(
        task("return F.softmax(x, dim=y) if z else x", "torch.randn(4, 20), -1, '+'", "x, y, z")
    )
    assert reference.findings.unvaried == ["inputs[1]", "inputs[2]"]
    drawn = Reference(task("return x + y", "torch.randn(4, 20), torch.zeros(4, 20)", "x, y"))
    assert drawn.findings.unvaried == []
    many = Reference(task("return x + len(y)", "torch.randn(4, 20), ['word'] * 9000", "x, y"))
    assert many.findings.unvaried == [
        f"inputs[1][{i}]" for i in range(NAMED)
    ]  # a verdict is no longer for more words


def test_numbers_of_a_constructor_are_moved_in_a_recording_of_their_own():
    source = task(
        "return torch.round(x / self.c).int()", "torch.randn(40, 30)", init="self.c = c", init_inputs="0.1"
    )
    reference = Reference(source)
    trials = reference.trials(b"s", "")
    moved = trials[1]
    assert (
        moved.kind == MOVED + "tied" and moved.weights & OTHER_NUMBERS and trials[0].weights < OTHER_NUMBERS
    )
    assert (
        reference.modules.build(moved.weights).c == 0.25
        and reference.modules.build(trials[0].weights).c == 0.1
    )
    assert reference.described(moved.weights)[1] != reference.described(trials[0].weights)[1]
    assert refused(reference, lambda m, x: torch.floor(x / m.c + 0.5).int())
    assert refused(reference, lambda m, x: torch.round(x / 0.1).int())
    assert not refused(reference, lambda m, x: torch.round(x / m.c).int())


def test_a_draw_that_the_task_keeps_is_not_written_to():
    reference = Reference(
        task("return x * y", "torch.randn(6, 6), KEPT", "x, y", head="KEPT = torch.ones(6, 6).tril()")
    )
    reference.inputs.draw(MOVED + "scaled", 3)
    assert torch.equal(reference.code.names["KEPT"], torch.ones(6, 6).tril())


def test_moves_keep_what_a_kernel_relies_on():
    offsets = torch.tensor([0, 3, 9, 10, 17])
    assert moves.ways(offsets) == ("shuffle_gaps",)
    after = moves.moved(offsets, "shuffle_gaps", 3)
    assert after[0] == 0 and after[-1] == 17 and sorted(after.diff().tolist()) == [1, 3, 6, 7]
    places = torch.arange(12).expand(3, 12)
    assert moves.ways(places) == ("shuffle",)
    after = moves.moved(places, "shuffle", 3)
    assert sorted(after[0].tolist()) == list(range(12)) and after.stride() == (0, 1)
    lengths = torch.full((50,), 9)
    after = moves.moved(lengths, "lower", 3)
    assert after.min() >= 1 and after.max() <= 9 and len(after.unique()) > 3


@pytest.mark.parametrize(
    "value, other",
    [(0.1, 0.125), (0.25, 0.125), (-3.0, -4.0), (0.0, 0.25), (5, 4), (1, 2), (0, 1), (-1, -1), (True, False)],
)
def test_moved_numbers(value, other):
    assert moves.moved_number(value) == other


@pytest.mark.parametrize(
    "value, other",
    [(1e-8, 1 / 16), (1e-3, 1 / 8), (-0.1, -1 / 4), (0.25, 1 / 2), (0.5, 1 / 4), (0.99, 1 / 2), (50.0, 64.0), (-100, -50), (7, 3), (0.0, 0.25)],
)  # fmt: skip
def test_numbers_that_are_moved_far(value, other):
    assert moves.moved_number(value, moves.FAR) == other


# ---- weights ----


def trained(model, seed=7):
    train_(model, seed, every_parameter(model))
    return model


def test_training_moves_single_zeros_but_no_padding():
    layer = torch.nn.Linear(8, 8)
    layer.weight.data.tril_()
    assert (trained(layer).weight != 0).all()
    table = trained(torch.nn.Embedding(9, 4, padding_idx=2))
    assert (table.weight[2] == 0).all() and (table.weight[3] != 0).all()


def test_training_leaves_the_padding_of_a_table_that_is_no_layer_of_torchs():
    task = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Embedding(9, 4, padding_idx=2)])
    own = torch.nn.ParameterList(p.detach().clone() for p in task.parameters())
    for model in (task, own):
        train_(model, 5, every_parameter(task))
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), own, strict=True))
    assert (own[2][2] == 0).all()


def test_training_leaves_rows_on_both_sides_of_a_norm():
    table = trained(torch.nn.Embedding(10, 16, max_norm=3.0))
    norms = table.weight.detach().norm(dim=1)
    assert (norms > 3.1).any() and (norms < 2.9).any()


def test_two_modules_with_the_same_parameters_are_trained_alike():
    torch.manual_seed(1)
    one = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6))
    other = torch.nn.Module()
    for name, p in zip("abcd", one.parameters(), strict=True):
        other.register_parameter(name, torch.nn.Parameter(p.detach().clone()))
    assert parameters_of(one) == parameters_of(other)
    assert parameters_of(object()) is None
    trained(one), trained(other)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


# ---- weights that the constructor has prepared, in an executor ----

TRAINED = task(
    "return x * self.gain",
    "torch.randn(8, 64)",
    init="self.gain = nn.Parameter(torch.randn(64))",
)
KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x, gain, out, B: tl.constexpr):
    o = tl.arange(0, B)
    at = tl.program_id(0) * B + o
    tl.store(out + at, tl.load(x + at) * tl.load(gain + o))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.NAME = nn.Parameter(torch.randn(64))
        PREPARED

    def forward(self, x):
        out = torch.empty_like(x)
        kernel[(8,)](x, GAIN, out, B=64)
        return out
"""


@pytest.mark.parametrize(
    "name, prepared, gain, right",
    [
        ("gain", "pass", "self.gain", True),
        ("other", "pass", "self.other", True),
        ("gain", "self.copy = self.gain.detach().clone().cuda()", "self.copy", False),
        ("other", "self.copy = self.other.detach().clone().cuda()", "self.copy", False),
        ("gain", "self.register_buffer('copy', self.gain.detach().clone())", "self.copy", False),
    ],
)
def test_copies_of_weights_are_stale(executors, name, prepared, gain, right):
    source = KERNEL.replace("NAME", name).replace("PREPARED", prepared).replace("GAIN", gain)
    verdict = executors(policy="strict").submit(TRAINED, source).result()
    assert verdict.correct == right, verdict
    assert right or verdict.status == "wrong_value"


def test_a_tied_weight_is_one(executors):
    """Two tensors of one name each hold the same at first, whoever fills them by name."""
    tied = task(
        "return x * self.a * self.b",
        "torch.randn(8, 64)",
        init="self.a = nn.Parameter(torch.randn(64)); self.b = self.a",
    )
    square = KERNEL.replace("* tl.load(gain + o)", "* tl.load(gain + o) * tl.load(gain2 + o)")
    square = (
        square.replace("gain, out", "gain, gain2, out").replace("GAIN", "self.a, self.b").replace("NAME", "a")
    )
    one, two = (
        square.replace("PREPARED", "self.b = self.a"),
        square.replace("PREPARED", "self.b = nn.Parameter(torch.randn(64))"),
    )
    executor = executors(policy="strict")
    assert executor.submit(tied, one).result().correct
    assert executor.submit(tied, two).result().status == "wrong_value"


def test_a_module_is_built_alike_while_its_calls_are_counted():
    """Where torch's functions are watched, nn.init calls itself once more; a constant would be moved once more."""
    reference = Reference(task("return self.act(x)", "torch.randn(5, 20)", init="self.act = nn.PReLU()"))
    first = reference.modules.build(3).act.weight
    reference.modules.forget()
    assert torch.equal(first, reference.modules.build(3).act.weight)


# ---- complex numbers ----

WAVES = "torch.randn(16, 20, dtype=torch.complex64)"


def test_complex_numbers_are_distorted_in_both_parts_alike():
    draw = lambda: torch.randn(40, 12, dtype=torch.complex64)
    scaled, padded = stressed("scaled", draw), stressed("padded", draw)
    assert not torch.equal(scaled, stressed("plain", draw))
    empty = (padded == 0).all(1)
    assert empty.any() and torch.equal(empty, (padded.real == 0).all(1))


def normed(eps):
    return lambda m, x: (
        x * (x.real.square().sum(1, keepdim=True) + x.imag.square().sum(1, keepdim=True) + eps).rsqrt()
    )


COMPLEX = {
    "an eps": ("return x / (x.abs().square().sum(1, keepdim=True) + 1e-6).sqrt()", normed(1e-6), normed(1e-5)),
    "a limit": ("return x.abs().tanh() * x", lambda m, x: torch.tanh(x.abs()) * x, lambda m, x: x.abs().tanh() * x / (x.abs() / 12).clamp(min=1)),
    "a maximum": ("return x.abs().softmax(1)", lambda m, x: x.abs().softmax(1), lambda m, x: x.abs().exp() / x.abs().exp().sum(1, keepdim=True)),
}  # fmt: skip


@pytest.mark.parametrize("forward, right, wrong", COMPLEX.values(), ids=COMPLEX)
def test_stress_reaches_complex_numbers(forward, right, wrong):
    reference = Reference(task(forward, WAVES))
    assert refused(reference, wrong)
    accepted_by_many(reference, right)
