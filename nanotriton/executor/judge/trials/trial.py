"""Is a candidate right? The same judge for every device and mode: it sees tensors, and a function that runs
the candidate.

The reference (reference/reference.py) runs after the candidate, on private copies of the same inputs, once
in the task's dtype and once in float64. comparison/checks.py says what the tolerance is. A candidate is
judged on several trials with secret seeds: one as the task draws, the others under stress (inputs/draws.py)
and with other weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from nanotriton.executor.judge.comparison.compare import Answer, is_fair, kernelbench_allclose
from nanotriton.executor.judge.comparison.nudging import Nudge
from nanotriton.executor.judge.inputs.kinds import MOVED, Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import excused
from nanotriton.executor.judge.trials.faint import check_faint
from nanotriton.executor.judge.trials.fairness import (
    Question,
    compare_fairly,
    nothing_else,
    question,
    spread_of,
)
from nanotriton.plan.trees import tensors
from nanotriton.verdict import Fault

# seconds of a reference that may be computed so often again: if that took too long, who is wrong
# would be excused
QUICK = 5.0


@dataclass
class Judged:
    """A trial that was passed."""

    max_error: float  # the worst error over the RMS
    kernelbench_allclose: bool | None  # what KernelBench's own check says of a draw of the task's own


def judge_trial(
    reference: Reference, trial: Trial, run: Callable[[list, int], tuple[object, dict[int, torch.Tensor]]]
) -> Judged | None:
    """Run the candidate, then the reference, and compare. Raises Fault; None: the reference isn't finite
    here, or breaks down, so it doesn't count.

    run: (inputs, weight seed) -> (outputs, {number of an input tensor that it changed: its new values}). The
    inputs are its own.
    """
    with excused("drawing inputs"):
        inputs = reference.inputs.draw(trial.kind, trial.inputs)
    outputs, after = run(inputs, trial.weights)
    del inputs
    with excused("on its own inputs"):
        answer = reference.answer(trial.kind, trial.inputs, trial.weights, keep_inputs=bool(after))
    quick = answer.seconds < QUICK
    counts = lambda: trial.kind == "plain" or is_fair(answer, infinite=trial.kind.startswith(MOVED))
    try:
        with excused("comparing answers"):
            error = compare_fairly(outputs, answer, question(reference, trial) if quick else None)
            if quick and trial.kind == "plain" and answer.exact is not None:
                check_faint(reference, trial, outputs, answer)
            allclose = kernelbench_allclose(outputs, answer.own) if trial.kind == "plain" else None
    except Fault:
        if counts():
            raise
        return None
    # without a masked scale all is finite, and counts() would wait for the GPU to say so
    if any(scale.masked for scale in answer.scales.values()) and not counts():
        return None
    for number, changed in after.items():  # allowed where the reference changes it alike
        with excused("comparing inputs"):
            compare_input(reference, trial, number, changed, answer, quick)
    return Judged(error, allclose)


def compare_input(
    reference: Reference, trial: Trial, number: int, changed: torch.Tensor, answer: Answer, quick: bool
) -> None:
    """Raise Fault unless an input, by its number among the tensors, is what the reference makes of it."""
    own, exact = tensors(answer.inputs or []), tensors(answer.inputs_exact or [])
    wanted = Answer(own[number], exact[number] if exact else None, None, None)

    def moved(nudge: Nudge) -> object | None:
        inputs = reference.exactly(trial.kind, trial.inputs, trial.weights, nudge=nudge)[1]
        return None if inputs is None else tensors(inputs)[number]

    asked = Question(partial(spread_of, reference, moved, trial.inputs), nothing_else)
    try:
        compare_fairly(changed, wanted, asked if quick else None)
    except Fault:
        message = f"input {number} is not what it was: forward must not write to its inputs"
        raise Fault("input_modified", message) from None
