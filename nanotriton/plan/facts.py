"""Facts of a plan: which of its ATen calls touch data, which of those compute, and how many bytes and FLOPs that is.

Data is everything but constants (torch.arange, a table computed from nothing, a host tensor): what comes from the inputs, from the
weights or out of a kernel. Constants could as well be computed in `__init__`, where torch may do as it likes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from nanotriton.plan.aten import tensor_ids, words
from nanotriton.plan.plan import DTYPES, Aten, Choice, Launch, Plan

# Operators that read no values: the result depends on shapes and numbers only.
CREATE = words("""arange empty empty_like empty_strided eye fill fill_ full full_like new_empty new_full new_ones new_zeros ones ones_like
    # not linspace, whose ends may be tensors
    scalar_tensor tril_indices triu_indices zero zero_ zeros zeros_like""")
# Operators that put values elsewhere, unchanged but for rounding.
MOVE = words("""_to_copy _unsafe_view as_strided_scatter cat clone constant_pad_nd copy copy_ diagonal_copy diagonal_scatter flip repeat roll
    select_scatter slice_scatter stack t_copy unfold_copy""")
# Operators that do no more under names of their own: a task of these alone is about moving data too. Torch
# may not call them on data.
REARRANGE = words("""_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d block_diag channel_shuffle diag_embed
    embedding gather im2col index index_select pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d rot90 take tril triu upsample_nearest1d upsample_nearest2d
    upsample_nearest3d""")
COPY = words("clone _to_copy copy_")  # where the replayer keeps a truth value's byte as it is
FILL = words("fill fill_")  # with a tensor's value, they move it
# name: which operand's last dimension is summed
MATMULS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}


@dataclass
class Facts:
    """What torch did in a plan, on data. Bytes count what is read and written, an expanded dimension once."""

    launches: int = 0
    # calls that touch data, by name: those that compute and those that move
    torch_ops: dict[str, int] = field(default_factory=dict)
    computing: dict[str, int] = field(default_factory=dict)  # of those, the ones that compute
    moved_bytes: int = 0
    flops: float = 0.0  # of the computing calls: 2 per multiply-add, else 1 per element read or written
    # a reference's answer lies in memory in the order of its shape, and so must that of a task of
    # moving data
    contiguous: bool = False
    # where the answer lies: own memory, an input's, a weight's or a constant's (the worst of
    # several)
    answer: str = "own"


def facts(plan: Plan) -> Facts:
    """Read a plan. The first alternative stands for an autotuned launch."""
    found = Facts(launches=len(plan.launches()))
    for step in steps_on_data(plan, first_alternative=True):
        found.torch_ops[step.name] = found.torch_ops.get(step.name, 0) + 1
        if computes(plan, step):
            found.computing[step.name] = found.computing.get(step.name, 0) + 1
            found.flops += _flops(plan, step)
        else:
            found.moved_bytes += sum(plan.nbytes(t) for t in reads_of(step) + writes_of(step))
    kinds = {plan.storages[plan.tensors[t].storage].kind for t in plan.output_tensors()}
    found.answer = next((k for k in ("input", "weight", "const") if k in kinds), "own")
    return found


def steps_on_data(plan: Plan, first_alternative: bool) -> Iterator[Aten]:
    """The ATen calls that read data, in order. Walks the plan once with the storages that are known to hold none.

    Those are constants, and what is written whole by a call that reads nothing else. After a launch nothing is known any more:
    a kernel can reach memory that it was not given.
    """
    clean = {i for i, s in enumerate(plan.storages) if s.kind == "const"}
    storages = lambda ids: {plan.tensors[t].storage for t in ids}
    for step in plan.steps:
        alternatives = step.alternatives if isinstance(step, Choice) else [[step]]
        before, after = clean, []
        for alternative in alternatives[: 1 if first_alternative else None]:
            clean = set(before) if len(alternatives) > 1 else before
            for call in alternative:
                if isinstance(call, Launch):
                    clean.clear()
                elif storages(_data_reads(call)) <= clean:
                    clean |= storages(t for t in writes_of(call) if _covers(plan, t))
                else:
                    clean -= storages(writes_of(call))
                    yield call
            after.append(clean)
        clean = set.intersection(*after)  # any of them may be chosen


def _covers(plan: Plan, tensor: int) -> bool:
    """Whether a tensor's elements are all of its storage. Strides may name an element twice, so counting bytes is not enough."""
    t, size = plan.tensors[tensor], 1
    nbytes = plan.storages[t.storage].nbytes
    if 0 in t.shape:
        return nbytes == 0
    for stride, n in sorted((s, n) for s, n in zip(t.stride, t.shape, strict=True) if n != 1):
        if stride != size:
            return False
        size *= n
    return t.offset == 0 and size * DTYPES[t.dtype].itemsize == nbytes


