"""Further calls of the same module: do they start from what the calls before left behind?

One answer says little about a module that has state: running statistics, a cache, a counter, a buffer that
should be cleared, a parameter that was used as scratch memory. So the candidate is called again, with other
inputs each time, and the reference too. Each answer is compared, and so is every parameter and buffer of the
reference's that either of them may have written to, and every input that the reference writes to. An answer
must stay as it is while the module is called again (memory.py).

The first call has inputs that are all below -200, if the reference survives them. They are not a later
call's, because beside such numbers what is left of a usual call would not show.

A third call is made in evaluation mode. Then another module of the same class, with other weights, is built
and called, and after it the first one again. The recorder has done all that; it is replayed as far as the
candidate's plans differ from those of its first two calls. The third call is also judged where the second has
changed memory that lives on, or where the reference does other things in evaluation mode.

Between the first call and the second the weights are trained, where the task and the candidate allow it. So
what a module keeps of a weight from its first call is no longer that of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.comparison.compare import Answer, is_fair, passes
from nanotriton.executor.judge.comparison.nudging import Nudge
from nanotriton.executor.judge.inputs.kinds import Trial, untrained
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.reference.twin import State, Twin
from nanotriton.executor.judge.task.module import excused
from nanotriton.executor.judge.trials.between import Training
from nanotriton.executor.judge.trials.fairness import (
    Question,
    compare_fairly,
    nothing_else,
    other_answer,
    question,
    spread_of,
)
from nanotriton.executor.judge.trials.memory import check_memory
from nanotriton.executor.judge.trials.reference_calls import (
    ANOTHER,
    EVALUATION,
    Wanted,
    another_of,
    called_exactly,
    wanted,
)
from nanotriton.plan.plan import Plan
from nanotriton.plan.trees import tensors
from nanotriton.verdict import Fault, ValueFault

MOST_CALLS = 5
ORDINALS = ("first", "second", "third", "last")
LARGEST = 32 << 20  # bytes of the weights of which another module is made


@dataclass
class Calls:
    """What a candidate's calls gave. `written` and `answers` have an item for each call that was made. The
    first answer is None if it was compared before.

    written: {number of an input tensor that the call changed: its new values}. state: parameters and buffers
    after the last call, those that it may have written to. plans: of the calls, if they were recorded.
    overwritten: (call, number of an output tensor) of answers that a later call has changed.
    """

    answers: list[object] = field(default_factory=list)
    written: list[dict[int, torch.Tensor]] = field(default_factory=list)
    state: State = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    overwritten: set[tuple[int, int]] = field(default_factory=set)


class Caller(Protocol):
    """A candidate that can be called again and again (judge/candidate/runner.py)."""

    def calls(self, draws: list[Callable[[], list]], training: Training | None, least: int) -> Calls:
        """Make the first calls, at least so many, and as many of the others as may differ. Raises Fault.

        draws: give the inputs of each call. training: of the weights, between the first call and the second.
        """


def calls_of(reference: Reference, trial: Trial, another: int | None = None) -> list[Trial]:
    """The calls that a trial's candidate is given, each with inputs of its own.

    another: the seed of the weights of another module, which is called too.
    """
    first = replace(trial, kind=reference.findings.before)
    later = [replace(trial, kind="plain", inputs=trial.inputs + number) for number in range(1, MOST_CALLS)]
    if another is None:
        return [first, *later[:-1]]
    later[ANOTHER - 1] = replace(later[ANOTHER - 1], weights=another)
    return [first, *later]


def another_seed(reference: Reference, weights: int) -> int | None:
    """The seed of the weights of another module, beside one with these weights. None: there is to be none,
    because it would take too long, or would get other arguments."""
    another = seed_from("another", untrained(weights))
    if sum(t.nbytes for t in reference.modules.weights(weights).values()) > LARGEST:
        return None
    same = reference.described(another)[1] == reference.described(weights)[1]
    return another if same else None


def place(reference: Reference, another: int | None, number: int) -> str:
    """What to call a further call, in a message."""
    if number == ANOTHER and another is not None:
        return "a call of another module of the same class"
    mode = " in evaluation mode" if number == EVALUATION and reference.findings.evaluates else ""
    return f"a {ORDINALS[min(number, 3)]} call of the same module{mode}"


def judge_calls(
    reference: Reference, trials: list[Trial], caller: Caller, training: Training | None = None
) -> None:
    """Call the candidate again and again, then the reference, and compare what they give. Raises Fault.

    trials: from `calls_of`. training: of the weights, between the first call and the second.
    """
    another = another_of(trials)
    least = EVALUATION + 1 if reference.findings.modal else 2
    got = caller.calls([partial(drawn, reference, trial) for trial in trials], training, least)
    trials = trials[: len(got.answers)]
    if got.answers[0] is not None:
        judge_first(reference, trials[0], got.answers[0])
        got.answers[0] = None  # it may take gigabytes
    with excused("on its own inputs, called again"):
        key = "called", *trials, training and training.weights, bool(got.state)
        compute = partial(wanted, reference, trials, training, bool(got.state))
        want = reference.kept.once(key, compute)

    where = partial(place, reference, another)
    asking = Asking(reference, trials, want.training)
    with excused("comparing answers"):
        for number, answer in enumerate(want.answers, start=1):
            compare_again(f"in {where(number)}", got.answers[number], answer, asking.of_answer(number))
        compare_state(f"after {where(len(trials) - 1)}", got.state, want)
        compare_inputs(got.written[1:], want, where, asking.of_input)
    check_memory(reference, trials, got)


@dataclass(frozen=True)
class Asking:
    """What the reference may be asked about its further calls, by number. training: between the first two."""

    reference: Reference
    trials: list[Trial]
    training: Training | None

    def of_answer(self, number: int) -> Question:
        spread = partial(spread_of, self.reference, partial(self.moved, number), self.trials[0].inputs)
        return Question(spread, partial(self.other, number))

    def of_input(self, number: int, i: int) -> Question:
        """Of the input tensor with number i, that the call writes to."""

        def moved(nudge: Nudge) -> object | None:
            twin = self.called(number, nudge)
            return None if twin is None else tensors(twin.inputs[-1])[i]

        return Question(partial(spread_of, self.reference, moved, self.trials[0].inputs), nothing_else)

    def moved(self, number: int, nudge: Nudge) -> object | None:
        """The answer in float64 to nudged inputs."""
        trial = self.trials[number]
        if trial.weights != self.trials[0].weights:
            return self.reference.exactly(trial.kind, trial.inputs, trial.weights, nudge=nudge)[0]
        twin = self.called(number, nudge)
        return None if twin is None else twin.answers[-1]

    def called(self, number: int, nudge: Nudge) -> Twin | None:
        return called_exactly(self.reference, self.trials[: number + 1], self.training, nudge)

    def other(self, number: int, draw: int) -> Answer | None:
        """The answer to another draw."""
        trial = self.trials[number]
        if trial.weights == self.trials[0].weights and self.training is not None:
            trial = replace(trial, weights=self.training.weights)
        return other_answer(self.reference, trial, draw)


def drawn(reference: Reference, trial: Trial) -> list:
    with excused("drawing inputs"):
        return reference.inputs.draw(trial.kind, trial.inputs)


def judge_first(reference: Reference, trial: Trial, got: object) -> None:
    """Compare the answer of the first call. It does not count where the reference's is not finite."""
    with excused("on its own inputs"):
        answer = reference.answer(trial.kind, trial.inputs, trial.weights)
    try:
        with excused("comparing answers"):
            compare_fairly(got, answer, question(reference, trial))
    except Fault:
        if is_fair(answer):
            raise


