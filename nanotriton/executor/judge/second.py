"""A second call of the same module: does it start from what the first call left behind?

One answer says little about a module that has state: running statistics, a cache, a counter, a buffer that should be
cleared, a parameter that was used as scratch memory. So the candidate is called twice, with other inputs the second
time, and the reference too. The second answers are compared, and so is every parameter and buffer of the reference's
that either of them may have written to.
"""

from dataclasses import replace

import torch

from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.judge.compare import Answer, all_finite, compare
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.reference import Reference, excused, in_float64
from nanotriton.plan.trees import identical
from nanotriton.verdict import Fault, ValueFault

OTHER = 1  # added to the seed of a trial's inputs, for those of the second call
SHOWN = 3  # names in a message

State = dict[str, torch.Tensor]


def judge_second(reference: Reference, trial: Trial, runner) -> None:
    """Call the candidate twice, then the reference, and compare what both leave. Raises Fault.

    runner: has `twice(inputs, more, weight seed)`, which gives the second answer and the state afterwards.
    """
    other = replace(trial, kind=reference.second_kind, inputs=trial.inputs + OTHER)
    with excused("drawing inputs"):
        inputs = reference.inputs(trial.kind, trial.inputs)
        more = reference.inputs(other.kind, other.inputs)
    answer, state = runner.twice(inputs, more, trial.weights)
    del inputs, more
    with excused("on its own inputs, called twice"):
        want, own, exact, changed = twice(reference, trial, other)
    if other.kind != "plain" and not all_finite(want.own):
        return  # as in judge_trial
    with excused("comparing answers"):
        compare_again("in a second call of the same module", answer, want)
        if missing := sorted(changed - state.keys()):
            names = ", ".join(missing[:SHOWN])
            raise Fault("wrong_value", f"forward of the reference updates {names}; the candidate's does not")
        for name in state.keys() & own.keys():
            twin = Answer(own[name], exact.get(name) if exact else None, None, None)
            compare_again(f"after two calls, in {name}", state[name], twin)


def compare_again(where: str, got: object, answer: Answer) -> None:
    """`compare`, with a message that says where."""
    try:
        compare(got, answer)
    except ValueFault as fault:
        raise ValueFault(f"{where}: {fault.message}", fault.max_error, fault.reduced) from None
    except Fault as fault:
        raise Fault(fault.status, f"{where}: {fault.message}") from None


def twice(
    reference: Reference, first: Trial, second: Trial
) -> tuple[Answer, State, State | None, frozenset[str]]:
    """The reference, called twice.

    Returns (answer of the second call, state afterwards, the same in float64 or None where the task insists on its
    dtype, names of what it changed).
    """
    reference.pause()
    model = reference.build(first.weights)
    before = {name: t.clone() for name, t in state_of(model).items()}
    with torch.no_grad(), reference.default_device():
        seed_everything(first.weights)
        model(*reference.inputs(first.kind, first.inputs))
        own = model(*reference.inputs(second.kind, second.inputs))
    state = state_of(model)
    changed = frozenset(n for n in state if n not in before or not identical([state[n]], [before[n]]))
    with torch.no_grad(), reference.default_device():
        wide = reference.build(first.weights)
        start, _ = in_float64(wide, reference.inputs(first.kind, first.inputs), first.weights)
        exact = None
        if start is not None:
            exact, _ = in_float64(wide, reference.inputs(second.kind, second.inputs), first.weights)
    return Answer(own, exact, None, None), state, None if exact is None else state_of(wide), changed


def state_of(model: torch.nn.Module) -> State:
    """Parameters and buffers by name, a tied one under each of its names."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: t.detach() for name, t in named}