def reads_of(step: Aten) -> list[int]:
    return tensor_ids([step.args, list(step.kwargs.values())])


def _data_reads(step: Aten) -> list[int]:
    """Without the first argument of an operator that takes only its shape."""
    return tensor_ids([step.args[1:], list(step.kwargs.values())]) if step.name in CREATE else reads_of(step)


def writes_of(step: Aten) -> list[int]:
    """Results in new memory, the first argument of a call in place, and `out=`."""
    in_place = reads_of(step)[:1] if step.name.endswith("_") else []
    return [t for t in step.outs if t is not None] + in_place + tensor_ids(step.kwargs.get("out"))


def computes(plan: Plan, step: Aten) -> bool:
    return (step.name not in MOVE | CREATE or cast(plan, step) is not None) and not _counts(plan, step)


def _counts(plan: Plan, step: Aten) -> bool:
    """Whether a call adds a number to a counter that nothing else touches, as a BatchNorm does to num_batches_tracked."""
    reads = reads_of(step)
    if step.op != "add_.Tensor" or len(reads) != 1:
        return False
    counter = plan.tensors[reads[0]]
    named = plan.output_tensors()
    for other in plan.every_call():
        if isinstance(other, Launch):
            named += other.tensors
        elif (other.op, other.args) != (step.op, step.args):
            named += reads_of(other) + writes_of(other)
    alone = counter.storage not in {plan.tensors[t].storage for t in named}
    return (
        alone
        and math.prod(counter.shape) == 1
        and counter.dtype == "int64"
        and plan.storages[counter.storage].kind == "weight"
    )


def cast(plan: Plan, step: Aten) -> str | None:
    """What a moving call computes by changing the dtype: float to int truncates, to bool compares, to a narrower int takes a remainder."""
    if step.name not in MOVE | FILL:
        return None
    dtype = lambda t: DTYPES[plan.tensors[t].dtype]
    written = writes_of(step)
    for target in map(dtype, written):
        for read in (t for t in reads_of(step) if t not in written):
            truth = dtype(read) == torch.bool and step.name not in COPY
            if not keeps_value(dtype(read), target) or (
                dtype(read) != target and (truth or _reinterpreted(plan, read))
            ):
                return f"a cast from {dtype(read)} to {target} computes in torch".replace("torch.", "", 2)
    return None


def _reinterpreted(plan: Plan, tensor: int) -> bool:
    """Whether an integer tensor sees the bits of another dtype, or one of truth values any number's.

    A cast then takes a logarithm, a remainder or an absolute value, or compares with 0. What lies in the memory may have come there through any
    tensor of the plan. Truth values that are none the replayer copies as the numbers they are.
    """
    t = plan.tensors[tensor]
    own, others = DTYPES[t.dtype], {DTYPES[d] for d in plan.seen_as[t.storage]} - {torch.bool}
    if own == torch.bool:
        return plan.storages[t.storage].dtype != "bool"
    return not own.is_floating_point and not own.is_complex and others != {own}


def keeps_value(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a cast keeps every value up to the rounding of a float.

    >>> keeps_value(torch.float32, torch.bfloat16), keeps_value(torch.float32, torch.int32), keeps_value(torch.int64, torch.int32)
    (True, False, True)
    """
    if source == target or source == torch.bool:
        return True
    if target == torch.bool or source.is_complex or target.is_complex:
        return False
    if target.is_floating_point:
        return True
    if source.is_floating_point:
        return False
    # of the same width, half of the values would wrap around
    wide = source.itemsize + (source.is_signed != target.is_signed)
    return target.itemsize >= min(wide, 4)  # indices are cast to 32 bits everywhere


def _flops(plan: Plan, step: Aten) -> float:
    """2 per multiply-add of a matrix product or a convolution, else one operation an element of the largest operand."""
    shape = lambda t: plan.tensors[t].shape
    reads, sizes = reads_of(step), [math.prod(shape(t)) for t in reads_of(step) + writes_of(step)]
    if step.name in MATMULS:
        return 2.0 * math.prod(shape(step.outs[0])) * shape(reads[MATMULS[step.name]])[-1]
    if step.name == "convolution":
        return 2.0 * math.prod(shape(step.outs[0])) * math.prod(shape(reads[1])[1:])
    return float(max(sizes, default=0))
