"""The rules on a plan: which of a candidate's recorded calls compute, and which move its data for it.

plan/facts.py says which calls touch data.
"""

import math

from nanotriton.plan.aten import tensor_ids, words
from nanotriton.plan.facts import Facts, cast, computes, facts, reads_of, steps_on_data, touched, writes_of
from nanotriton.plan.plan import DTYPES, Aten, Plan
from nanotriton.rules.moves import moving_work
from nanotriton.rules.policy import Violation

# A torch call is a finishing touch if all of them together touch at most this share of the bytes that the
# reference's own computing calls touch, and none of their tensors takes more than it of the largest input.
SHARE = 1 / 32
REDUCES = words("sum mean cumsum max min amax amin any all count_nonzero logsumexp")
REDUCE_MORE = (
    " (torch may add up {most} elements of it here, a 32nd of the largest input: let a kernel reduce more)"
)
SMALL = 64  # elements of the tensors of a finishing touch that reduces nothing
# The element-wise ones, and a product of two vectors. No operator of theirs is a layer of a network.
POINTWISE = words("""
    dot abs add bitwise_and bitwise_or ceil clamp clamp_max clamp_min div eq exp floor floor_divide ge gt le
    log logical_and logical_not logical_or lt maximum minimum mul ne neg pow reciprocal remainder rsqrt rsub
    sqrt square sub where
""")


def forbidden_call(plan: Plan, layout_task: bool, reference: Facts | None = None) -> Violation | None:
    """Policy strict: the first ATen call that computes on data and is no finishing touch, or the first move
    that does a kernel's work.

    layout_task: the task is all about layout, so a call that moves data is forbidden too. reference: facts
    of the reference module.
    """
    calls = list(steps_on_data(plan, first_alternative=False))
    computing = [call for call in calls if computes(plan, call)]
    touches = not layout_task and are_touches(plan, computing, reference.touched if reference else 0)
    for call in calls:
        line = call.line or None
        if not touches and call in computing:
            what = cast(plan, call) or f"torch.{call.name} computes in torch"
            advice = reduce_more(plan, call) if call.name in REDUCES and not layout_task else ""
            return Violation(line, f"{what}: under strict, your own Triton kernels compute{advice}")
        if layout_task and not _moves_indices(plan, call):
            what = f"torch.{call.name} moves data in a task that is about moving it"
            return Violation(line, f"{what}: under strict, Triton moves it")
    moves = [call for call in calls if call not in computing]
    return moving_work(plan, moves, facts(plan).moved_bytes, reference) if moves else None


def reduce_more(plan: Plan, call: Aten) -> str:
    """How much a call that reduces might have reduced."""
    size = max((plan.meta(t).element_size() for t in reads_of(call)), default=4)
    return REDUCE_MORE.format(most=int(SHARE * largest_input(plan)) // size)


def are_touches(plan: Plan, computing: list[Aten], reference_bytes: int) -> bool:
    """Whether calls are finishing touches: what is left to do after kernels did the work, as `loss.sum()` is
    after a kernel that made a loss of each row.

    Torch may reduce a small tensor, and compute with very few elements.
    """
    if sum(touched(plan, call) for call in computing) > SHARE * reference_bytes:
        return False
    return all(_is_touch(plan, call, SHARE * largest_input(plan)) for call in computing)


def largest_input(plan: Plan) -> int:
    """Bytes of the largest input."""
    return max((plan.nbytes(t) for t in tensor_ids(plan.inputs)), default=0)


def _is_touch(plan: Plan, call: Aten, most: float) -> bool:
    """most: bytes that each of its tensors may take."""
    tensors = reads_of(call) + writes_of(call)
    if any(plan.nbytes(t) > most for t in tensors):
        return False
    if call.name.rstrip("_") in REDUCES:
        return True
    few = all(math.prod(plan.tensors[t].shape) <= SMALL for t in tensors)
    return few and (call.name.rstrip("_") in POINTWISE or cast(plan, call) is not None)


def strided_answer(plan: Plan) -> Violation | None:
    """Policy strict, in a task of layout: an answer that is a view in another order than its shape's.

    Its reader would have to move the data.
    """
    if all(plan.meta(t).is_contiguous() for t in plan.output_tensors()):
        return None
    what = "the answer of a task that is about moving data is a view that is not contiguous"
    return Violation(None, f"{what}: under strict, a kernel stores it into contiguous memory")


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
