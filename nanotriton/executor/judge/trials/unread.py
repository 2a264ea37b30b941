"""Does the answer depend on data that the candidate never looks at?

Ten classes of 32,000 that are never read move a sum by less than the tolerance. But they can be seen: where
it is known which elements a candidate loads, the others are drawn anew, and the float64 reference must not
notice.
"""

import torch

from nanotriton.executor.judge.inputs.kinds import Trial, untrained
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.reference.twin import Which, named, state_of, tensor_of
from nanotriton.executor.replay.unread import Unread
from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import Plan
from nanotriton.plan.trees import tensors
from nanotriton.verdict import Fault

# The reference is asked where at most this part of a tensor was not read. Who leaves out more either shows it
# in the answer, or knows a structure of the input: of a symmetric matrix half is enough.
MOST = 0.25
NOTICED = 1e-8  # the float64 answer moved if a value did by this part of itself and of the RMS
REDUCED = 256  # numbers of an input for one of the answer: fewer can't hide in it
OTHER = 2  # added to the seed of the inputs, for the ones that are put in place of what is not read

Masks = dict[Which, torch.Tensor]


def check_unread(reference: Reference, trial: Trial, runner) -> None:
    """Raise Fault if the reference depends on elements that a call of the candidate never looks at."""
    unread = runner.find_unread(trial, worth=reduces(runner.plan))
    masks = {} if unread is None else masks_of(runner.plan, unread)
    if not masks:
        return
    before, _ = reference.exactly(trial.kind, trial.inputs, trial.weights)
    if before is None:
        return
    for which, mask in masks.items():
        after = redrawn(reference, trial, which, mask)
        if after is not None and noticed(before, after):
            count = f"{int(mask.sum())} of {mask.numel()} elements of {named(which)}"
            raise Fault("wrong_value", f"{count} are never read, and the reference's answer depends on them")


def reduces(plan: Plan) -> bool:
    """Whether one number of the answer stands for many of an input or a weight."""
    sizes = lambda ids: [plan.meta(i).numel() for i in ids]
    read = sizes([*tensor_ids(plan.inputs), *(w.tensor for w in plan.weights)])
    answers = sizes(plan.output_tensors())
    return max(read, default=0) >= REDUCED * max(1, min(answers, default=1))


def masks_of(plan: Plan, unread: Unread) -> Masks:
    """Where a part of a tensor is not read. A weight that is not read at all, __init__ may have copied."""
    found: Masks = {}
    for number, tensor in enumerate(tensor_ids(plan.inputs)):
        found[number] = unread.of(tensor)
    for weight in plan.weights:
        if weight.names and unread.partly_read(weight.tensor):
            found[weight.names[0]] = unread.of(weight.tensor)
    return {which: mask for which, mask in found.items() if 0 < int(mask.sum()) <= MOST * mask.numel()}


def redrawn(reference: Reference, trial: Trial, which: Which, mask: torch.Tensor) -> object | None:
    """The float64 answer to a trial with some elements of one tensor as in another draw, or None."""
    mask = mask.to(reference.device)

    def change(model: torch.nn.Module, inputs: list) -> None:
        target = tensor_of(model, inputs, which)
        if isinstance(which, int):
            source = tensors(reference.inputs.draw(trial.kind, trial.inputs + OTHER))[which]
        else:
            source = state_of(reference.modules.build(untrained(trial.weights) + OTHER))[which].detach()
        target.copy_(torch.where(mask, source, target))

    try:
        return reference.exactly(trial.kind, trial.inputs, trial.weights, change=change)[0]
    except (RuntimeError, KeyError):  # it can't be written to, or has another name
        return None


def noticed(before: object, after: object) -> bool:
    """Whether a float64 answer moved by more than its own rounding."""
    for x, y in zip(tensors(before), tensors(after), strict=True):
        if x.shape != y.shape:
            return True
        if not x.is_floating_point():
            if not torch.equal(x, y):
                return True
            continue
        rms = x.square().mean().sqrt()
        limit = NOTICED * (x.abs() + rms)
        if bool(((x - y).abs() > limit).any()):
            return True
    return False
