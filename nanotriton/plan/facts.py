"""Facts of a plan: the ATen calls that touch data, those of them that compute, and their bytes and FLOPs.

Data is everything that comes from the inputs, from the weights or out of a kernel. The rest are constants:
torch.arange, a table computed from nothing, a host tensor. They could as well be computed in `__init__`,
where torch may do as it likes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from nanotriton.plan.aten import tensor_ids, words
from nanotriton.plan.plan import DTYPES, Aten, Call, Choice, Launch, Plan

# Operators that read no values: the result depends on shapes and numbers only.
# linspace is not among them, because its ends may be tensors.
CREATE = words("""
    arange empty empty_like empty_strided eye fill fill_ full full_like new_empty new_full new_ones new_zeros
    ones ones_like scalar_tensor tril_indices triu_indices zero zero_ zeros zeros_like
""")
# Operators that put values elsewhere, unchanged but for rounding.
MOVE = words("""
    _to_copy _unsafe_view as_strided_scatter cat clone constant_pad_nd copy copy_ diagonal_copy
    diagonal_scatter flip repeat roll select_scatter slice_scatter stack t_copy unfold_copy
""")
# Operators that only move values too, under names of their own.
# A task of these alone is about moving data, but torch may not call them on data.
REARRANGE = words("""
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d block_diag channel_shuffle
    diag_embed embedding gather im2col index index_select pixel_shuffle pixel_unshuffle reflection_pad1d
    reflection_pad2d reflection_pad3d repeat_interleave replication_pad1d replication_pad2d replication_pad3d
    rot90 take tril triu upsample_nearest1d upsample_nearest2d upsample_nearest3d
""")
# Reductions of which the answer is the only value that they reduce, where there is one.
SINGLE = words("amax amin mean prod sum")
COPY = words("clone _to_copy copy_")  # for these the replayer keeps a truth value's byte as it is
FILL = words("fill fill_")  # these move a value if it is a tensor's
# name: number of the operand whose last dimension is summed
MATMULS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}


@dataclass
class Facts:
    """Torch's work in a plan, on data. Bytes count reads and writes, an expanded dimension once."""

    launches: int = 0
    torch_ops: dict[str, int] = field(default_factory=dict)  # calls that touch data, by name
    computing: dict[str, int] = field(default_factory=dict)  # those of them that compute
    moved_bytes: int = 0  # of the others, which move data
    touched: int = 0  # of the computing calls
    flops: float = 0.0  # of the computing calls: 2 per multiply-add, else 1 per element read or written
    # Of a reference: bytes that all its calls read and write, those that compute and those that move
    traffic: int = 0
    rounds: bool = False  # of a reference: it calls operators that round
    # Of a reference: its answer lies in memory in the order of its shape. In a task of moving data the
    # candidate's answer must do so too.
    contiguous: bool = False
    length: int = 1  # of a reference: the most numbers that it sums for one value
    # Of a reference, for each tensor of its answer: it lies in new memory, no two elements in one place.
    fresh: list[bool] = field(default_factory=list)
    # the memory that the answer lies in: own, input, weight or const (the worst of several)
    answer: str = "own"


def facts(plan: Plan) -> Facts:
    """Read a plan. The first alternative stands for an autotuned launch."""
    found = Facts(launches=len(plan.launches()))
    for call in steps_on_data(plan, first_alternative=True):
        found.torch_ops[call.name] = found.torch_ops.get(call.name, 0) + 1
        if computes(plan, call):
            found.computing[call.name] = found.computing.get(call.name, 0) + 1
            found.flops += _flops(plan, call)
            found.touched += touched(plan, call)
        else:
            found.moved_bytes += touched(plan, call)
    kinds = {plan.storages[plan.tensors[t].storage].kind for t in plan.output_tensors()}
    found.answer = next((k for k in ("input", "weight", "const") if k in kinds), "own")
    return found


