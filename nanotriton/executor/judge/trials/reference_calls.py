"""Further calls of the same module: what the reference gives (calls.py compares the candidate's with it)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from nanotriton.executor.common.construct import evaluating, plain_attributes, seed_everything
from nanotriton.executor.judge.comparison.compare import Answer, passes
from nanotriton.executor.judge.comparison.nudging import Nudge
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.reference.twin import State, Twin, in_float64, state_of
from nanotriton.executor.judge.trials.between import Training, training_of
from nanotriton.plan.trees import identical, tensors

# Calls that differ from the others, by number: one is made in evaluation mode, one is another module's.
EVALUATION, ANOTHER = 2, 3
COUNTER = "num_batches_tracked"  # of torch's batch norms


@dataclass
class Wanted:
    """What later calls of the reference give.

    In float64 there is nothing where the task insists on its dtype.
    """

    answers: list[Answer]  # of each later call; its inputs are as they were afterwards
    state: State  # after the last call
    exact_state: State | None
    updated: frozenset[str]  # names of parameters and buffers that forward changed, and of what it leaves
    written: list[frozenset[int]]  # for each later call the numbers of its input tensors that forward changed
    training: Training | None  # of what forward does not change itself


def another_of(trials: list[Trial]) -> int | None:
    """The seed of the weights of the other module among these calls."""
    return next((trial.weights for trial in trials if trial.weights != trials[0].weights), None)


def wanted(reference: Reference, trials: list[Trial], training: Training | None, keeps_state: bool) -> Wanted:
    """What the reference gives.

    Where it is known to keep nothing, only the later calls are made, each by itself.

    keeps_state: whether the candidate has state to compare with the reference's.
    """
    if reference.findings.modal or not reference.findings.keeps_nothing:
        want = called_again(reference, trials, training)
        nothing = not want.updated and not any(want.written)
        reference.findings.keeps_nothing = nothing and not hides_state(reference, trials)
        return want
    weights = trials[0].weights if training is None else training.weights
    first = trials[0].weights
    later = [replace(t, weights=weights) if t.weights == first else t for t in trials[1:]]
    answers = [reference.answer(trial.kind, trial.inputs, trial.weights) for trial in later]
    state = state_of(reference.modules.build(weights)) if keeps_state else {}
    return Wanted(answers, state, None, frozenset(), [frozenset()] * len(answers), training)


def called_again(reference: Reference, trials: list[Trial], training: Training | None) -> Wanted:
    """Call the reference again and again, in its own dtype and in float64.

    Nothing is kept that nobody compares: a task may take gigabytes.
    """
    reference.pause()
    model = reference.modules.build(trials[0].weights)
    before = {name: t.clone() for name, t in state_of(model).items()}
    own_calls, another = of_one_module(trials), another_of(trials)
    answers, written = [], []
    for number, (own, inputs) in zip(own_calls, run_calls(reference, model, trials), strict=True):
        if number:
            trial = trials[number]
            numbers = changed(inputs, reference.inputs.draw(trial.kind, trial.inputs))
            answers.append(Answer(own, None, None, inputs if numbers else None, reference.findings.precision))
            written.append(numbers)
        elif training is not None:
            # what forward itself changes is its own matter
            training = training.without(changed_names(model, before))
            for state in (before, state_of(model)):
                training.apply(state)
        del own, inputs
    state, updated = state_of(model), changed_names(model, before)
    for name in unread_counters(model):
        state.pop(name, None)
        updated -= {name}
    left = {name: t for name, t in plain_attributes(model).items() if name in reference.findings.leaves}
    state, updated = state | left, updated | left.keys()
    twin = called_exactly(reference, trials, training)
    if twin is not None:
        for number, answer in enumerate(answers):
            inputs = twin.inputs[number + 1] if written[number] else None
            answers[number] = replace(answer, exact=twin.answers[number + 1], inputs_exact=inputs)
    if another is not None:
        trial = trials[ANOTHER]
        answers.insert(ANOTHER - 1, reference.answer(trial.kind, trial.inputs, trial.weights))
        written.insert(ANOTHER - 1, frozenset())
    return Wanted(answers, state, twin and twin.state, updated, written, training)


def of_one_module(trials: list[Trial]) -> list[int]:
    """The numbers of the calls that are not another module's."""
    return [number for number, trial in enumerate(trials) if trial.weights == trials[0].weights]


def run_calls(
    reference: Reference, model: torch.nn.Module, trials: list[Trial]
) -> Iterator[tuple[object, list]]:
    """(answer, inputs afterwards) of each call of one module."""
    for number in of_one_module(trials):
        trial = trials[number]
        inputs = reference.inputs.draw(trial.kind, trial.inputs)
        with reference.code.active_on(trial.kind), torch.no_grad(), reference.code.default_device():
            if number == 0:
                seed_everything(trial.weights)
            with in_mode(reference, model, number):
                own = model(*inputs)
        yield own, inputs


def in_mode(reference: Reference, model: torch.nn.Module, number: int) -> AbstractContextManager:
    """The module as it is for a call of this number: in evaluation mode for one of them."""
    return evaluating(model) if number == EVALUATION and reference.findings.evaluates else nullcontext()


def changed(inputs: list, drawn: list) -> frozenset[int]:
    """The numbers of the input tensors that are not what they were when they were drawn."""
    pairs = enumerate(zip(tensors(inputs), tensors(drawn), strict=True))
    return frozenset(i for i, (now, then) in pairs if not identical([now], [then]))


def changed_names(model: torch.nn.Module, before: State) -> frozenset[str]:
    """Names of the parameters and buffers that are not what they were."""
    now = state_of(model)
    return frozenset(n for n in now if n not in before or not identical([now[n]], [before[n]]))


def called_exactly(
    reference: Reference, trials: list[Trial], training: Training | None, nudge: Nudge | None = None
) -> Twin | None:
    """The reference in float64, called again and again."""
    numbers = of_one_module(trials)
    draws = [partial(reference.inputs.draw, trials[n].kind, trials[n].inputs) for n in numbers]
    running = partial(reference.running, trials[0].kind if nudge is None else "nudged")
    train = None if training is None else training.apply
    weights = trials[0].weights
    mode = partial(in_mode, reference)
    return in_float64(partial(reference.modules.build, weights), draws, weights, running, nudge, train, mode)


def hides_state(reference: Reference, trials: list[Trial]) -> bool:
    """Whether a second call of the reference depends on what a first one left beside parameters and buffers,
    such as a weight that it has cached. This is found out once."""
    if reference.findings.hides_state is None:
        reference.findings.hides_state = differs_from_fresh(reference, trials)
    return reference.findings.hides_state


def differs_from_fresh(reference: Reference, trials: list[Trial]) -> bool:
    """Whether a second call, after training where that is possible, answers otherwise than a module with the
    same parameters and buffers that was never called."""
    model = reference.modules.build(trials[0].weights)
    calls = run_calls(reference, model, trials[:2])
    next(calls)
    if reference.findings.trains:
        training_of(reference, -trials[0].weights).apply(state_of(model))
    state = {name: t.clone() for name, t in state_of(model).items()}
    again, _ = next(calls)
    fresh = reference.modules.build(trials[0].weights)
    own = state_of(fresh)
    if own.keys() != state.keys() or any(own[name].shape != t.shape for name, t in state.items()):
        return True
    for name, t in state.items():
        own[name].copy_(t)
    alone, _ = next(run_calls(reference, fresh, [replace(trials[1], weights=trials[0].weights)]))
    return not passes(alone, Answer(again, None, None, None, reference.findings.precision))


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
