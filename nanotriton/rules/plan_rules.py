"""The rules on a plan: which of a candidate's recorded calls compute, and which move its data for it.

facts.py says which calls touch data.
"""

from nanotriton.plan.facts import Facts, cast, computes, facts, reads_of, steps_on_data
from nanotriton.plan.plan import DTYPES, Aten, Plan
from nanotriton.rules.moves import moving_work
from nanotriton.rules.policy import Violation


def forbidden_call(plan: Plan, layout_task: bool, reference: Facts | None = None) -> Violation | None:
    """Policy strict: the first ATen call that computes on data, or moves that do a kernel's work.

    layout_task: the task is all about layout, so a call that moves data is forbidden too.
    """
    calls = list(steps_on_data(plan, first_alternative=False))
    for call in calls:
        line = call.line or None
        if computes(plan, call):
            what = cast(plan, call) or f"torch.{call.name} computes in torch"
            return Violation(line, f"{what}: under strict, your own Triton kernels compute")
        if layout_task and not _moves_indices(plan, call):
            what = f"torch.{call.name} moves data in a task that is about moving it"
            return Violation(line, f"{what}: under strict, Triton moves it")
    return moving_work(plan, calls, facts(plan).moved_bytes, reference) if calls else None


def strided_answer(plan: Plan) -> Violation | None:
    """Policy strict, in a task of layout: an answer that is a view in another order than its shape's.

    Its reader would have to move the data.
    """
    if all(plan.meta(t).is_contiguous() for t in plan.output_tensors()):
        return None
    what = "the answer of a task that is about moving data is a view that is not contiguous"
    return Violation(None, f"{what}: under strict, Triton moves it")


def _moves_indices(plan: Plan, call: Aten) -> bool:
    """Whether a call moves integers that forward was given, where the answer has no integers.

    Such integers say what to move. They are not the data that is moved.
    """
    for tensor in reads_of(call):
        storage = plan.storages[plan.tensors[tensor].storage]
        if storage.kind != "input" or not _is_integer(storage.dtype):
            return False
    return not any(_is_integer(plan.tensors[t].dtype) for t in plan.output_tensors())


def _is_integer(name: str) -> bool:
    dtype = DTYPES[name]
    return not (dtype.is_floating_point or dtype.is_complex)
