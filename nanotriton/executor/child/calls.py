"""The calls of one module that are recorded, one plan for each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from nanotriton.executor.child.quiet import quiet
from nanotriton.executor.child.stages import stage
from nanotriton.executor.child.tape import RecordError, Tape
from nanotriton.executor.common.construct import age_alike, named_state, plain_attributes
from nanotriton.plan.aten import encode_tree
from nanotriton.plan.plan import Plan
from nanotriton.plan.trees import mapped

SECOND = 1  # the number of the call that later ones may repeat: the first one may prepare things
UNWAITED = (
    "forward ends before the work on its stream is waited for: call "
    "torch.cuda.current_stream().wait_stream(stream), or launch on the current stream"
)


@dataclass(frozen=True)
class Further:
    """What is recorded beside two calls of one module.

    evaluates: a third call is one in evaluation mode. another: seed of the weights of another module of the
    class, which is built and called before a last call of the first one; None: there is no such module.
    """

    evaluates: bool = False
    another: int | None = None


class Calls:
    """The calls of one module, in order. Each has inputs of its own, of the same shapes."""

    def __init__(self, tape: Tape, model: Any, inputs: list):
        self.tape, self.model, self.inputs = tape, model, inputs

    def first(self) -> Plan:
        return self.call(self.model)

    def again(self, before: Callable[[], None] | None = None) -> Plan:
        """Another call of a module that was called, and the state afterwards. before: is called first."""
        self.tape.begin_next_call()
        _note_training(self.model)
        if before is not None:
            before()
        plan = self.call(self.model)
        plan.state = _state(self.tape, self.model)
        return plan

    def further(self, wanted: Further, build: Callable[[int], Any]) -> list[Plan]:
        """The plans of further calls, without the last ones if these repeat earlier ones.

        build: makes another module, of a seed.
        """
        plans, needed = [self.evaluated() if wanted.evaluates else self.again()], 0
        if not self.tape.repeats(SECOND):
            needed = len(plans)
        if wanted.another is not None:
            plans.append(self.of_another(partial(build, wanted.another)))
            if not self.tape.repeats_first_elsewhere():
                needed = len(plans) + 1  # the next call too: what has that one done to the first module?
        plans.append(self.again())
        if not self.tape.repeats(SECOND):
            needed = len(plans)
        if needed > 1 and wanted.another is not None:
            self.tape.ship_weights(plans[1])
        return plans[:needed]

    def evaluated(self) -> Plan:
        """A call in evaluation mode, which ends with it."""
        modes = _modes(self.model)
        plan = self.again(partial(stage, self.tape, "runtime_error", partial(_evaluate, self.model)))
        for module, mode in modes.items():
            module.training = mode
        return plan

    def of_another(self, build: Callable[[], Any]) -> Plan:
        """The first call of another module. Its weights are no part of the plan yet (Tape.ship_weights)."""
        self.tape.begin_next_call()
        self.tape.ships = False
        other = build()
        with quiet():
            age_alike(self.model, other)
        plan = self.call(other)
        self.tape.ships = True
        return plan

    def call(self, model: Any) -> Plan:
        """Record one call of forward."""
        tape = self.tape
        with quiet():
            arguments = mapped(list(self.inputs), tape.input)
        tape.plan.inputs = encode_tree(arguments, tape.tensor_id)
        with tape.calling():
            result = stage(tape, "runtime_error", lambda: model(*arguments))
        if tape.streams.pending:
            raise RecordError("rule_violation", UNWAITED)
        tape.plan.outputs = outputs(tape, result)
        return tape.plan


def _modes(model: Any) -> dict[torch.nn.Module, bool]:
    """Of each module whether it is in training mode."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return {module: module.training for module in modules}


def _evaluate(model: Any) -> None:
    if isinstance(model, torch.nn.Module):
        model.eval()


def _note_training(model: Any) -> None:
    """Let the module's parameters seem to be changed in place, as an optimizer does: the judge may change
    their values between two calls."""
    if isinstance(model, torch.nn.Module):
        with quiet():
            for parameter in model.parameters():
                torch.autograd.graph.increment_version(parameter)


def _state(tape: Tape, model: Any) -> dict[str, int]:
    """The tensor of each parameter and buffer that a step may have written to, and of attributes. Those on
    the host are no part of a plan."""
    with quiet():
        named = named_state(model).items()
        changed = {name: t for name, t in named if tape.on_cuda(t) and tape.may_have_changed(t)}
        if tape.names_attributes:
            changed |= {name: t for name, t in plain_attributes(model).items() if t.is_meta and tape.knows(t)}
    return {name: tape.tensor_id(t) for name, t in changed.items()}


def outputs(tape: Tape, result: Any) -> Any:
    with quiet():
        for t in tree_leaves(result):
            if isinstance(t, torch.Tensor) and not tape.on_cuda(t):
                raise RecordError(
                    "runtime_error", "forward returned a tensor on the CPU; its inputs are on the GPU"
                )
    try:
        return encode_tree(result, tape.tensor_id)
    except TypeError as error:
        raise RecordError(
            "runtime_error", f"forward returned a {error}, which is no tensor, number, string or container"
        ) from None
