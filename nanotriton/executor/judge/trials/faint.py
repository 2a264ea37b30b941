"""Is anything left out whose effect is too small for the tolerance?

It may be a bias in bf16, or a branch beside a residual.

One value tells nothing then: the effect is smaller than what rounding may do. Many values do, because
rounding is independent of it. So each weight and each input whose effect is faint is halved, in the float64
reference alone, and the candidate's errors are regressed on the change. An answer without the tensor's
effect has a slope of -2 there, and an honest one has none.

Rounding may be shared: a row that is multiplied by one rounded number has one error for all its elements.
Then a row counts as one value, and a few rows tell nothing.
"""

import math
from collections.abc import Iterator

import torch

from nanotriton.executor.judge.comparison.compare import Answer
from nanotriton.executor.judge.comparison.values import FLOOR
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.reference.twin import Which, named, state_of, tensor_of
from nanotriton.plan.trees import leaves, tensors
from nanotriton.verdict import ValueFault

MOST = 24  # tensors of a task that are looked at
HIDDEN = 4.0  # times FLOOR: a larger effect than that can't be left out unseen
# An element says something where the reference's own rounding is at most this part of the effect there. At
# least so many elements must.
RESOLVED, ENOUGH = 0.25, 32
SAMPLE = 1 << 18  # elements of an output that are looked at
SLOPE, SIGMAS = 0.5, 6.0  # a slope may be off from 0 by so much, and so many standard errors more
SHARED = 4.0  # times what independent errors have in common by chance


def check_faint(reference: Reference, trial: Trial, got: object, answer: Answer) -> None:
    """Raise ValueFault if the effect of a faint tensor is missing. `got` has the structure of the answer."""
    if reference.findings.faint is None:
        reference.findings.faint = find_faint(reference)
    for tensor in reference.findings.faint:
        halved = without_half(reference, trial.kind, trial.inputs, trial.weights, tensor)
        twins = dict(leaves(halved)) if halved is not None else {}
        exact = dict(leaves(answer.exact))
        for (where, g), (_, own) in zip(leaves(got), leaves(answer.own), strict=True):
            if where in twins and compared(own) and twins[where].shape == own.shape == exact[where].shape:
                slope, error = regress(g, own, exact[where], twins[where])
                if abs(slope) > SLOPE + SIGMAS * error:
                    raise ValueFault(
                        f"output{where}: the effect of {named(tensor)} is missing or far off", math.inf
                    )


def find_faint(reference: Reference) -> list[Which]:
    """Names of weights and numbers of input tensors whose effect on the answer is small and not nothing."""
    seed = reference.seed
    answer = reference.answer("plain", seed, seed)
    if answer.exact is None:
        return []
    names = [name for name, t in state_of(reference.modules.build(seed)).items() if t.is_floating_point()]
    inputs = [i for i, t in enumerate(tensors(reference.inputs.draw("plain", seed))) if t.is_floating_point()]
    found = []
    for tensor in [*inputs, *names][:MOST]:
        halved = without_half(reference, "plain", seed, seed, tensor)
        if halved is not None and 0 < effect(answer, halved) < HIDDEN:
            found.append(tensor)
    return found


def effect(answer: Answer, halved: object) -> float:
    """The largest change of a value, in units of FLOOR. 0 for other shapes."""
    most = 0.0
    for own, w, h in zip(tensors(answer.own), tensors(answer.exact), tensors(halved), strict=True):
        if compared(own) and own.shape == w.shape == h.shape:
            rms = w.square().mean().sqrt()
            change = ((w - h).abs() / (w.abs() + rms)).max() / answer.precision.floor(own.dtype)
            most = max(most, float(change.nan_to_num(0.0, math.inf)))
    return most


def compared(own) -> bool:
    return isinstance(own, torch.Tensor) and own.dtype in FLOOR and own.itemsize > 1 and own.numel() > 0


