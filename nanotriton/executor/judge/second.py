"""A second call of the same module: does it start from what the first call left behind?

One answer says little about a module that has state: running statistics, a cache, a counter, a buffer that should be
cleared, a parameter that was used as scratch memory. So the candidate is called twice, with other inputs the second
time, and the reference too. The second answers are compared, and so is every parameter and buffer of the reference's
that either of them may have written to, and every input that the reference writes to.

The first of the two calls has inputs that are all below -200, if the reference survives them. They are not the second's,
because beside such numbers what is left of a usual call would not show.
"""

from dataclasses import dataclass, replace

import torch

from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.judge.compare import Answer, all_finite, compare
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.reference import Reference, excused, in_float64
from nanotriton.executor.judge.trial import compare_fairly
from nanotriton.plan.trees import identical, tensors
from nanotriton.verdict import Fault, ValueFault

OTHER = 1  # added to the seed of a trial's inputs, for those of the second call
SHOWN = 3  # names in a message

State = dict[str, torch.Tensor]


@dataclass
class Twice:
    """What two calls of the reference leave. In float64 there is nothing where the task insists on its dtype."""

    answer: Answer  # of the second call; its inputs are as they were afterwards
    state: State
    exact_state: State | None
    updated: frozenset[str]  # names of parameters and buffers that forward changed
    written: frozenset[int]  # numbers of the second call's input tensors that forward changed


def judge_second(reference: Reference, trial: Trial, runner) -> None:
    """Call the candidate twice, then the reference, and compare what both leave. Raises Fault.

    trial: of the first call. runner: has `twice(inputs, more, weight seed)`; see judge/runner.py.
    """
    other = replace(trial, kind="plain", inputs=trial.inputs + OTHER)
    with excused("drawing inputs"):
        inputs = reference.inputs(trial.kind, trial.inputs)
        more = reference.inputs(other.kind, other.inputs)
    before, answer, state, changed = runner.twice(inputs, more, trial.weights)
    del inputs, more
    if trial.kind != "plain":  # or judge_trial has compared it
        judge_before(reference, trial, before)
    del before
    with excused("on its own inputs, called twice"):
        want = call_twice(reference, trial, other)
    with excused("comparing answers"):
        compare_again("in a second call of the same module", answer, want.answer)
        compare_state(state, want)
        compare_inputs(changed, want)


def judge_before(reference: Reference, trial: Trial, got: object) -> None:
    """Compare the answer of the first call. It does not count where the reference's is not finite."""
    with excused("on its own inputs"):
        answer = reference.answer(trial.kind, trial.inputs, trial.weights)
    if all_finite(answer.own):
        with excused("comparing answers"):
            compare_fairly(got, answer, reference, trial)


def compare_state(state: State, want: Twice) -> None:
    """state: the candidate's, of what it may have written to."""
    if missing := sorted(want.updated - state.keys()):
        names = ", ".join(missing[:SHOWN])
        raise Fault("wrong_value", f"forward of the reference updates {names}; the candidate's does not")
    for name in state.keys() & want.state.keys():
        exact = want.exact_state[name] if want.exact_state else None
        twin = Answer(want.state[name], exact, None, None)
        compare_again(f"after two calls, in {name}", state[name], twin)


def compare_inputs(changed: dict[int, torch.Tensor], want: Twice) -> None:
    """changed: the inputs of its second call that the candidate wrote to, as they were afterwards.

    What it should not have written to, `judge_trial` has refused before.
    """
    own, exact = tensors(want.answer.inputs), tensors(want.answer.inputs_exact or [])
    for number in sorted(want.written):
        if number not in changed:
            raise Fault(
                "wrong_value", f"forward of the reference writes to input {number}; the candidate's does not"
            )
        twin = Answer(own[number], exact[number] if exact else None, None, None)
        compare_again(f"after a second call, in input {number}", changed[number], twin)


def compare_again(where: str, got: object, answer: Answer) -> None:
    """`compare`, with a message that says where."""
    try:
        compare(got, answer)
    except ValueFault as fault:
        raise ValueFault(f"{where}: {fault.message}", fault.max_error, fault.reduced) from None
    except Fault as fault:
        raise Fault(fault.status, f"{where}: {fault.message}") from None


def call_twice(reference: Reference, first: Trial, second: Trial) -> Twice:
    """Call the reference twice, in its own dtype and in float64."""
    reference.pause()
    model, wide = reference.build(first.weights), reference.build(first.weights)
    before = {name: t.clone() for name, t in state_of(model).items()}
    with reference.own(first.kind), torch.no_grad(), reference.default_device():
        seed_everything(first.weights)
        model(*reference.inputs(first.kind, first.inputs))
        inputs = reference.inputs(second.kind, second.inputs)
        own = model(*inputs)
        start, _ = in_float64(wide, reference.inputs(first.kind, first.inputs), first.weights)
        exact = exact_inputs = None
        if start is not None:
            exact, exact_inputs = in_float64(
                wide, reference.inputs(second.kind, second.inputs), first.weights
            )
    state, drawn = state_of(model), tensors(reference.inputs(second.kind, second.inputs))
    updated = frozenset(n for n in state if n not in before or not identical([state[n]], [before[n]]))
    pairs = enumerate(zip(tensors(inputs), drawn, strict=True))
    written = frozenset(i for i, (now, then) in pairs if not identical([now], [then]))
    answer = Answer(own, exact, exact_inputs, inputs)
    return Twice(answer, state, None if exact is None else state_of(wide), updated, written)


def state_of(model: torch.nn.Module) -> State:
    """Parameters and buffers by name, a tied one under each of its names."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: t.detach() for name, t in named}
