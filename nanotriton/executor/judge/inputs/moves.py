"""Change arguments that a task makes the same in every draw.

They are masks, positions, lengths, tables, and Python's numbers.

A candidate that ignores such an argument, and builds the mask that it knows, is right on all that the task
draws. So they are moved, in ways that keep what a kernel may rely on: distinct indices stay distinct, offsets
stay in order, lengths do not grow. Which way a reference survives is found out by trying.

A way is a row of WAYS: a function that changes a tensor in place. `ways` says which of them fit, the best
first. `Moves` are those of one task, and reference/constants.py finds them.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.inputs import marks, structure
from nanotriton.executor.judge.inputs.draws import NOISE
from nanotriton.plan.trees import identical, leaves


def shuffle_rows(x: Tensor, generator: torch.Generator) -> None:
    """The rows of a mask or a table in another order."""
    permute(x, max(x.dim() - 2, 0), generator)


def shuffle(x: Tensor, generator: torch.Generator) -> None:
    """The elements of each row in another order, the same for all: indices stay distinct, and in range."""
    permute(x, x.dim() - 1, generator)


def shuffle_each(x: Tensor, generator: torch.Generator) -> None:
    """Each slice of the first dimension in an order of its own, so that they are no longer equal.

    What lies in a row stays together: kernels may rely on tables of angles whose halves are the same.
    """
    for part in x:
        shuffle_rows(part, generator)


def shuffle_gaps(x: Tensor, generator: torch.Generator) -> None:
    """Offsets with the same ends and the same distances, in another order."""
    gaps = x.diff(dim=-1)
    permute(gaps, gaps.dim() - 1, generator)
    x[..., 1:] = x[..., :1] + gaps.cumsum(-1)


def lower(x: Tensor, generator: torch.Generator) -> None:
    """Integers above 1 (lengths, counts) become any from 1 up to what they were."""
    share = torch.rand(x.shape, generator=generator).to(x.device)
    x.copy_(torch.where(x > 1, (share * x).floor().to(x.dtype) + 1, x))


def lift(x: Tensor, generator: torch.Generator) -> None:
    """Half of the integers become larger by 1. What was all 0 (token types, zero points) is 0 or 1."""
    x.add_((torch.rand(x.shape, generator=generator) < 1 / 2).to(x.device, x.dtype))


def thin(x: Tensor, generator: torch.Generator) -> None:
    """One integer in four becomes 0."""
    x.masked_fill_((torch.rand(x.shape, generator=generator) < 1 / 4).to(x.device), 0)


def flip(x: Tensor, generator: torch.Generator) -> None:
    """One truth value in eight is the other one."""
    x.logical_xor_((torch.rand(x.shape, generator=generator) < 1 / 8).to(x.device))


def stretch(x: Tensor, generator: torch.Generator) -> None:
    """All elements times one factor, which keeps their order."""
    x.mul_(0.75 + 0.25 * float(torch.rand((), generator=generator)))


def jitter(x: Tensor, generator: torch.Generator) -> None:
    """Each element by up to a quarter of it, or of 1 if it is 0."""
    noise = torch.rand(x.shape, generator=generator).mul_(2).sub_(1).mul_(NOISE).to(x.device, x.dtype)
    x.add_(torch.where(x == 0, noise, torch.where(x.isfinite(), noise * x, noise)))


def bare(x: Tensor, generator: torch.Generator) -> None:
    """A mask in another order, in which rows are all True and all False too."""
    for way in (shuffle_rows, shuffle, flip):
        before = x.clone()
        way(x, generator)
        if not torch.equal(x, before):
            break
    structure.bare_rows(x, generator)


def apart(x: Tensor, generator: torch.Generator) -> None:
    """Each element of a float tensor by a factor of its own, from 1/2 to 1: it is no longer equal to another
    argument. Of the rest, truth values are flipped, and half of the slices are in reverse order."""
    if x.is_floating_point():
        x.mul_(torch.rand(x.shape, generator=generator).add_(1).div_(2).to(x.device, x.dtype))
    elif x.dtype == torch.bool:
        flip(x, generator)
    elif x.dim():
        x[::2] = x[::2].flip(-1)


SLICES = 1 << 12  # of more, a loop over them takes long

Way = Callable[[Tensor, torch.Generator], None]
OWN = (
    shuffle_rows,
    shuffle,
    shuffle_each,
    shuffle_gaps,
    lower,
    lift,
    thin,
    flip,
    bare,
    stretch,
    jitter,
    apart,
)
WAYS: dict[str, Way] = {way.__name__: way for way in (*OWN, *structure.WAYS)}


def ways(t: Tensor) -> tuple[str, ...]:
    """The ways that may change a tensor which is the same in all draws, by name."""
    if not t.numel() or t.is_complex():
        return ()
    apart = ("shuffle_each",) if repeats_a_slice(t) else ()
    return (*apart, *ways_of_values(t))


def repeats_a_slice(t: Tensor) -> bool:
    """Whether it is one slice several times, such as the same positions for each sequence of a batch."""
    several = t.dim() > 1 and 1 < t.shape[0] <= SLICES and t.stride(0) > 0 and t.shape[-1] > 1
    return several and bool((t == t[:1]).all())


def ways_of_values(t: Tensor) -> tuple[str, ...]:
    if t.dtype == torch.bool:
        first = ("bare",) if structure.has_rows(t) else ()
        return (*first, "shuffle_rows", "shuffle", "flip")
    ordered = t.dim() > 0 and t.shape[-1] > 1 and bool((t.diff(dim=-1) >= 0).all())
    if t.is_floating_point():
        rises = ordered and bool((t[..., 1:] > t[..., :-1]).any())
        a_scale = rises and t.dim() == 1  # of positions or frequencies: its order stays
        return ("stretch", "jitter") if a_scale else ("shuffle_rows", "shuffle", "jitter")
    gaps = t.diff(dim=-1) if ordered else None
    if bool(((t == 0) | (t == 1)).all()) and bool((t == t.reshape(-1)[0]).all()):
        return "lift", "thin"
    if gaps is None or bool((gaps == 0).all()):
        return "shuffle_rows", "shuffle", "lower"
    # positions may come in any order, offsets may not
    return ("shuffle",) if bool((gaps == 1).all()) else ("shuffle_gaps",)


# The ways of a number of Python's: `moved_number`.
NUMBER, OTHER_WAY, FAR = "number", "other number", "far number"
NUMBERS = frozenset([NUMBER, OTHER_WAY, FAR])
AND = "+"  # between two ways of one tensor, done one after the other
UNFOLD = "unfold"  # the way of an expanded tensor: each of its elements becomes one of its own
UNFOLDED = 64 << 20  # bytes that it may take then


@dataclass(frozen=True)
class Moves:
    """The arguments of a task that are moved."""

    ways: dict[int, str] = field(default_factory=dict)  # number among the leaves of get_inputs() -> its way
    init: dict[int, str] = field(default_factory=dict)  # the same of get_init_inputs()

    def __bool__(self) -> bool:
        return bool(self.ways or self.init)

    @property
    def numbers(self) -> bool:
        """Whether numbers or strides are moved, so that a candidate has to be recorded with them."""
        return bool(self.init) or not (NUMBERS | {UNFOLD}).isdisjoint(self.ways.values())

    def of_inputs(self, given: list, seed: int) -> list:
        """The arguments of forward, moved."""
        values, changed = [leaf for _, leaf in leaves(given)], {}
        for i, way in self.ways.items():
            if way in NUMBERS:
                changed[i] = moved_number(values[i], way)
            else:
                changed[i] = moved(values[i], way, seed_from(seed, i))
        return with_leaves(given, changed)

    def of_init(self, given: list) -> list:
        """The arguments of the constructor, moved."""
        values = [leaf for _, leaf in leaves(given)]
        return with_leaves(given, {i: moved_number(values[i], way) for i, way in self.init.items()})


def unfolding(t: Tensor) -> tuple[str, ...]:
    """The way of a tensor of which several elements are one in memory."""
    shared = any(n > 1 and stride == 0 for n, stride in zip(t.shape, t.stride(), strict=True))
    return (UNFOLD,) if shared and t.numel() * t.element_size() <= UNFOLDED else ()


def permute(x: Tensor, dim: int, generator: torch.Generator) -> None:
    """Another order along one dimension.

    It is another one also where there are so few orders that the same one could come by chance.
    """
    if not x.dim():
        return
    order = torch.randperm(x.shape[dim], generator=generator).to(x.device)
    found = x.index_select(dim, order)
    x.copy_(x.roll(1, dim) if identical([found], [x]) else found)


def moved(given: Tensor, way: str, seed: int) -> Tensor:
    """A changed copy of a tensor: the task may keep the original.

    It has the same strides. What is expanded stays expanded, unless the way is to unfold it.
    """
    if way == UNFOLD:
        result = given.detach().clone(memory_format=torch.contiguous_format)
        apart(result, torch.Generator().manual_seed(seed_from("move", seed)))
        return result
    result = x = copy.deepcopy(given.detach())
    for dim, stride in enumerate(x.stride()):
        if stride == 0:
            x = x.narrow(dim, 0, 1)
    generator = torch.Generator().manual_seed(seed_from("move", seed))
    for part in filter(None, way.split(AND)):
        if part.startswith(marks.MARK):
            marks.put(x, int(part.removeprefix(marks.MARK)), generator)
        else:
            WAYS[part](x, generator)
    return result


# Below each of these sizes a small float becomes that power of two; 1/2 beyond them.
FAR_POWERS = ((1e-6, 1 / 16), (0.02, 1 / 8), (0.19, 1 / 4))


def moved_number(value: float | int | bool, way: str = NUMBER) -> float | int | bool:
    """Another number of the same sign, the same each time: a recording has it in its code.

    A float becomes a power of two: what a reference rounds by it then lies on an edge exactly, whether one
    divides or multiplies by the inverse. In the far way one below 1 becomes 1/16 to 1/2: of an eps, a weight
    decay or a learning rate near the old one no answer shows which it is. An integer is lowered by 1, and 0
    or 1 raised; the other way it is raised by 1, and 1 lowered. In the far way it is half of what it was. A
    truth value is the other one.
    """
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return moved_integer(value, way)
    if not math.isfinite(value):
        return value
    if value == 0:
        return NOISE
    if way == FAR and abs(value) < 1:
        return math.copysign(far_power(abs(value)), value)
    power = math.copysign(2.0 ** round(math.log2(abs(value))), value)
    return power if power != value else value / 2


def moved_integer(value: int, way: str) -> int:
    if way == FAR:
        return value // 2
    if value < 0:  # a dimension, counted from the end
        return value
    lowered = value > 1 if way == NUMBER else value == 1
    return value - 1 if lowered else value + 1


def far_power(size: float) -> float:
    """A power of two that is not near a number between 0 and 1. Larger ones become larger ones, save that
    numbers near 1/2 become 1/4."""
    if 0.4 < size < 0.6:
        return 1 / 4
    return next((power for limit, power in FAR_POWERS if size < limit), 1 / 2)


def with_leaves(tree, new: dict[int, object]):
    """The tree with some of its leaves replaced, by their number among all leaves."""
    rest = iter(range(len(leaves(tree))))

    def build(node):
        if isinstance(node, list | tuple):
            return type(node)(build(child) for child in node)
        if isinstance(node, dict):
            return {key: build(child) for key, child in node.items()}
        number = next(rest)
        return new.get(number, node)

    return build(tree)
