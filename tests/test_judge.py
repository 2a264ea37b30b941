"""The judge: what it accepts and rejects, on tensors, with the candidate a Python function."""

import gc
import re

import pytest
import torch

from nanotriton.executor.common import construct
from nanotriton.executor.judge.comparison.compare import Answer, compare, kernelbench_allclose
from nanotriton.executor.judge.inputs import stress
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.plan.trees import identical
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, ValueFault


def task(forward: str, inputs: str = "torch.randn(8, 33)", init: str = "", more: str = "") -> Task:
    source = f"""
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init or "pass"}

    def forward(self, x{more}):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
    return Task("test", source)


def verdict(reference: Reference, candidate, secret: bytes = b"secret") -> str:
    """Status of a candidate given as a function of (model with the reference's weights, inputs)."""
    for trial in reference.trials(secret, "candidate"):

        def run(inputs, seed):
            before = [x.clone() for x in inputs]
            with torch.no_grad():
                out = candidate(reference.modules.build(seed), *inputs)
            return out, {
                i: x for i, (x, y) in enumerate(zip(inputs, before, strict=True)) if not torch.equal(x, y)
            }

        try:
            judge_trial(reference, trial, run)
        except Fault as fault:
            return fault.status
    return "correct"


def answer(own, exact="same"):
    wide = own.double() if isinstance(own, torch.Tensor) and own.is_floating_point() else own
    return Answer(own, wide if isinstance(exact, str) else exact, None, [])


# ---- structure, shape, dtype, finiteness ----


@pytest.mark.parametrize(
    "got, status",
    [
        (torch.ones(3, 1), "wrong_shape"),
        (torch.ones(1), "wrong_shape"),  # broadcasts, and is wrong all the same
        (torch.ones(3, dtype=torch.float64), "wrong_dtype"),
        (torch.ones(3, dtype=torch.float16), "wrong_dtype"),
        ((torch.ones(3),), "wrong_shape"),
        ([torch.ones(3)], "wrong_shape"),
        (None, "wrong_shape"),
        (1.0, "wrong_shape"),
        (torch.tensor([1, float("nan"), 1]), "not_finite"),
        (torch.tensor([1, float("inf"), 1]), "not_finite"),
        (torch.tensor([1, 1.001, 1]), "wrong_value"),
    ],
)
def test_what_is_not_the_answer(got, status):
    with pytest.raises(Fault) as fault:
        compare(got, answer(torch.ones(3)))
    assert fault.value.status == status
    assert "\n" not in fault.value.message


def test_structures_are_compared_key_by_key():
    tree = {"a": torch.ones(2), "b": (torch.zeros(1), 3)}
    assert compare(tree, Answer(tree, None, None, [])) == 0
    for wrong, says in (
        ({"a": torch.ones(2)}, "has the keys ['a']; the reference's has ['a', 'b'], in this order"),
        ({"b": tree["b"], "a": tree["a"]}, "has the keys ['b', 'a']; the reference's has ['a', 'b'], in"),
        ({"a": torch.ones(2), "b": [torch.zeros(1), 3]}, "['b'] is a list of 2; the reference returns"),
        ([torch.ones(2), 3], "the answer is a list of 2; the reference returns a dict of 2"),
    ):
        with pytest.raises(Fault, match=re.escape(says)):
            compare(wrong, Answer(tree, None, None, []))
    with pytest.raises(Fault, match="4"):
        compare({"a": torch.ones(2), "b": (torch.zeros(1), 4)}, Answer(tree, None, None, []))


def test_not_finite_references_are_matched_place_by_place():
    own = torch.tensor([1.0, float("inf"), float("-inf"), float("nan")])
    assert compare(own.clone(), answer(own)) == 0
    for wrong in (
        [1.0, 2.0, float("-inf"), float("nan")],
        [1.0, float("-inf"), float("-inf"), float("nan")],
        [1.0, float("inf"), float("-inf"), 0.0],
    ):
        with pytest.raises(Fault):
            compare(torch.tensor(wrong), answer(own))


def test_integers_and_booleans_are_exact():
    own = torch.arange(5)
    assert compare(own.clone(), answer(own)) == 0
    with pytest.raises(ValueFault, match=r"output\[4\] is 5; the reference says 4 \(1 of 5"):
        compare(torch.tensor([0, 1, 2, 3, 5]), answer(own))
    with pytest.raises(Fault):
        compare(torch.tensor([True, False]), answer(torch.tensor([True, True])))


def test_a_tie_that_float64_breaks_the_other_way_does_not_count():
    """argmax of values that are equal in fp32 only: the judge accepts either index."""
    own, exact = torch.tensor([3, 1]), torch.tensor([4, 1])
    assert compare(torch.tensor([4, 1]), Answer(own, exact, None, [])) == 0
    with pytest.raises(Fault):
        compare(torch.tensor([4, 2]), Answer(own, exact, None, []))


@pytest.mark.parametrize("seed", range(40))
def test_pieces_haste_and_holes_change_no_verdict(seed, monkeypatch):
    """One piece or many, in a hurry or not, with the values that are not finite left out or not there: the same."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda: torch.randn(100, generator=generator, dtype=torch.float64)
    exact = normal() * 10.0 ** (seed % 5 - 2)
    dtype = (torch.float32, torch.float16, torch.float64)[seed % 3]
    own, got = exact.to(dtype), (exact * (1 + normal() * 10.0 ** -(seed % 8))).to(dtype)

    def judged(got, own, exact, hurry=False):
        try:
            return compare(got, Answer(own, exact, None, []), hurry)
        except Fault as fault:
            return "wrong" if hurry else str(fault)

    whole = judged(got, own, exact)
    with_hole = [torch.cat([t, torch.tensor([float("-inf")], dtype=t.dtype)]) for t in (got, own, exact)]
    masked = judged(*with_hole)
    assert (
        masked == whole.replace("of 100", "of 101")
        if isinstance(whole, str)
        else masked == pytest.approx(whole)
    )
    monkeypatch.setattr("nanotriton.executor.judge.comparison.values.CHUNK", 17)
    assert judged(got, own, exact) == (whole if isinstance(whole, str) else pytest.approx(whole))
    assert (judged(got, own, exact, hurry=True) == "wrong") == isinstance(whole, str)


def test_the_message_says_where_and_how_much():
    own = torch.zeros(4, 5)
    own[2, 3] = 7.5
    with pytest.raises(
        ValueFault, match=r"output\[2, 3\] is 0; the reference says 7.5 \(1 of 20 values differ\)"
    ):
        compare(torch.zeros(4, 5), answer(own))


def test_kernelbench_tolerance_is_reported_beside_ours():
    own = torch.ones(10)
    near = own + 5e-5
    assert kernelbench_allclose(near, own) and not kernelbench_allclose(own + 5e-3, own)
    assert kernelbench_allclose(own.half() + 5e-3, own.half())
    with pytest.raises(ValueFault):
        compare(near, answer(own))


# ---- numerics ----

MATMUL = task("return x @ y", "torch.rand(64, 512), torch.rand(512, 32)", more=", y")


def tf32(t: torch.Tensor) -> torch.Tensor:
    """fp32 with 10 bits of mantissa, rounded to nearest."""
    bits = t.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def in_chunks(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], 16):
        total += a[:, k : k + 16] @ b[k : k + 16]
    return total


@pytest.mark.parametrize(
    "matmul, expected",
    [
        (lambda a, b: a @ b, "correct"),
        (in_chunks, "correct"),
        (lambda a, b: a.flip(1) @ b.flip(0), "correct"),
        (lambda a, b: (a.double() @ b.double()).float(), "correct"),
        (lambda a, b: tf32(a) @ tf32(b), "wrong_value"),
        (lambda a, b: (a.bfloat16() @ b.bfloat16()).float(), "wrong_value"),
        (lambda a, b: (a.half() @ b.half()).float(), "wrong_value"),
        (lambda a, b: torch.full((64, 32), 128.0), "wrong_value"),  # the mean of iid uniform inputs
        (lambda a, b: a[:, :-1] @ b[:-1], "wrong_value"),  # a forgotten tail
    ],
)
def test_reordering_passes_and_reduced_precision_does_not(matmul, expected):
    assert verdict(Reference(MATMUL), lambda _, a, b: matmul(a, b)) == expected


def test_reduced_precision_is_recognised():
    a, b = torch.randn(64, 512), torch.randn(512, 32)
    own = Answer(a @ b, a.double() @ b.double(), None, [])
    with pytest.raises(ValueFault) as fault:
        compare(tf32(a) @ tf32(b), own)
    assert fault.value.reduced and 1e-4 < fault.value.max_error < 1e-2


def sequential_sum(x):
    total = torch.zeros(x.shape[0])
    for column in x.T:
        total = total + column
    return total


SUMS = task("return x.sum(dim=1)", "torch.randn(16, 4096)")
SOFTMAX = task("return torch.softmax(x, dim=-1)", "torch.randn(16, 300)")
NORM = task("return F.layer_norm(x, (300,))", "torch.randn(16, 300)")


@pytest.mark.parametrize(
    "question, candidate",
    [
        (SUMS, lambda m, x: sequential_sum(x)),
        (SUMS, lambda m, x: x.view(16, 64, 64).sum(1).sum(1)),
        (
            SOFTMAX,
            lambda m, x: (
                x.sub(x.max(1, keepdim=True)[0])
                .exp()
                .div(x.sub(x.max(1, keepdim=True)[0]).exp().sum(1, keepdim=True))
            ),
        ),
        (
            NORM,
            lambda m, x: (
                (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, unbiased=False, keepdim=True) + 1e-5)
            ),
        ),
        (
            NORM,
            lambda m, x: (
                (x - x.mean(1, keepdim=True))
                * torch.rsqrt((x * x).mean(1, keepdim=True) - x.mean(1, keepdim=True) ** 2 + 1e-5)
            ),
        ),
    ],
)
def test_honest_formulas_pass(question, candidate):
    assert verdict(Reference(question), candidate) == "correct"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_may_be_fused_but_not_wrong(dtype):
    half = Reference(task("return torch.softmax(x * 3, dim=-1)", f"torch.randn(8, 65).to(torch.{dtype})"))
    assert verdict(half, lambda m, x: torch.softmax(x.float() * 3, -1).to(x.dtype)) == "correct"
    assert verdict(half, lambda m, x: torch.softmax(x.float() * 3.2, -1).to(x.dtype)) == "wrong_value"


# ---- stress, weights, inputs ----


@pytest.mark.parametrize(
    "forward, shortcut",
    [
        ("return torch.relu(x)", lambda m, x: x.clone()),  # right for what rand gives
        ("return torch.abs(x) + x", lambda m, x: 2 * x),
        ("return torch.clamp(x, -2, 2)", lambda m, x: x.clone()),
        ("return F.leaky_relu(x)", lambda m, x: x.clone()),
    ],
)
def test_what_is_right_on_non_negative_inputs_only_is_wrong(forward, shortcut):
    assert verdict(Reference(task(forward, "torch.rand(8, 33)")), shortcut) == "wrong_value"


def test_stress_keeps_structure_and_integers():
    source = task("return x + y", "torch.tril(torch.rand(9, 9)), torch.randint(0, 5, (9, 9))", more=", y")
    reference = Reference(source)
    plain, scaled = reference.inputs.draw("plain", 7), reference.inputs.draw("scaled", 7)
    assert torch.equal(plain[1], scaled[1])
    assert not torch.equal(plain[0], scaled[0]) and torch.equal(scaled[0], torch.tril(scaled[0]))
    assert (scaled[0] < 0).any() and (plain[0] >= 0).all()


def test_stress_that_breaks_the_reference_is_left_out():
    reference = Reference(task("return torch.log(x)", "torch.rand(8, 33) + 0.1"))
    assert reference.findings.kinds == {"plain", "positive", "faint positive"}
    assert {t.kind for t in reference.trials(b"s", "c")} == {"plain", "positive", "faint positive"}


def test_draws_follow_the_seed_and_leave_torch_as_it_was():
    before = torch.rand, torch.Tensor.uniform_, torch.nn.init.ones_, torch.nn.Module.register_parameter
    reference = Reference(MATMUL)
    for kind in stress.KINDS:
        assert identical(reference.inputs.draw(kind, 3), reference.inputs.draw(kind, 3))
        assert not torch.equal(reference.inputs.draw(kind, 3)[0], reference.inputs.draw(kind, 4)[0])
    assert before == (
        torch.rand,
        torch.Tensor.uniform_,
        torch.nn.init.ones_,
        torch.nn.Module.register_parameter,
    )
    assert "uniform_" not in vars(torch.Tensor)


def test_weights_at_their_initial_values_are_moved():
    """A candidate that skips LayerNorm's weight and bias, which start at 1 and 0, is wrong; in any order of construction they are the same."""
    reference = Reference(task("return self.norm(x)", init="self.norm = nn.LayerNorm(33)"))
    assert verdict(reference, lambda m, x: layer_norm(x)) == "wrong_value"
    assert verdict(reference, lambda m, x: layer_norm(x) * m.norm.weight + m.norm.bias) == "correct"
    with construct.moved_constants(5) as settled:
        by_hand = torch.nn.Module()
        by_hand.scale = torch.nn.Parameter(torch.ones(33))
        by_hand.gamma, by_hand.beta = (
            torch.nn.Parameter(torch.full((33, 1), 3.0)),
            torch.nn.Parameter(torch.empty(33)),
        )
        by_hand.gamma.data.fill_(1)
        by_hand.beta.data.zero_()
        settled(by_hand)
        settled(by_hand)  # what was moved stays
    assert torch.equal(by_hand.scale, reference.modules.build(5).norm.weight)
    assert torch.equal(by_hand.gamma.view(33), by_hand.scale) and torch.equal(
        by_hand.beta, reference.modules.build(5).norm.bias
    )


def test_memory_that_a_constructor_has_not_filled_yet_is_no_constant(monkeypatch):
    """torch.empty is zeros as often as not: a layer of gigabytes would get noise that its own initialisation overwrites."""
    looked = []
    monkeypatch.setattr(construct, "BLANK", 4)
    monkeypatch.setattr(construct, "constant", lambda t: looked.append(t.shape) or 0.0)
    with construct.moved_constants(5) as settled:
        layer = torch.nn.Linear(8, 8)
        assert looked == []
        layer.first, layer.second = (
            torch.nn.Parameter(torch.empty(3).fill_(1)),
            torch.nn.Parameter(torch.zeros(3)),
        )
        assert looked == [(3,), (3,)]
        # what is a constant in the end is moved in the end
        assert settled(layer).weight.abs().max() > 1 / 8**0.5 and looked[2:]


def test_what_a_constructor_makes_of_a_parameter_is_no_longer_that_of_it():
    init = "self.a = nn.Parameter(torch.rand(33)); self.b = nn.Parameter(self.a.detach().clone())"
    reference = Reference(task("return x * self.a + torch.relu(self.b)", init=init))
    assert verdict(reference, lambda m, x: x * m.a + torch.relu(m.a)) == "wrong_value"
    assert verdict(reference, lambda m, x: x * m.a + m.b) == "wrong_value"
    assert verdict(reference, lambda m, x: x * m.a + torch.relu(m.b)) == "correct"
    assert reference.trials(b"s", "c")[1].weights < 0
    # c would be stale, so a stays; roots of negative numbers are none, so nothing may change
    kept = Reference(
        task("return x * self.a + self.b + self.c", init=f"{init}; self.c = self.a.detach() * 2")
    )
    assert kept.findings.trained.parameters == (1,) and kept.trials(b"s", "c")[1].weights < 0
    kept = Reference(task("return x * torch.sqrt(self.a)", init=init))
    assert all(t.weights > 0 for t in kept.trials(b"s", "c"))


def layer_norm(x):
    return torch.nn.functional.layer_norm(x, (33,))


def test_buffers_move_by_the_names_that_the_reference_registers():
    """A candidate's own constants stay what they are; a scale keeps its sign, and an identity is none any more."""

    def module():
        made = torch.nn.Module()
        for name in ("shift", "own"):
            made.register_buffer(name, torch.zeros(5))
        made.slope = torch.nn.Parameter(torch.full((99,), 0.1))
        made.eye = torch.nn.Parameter(torch.eye(9))
        made.plain = torch.nn.Parameter(torch.arange(9.0))
        return made

    reference = Reference(
        task(
            "return x + self.shift",
            init='self.register_buffer("shift", torch.zeros(33)); self.register_buffer("n", torch.zeros(1).long())',
        )
    )
    assert (
        reference.findings.moved_buffers == {"shift"}
        and reference.modules.build(3).shift.unique().numel() > 1
    )
    with construct.moved_constants(3, frozenset(["shift"])):
        made = module()
    assert (
        made.shift.count_nonzero() == 5 and not made.own.any() and torch.equal(made.plain, torch.arange(9.0))
    )
    assert (made.slope >= 0.1).all() and made.slope.unique().numel() > 1 and (made.eye != torch.eye(9)).all()


def test_uneven_draws_go_where_the_others_do_not():
    reference = Reference(task("return torch.softmax(x, 1)", "torch.randn(8, 33)"))
    assert {"faint", "scaled"} < reference.findings.kinds and reference.trials(b"s", "c")[2].kind == "faint"
    (x,) = reference.inputs.draw("padded", 7)
    # exp overflows; a row and a column of zeros
    assert x.abs().max() > 88 and (x == 0).all(0).sum() == 1 and (x == 0).all(1).sum() == 1
    assert verdict(reference, lambda m, x: x.exp() / x.exp().sum(1, keepdim=True)) == "not_finite"
    # which of equal elements is chosen shows in this answer
    chosen = "(x + torch.arange(33)).gather(1, torch.topk(x, 3).indices)"
    unstable = Reference(task(f"return {chosen}", "torch.randn(8, 33)"))
    assert not {"padded", "faint"} & unstable.findings.kinds and "uneven" in unstable.findings.kinds


def test_constant_inputs_are_drawn_where_the_reference_survives_it():
    reference = Reference(
        task(
            "return torch.where(k, x + h, 0.0)",
            "torch.randn(8, 33), torch.zeros(8, 33), torch.ones(8, 33, dtype=torch.bool)",
            more=", h, k",
        )
    )
    assert verdict(reference, lambda m, x, h, k: torch.where(k, x, 0.0)) == "wrong_value"
    assert verdict(reference, lambda m, x, h, k: x + h) == "wrong_value"
    assert verdict(reference, lambda m, x, h, k: torch.where(k, x + h, 0.0)) == "correct"


def test_moved_constants_do_not_disturb_the_random_stream():
    reference = Reference(
        task(
            "return self.b(self.n(self.a(x)))",
            init="self.a = nn.Linear(33, 33); self.n = nn.LayerNorm(33); self.b = nn.Linear(33, 9)",
        )
    )
    torch.manual_seed(11)
    a, b = torch.nn.Linear(33, 33), torch.nn.Linear(33, 9)
    model = reference.modules.build(11)
    assert torch.equal(model.a.weight, a.weight) and torch.equal(model.b.weight, b.weight)


def test_weights_differ_between_trials():
    reference = Reference(task("return self.f(x)", init="self.f = nn.Linear(33, 5)"))
    trials = reference.trials(b"s", "c")
    assert len({t.weights for t in trials}) == 2 and len({t.inputs for t in trials}) == len(trials)
    first = reference.modules.build(trials[0].weights)
    # weights remembered from the first trial
    assert verdict(reference, lambda m, x: first(x)) == "wrong_value"


def test_inputs_may_be_changed_only_as_the_reference_does():
    def double(_, x):
        out = x * 2
        x.zero_()
        return out

    assert verdict(Reference(task("return x * 2")), double) == "input_modified"
    in_place = Reference(task("return x.mul_(2).add_(0)"))
    assert verdict(in_place, lambda m, x: x.mul_(2).clone()) == "correct"
    assert verdict(in_place, lambda m, x: x * 2) == "correct"
    assert verdict(in_place, double) == "input_modified"


# ---- tasks ----


@pytest.mark.parametrize(
    "forward, inputs, reason",
    [
        ("return x * 0", "torch.randn(4, 9)", "zeros"),
        ("return torch.ones_like(x)", "torch.randn(4, 9)", "ones"),
        ("return x.clone()", "torch.randn(4, 9)", "input 0"),
        ("return torch.full_like(x, 3) + 0 * torch.tanh(x)", "torch.randn(4, 9)", "constant"),
        ("return torch.arange(1.0, 10.0) * 3 + 1e-7 * torch.tanh(x)", "torch.randn(4, 9)", "other inputs"),
        ("return torch.softmax(x.mean(dim=1, keepdim=True), dim=1)", "torch.randn(4, 9)", "ones"),
    ],
)
def test_weak_tasks_are_found(forward, inputs, reason):
    with pytest.raises(Fault) as fault:
        Reference(task(forward, inputs))
    assert fault.value.status == "weak_task" and reason in fault.value.message


@pytest.mark.parametrize(
    "forward, reason",
    [
        ("return F.dropout(x, 0.5, training=True)", "not deterministic"),
        ("raise RuntimeError('no such luck')", "no such luck"),
        ("return x @ x", "shapes"),
    ],
)
def test_tasks_that_are_no_question_are_unsupported(forward, reason):
    with pytest.raises(Fault) as fault:
        Reference(task(forward))
    assert fault.value.status == "unsupported" and reason in fault.value.message


@pytest.mark.parametrize(
    "old, new, reason",
    [
        (
            "return [torch.randn(8, 33)]",
            "return torch.randn(8, 33)",
            "get_inputs() must return a list of arguments; it returned a tensor",
        ),
        (
            "return [torch.randn(8, 33)]",
            "return {'y': torch.randn(8, 33)}",
            "get_inputs() returned arguments that don't fit",
        ),
        (
            "return [torch.randn(8, 33)]",
            "return [nowhere]",
            "NameError: name 'nowhere' is not defined (line ",
        ),
        (
            "return x * 2",
            "return None",
            "forward must return tensors, in tuples, lists or dicts; it returned None",
        ),
    ],
)
def test_a_task_that_is_written_wrongly_is_told_so(old, new, reason):
    good = task("return x * 2")
    assert old in good.source
    with pytest.raises(Fault) as fault:
        Reference(Task("t", good.source.replace(old, new)))
    assert fault.value.status == "unsupported" and reason in fault.value.message


def test_a_reference_that_insists_on_its_dtype_is_still_judged():
    insists = Reference(task("return x.float() @ torch.ones(33, 2, dtype=torch.float32)"))
    assert verdict(insists, lambda m, x: x @ torch.ones(33, 2)) == "correct"
    assert verdict(insists, lambda m, x: x @ torch.full((33, 2), 1.001)) == "wrong_value"


def test_a_stressed_trial_counts_only_where_the_reference_is_finite():
    reference = Reference(task("return 1 / x", "torch.randn(4, 5)"))
    reference.inputs.draw = lambda kind, seed: [torch.zeros(4, 5)]
    anything = lambda inputs, seed: (torch.full((4, 5), 3.0), {})
    assert judge_trial(reference, Trial("scaled", 1, 1), anything) is None
    with pytest.raises(Fault):
        judge_trial(reference, Trial("plain", 1, 1), anything)


def test_complex_answers_can_be_judged():
    reference = Reference(task("return torch.complex(x, 2 * x)"))
    assert (
        judge_trial(
            reference,
            reference.trials(b"s", "c")[0],
            lambda inputs, _: (torch.complex(inputs[0], 2 * inputs[0]), {}),
        ).max_error
        == 0
    )


def test_a_task_that_draws_numbers_anew_is_no_fair_question():
    with pytest.raises(Fault, match="draws shapes or numbers anew") as caught:
        Reference(task("return x * s", inputs="torch.randn(4), torch.rand(()).item()", more=", s"))
    assert caught.value.status == "unsupported"


def test_an_edge_of_the_references_own_is_no_licence_to_skip_the_step():
    torch.manual_seed(0)
    y = torch.randn(1000, dtype=torch.float64)
    exact = y.round()
    own = exact.clone()
    own[:3] += 1  # the dtype rounds three elements the other way
    flipped = exact.clone()
    flipped[500:520] += 1  # and the candidate others
    question = Answer(own.float(), exact, None, None)
    assert compare(flipped.float(), question) > 0.1
    with pytest.raises(ValueFault, match="of 1000 values differ"):
        compare(y.float(), question)


def test_where_float64_decides_otherwise_integers_are_still_near():
    own = torch.tensor([1000, 8, 5])
    question = Answer(own, torch.tensor([1003, 8, 9]), None, None)
    assert compare(torch.tensor([1003, 8, 5]), question) == compare(torch.tensor([998, 8, 9]), question) == 0
    for wrong in ([0, 8, 5], [1000, 9, 5]):
        with pytest.raises(ValueFault, match="1 of 3 values differ"):
            compare(torch.tensor(wrong), question)


def test_loading_a_task_leaves_no_answers_behind():
    """Without the garbage collector's help: on a GPU they are gigabytes."""
    gc.collect()
    gc.disable()
    try:
        reference = Reference(task("return x * 2", "torch.randn(4, 1234)"))
        alive = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == (4, 1234)]
        assert reference.findings.bytes == 2 * 4 * 1234 * 4 and alive == []
    finally:
        gc.enable()


def test_what_no_kernel_could_compute_better_is_not_held_against_one():
    """The sine of a sum of huge numbers is anything in fp32; the same formula with other numbers is as wrong as ever."""
    reference = Reference(task("return torch.sin(x.sum(dim=-1))", "torch.randn(31, 749)"))
    in_order = lambda m, x: torch.sin(sum(x.unbind(-1)))
    for i in range(12):  # without `forgiven` eight of these are called wrong
        secret = b"secret %d" % i
        assert verdict(reference, in_order, secret) == "correct"
        assert (
            verdict(reference, lambda m, x: torch.sin(x.bfloat16().float().sum(-1)), secret) == "wrong_value"
        )
        assert verdict(reference, lambda m, x: torch.sin(x[:, :-1].sum(-1)), secret) == "wrong_value"
        assert verdict(reference, lambda m, x: torch.sin(tf32(x).sum(-1)), secret) == "wrong_value"
