"""Which of equal numbers comes first is anyone's choice: argmax, topk, sort, median, mode.

`Choices` watches the reference and notes which of its integers are such choices, and between which numbers.
`Ordered` lets it choose in a certain order: so what it computes of places shows how much it depends on them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from nanotriton.executor.judge.comparison.values import FLOOR
from nanotriton.executor.judge.task.watching import Watching, new_memory, tensors_of
from nanotriton.plan.aten import words
from nanotriton.plan.trees import identical, tensors

# Operators that choose: of their results the integer one says where along a dimension the chosen lie.
CHOOSING = words("argmax argmin argsort cummax cummin kthvalue max median min mode nanmedian sort topk")
# Of these torch's documentation promises the first of equal numbers. It is a promise about numbers that are
# given: of numbers that are computed, rounding decides which are equal.
FIRST = words("argmax argmin max min")
# Operators after which integers stand in the same order as before.
KEEPING = words("_to_copy _unsafe_view alias clone detach expand reshape squeeze unsqueeze view")
NEAR = 1e-3  # times FLOOR of the largest number beside them: two that differ by less are equal too


@dataclass(frozen=True)
class Choice:
    """values: what was chosen from. dim: the dimension along which. free: any of equals may be chosen."""

    values: torch.Tensor
    dim: int
    free: bool


class Choices(Watching):
    """Runs a reference as it is. outputs: its tensors afterwards, so that `of` can tell which were chosen."""

    def __init__(self):
        super().__init__()
        self.known = WeakIdKeyDictionary()
        self.outputs: list[torch.Tensor] = []
        self.made: set[int] = set()  # addresses of storages that operators made

    def of(self, number: int) -> Choice | None:
        """The choice behind an output, counted over the tensors of the answer."""
        return self.known.get(self.outputs[number]) if number < len(self.outputs) else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out, name = func(*args, **kwargs), func.overloadpacket.__name__
        results = tensors_of(out)
        self.made |= new_memory(func, out)
        made = [t for t in results if t.dtype in (torch.int64, torch.int32)]
        if len(made) != 1:
            return out
        if name in CHOOSING:
            names = [a.name for a in func._schema.arguments]
            dim = dict(zip(names, args), **kwargs).get("dim", None if name.startswith("arg") else -1)
            free = name not in FIRST or args[0].untyped_storage().data_ptr() in self.made
            self._choose(args[0], made[0], dim, free)
        elif name in KEEPING and args[0] in self.known and args[0].numel() == made[0].numel():
            self.known[made[0]] = self.known[args[0]]
        return out

    def _choose(self, values: torch.Tensor, places: torch.Tensor, dim: int | None, free: bool) -> None:
        if dim is None:
            values, dim = values.reshape(-1), 0
        self.known[places] = Choice(values.clone(), dim % max(1, values.dim()), free)


class Ordered(Watching):
    """Runs a reference so that topk and sort take the first of equal numbers, or the last.

    chose: whether they were called, where torch promises no order.
    """

    def __init__(self, last: bool):
        super().__init__()
        self.last, self.chose = last, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, given = func.overloadpacket.__name__, self._given(func, args, kwargs)
        if name not in ("topk", "sort") or "out" in kwargs or given.get("stable") or not args[0].dim():
            return func(*args, **kwargs)
        self.chose = True
        x, dim = args[0], given["dim"]
        descending = given["largest"] if name == "topk" else given["descending"]
        values, places = torch.sort(
            x.flip(dim) if self.last else x, stable=True, dim=dim, descending=descending
        )
        if self.last:
            places = x.shape[dim] - 1 - places
        size = given["k"] if name == "topk" else x.shape[dim]
        return tuple(t.narrow(dim, 0, size).contiguous() for t in (values, places))

    def _given(self, func, args: tuple, kwargs: dict) -> dict:
        """A call's arguments by their names, with defaults."""
        arguments = func._schema.arguments
        found = {a.name: a.default_value for a in arguments if a.has_default_value()}
        return found | dict(zip([a.name for a in arguments], args, strict=False)) | kwargs


def indifferent(run: Callable[[Watching], object]) -> bool:
    """Whether an answer stays the same whichever of equal numbers topk and sort choose, but for the places of
    these themselves. Other operators that choose are not asked.

    run: gives the reference's answer, watched.
    """
    choices = Choices()
    found = choices.outputs = tensors(run(choices))
    for last in (False, True):
        others = tensors(run(Ordered(last)))
        for i, (x, y) in enumerate(zip(found, others, strict=True)):
            if choices.of(i) is None and not identical([x], [y]):
                return False
    return True


def settled(got: torch.Tensor, own: torch.Tensor, choice: Choice) -> torch.Tensor:
    """Places that were got, each replaced by the reference's if it names an equal number.

    A place that is named twice where the reference names it once is left as it is.
    """
    values = choice.values
    if not values.dim() or not choice.free:
        return got
    shape = list(values.shape)
    shape[choice.dim] = -1
    places, theirs = got.reshape(shape).long(), own.reshape(shape).long()
    size = values.shape[choice.dim]
    inside = (places >= 0) & (places < size)
    mine, right = (values.gather(choice.dim, p.clamp(0, size - 1)).double() for p in (places, theirs))
    near = torch.zeros_like(right)
    if values.is_floating_point():
        floor = FLOOR.get(values.dtype, 0.3)
        largest = values.double().abs().nan_to_num(0.0, 0.0, 0.0).amax(choice.dim, keepdim=True)
        near = floor * (right.abs() + NEAR * largest)
    equal = inside & ((mine == right) | ((mine - right).abs() <= near) | (mine.isnan() & right.isnan()))
    if repeated(places, choice.dim) and not repeated(theirs, choice.dim):
        return got
    return torch.where(equal, theirs, places).reshape(own.shape).to(own.dtype)


def repeated(places: torch.Tensor, dim: int) -> bool:
    """Whether one place is named twice along the dimension."""
    ordered = places.sort(dim)[0]
    return bool((ordered.diff(dim=dim) == 0).any())
