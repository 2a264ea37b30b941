"""A reference in float64 that is moved by what rounding may do, but only where something is rounded.

The operator that first rounds what comes of an input gets that operand moved. What it computes exactly in the
task's dtype stays: `round(x * 4)` of an x at a half has one right answer, while `round(x / 3)` may fall to
either side of a half. What the task itself puts there (`masked_fill(mask, -1e9)`) is the same number in every
kernel, and stays too.

Later operators round as well, each by a little. Of most this is much less than what the inputs were moved by.
It counts where numbers cancel: a layer norm of x + 1000 has no more digits than x + 1000, and the mean of its
answers is 0 whatever x is. So every result moves by ROUNDINGS of fp32, and normalisations run in the steps
that they consist of. A mean or a variance moves even where it comes out exactly, such as that of a row of
equal numbers: another order of summation comes out beside it.

A product that the reference makes in TF32 reads ten bits of its operands, so all of them move by as much, the
weights too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from nanotriton.executor.judge.comparison.values import FLOOR, UNIT32
from nanotriton.executor.judge.task.watching import Watching, is_view, may_draw, tensors_of

# Operators that put a number of the task's text into a tensor.
PUTTING = frozenset(["masked_fill", "masked_fill_", "scalar_tensor", "full", "full_like", "fill", "fill_"])

TF32_UNIT = 2.0**-10  # what cutting a number to TF32's bits moves it by at most, as a share of it
ROUNDINGS, MORE = 2, 8  # what a result, and one of the operators below, moves by: so many times UNIT32
# They have few digits near 0 where they are computed by exponentials, as 2 * sigmoid(2 * x) - 1, exp(x) - 1
# and log(1 + exp(x)), on both sides of it or on one. expm1 and log1p are there for these digits.
AROUND_ZERO = tuple(
    f"aten::{name}"
    for name in (
        *("tanh", "erf", "sin", "sinh", "asinh", "atan", "atanh"),
        *("softplus", "log_sigmoid_forward"),
    )
)
BELOW_ZERO = ("aten::elu", "aten::celu", "aten::selu", "aten::mish", "aten::gelu")
STATISTICS = ("aten::mean", "aten::var", "aten::var_mean", "aten::std", "aten::std_mean")
NORMS = (
    "native_layer_norm.default",
    "native_group_norm.default",
    "native_batch_norm.default",
    "_native_batch_norm_legit.default",
    "_native_batch_norm_legit.no_stats",
    "cudnn_batch_norm.default",
)


@dataclass(frozen=True)
class Nudge:
    """Moves numbers by up to what rounding may do.

    shares: of a tensor's elements, how much of that each is moved by, from -1 to 1, in float64. tf32: names
    of the operators that multiply in TF32.
    """

    shares: Callable[[torch.Tensor], torch.Tensor]
    tf32: frozenset[str] = frozenset()

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor in the task's dtype, to float64, each element by up to FLOOR of itself."""
        return self.shares(t).mul_(FLOOR.get(t.dtype, 0.3)).add_(1).mul_(t.double())

    def cut(self, t: torch.Tensor) -> torch.Tensor:
        """An operand of a product in TF32, in float64: moved unless TF32 holds it."""
        held = (t.float().view(torch.int32) & 0x1FFF == 0) & (t.float() == t)
        return torch.where(held, t, self.shares(t).mul_(TF32_UNIT).add_(1).mul_(t))


