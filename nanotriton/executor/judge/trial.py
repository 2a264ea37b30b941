"""Is a candidate right? The same judge for every device and mode: it sees tensors, and a function that runs the candidate.

The reference (reference.py) runs after the candidate, on private copies of the same inputs, once in the task's dtype and once in float64 (compare.py
says what the tolerance is). A candidate is judged on several trials with secret seeds: one as the task draws, the others under stress (draws.py)
and with other weights.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.compare import FLOOR, Answer, all_finite, compare, kernelbench_allclose, passes
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.reference import Reference, excused, in_float64
from nanotriton.plan.trees import mapped, tensors
from nanotriton.verdict import Fault, ValueFault

NUDGES = 3
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
    """Run the candidate, then the reference, and compare. Raises Fault; None: the reference isn't finite here, so it doesn't count.

    run: (inputs, weight seed) -> (outputs, {number of an input tensor that it changed: its new values}). The inputs are its own.
    """
    with excused("drawing inputs"):
        inputs = reference.inputs(trial.kind, trial.inputs)
    outputs, after = run(inputs, trial.weights)
    del inputs
    begun = time.monotonic()
    with excused("on its own inputs"):
        answer = reference.answer(trial.kind, trial.inputs, trial.weights, keep_inputs=bool(after))
    quick = time.monotonic() - begun < QUICK
    counts = lambda: trial.kind == "plain" or all_finite(answer.own)
    try:
        with excused("comparing answers"):
            error = compare_fairly(outputs, answer, reference, trial) if quick else compare(outputs, answer)
            allclose = kernelbench_allclose(outputs, answer.own) if trial.kind == "plain" else None
    except Fault:
        if counts():
            raise
        return None
    # else all is finite, and to look at it again would wait for the GPU
    if any(scale.masked for scale in answer.scales.values()) and not counts():
        return None
    theirs, exact = tensors(answer.inputs or []), tensors(answer.inputs_exact or [])
    for number, changed in after.items():  # allowed where the reference changes it alike
        if not passes(changed, Answer(theirs[number], exact[number] if exact else None, None, None)):
            raise Fault(
                "input_modified", f"input {number} is not what it was: forward must not write to its inputs"
            )
    return Judged(error, allclose)


# ---- where values are wrong ----


def compare_fairly(got, answer: Answer, reference: Reference, trial: Trial) -> float:
    """`compare`; and where values are wrong, once more but for what the task makes of errors that are allowed anyway, before its last step.

    The sine of a sum near 1e5 is anything in fp32, depending on the order of summation; what the reference's own order earns there says little.
    """
    try:
        return compare(got, answer)
    except ValueFault as fault:
        with contextlib.suppress(Fault, RuntimeError, MemoryError):  # then it stays wrong
            if (
                answer.exact is not None
                and (moved := sensitivity(reference, trial, answer.exact)) is not None
            ):
                return compare(forgiven(got, answer, moved), answer)
        raise fault from None


def sensitivity(reference: Reference, trial: Trial, exact: object) -> list[torch.Tensor] | None:
    """How far each value of the float64 answer moves when each input moves by up to FLOOR of itself, all alike or each its own way: the most.

    In float64, output by output. None if it has no answer for such inputs.
    """
    most = [torch.zeros_like(t, dtype=torch.float64) for t in tensors(exact)]
    for i in range(NUDGES):
        generator = (
            torch.Generator(reference.device).manual_seed(seed_from(trial.inputs, "nudge", i)) if i else None
        )
        inputs = mapped(reference.inputs(trial.kind, trial.inputs), lambda t, g=generator: nudged(t, g))
        model = reference.build(trial.weights)
        with reference.own("nudged"), torch.no_grad(), reference.default_device():
            moved, _ = in_float64(model, inputs, trial.weights)
        if moved is None:
            return None
        steps = (
            (x.double() - y.double()).abs().nan_to_num(0.0, 0.0)
            for x, y in zip(tensors(moved), tensors(exact), strict=True)
        )
        most = [torch.maximum(m, step) for m, step in zip(most, steps, strict=True)]
    return most


def nudged(t: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """A floating tensor in float64, each element moved by up to FLOOR of itself; without a generator, all by that much."""
    if not t.is_floating_point():
        return t
    share = torch.ones(t.shape, dtype=torch.float64, device=t.device)
    if generator:
        share.uniform_(-1, 1, generator=generator)
    return share.mul_(FLOOR.get(t.dtype, 0.3)).add_(1).mul_(t.double())


def forgiven(got, answer: Answer, sensitivity: list[torch.Tensor]):
    """The answer that was got, each value brought nearer to the float64 one by `sensitivity`."""
    exact, left = tensors(answer.exact), iter(range(len(sensitivity)))

    def nearer(g: torch.Tensor) -> torch.Tensor:
        i = next(left)
        if not g.is_floating_point() or not g.shape == exact[i].shape == sensitivity[i].shape:
            return g
        off = g.double() - exact[i]
        rest = (off.abs() - sensitivity[i]).clamp_(min=0).mul_(off.sign())
        return torch.where(off.isfinite(), exact[i] + rest, g).to(g.dtype)

    return mapped(got, nearer)
