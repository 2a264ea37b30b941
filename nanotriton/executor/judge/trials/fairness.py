"""Where values are wrong: what does the task itself make of errors that are allowed?

The sine of a sum near 1e5 is anything in fp32, depending on the order of summation. Whether a number that
lies at a half is rounded up is anyone's guess, and so is which of two equal numbers is the largest. What
the reference's own order happens to earn there says little. So before an answer is refused, the reference
is asked how far its answer moves when its inputs move by what is allowed anyway, and which of its choices
were between equals.

And of an output of few values it is asked what usually stands there. A loss is the difference of a logarithm
and a logit: where it comes near 0 its error is that of the two, and no smaller than elsewhere.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.comparison.answer import Answer, Output
from nanotriton.executor.judge.comparison.checks import BY_VALUE, STATISTICS, compare_tensor
from nanotriton.executor.judge.comparison.compare import compare
from nanotriton.executor.judge.comparison.nudging import Nudge
from nanotriton.executor.judge.comparison.ties import Choices, Ordered, settled
from nanotriton.executor.judge.comparison.values import FLOOR, SMALL, UNIT, Usual
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.plan.trees import leaves, mapped, tensors
from nanotriton.verdict import Fault, ValueFault

NUDGES = 2  # random ones, each in both directions
DRAWS = 8  # others that are asked what usually stands in an output of few values
HOPELESS = 3, 0.1  # after so many draws, so far off over what is usual: no further draw would allow that


@dataclass
class Sensitivity:
    """Of each output: the most that its float64 value moves, and the range of a value that is no float.

    choices: where the reference's integers are places of the largest, the smallest or the middle ones.
    """

    most: list[torch.Tensor]
    rounded: list[torch.Tensor]  # that value where each input is off by one rounding to the output's dtype
    low: list[torch.Tensor]
    high: list[torch.Tensor]
    choices: Choices | None


@dataclass
class Question:
    """What the reference may be asked about a trial where values are wrong.

    sensitivity: how far its answer moves. other: its answer to another draw, by number, or None.
    """

    sensitivity: Callable[[Answer], Sensitivity | None]
    other: Callable[[int], Answer | None]


def question(reference: Reference, trial: Trial) -> Question:
    return Question(partial(sensitivity, reference, trial), partial(other_answer, reference, trial))


def nothing_else(number: int) -> None:
    """Of an input that the reference writes to no other draw is asked."""


def compare_fairly(got, answer: Answer, question: Question | None) -> float:
    """`compare`; and where values are wrong, once more with what the task is sensitive to forgiven.

    What many values say together is not forgiven: a mean has no half to lie at. question: None if there is
    no time to ask.
    """
    try:
        return compare(got, answer)
    except ValueFault as fault:
        if question is None:
            raise
        with contextlib.suppress(Fault, RuntimeError, MemoryError):  # then it stays wrong
            try:
                compare(got, answer, checks=STATISTICS)
            except ValueFault:
                compare(got, with_rounding(answer, question.sensitivity(answer)), checks=STATISTICS)
            answer = with_usual(got, answer, question.other)
            if (found := question.sensitivity(answer)) is not None:
                got = forgiven(got, answer, found)
            return compare(got, answer, checks=BY_VALUE)
        raise fault from None


def with_rounding(answer: Answer, found: Sensitivity | None) -> Answer:
    """The answer, and what errors each of its outputs has where each input is off by one rounding."""
    if found is None:
        return answer
    own, errors = dict(leaves(answer.own)), {}
    twins = [(where, t) for where, t in leaves(answer.exact) if isinstance(t, torch.Tensor)]
    for (where, exact), moved in zip(twins, found.rounded, strict=True):
        output = Output(f"output{where}", moved, own[where], exact, answer, hurry=False)
        errors[output.name] = output.errors.mine.ee
    return replace(answer, rounding=errors)


def sensitivity(reference: Reference, trial: Trial, answer: Answer) -> Sensitivity | None:
    """How far the answer moves when each input moves by up to FLOOR of itself, all alike or each its own way.

    None if there is no answer in float64, or the task must not be asked.
    """
    if answer.exact is None or not reference.stress:
        return None
    key = "sensitivity", trial
    return reference.kept.once(key, partial(sensitivity_anew, reference, trial, answer))


def sensitivity_anew(reference: Reference, trial: Trial, answer: Answer) -> Sensitivity | None:
    choices = Choices()
    own = reference.run(reference.inputs.draw(trial.kind, trial.inputs), trial.weights, watched=choices)
    choices.outputs = tensors(own)

    def moved(nudge: Nudge) -> object | None:
        return reference.exactly(trial.kind, trial.inputs, trial.weights, nudge=nudge)[0]

    found = spread_of(reference, moved, trial.inputs, answer, choices)
    if found is not None:
        widen(found, choices.outputs, partial(ordered, reference, trial))
        if not choices.known:
            found.choices = None
    return found


def ordered(reference: Reference, trial: Trial, last: bool) -> list[torch.Tensor] | None:
    """The reference's answer where it takes the first, or the last, of equal numbers.

    None: it chooses none.
    """
    order = Ordered(last)
    answer = reference.run(reference.inputs.draw(trial.kind, trial.inputs), trial.weights, watched=order)
    return tensors(answer) if order.chose else None


def widen(
    found: Sensitivity, own: list[torch.Tensor], choosing: Callable[[bool], list[torch.Tensor] | None]
) -> None:
    """Add how far the answer moves when the reference chooses other ones of equal numbers."""
    for last in (False, True):
        if (others := choosing(last)) is None:
            return
        for i, (x, other) in enumerate(zip(own, others, strict=True)):
            step = (numbers(other) - numbers(x)).abs().nan_to_num(0.0, 0.0)
            found.most[i] = torch.maximum(found.most[i], step)
            found.low[i] = torch.minimum(found.low[i], numbers(other))
            found.high[i] = torch.maximum(found.high[i], numbers(other))


def spread_of(
    reference: Reference,
    moved: Callable[[Nudge], object | None],
    seed: int,
    answer: Answer,
    choices: Choices | None = None,
) -> Sensitivity | None:
    """How far an answer, or an input that the reference writes to, moves when inputs are nudged.

    moved: the same in float64 of inputs that a function has nudged, or None. None if there is nothing in
    float64, or the task must not be asked.
    """
    if answer.exact is None or not reference.stress:
        return None
    exact = tensors(answer.exact)
    found = Sensitivity([torch.zeros_like(t, dtype=torch.float64) for t in exact], [], [], [], choices)
    found.low = [
        torch.minimum(numbers(o), numbers(x)) for o, x in zip(tensors(answer.own), exact, strict=True)
    ]
    found.high = [
        torch.maximum(numbers(o), numbers(x)) for o, x in zip(tensors(answer.own), exact, strict=True)
    ]
    for nudge in nudges(reference.device, seed, reference.findings.in_tf32):
        if (tree := moved(nudge)) is None:
            return None
        for i, (x, t) in enumerate(zip(exact, tensors(tree), strict=True)):
            step = (numbers(t) - numbers(x)).abs().nan_to_num(0.0, 0.0)
            found.most[i] = torch.maximum(found.most[i], step)
            found.low[i] = torch.minimum(found.low[i], numbers(t))
            found.high[i] = torch.maximum(found.high[i], numbers(t))
    # The last nudge moved each input by a part of FLOOR. One rounding moves it by as large a part of UNIT.
    for x, t, own in zip(exact, tensors(tree), tensors(answer.own), strict=True):
        found.rounded.append(x + (t - x) * (UNIT[own.dtype] / FLOOR[own.dtype]) if own.dtype in UNIT else x)
    return found


def numbers(t: torch.Tensor) -> torch.Tensor:
    return t.double() if not t.is_complex() else t.abs().double()


def nudges(device, seed: int, tf32: frozenset[str] = frozenset()) -> list[Nudge]:
    """What moves each element of a tensor by up to FLOOR of itself.

    First all by that much, then each its own way by that much, then each by a part of it. All go there and
    back: of two ways one crosses what lies near. An element that no way moves far would look as if nothing
    depended on it.
    """
    found: list[Nudge] = []
    for sign in (1, -1):
        found.append(Nudge(partial(torch.full_like, fill_value=sign, dtype=torch.float64), tf32))
    for i in range(NUDGES):
        for sign in (1, -1):
            generator = torch.Generator(device).manual_seed(seed_from(seed, "nudge", i))
            found.append(Nudge(partial(shares, sign=sign, generator=generator, whole=i == 0), tf32))
    return found


def shares(t: torch.Tensor, sign: int, generator: torch.Generator, whole: bool) -> torch.Tensor:
    """A number from -1 to 1 for each element; whole: one of the two."""
    share = torch.empty(t.shape, dtype=torch.float64, device=t.device).uniform_(-1, 1, generator=generator)
    if whole:
        share.sign_()
    return share.mul_(sign)


def forgiven(got, answer: Answer, found: Sensitivity):
    """The answer that was got, each float brought nearer to the float64 one by as much as that moves.

    Integers are the reference's where they lie within their range, or chose among equals.
    """
    exact = tensors(answer.exact)
    own = tensors(answer.own)
    left = iter(range(len(found.most)))

    def nearer(g: torch.Tensor) -> torch.Tensor:
        i = next(left)
        if not g.shape == exact[i].shape == own[i].shape or g.is_complex() or g.dtype != own[i].dtype:
            return g
        if not g.is_floating_point():
            return settle(g, i)
        off = g.double() - exact[i]
        rest = (off.abs() - found.most[i]).clamp_(min=0).mul_(off.sign())
        return torch.where(off.isfinite(), exact[i] + rest, g).to(g.dtype)

    def settle(g: torch.Tensor, i: int) -> torch.Tensor:
        if found.choices is not None and (choice := found.choices.of(i)) is not None:
            return settled(g, own[i], choice)
        # A truth value's byte may be anything, and a GPU's torch.where would make it 0 or 1.
        one, other = (t.view(torch.uint8) if t.dtype == torch.bool else t for t in (g, own[i]))
        within = (one.double() >= found.low[i]) & (one.double() <= found.high[i])
        return torch.where(within, other, one).view(g.dtype)

    return mapped(got, nearer)


# ---- what usually stands in an output of few values ----


def with_usual(got, answer: Answer, other: Callable[[int], Answer | None]) -> Answer:
    """The answer, its outputs of few values measured by what stands there on other draws too.

    Draws are asked one after the other, until all is within tolerance.
    """
    outputs = few_values(got, answer)
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {output.name: [] for output in outputs}
    for number in range(DRAWS):
        outputs = [output for output in outputs if not is_right(replace(output, answer=answer))]
        enough, far = HOPELESS
        if not outputs or (number >= enough and max(o.errors.worst for o in outputs) > far):
            break
        if (drawn := other(number)) is None:
            continue
        for output in few_values(drawn.own, drawn):
            if output.name in seen:
                w = output.exact.reshape(-1).double().nan_to_num(0.0, 0.0, 0.0)
                apart = (output.own.reshape(-1).double() - w).nan_to_num(0.0, 0.0, 0.0)
                seen[output.name].append((w.square(), apart.square()))
        usual = {}
        for name, squares in seen.items():
            if squares:
                usual[name] = Usual(
                    *(torch.stack(each).mean(0).sqrt() for each in zip(*squares, strict=True))
                )
        answer = replace(answer, scales={}, usual=usual)
    return answer


def few_values(got, answer: Answer) -> list[Output]:
    """The outputs that are compared value by value, where there is a float64 answer."""
    exact, found = dict(leaves(answer.exact)), []
    for (where, g), (_, own) in zip(leaves(got), leaves(answer.own), strict=True):
        few = isinstance(own, torch.Tensor) and own.is_floating_point() and 0 < own.numel() <= SMALL
        twin = exact.get(where)
        if few and isinstance(twin, torch.Tensor) and twin.shape == own.shape:
            found.append(Output(f"output{where}", g, own, twin, answer, hurry=True))
    return found


def is_right(output: Output) -> bool:
    try:
        compare_tensor(output, BY_VALUE)
    except ValueFault:
        return False
    return True


def other_answer(reference: Reference, trial: Trial, number: int) -> Answer | None:
    """The reference's answer to another draw: as the task draws, and of the trial's kind, in turns.

    Under stress all softmaxes may saturate, and all entropies be next to nothing. None where the reference
    refuses the draw, or where it says nothing: the task's answer is not finite, or its own dtype is far off.
    """
    if not reference.stress:
        return None
    kind = trial.kind if number % 2 else "plain"
    answer = reference.finite_answer(kind, seed_from(trial.inputs, "usual", number), trial.weights)
    return None if answer is None or answer.exact is None else answer