def without_half(reference: Reference, kind: str, inputs: int, weights: int, tensor: Which) -> object | None:
    """The answer in float64 with one tensor halved, which is exact in every dtype. None: there is none."""

    def halve(model: torch.nn.Module, given: list) -> None:
        target = tensor_of(model, given, tensor)
        target.copy_(target * 0.5)

    def compute() -> object | None:
        try:
            return reference.exactly(kind, inputs, weights, change=halve)[0]
        except RuntimeError:  # it can't be written to, or the reference refuses it
            return None

    return reference.kept.once(("without half", tensor, kind, inputs, weights), compute)


def regress(g: torch.Tensor, own: torch.Tensor, w: torch.Tensor, halved: torch.Tensor) -> tuple[float, float]:
    """(slope of the error over the effect of half a tensor, its standard error).

    Only where the reference's own answer resolves the effect: elsewhere its own rounding swallows it. A
    common factor and a constant are taken out of both, because rounding a single number to the dtype makes
    such errors. (0, 0) where too little is left.
    """
    step = max(1, own.numel() // SAMPLE)
    g, o, w, h = (t.detach().reshape(-1)[::step].double() for t in (g, own, w, halved))
    effect = w - h
    kept = ((o - w).abs() <= RESOLVED * 2 * effect.abs()) & (effect != 0) & g.isfinite() & w.isfinite()
    if int(kept.sum()) < ENOUGH:
        return 0.0, 0.0
    error, effect, w = (g - w)[kept], effect[kept], w[kept]
    common = torch.linalg.qr(torch.stack([torch.ones_like(w), w], 1))[0]
    error, left = (x - common @ (common.T @ x) for x in (error, effect))
    power = float(left.square().sum())
    if power < 1e-6 * float(effect.square().sum()):
        return 0.0, 0.0
    slope = float((error * left).sum()) / power
    rest = error - slope * left
    deviation = math.sqrt(float((rest * left).square().sum())) / power
    if abs(slope) > SLOPE + SIGMAS * deviation:  # what elements share only widens the deviation
        place = torch.arange(0, own.numel(), step, device=own.device)[kept]
        for slices in slicings(own.shape, place):
            if share(rest, w, slices):
                deviation = max(deviation, deviation_of_sums(rest * left, slices) / power)
    return slope, deviation


def slicings(shape: torch.Size, place: torch.Tensor) -> Iterator[torch.Tensor]:
    """Ways to cut an output into slices whose elements may share a rounded number, as a row shares its sum.

    place: flat indices of the elements. Each way gives the number of each one's slice, from 0 on: by the
    index in one dimension, and by the indices in all others.
    """
    for dim, size in enumerate(shape):
        inner = math.prod(shape[dim + 1 :])
        others = place // (inner * size) * inner + place % inner
        for number in (place // inner % size, others):
            slices = torch.unique(number, return_inverse=True)[1]
            if 1 < int(slices.max()) + 1 < len(place):
                yield slices


def share(rest: torch.Tensor, w: torch.Tensor, slices: torch.Tensor) -> bool:
    """Whether the elements of a slice have errors in common: a constant, or a factor of w.

    If all are independent, a slice's part of `rest` along such an error is on average as large as an element.
    """
    element = float(rest.square().mean())
    for common in (torch.ones_like(w), w):
        along = sums(rest * common, slices).square() / sums(common.square(), slices).clamp(min=1e-300)
        if float(along.mean()) > SHARED * element:
            return True
    return False


def deviation_of_sums(x: torch.Tensor, slices: torch.Tensor) -> float:
    """The standard deviation of the sum of x if slices are independent and their elements are not.

    Three numbers were fitted, which few slices can't tell from their errors; infinite for three or fewer.
    """
    of_slices = sums(x, slices)
    count = len(of_slices)
    return math.sqrt(float(of_slices.square().sum()) * count / (count - 3)) if count > 3 else math.inf


def sums(x: torch.Tensor, slices: torch.Tensor) -> torch.Tensor:
    """The sum of x over each slice."""
    return x.new_zeros(int(slices.max()) + 1).index_add_(0, slices, x)