class Nudging(Watching):
    """Runs operators in float64, those that round on moved operands.

    dtypes: of the tensors that come of inputs, what each would be in the task. An element that this dtype can
    hold has not been moved yet: one that has been is no such number any more. So nothing is moved twice.
    """

    def __init__(self, nudge: Nudge):
        super().__init__()
        self.nudge = nudge
        self.dtypes = WeakIdKeyDictionary()
        self.constants: set[float] = set()  # numbers that operators put into tensors

    def follow(self, t: torch.Tensor, dtype: torch.dtype) -> None:
        """An input in float64, and its dtype in the task."""
        self.dtypes[t] = dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in PUTTING:
            self.constants.update(n for n in args if isinstance(n, float))
        dtypes = [self.dtypes[t] for t in tree_leaves((args, kwargs)) if self._follows(t)]
        if not dtypes:
            return func(*args, **kwargs)
        if steps := steps_of_norms().get(func):
            with self:
                return steps(*args, **kwargs)
        dtype = widest(dtypes)
        if dtype == torch.float32 and func.overloadpacket.__name__ in self.nudge.tf32:
            args, kwargs = tree_map(self._cut, (args, kwargs))
        out = self._run(func, args, kwargs, dtype)
        for t in tensors_of(out):
            if t.is_floating_point():
                self.dtypes[t] = dtype
                # float8 holds what was cast to it, and torch has no arithmetic in it
                if not is_view(func) and dtype != torch.float64 and t.itemsize > 1:
                    self._round(t, func, dtype)
        return out

    def _run(self, func, args: tuple, kwargs: dict, dtype: torch.dtype) -> object:
        """What an operator returns; where that is rounded, of moved operands."""
        moved = None
        # a view shares its operand's memory, and a draw would come out otherwise
        if not is_view(func) and not may_draw(func, args, kwargs):
            # before it runs, because it may write to its operands
            moved = tree_map(self._operand, (args, kwargs))
        out = func(*args, **kwargs)
        made = tensors_of(out)
        if moved is not None and any(bool(rounded(t, dtype).any()) for t in made):
            again = tensors_of(func(*moved[0], **moved[1]))
            for t, other in zip(made, again, strict=True):
                t.copy_(torch.where(rounded(t, dtype), other, t))
        return out

    def _round(self, t: torch.Tensor, func, dtype: torch.dtype) -> None:
        """Move a result by its own rounding, in place."""
        statistic = func._schema.name in STATISTICS
        absolute = few_digits(t, func._schema.name)
        size = torch.where(absolute, t.abs().clamp(min=1), t.abs())
        count = torch.where(absolute | statistic, MORE * UNIT32, ROUNDINGS * UNIT32)
        step = self.nudge.shares(t).mul_(count).mul_(size)
        t.add_(step if statistic else torch.where(absolute | rounded(t, torch.float32), step, 0.0))

    def _follows(self, value) -> bool:
        return isinstance(value, torch.Tensor) and value in self.dtypes

    def _cut(self, value):
        floats = isinstance(value, torch.Tensor) and value.dtype == torch.float64
        return self.nudge.cut(value) if floats else value

    def _operand(self, value):
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self.dtypes:
            return value.clone()
        dtype = self.dtypes[value]
        stays = rounded(value, dtype)
        for number in self.constants:
            stays |= value == number
        return torch.where(stays, value, self.nudge(value.to(dtype)).to(value.dtype))


@cache
def steps_of_norms() -> dict[Callable, Callable]:
    """{a normalisation's operator: torch's own formula for it, of smaller operators}."""
    from torch._decomp import decomposition_table  # takes a second, and few candidates need it

    found = {}
    for name in NORMS:
        packet, overload = name.split(".")
        if packet := getattr(torch.ops.aten, packet, None):
            operator = getattr(packet, overload)
            found[operator] = decomposition_table[operator]
    return found


def few_digits(t: torch.Tensor, name: str) -> torch.Tensor:
    """Where a result of this operator may be the difference of a number near 1 and 1. In float64
    tanh(1e-8) is 1e-8, which looks exact.
    """
    name = name.removesuffix("_")
    if name in AROUND_ZERO:
        return t != 0
    return t < 0 if name in BELOW_ZERO else torch.zeros_like(t, dtype=torch.bool)


def rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where a number is none of this dtype. What is no float is never rounded."""
    if not t.is_floating_point():
        return torch.zeros_like(t, dtype=torch.bool)
    return (t.to(dtype).to(t.dtype) != t) & ~t.isnan()


def widest(dtypes: list[torch.dtype]) -> torch.dtype:
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = torch.promote_types(found, dtype)
    return found
