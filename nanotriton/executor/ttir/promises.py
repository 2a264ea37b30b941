"""What a kernel promises its compiler: tl.multiple_of, tl.max_contiguous, tl.max_constancy, tl.assume.

A compiler may use a promise without looking, so a false one makes a kernel wrong on some GPU. Here each is
checked on the values that the promise is about, and `FalsePromise` says where one does not hold.

Promises about a tensor are meant as Triton's AxisInfo reads them. Along an axis, `max_contiguous(x, c)` says
that every c elements, counted from the first, are consecutive numbers. `multiple_of(x, d)` says that the
first of every such group is a multiple of d. `max_constancy(x, c)` says that every c elements are equal.

Elements after a wrap to 0 are let off. Matrix products are written with `rows % M`, where the last rows are
loaded once more from the start and never stored.
"""

import re
from collections.abc import Callable

import numpy as np

from .memory import SIZES
from .ops import Step, check, full
from .types import Op, TTIRError, Type

KINDS = ("tt.divisibility", "tt.contiguity", "tt.constancy")
INTEGERS = ("i8", "i16", "i32", "i64", "ptr")


class FalsePromise(TTIRError):
    """A promise to the compiler (tl.multiple_of, tl.assume, ..) that does not hold."""


Check = Callable[[np.ndarray, object], None]  # check(value, frame)


def promise(op: Op, kind: Type, suffix: str = "") -> Check | None:
    """The check of what an operation's attributes promise about a value of this type, or None.

    suffix: "_arg1" for the promise of a loop about its block argument 1.
    """
    found = [_numbers(op, name + suffix, len(kind.shape)) for name in KINDS]
    if not any(found) or kind.elem not in INTEGERS:
        return None
    multiples, contiguous, constant = found
    step = SIZES[kind.target().elem] if kind.elem == "ptr" else 1

    def checked(value: np.ndarray, frame) -> None:
        value = full(value, kind.shape)
        for axis in range(max(1, len(kind.shape))):
            x, kept = _along(value, axis, step)
            length = x.shape[-1]
            group = min(contiguous[axis], length) if contiguous else _contiguity(x, kept, step)
            if contiguous:
                _hold(_consecutive(x, kept, step, group), "tl.max_contiguous", group, op, frame)
            if multiples:
                divides = x[..., ::group] % multiples[axis] == 0
                _hold(divides | ~kept[..., ::group], "tl.multiple_of", multiples[axis], op, frame)
            if constant:
                size = min(constant[axis], length)
                _hold(_groups(x, size) == x[..., ::size, None], "tl.max_constancy", size, op, frame)

    return checked


def promised(op: Op, step: Step | None, kind: Type) -> Step | None:
    """The step of an operation with one result, which is checked where it has promises."""
    test = promise(op, kind)
    if test is None:
        return step
    (out,) = op.results

    def checked(v, frame):
        if step is not None:
            step(v, frame)
        test(v[out], frame)

    return checked


def assume(op: Op) -> Step:
    """llvm.intr.assume: the condition is true."""
    check(len(op.operands) == 1, op)
    check(op.otypes[0].elem == "i1", op)
    (condition,) = op.operands

    def step(v, frame):
        if not v[condition].all():
            raise FalsePromise(f"{frame.evaluation.at(op)}: tl.assume is told what is false")

    return step


def _numbers(op: Op, name: str, rank: int) -> list[int] | None:
    """The numbers of `dense<16>` or `dense<[16, 1]>`, one an axis."""
    text = op.attrs.get(name)
    if text is None:
        return None
    numbers = [int(n) for n in re.findall(r"-?\d+", text.partition(":")[0])]
    axes = max(1, rank)
    check(len(numbers) in (1, axes), op)
    check(all(n > 0 for n in numbers), op)
    return numbers if len(numbers) == axes else numbers * axes


def _along(value: np.ndarray, axis: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(the value with this axis last, which of its elements come before a wrap to 0)."""
    x = value[:, None] if value.ndim == 1 else np.moveaxis(value, axis + 1, -1)
    wraps = np.zeros(x.shape, bool)
    wraps[..., 1:] = (x[..., 1:] == 0) & (x[..., :-1] >= step)
    return x, ~np.logical_or.accumulate(wraps, -1)


def _groups(x: np.ndarray, size: int) -> np.ndarray:
    """The last axis in groups of `size`: [.., groups, size]. What is left over is left out."""
    whole = x.shape[-1] // size * size
    return x[..., :whole].reshape(*x.shape[:-1], -1, size)


def _consecutive(x: np.ndarray, kept: np.ndarray, step: int, size: int) -> np.ndarray:
    """Whether each group of `size` elements, as far as it is kept, is consecutive."""
    groups = _groups(x, size)
    follows = groups - groups[..., :1] == np.arange(size) * step
    return (follows | ~_groups(kept, size)).all(-1)


def _contiguity(x: np.ndarray, kept: np.ndarray, step: int) -> int:
    """The largest power of two for which every group of so many elements is consecutive."""
    size = 1
    while size * 2 <= x.shape[-1] and _consecutive(x, kept, step, size * 2).all():
        size *= 2
    return size


def _hold(holds: np.ndarray, what: str, number: int, op: Op, frame) -> None:
    if not holds.all():
        raise FalsePromise(
            f"{frame.evaluation.at(op)}: {what}({number}) promises what is false: a compiler may rely on it"
        )