def answer_not_new(plan: Plan, fresh: list[bool] | None = None) -> str | None:
    """One line on an output that a caller can't write to as to the reference's, or None.

    fresh: of the reference. Where its output is fresh, the candidate's is no input, no weight and no memory
    of an earlier call, no other fresh output, and no element of it stands for several. Else who writes to it
    writes to more than it. None: all are.
    """
    outputs = plan.output_tensors()
    if fresh is None:
        fresh = [True] * len(outputs)
    if len(outputs) != len(fresh):
        return None
    owners = {plan.tensors[t].storage: f"input {i}" for i, t in enumerate(tensor_ids(plan.inputs))}
    owners |= {plan.tensors[w.tensor].storage: "a weight" for w in plan.weights}
    owners |= {storage: "an earlier call" for storage, _ in plan.carried}
    seen = set()
    for number, index in enumerate(outputs):
        t, what = plan.tensors[index], None
        if not fresh[number] or 0 in t.shape:
            continue
        if t.storage in owners:
            what = f"is memory of {owners[t.storage]}"
        elif (t.storage, t.offset) in seen:
            what = "is memory of another output"
        elif overlaps_itself(t.shape, t.stride):
            what = "has one place in memory for several elements"
        if what:
            wanted = "new memory, each element in a place of its own, as torch.empty makes it"
            return f"output {number} {what}; the reference's is {wanted}"
        seen.add((t.storage, t.offset))
    return None


