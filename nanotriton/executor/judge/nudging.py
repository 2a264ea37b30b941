"""A reference in float64 whose inputs are moved by what rounding may do, but only where something is rounded.

The operator that first rounds what comes of an input gets that operand moved. What it computes exactly in the
task's dtype stays: `round(x * 4)` of an x at a half has one right answer, while `round(x / 3)` may fall to
either side of a half. What the task itself puts there (`masked_fill(mask, -1e9)`) is the same number in every
kernel, and stays too.
"""

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from nanotriton.executor.judge.watching import Watching, is_view

# Operators that put a number of the task's text into a tensor.
PUTTING = frozenset(["masked_fill", "masked_fill_", "scalar_tensor", "full", "full_like", "fill", "fill_"])

Nudge = Callable[[torch.Tensor], torch.Tensor]  # of a tensor in the task's dtype, to float64


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
        dtype, moved = widest(dtypes), None
        if may_round(func):  # before it runs, because it may write to its operands
            moved = tree_map(self._operand, (args, kwargs))
        out = func(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if moved is not None and any(bool(rounded(t, dtype).any()) for t in made):
            again = [t for t in tree_leaves(func(*moved[0], **moved[1])) if isinstance(t, torch.Tensor)]
            for t, other in zip(made, again, strict=True):
                t.copy_(torch.where(rounded(t, dtype), other, t))
        for t in made:
            if t.is_floating_point():
                self.dtypes[t] = dtype
        return out

    def _follows(self, value) -> bool:
        return isinstance(value, torch.Tensor) and value in self.dtypes

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


def may_round(func) -> bool:
    """Neither a view, which shares its operand's memory, nor a draw, which would come out otherwise."""
    return not is_view(func) and torch.Tag.nondeterministic_seeded not in func.tags


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
