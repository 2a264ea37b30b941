"""Moves that are the work: torch copies, casts and joins so that nothing is left for a kernel to compute.

Under strict torch may move data. Four kinds of moving do what a kernel should do, and are refused:

    rounding      A cast to a coarser float rounds. Where it is cast back, or where the task itself rounds,
                  torch has computed that.
    windows       A copy of a sliding window, or of many shifted slices, is the gathering of a convolution or
                  of a scan.
    pieces        One buffer put together of many pieces of another is a gather, a permutation or a sort.
    too much      More bytes than three times what the whole reference reads and writes.
"""

from collections import defaultdict
from collections.abc import Iterator

import torch

from nanotriton.plan.facts import COPY, Facts, overlaps_itself, reads_of, writes_of
from nanotriton.plan.plan import DTYPES, Aten, Plan
from nanotriton.rules.policy import Violation

JOINS = frozenset({"cat", "stack"})
REPEATS = 2.5  # how often moves may read a storage, in views that differ
SMALL = 64  # bytes: of a smaller storage nothing is said
PIECES = 16  # of one storage that moves may put into another
SHARE = 3.0  # of the bytes that the reference reads and writes
SLACK = 1 << 14  # bytes that any candidate may move


def moving_work(plan: Plan, calls: list[Aten], moved: int, reference: Facts | None) -> Violation | None:
    """The first of these moves, or None.

    calls: the plan's moving calls on data, in order. moved: the bytes that they read and write, of one
    alternative of each choice. reference: facts of the reference module, None where they are unknown.
    """
    rounds = reference is not None and reference.rounds
    for line, what in [*_rounding(plan, calls, rounds), *_windows(plan, calls), *_pieces(plan, calls)]:
        return _violation(line, what)
    if reference is not None and reference.traffic and moved > SHARE * reference.traffic + SLACK:
        times = f"{moved / reference.traffic:.1f} times what the reference reads and writes"
        return _violation(0, f"torch moves {moved} bytes, {times} (a kernel can read any strides)")
    return None


def _violation(line: int, what: str) -> Violation:
    return Violation(line or None, f"{what}: under strict, your own Triton kernels do the work")


def _sources(call: Aten) -> list[int]:
    written = writes_of(call)
    return [t for t in reads_of(call) if t not in written]


def _rounding(plan: Plan, calls: list[Aten], task_rounds: bool) -> Iterator[tuple[int, str]]:
    """Casts that round for the candidate. The answer itself may be cast to its dtype."""
    rounded: set[int] = set()  # storages that hold what a cast has rounded
    answers = {plan.tensors[t].storage for t in plan.output_tensors()}
    for call in calls:
        for target in writes_of(call):
            to = plan.tensors[target]
            for source in _sources(call):
                was = plan.tensors[source]
                coarser = is_coarser(DTYPES[was.dtype], DTYPES[to.dtype])
                if coarser and task_rounds and to.storage not in answers:
                    what = f"a cast from {was.dtype} to {to.dtype} rounds in torch"
                    yield call.line, f"{what}, where the task rounds"
                finer = is_coarser(DTYPES[to.dtype], DTYPES[was.dtype])
                if was.storage in rounded and finer:
                    yield call.line, f"casts to {was.dtype} and back to {to.dtype} round in torch"
                if coarser or was.storage in rounded:
                    rounded.add(to.storage)


def is_coarser(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a cast between floats rounds, or cuts the range.

    >>> is_coarser(torch.float32, torch.bfloat16), is_coarser(torch.bfloat16, torch.float32)
    (True, False)
    """
    if not (source.is_floating_point and target.is_floating_point) or source == target:
        return False
    ours, theirs = torch.finfo(source), torch.finfo(target)
    return theirs.eps > ours.eps or theirs.max < ours.max


def _windows(plan: Plan, calls: list[Aten]) -> Iterator[tuple[int, str]]:
    """Copies in which elements come up again and again."""
    seen: dict[int, set[int]] = defaultdict(set)  # storage -> the tensors of it that were moved
    read: dict[int, int] = defaultdict(int)  # storage -> their bytes
    for call in calls:
        for source in _sources(call):
            t = plan.tensors[source]
            moving = [(n, step) for n, step in zip(t.shape, t.stride, strict=True) if step]
            if overlaps_itself(tuple(n for n, _ in moving), tuple(step for _, step in moving)):
                yield call.line, f"torch.{call.name} copies a sliding window"
            nbytes = plan.storages[t.storage].nbytes
            if nbytes < SMALL or source in seen[t.storage]:
                continue
            seen[t.storage].add(source)
            read[t.storage] += plan.nbytes(source)
            if read[t.storage] > REPEATS * nbytes:
                views = len(seen[t.storage])
                yield (
                    call.line,
                    f"torch.{call.name} and others copy the same data over and over, in {views} views",
                )


def _pieces(plan: Plan, calls: list[Aten]) -> Iterator[tuple[int, str]]:
    """Buffers that are put together of many pieces of another one, each copied by itself first or not."""
    pieces: dict[tuple[int, int], set[int]] = defaultdict(set)
    cut: dict[int, tuple[int, int]] = {}  # storage of a copy -> (storage that it was cut from, the piece)
    for call in calls:
        if call.name not in COPY | JOINS:
            continue
        sources = _sources(call)
        for target in writes_of(call):
            into = plan.tensors[target].storage
            for source in sources:
                own = plan.tensors[source].storage
                root, piece = cut.get(own, (own, source))
                if len(sources) == 1 and target in call.outs:
                    cut[into] = root, piece
                found = pieces[root, into]
                found.add(piece)
                if len(found) > PIECES:
                    what = f"puts one tensor together of more than {PIECES} pieces of another"
                    yield call.line, f"torch.{call.name} {what}"