def compare_state(where: str, state: State, want: Wanted) -> None:
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
            compare_again(f"{where}, in {name}", got, twin)
        elif name in want.updated and not any(is_right(t, twin) for t in state.values()):
            raise Fault("wrong_value", f"forward of the reference sets {name}; the candidate's does not")


def same_bits(state: State, own: State) -> bool:
    """Whether the candidate's state is the reference's to the bit, where both have a tensor of that name and
    form."""
    pairs = [(t, own[name]) for name, t in state.items() if name in own]
    alike = [(a, b) for a, b in pairs if (a.shape, a.dtype) == (b.shape, b.dtype)]
    return not alike or bool(torch.stack([(a == b).all() for a, b in alike]).all())  # one wait for the GPU


def is_right(got: torch.Tensor, answer: Answer) -> bool:
    return (got.shape, got.dtype) == (answer.own.shape, answer.own.dtype) and passes(got, answer)


def compare_inputs(
    written: list[dict[int, torch.Tensor]],
    want: Wanted,
    where: Callable[[int], str],
    asked: Callable[[int, int], Question],
) -> None:
    """written: for each later call the inputs that the candidate wrote to, as they were afterwards.
    where: what to call a call. asked: what the reference may be asked about an input of it, both by number.

    What it should not have written to, `judge_trial` has refused before.
    """
    for number, (changed, answer, numbers) in enumerate(
        zip(written, want.answers, want.written, strict=True), start=1
    ):
        own = tensors(answer.inputs or [])
        exact = tensors(answer.inputs_exact or [])
        for i in sorted(numbers):
            if i not in changed:
                raise Fault(
                    "wrong_value", f"forward of the reference writes to input {i}; the candidate's does not"
                )
            twin = Answer(own[i], exact[i] if exact else None, None, None)
            compare_again(f"after {where(number)}, in input {i}", changed[i], twin, asked(number, i))


def compare_again(where: str, got: object, answer: Answer, question: Question | None = None) -> None:
    """`compare_fairly`, with a message that says where."""
    try:
        compare_fairly(got, answer, question)
    except ValueFault as fault:
        raise ValueFault(f"{where}: {fault.message}", fault.max_error, fault.reduced) from None
    except Fault as fault:
        raise Fault(fault.status, f"{where}: {fault.message}") from None
