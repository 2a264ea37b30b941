"""The rules on a plan: which of a candidate's recorded calls compute, and how much of the work torch did.

Data is everything but constants (torch.arange, a table computed from nothing, a host tensor): what comes from the inputs, from the weights
or out of a kernel. Constants could as well be computed in `__init__`, where torch may do as it likes.
"""

from nanotriton.plan.facts import cast, computes, reads_of, steps_on_data
from nanotriton.plan.plan import DTYPES, Aten, Plan
from nanotriton.rules.policy import Violation


def forbidden_call(plan: Plan, layout_task: bool) -> Violation | None:
    """Policy strict: the first ATen call that computes on data or, in a task that is all about layout, moves data."""
    for step in steps_on_data(plan, first_alternative=False):
        line = step.line or None
        if computes(plan, step):
            what = cast(plan, step) or f"torch.{step.name} computes in torch"
            return Violation(line, f"{what}: under strict, your own Triton kernels compute")
        if layout_task and not _indices(plan, step):
            return Violation(
                line,
                f"torch.{step.name} moves data in a task that is about moving it: under strict, Triton moves it",
            )
    return None


def strided_answer(plan: Plan) -> Violation | None:
    """An answer that is a view in another order than its shape's: who reads it has to move the data."""
    if all(plan.meta(t).is_contiguous() for t in plan.output_tensors()):
        return None
    return Violation(
        None,
        "the answer of a task that is about moving data is a view that is not contiguous: under strict, Triton moves it",
    )


def _indices(plan: Plan, step: Aten) -> bool:
    """Whether a call moves integers that forward was given, where the answer has none: they say what to move, and are not it."""
    integer = lambda name: not (DTYPES[name].is_floating_point or DTYPES[name].is_complex)
    given = [plan.storages[plan.tensors[t].storage] for t in reads_of(step)]
    return all(s.kind == "input" and integer(s.dtype) for s in given) and not any(
        integer(plan.tensors[t].dtype) for t in plan.output_tensors()
    )
