"""A second call of the same module: does it start from what the first call left behind?

One answer says little about a module that has state: running statistics, a cache, a counter, a buffer that
should be cleared, a parameter that was used as scratch memory. So the candidate is called twice, with other
inputs the second time, and the reference too. The second answers are compared, and so is every parameter and
buffer of the reference's that either of them may have written to, and every input that the reference writes
to.

The first of the two calls has inputs that are all below -200, if the reference survives them. They are not
the second's, because beside such numbers what is left of a usual call would not show.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.judge.compare import Answer, all_finite, breaks_down, passes
from nanotriton.executor.judge.fairness import Sensitivity, compare_fairly, sensitivity, spread_of
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.nudging import Nudge
from nanotriton.executor.judge.reference import Reference, excused
from nanotriton.executor.judge.twin import State, Twin, in_float64, state_of
from nanotriton.plan.trees import identical, tensors
from nanotriton.verdict import Fault, ValueFault

OTHER = 1  # added to the seed of a trial's inputs, for those of the second call
COUNTER = "num_batches_tracked"  # of torch's batch norms


@dataclass
class Twice:
    """What two calls of the reference leave. In float64 there is nothing where the task insists
    on its dtype."""

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
        if reference.keeps_nothing:
            want = call_once(reference, other, state)
        else:
            want = call_twice(reference, trial, other)
            reference.keeps_nothing = not want.updated and not want.written

    def sensitive(want: Answer) -> Sensitivity | None:
        if not reference.stress:
            return None
        return spread_of(want, moved, reference.device, trial.inputs)

    def moved(nudge: Nudge) -> object | None:
        twin = twice_exactly(reference, trial, other, nudge)
        return None if twin is None else twin.answer

    with excused("comparing answers"):
        compare_again("in a second call of the same module", answer, want.answer, sensitive)
        compare_state(state, want)
        compare_inputs(changed, want)


def judge_before(reference: Reference, trial: Trial, got: object) -> None:
    """Compare the answer of the first call. It does not count where the reference's is not finite."""
    with excused("on its own inputs"):
        answer = reference.answer(trial.kind, trial.inputs, trial.weights)
    if all_finite(answer.own) and not breaks_down(answer):
        with excused("comparing answers"):
            compare_fairly(got, answer, partial(sensitivity, reference, trial))


def compare_state(state: State, want: Twice) -> None:
    """state: the candidate's, of what it may have written to.

    What the reference updates may have another name in the candidate: any tensor of its state will do that
    has the right shape, dtype and values. A parameter that the candidate keeps in another shape is its own
    matter, as long as its answers are right.
    """
    if not want.updated and same_bits(state, want.state):
        return
    for name in sorted(want.state):
        twin = Answer(want.state[name], want.exact_state and want.exact_state[name], None, None)
        got = state.get(name)
        alike = got is not None and (got.shape, got.dtype) == (twin.own.shape, twin.own.dtype)
        if alike:
            compare_again(f"after two calls, in {name}", got, twin)
        elif name in want.updated and not any(is_right(t, twin) for t in state.values()):
            raise Fault("wrong_value", f"forward of the reference updates {name}; the candidate's does not")


def same_bits(state: State, own: State) -> bool:
    """Whether the candidate's state is the reference's to the bit, where both have a tensor of that name and
    form."""
    pairs = [(t, own[name]) for name, t in state.items() if name in own]
    alike = [(a, b) for a, b in pairs if (a.shape, a.dtype) == (b.shape, b.dtype)]
    return not alike or bool(torch.stack([(a == b).all() for a, b in alike]).all())  # one wait for the GPU


def is_right(got: torch.Tensor, answer: Answer) -> bool:
    return (got.shape, got.dtype) == (answer.own.shape, answer.own.dtype) and passes(got, answer)


def compare_inputs(changed: dict[int, torch.Tensor], want: Twice) -> None:
    """changed: the inputs of its second call that the candidate wrote to, as they were afterwards.

    What it should not have written to, `judge_trial` has refused before.
    """
    own, exact = tensors(want.answer.inputs or []), tensors(want.answer.inputs_exact or [])
    for number in sorted(want.written):
        if number not in changed:
            raise Fault(
                "wrong_value", f"forward of the reference writes to input {number}; the candidate's does not"
            )
        twin = Answer(own[number], exact[number] if exact else None, None, None)
        compare_again(f"after a second call, in input {number}", changed[number], twin)


def compare_again(
    where: str, got: object, answer: Answer, sensitive: Callable[[Answer], Sensitivity | None] | None = None
) -> None:
    """`compare_fairly`, with a message that says where."""
    try:
        compare_fairly(got, answer, sensitive)
    except ValueFault as fault:
        raise ValueFault(f"{where}: {fault.message}", fault.max_error, fault.reduced) from None
    except Fault as fault:
        raise Fault(fault.status, f"{where}: {fault.message}") from None


def call_once(reference: Reference, second: Trial, state: State) -> Twice:
    """What a reference leaves that is known to keep nothing between calls: the first call need not be made.

    state: the candidate's. Without any, the reference's is not asked for.
    """
    answer = reference.answer(second.kind, second.inputs, second.weights)
    own = state_of(reference.build(second.weights)) if state else {}
    return Twice(answer, own, None, frozenset(), frozenset())


def call_twice(reference: Reference, first: Trial, second: Trial) -> Twice:
    """Call the reference twice, in its own dtype and in float64.

    Nothing is kept that nobody compares: a task may take gigabytes.
    """
    reference.pause()
    model = reference.build(first.weights)
    before = {name: t.clone() for name, t in state_of(model).items()}
    with reference.own(first.kind), torch.no_grad(), reference.default_device():
        seed_everything(first.weights)
        model(*reference.inputs(first.kind, first.inputs))
        inputs = reference.inputs(second.kind, second.inputs)
        own = model(*inputs)
    state = state_of(model)
    updated = frozenset(n for n in state if n not in before or not identical([state[n]], [before[n]]))
    for name in unread_counters(model):
        state.pop(name, None)
        updated -= {name}
    drawn = tensors(reference.inputs(second.kind, second.inputs))
    pairs = enumerate(zip(tensors(inputs), drawn, strict=True))
    written = frozenset(i for i, (now, then) in pairs if not identical([now], [then]))
    del drawn
    twin = twice_exactly(reference, first, second)
    inputs = inputs if written else None
    if twin is None:
        return Twice(Answer(own, None, None, inputs), state, None, updated, written)
    exact_inputs = twin.inputs if written else None
    answer = Answer(own, twin.answer, exact_inputs, inputs, reference.precision)
    return Twice(answer, state, twin.state, updated, written)


def twice_exactly(
    reference: Reference, first: Trial, second: Trial, nudge: Nudge | None = None
) -> Twin | None:
    """The reference in float64, called twice."""
    draws = [partial(reference.inputs, trial.kind, trial.inputs) for trial in (first, second)]
    running = partial(reference.running, first.kind if nudge is None else "nudged")
    return in_float64(partial(reference.build, first.weights), draws, first.weights, running, nudge)


def unread_counters(model: torch.nn.Module) -> frozenset[str]:
    """Names of the counters that batch norms keep and never read, because they have a momentum.

    Hand-written batch norms leave them out, and nobody can tell from any answer.
    """
    prefixes = (
        f"{name}." if name else ""
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.momentum is not None
    )
    return frozenset(prefix + COUNTER for prefix in prefixes)
