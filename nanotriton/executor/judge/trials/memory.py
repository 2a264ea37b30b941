"""Whose is the memory of an answer? Where the reference makes new memory in each call, so does the candidate:
an answer that lies in memory of an earlier call takes that call's answer away from whoever still has it.

The reference is asked only where a candidate's plans, or what became of its answers, leave a doubt.
"""

from dataclasses import dataclass, field

import torch

from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.computing import Computing
from nanotriton.executor.judge.task.module import excused
from nanotriton.plan.facts import answer_not_new
from nanotriton.plan.trees import identical, tensors
from nanotriton.verdict import Fault


@dataclass
class Memory:
    """What the reference does with its answers' memory.

    fresh: for each call, and each tensor of its answer, whether it is new memory. overwritten: (call, number
    of an output tensor) of answers that a later call has changed.
    """

    fresh: list[list[bool]] = field(default_factory=list)
    overwritten: set[tuple[int, int]] = field(default_factory=set)


def check_memory(reference: Reference, trials: list[Trial], got) -> None:
    """Raise Fault for an answer of the candidate's that shares memory, or loses its values, where the
    reference's does not. got: calls.Calls."""
    doubtful = [n for n, plan in enumerate(got.plans) if n and answer_not_new(plan)]
    if not doubtful and not got.overwritten:
        return
    with excused("on its own inputs, called again"):
        theirs = memory_of(reference, trials)
    for call in doubtful:
        if not_new := answer_not_new(got.plans[call], theirs.fresh[call]):
            raise Fault("wrong_value", f"in another call of the same module, {not_new}")
    for call, number in sorted(got.overwritten - theirs.overwritten):
        raise Fault(
            "wrong_value",
            f"a later call of the same module overwrites output {number} of call {call + 1}:"
            " take new memory in each",
        )


def memory_of(reference: Reference, trials: list[Trial]) -> Memory:
    model, found = reference.modules.build(trials[0].weights), Memory()
    answers: list[list[torch.Tensor]] = []
    copies: list[list[torch.Tensor]] = []
    for trial in trials:
        inputs, seen = reference.inputs.draw(trial.kind, trial.inputs), Computing()
        with reference.code.active_on(trial.kind), torch.no_grad(), reference.code.default_device(), seen:
            if not answers:
                seed_everything(trial.weights)
            own = tensors(model(*inputs))
        found.fresh.append([seen.fresh(t) for t in own])
        answers.append(own)
        copies.append([t.clone() for t in own])
    for call, (now, then) in enumerate(zip(answers, copies, strict=True)):
        for number, (t, copy) in enumerate(zip(now, then, strict=True)):
            if not identical([t], [copy]):
                found.overwritten.add((call, number))
    return found
