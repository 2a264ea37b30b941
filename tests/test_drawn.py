"""What a judge keeps of a candidate's trials, so as not to make it again: draws, modules, a first call."""

import torch
from torch import nn

from nanotriton.executor.common.construct import copied
from nanotriton.executor.judge.candidate.runner import Begun, Runner
from nanotriton.executor.judge.reference.drawn import MOST_BYTES, MOST_DRAWS, Drawn
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.calls import Calls
from tests.test_draws import task


def test_a_draw_is_copied_to_whoever_asks():
    drawn, x = Drawn(), torch.arange(6.0)
    drawn.keep(("plain", 1), [x, x[2:], 3, {"a": torch.ones(1).expand(4)}])
    x.fill_(9)
    first = drawn.copy_of(("plain", 1))
    assert torch.equal(first[0], torch.arange(6.0)) and first[2] == 3 and first[3]["a"].stride() == (0,)
    first[0].fill_(7)
    assert (first[1] == 7).all()  # they share memory, as those that were drawn
    assert torch.equal(drawn.copy_of(("plain", 1))[1], torch.arange(2.0, 6.0))
    assert drawn.copy_of(("plain", 2)) is drawn.copy_of(("scaled", 1)) is None


def test_only_the_last_draws_stay_and_small_ones():
    drawn = Drawn()
    for seed in range(MOST_DRAWS + 1):
        drawn.keep(("plain", seed), [torch.ones(2)])
    assert drawn.copy_of(("plain", 0)) is None and drawn.copy_of(("plain", 1)) is not None
    half = torch.empty(MOST_BYTES // 2 + 1, dtype=torch.uint8)
    drawn.keep(("plain", 20), [half])
    drawn.keep(("plain", 21), [half])
    assert drawn.copy_of(("plain", 20)) is None and drawn.copy_of(("plain", 21)) is not None
    drawn.keep(("plain", 22), [half, half.clone()])
    drawn.keep(("plain", 23), [torch.ones(2, requires_grad=True) * 2])
    drawn.keep(("plain", 24), [torch.eye(3).to_sparse()])
    assert not any(drawn.copy_of(("plain", seed)) for seed in (22, 23, 24))
    drawn.forget()
    assert drawn.copy_of(("plain", 21)) is None


def test_a_reference_that_writes_to_its_inputs_meets_them_as_they_were_drawn():
    reference = Reference(task("x.mul_(2); return x + 1", "torch.randn(9, 5)"))
    one, other = (reference.answer("plain", 5, 5).own for _ in range(2))
    x = reference.inputs.draw("plain", 5)[0]
    assert torch.equal(one, other) and torch.equal(one, x * 2 + 1)
    assert torch.equal(x, reference.inputs.given_anew("plain", 5)[0])


def test_a_copy_of_a_module_is_one_of_its_own():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.seen = []
    model.register_forward_hook(lambda module, given, answer: module.seen.append(1))
    other = copied(model)
    other(torch.ones(1, 3))
    with torch.no_grad():
        other[0].weight.zero_()
    assert other[1].weight is other[0].weight and (model[0].weight != 0).any()
    assert other.seen == [1] and model.seen == []
    other.register_forward_pre_hook(print)
    other[0].extra = nn.Linear(1, 1)
    assert not model._forward_pre_hooks and not model[0]._modules
    there = copied(model, {id(model[0].bias): nn.Parameter(torch.ones(3))})
    assert (there[0].bias == 1).all() and torch.equal(there[1].bias, model[1].bias)


class Once(Runner):
    """A runner that makes first calls alone, and counts them."""

    def __init__(self):
        self.begun, self.made = None, 0

    def begin_calls(self, draw):
        self.made += 1
        begun = Begun(Calls([draw()], [{}]), [], {0: torch.zeros(2)})
        self.begun = begun.again()
        return begun


def test_a_first_call_is_made_once_and_compared_until_it_is_right():
    runner, draws = Once(), [lambda: "answer"]
    for _ in range(3):
        found = runner.calls(draws, None)
        assert found.answers == ["answer"]
        found.answers[0] = None  # the judge has compared it, and may have found another fault
    runner.settle_first_call()
    assert runner.calls(draws, None).answers == [None] and runner.made == 1


def test_what_a_first_call_has_left_is_written_to_by_its_followers_alone():
    begun = Begun(Calls([1], [{}]), [], {0: torch.zeros(2)})
    one, other = begun.again(), begun.again()
    one.left[0].fill_(3)
    one.calls.answers.append(2)
    assert (other.left[0] == 0).all() and other.calls.answers == begun.calls.answers == [1]