def overlaps_itself(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether some two elements may share a place in memory: an expanded dimension, a sliding window.

    >>> overlaps_itself((3, 4), (4, 1)), overlaps_itself((3, 4), (0, 1)), overlaps_itself((3, 4), (1, 1))
    (False, True, True)
    """
    reach = 0
    for step, n in sorted((step, n) for step, n in zip(stride, shape, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += (n - 1) * step
    return False


def steps_on_data(plan: Plan, first_alternative: bool) -> Iterator[Aten]:
    """The ATen calls that read data, in order.

    The plan is walked once with the set of storages that are known to hold no data: constants, and
    storages that were written whole by a call that reads nothing else. After a launch nothing is known
    any more, because a kernel can reach memory that it was not given.
    first_alternative: look only at the first alternative of a choice, not at all of them.
    """
    clean = {i for i, s in enumerate(plan.storages) if s.kind == "const"}
    for step in plan.steps:
        alternatives = step.alternatives if isinstance(step, Choice) else [[step]]
        if first_alternative:
            alternatives = alternatives[:1]
        after = []
        for calls in alternatives:
            left = set(clean)
            for call in calls:
                if _reads_data(plan, call, left):
                    yield call
            after.append(left)
        clean = set.intersection(*after)  # any alternative may be the one that is chosen


def _reads_data(plan: Plan, call: Call, clean: set[int]) -> bool:
    """Whether a call is ATen's and reads data.

    clean: the storages that hold no data. The call's writes are added to them or taken out.
    """
    if isinstance(call, Launch):
        clean.clear()
        return False
    written = writes_of(call)
    if _storages(plan, _data_reads(call)) <= clean:
        clean |= _storages(plan, [t for t in written if _covers(plan, t)])
        return False
    clean -= _storages(plan, written)
    return True


def _storages(plan: Plan, tensors: list[int]) -> set[int]:
    return {plan.tensors[t].storage for t in tensors}


def _covers(plan: Plan, tensor: int) -> bool:
    """Whether a tensor's elements are all of its storage.

    Strides may name an element twice, so it is not enough to count bytes.
    """
    t = plan.tensors[tensor]
    nbytes = plan.storages[t.storage].nbytes
    if 0 in t.shape:
        return nbytes == 0
    dimensions = [(stride, n) for stride, n in zip(t.stride, t.shape, strict=True) if n != 1]
    size = 1  # elements that the dimensions so far cover without a gap
    for stride, n in sorted(dimensions):
        if stride != size:
            return False
        size *= n
    return t.offset == 0 and size * DTYPES[t.dtype].itemsize == nbytes


def reads_of(call: Aten) -> list[int]:
    """The tensors among a call's arguments."""
    return tensor_ids([call.args, list(call.kwargs.values())])


def _data_reads(call: Aten) -> list[int]:
    """The same without the first argument of an operator that takes only its shape."""
    if call.name in CREATE:
        return tensor_ids([call.args[1:], list(call.kwargs.values())])
    return reads_of(call)


def writes_of(call: Aten) -> list[int]:
    """Results in new memory, the first argument of a call in place, and `out=`."""
    made = [t for t in call.outs if t is not None]
    in_place = reads_of(call)[:1] if call.name.endswith("_") else []
    return made + in_place + tensor_ids(call.kwargs.get("out"))


def touched(plan: Plan, call: Aten) -> int:
    """Bytes that a call reads and writes."""
    return sum(plan.nbytes(t) for t in reads_of(call) + writes_of(call))


def computes(plan: Plan, call: Aten) -> bool:
    """Whether a call does more than create or move data. A cast that changes values does."""
    moves = call.name in MOVE | CREATE and cast(plan, call) is None
    return not moves and not _counts(plan, call) and not _reduces_nothing(plan, call)


def _reduces_nothing(plan: Plan, call: Aten) -> bool:
    """Whether a call reduces dimensions of size 1 only, as a sum over a single split does. Then it copies."""
    if call.name not in SINGLE:
        return False
    ends = [plan.tensors[t] for t in reads_of(call)[:1] + writes_of(call)]
    dtypes = {t.dtype for t in ends}
    sizes = {math.prod(t.shape) for t in ends}
    return len(ends) == 2 and len(dtypes) == 1 and len(sizes) == 1


def _counts(plan: Plan, call: Aten) -> bool:
    """Whether a call adds a number to a counter that no other call touches.

    BatchNorm does so to its num_batches_tracked.
    """
    reads = reads_of(call)
    if call.op != "add_.Tensor" or len(reads) != 1:
        return False
    counter = plan.tensors[reads[0]]
    others = plan.output_tensors()
    for other in plan.every_call():
        if isinstance(other, Launch):
            others += other.tensors
        elif (other.op, other.args) != (call.op, call.args):
            others += reads_of(other) + writes_of(other)
    if counter.storage in _storages(plan, others):
        return False
    is_counter = math.prod(counter.shape) == 1 and counter.dtype == "int64"
    return is_counter and plan.storages[counter.storage].kind in ("weight", "carried")


def cast(plan: Plan, call: Aten) -> str | None:
    """One line on the values that a moving call computes by changing the dtype. None if it computes none.

    A cast from float to int truncates. One to bool compares. One to a narrower int takes a remainder.
    """
    if call.name not in MOVE | FILL:
        return None
    written = writes_of(call)
    sources = [t for t in reads_of(call) if t not in written]
    for target in written:
        to = DTYPES[plan.tensors[target].dtype]
        for source in sources:
            if _changes_values(plan, call, source, to):
                was = DTYPES[plan.tensors[source].dtype]
                return f"a cast from {was} to {to} computes in torch".replace("torch.", "", 2)
    return None


def _changes_values(plan: Plan, call: Aten, source: int, to: torch.dtype) -> bool:
    """Whether moving a tensor's values to the dtype `to` changes them by more than a rounding."""
    was = DTYPES[plan.tensors[source].dtype]
    if not keeps_value(was, to):
        return True
    if was == to:
        return False
    truth = was == torch.bool and call.name not in COPY
    return truth or _reinterpreted(plan, source)


def _reinterpreted(plan: Plan, tensor: int) -> bool:
    """Whether a number sees the bits of another dtype, or a truth value those of any number.

    A cast then takes a logarithm, a power, a remainder or an absolute value, or compares with 0. The bits
    may have come into the memory through any tensor of the plan. The replayer copies a truth value that is
    neither 0 nor 1 as the number that it is.
    """
    t = plan.tensors[tensor]
    own = DTYPES[t.dtype]
    if own == torch.bool:
        return plan.storages[t.storage].dtype != "bool"
    if own.is_complex:
        return False
    others = {DTYPES[name] for name in plan.seen_as[t.storage]} - {torch.bool}
    if own.is_floating_point:  # the parts of complex numbers are floats by themselves
        others = {other for other in others if not other.is_complex}
    return others != {own}


def keeps_value(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a cast keeps every value up to the rounding of a float.

    >>> keeps_value(torch.float32, torch.bfloat16), keeps_value(torch.float32, torch.int32)
    (True, False)
    >>> keeps_value(torch.int64, torch.int32)  # indices are cast to 32 bits everywhere
    True
    """
    if source == target or source == torch.bool:
        return True
    if target == torch.bool or source.is_complex or target.is_complex:
        return False
    if target.is_floating_point:
        return True
    if source.is_floating_point:
        return False
    # of the same width with another sign, half of the values would wrap around
    needed = source.itemsize + (source.is_signed != target.is_signed)
    return target.itemsize >= min(needed, 4)


def _flops(plan: Plan, call: Aten) -> float:
    """2 per multiply-add of a matrix product or a convolution.

    Any other call counts as one operation for each element of its largest operand.
    """
    shapes = [plan.tensors[t].shape for t in reads_of(call)]
    if call.name in MATMULS:
        summed = shapes[MATMULS[call.name]][-1]
        return 2.0 * math.prod(plan.tensors[call.outs[0]].shape) * summed
    if call.name == "convolution":
        summed = math.prod(shapes[1][1:])  # weight: (out channels, in channels / groups, *kernel)
        return 2.0 * math.prod(plan.tensors[call.outs[0]].shape) * summed
    shapes += [plan.tensors[t].shape for t in writes_of(call)]
    return float(max((math.prod(shape) for shape in shapes), default=0))
