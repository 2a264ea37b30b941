"""Autotuned launches that come to another answer when they are made again.

An autotuner runs a kernel some hundred times before its first result. That is no harm to a kernel that only
writes what it does not read. One that adds to its output, or works in place, needs reset_to_zero,
restore_value or a hook.
"""

from nanotriton.executor import ttir
from nanotriton.executor.replay.backend import evaluator_of
from nanotriton.plan.plan import Choice, Launch, Plan


def tuned_tensors(plan: Plan) -> list[int]:
    """The tensors of inputs and weights that a kernel changes while it is tuned, or may change."""
    found: dict[int, None] = {}
    for step in _tuned(plan):
        for calls in step.alternatives:
            for call in calls:
                found |= dict.fromkeys(call.tensors if isinstance(call, Launch) else ())
    return [i for i in found if plan.storages[plan.tensors[i].storage].kind in ("input", "weight")]


def accumulates(plan: Plan, chosen: dict[int, int]) -> bool:
    """Whether some launch may come to another answer after it was tuned."""
    return any(
        not _repeatable(plan, choice.alternatives[chosen.get(choice.key, 0)]) for choice in _tuned(plan)
    )


def _tuned(plan: Plan) -> list[Choice]:
    return [step for step in plan.steps if isinstance(step, Choice) and step.tuning is not None]


def _repeatable(plan: Plan, calls: list) -> bool:
    """Whether calls are sure to have the same effect each time: they are launches, and read nothing that they
    change."""
    changed: set[int] = set()
    read: set[int] = set()
    for call in calls:
        if not isinstance(call, Launch) or len(call.tensors) != sum(ty[:1] == "*" for ty, _ in call.args):
            return False  # it has descriptors, of which each is several parameters
        kernel = plan.kernels[call.kernel]
        try:
            reach = evaluator_of(kernel).reach
        except ttir.TTIRError:
            return False
        if reach.atomics:
            return False
        for i, (ty, value) in enumerate(call.args):
            if ty.startswith("*"):
                storage = plan.tensors[value].storage
                changed |= {storage} if reach.stored >> i & 1 else set()
                read |= {storage} if reach.loaded >> i & 1 else set()
    return not changed & read
