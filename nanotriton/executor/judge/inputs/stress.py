"""Stress kinds: what is done to a freshly drawn tensor, so that a kernel which is right on the task's own
numbers alone gives itself away.

A stress kind is a row of KINDS: the steps that are done to the tensor, in order. Each step is a function.
Integers and booleans are left alone.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

LARGE, SMALL = 64.0, 1 / 64
DEEP = 200.0  # exp(-200) is 0 in fp32
SMALLEST = 2.0**-100  # a root mean square that is less counts as 0
RUN = 16  # columns of which one lies above the others and one below
# Root mean squares of rows beside which an eps counts, from 1e-5 within a root to 1e-12 beside a norm.
FAINT = (1e-3, 3e-5, 1e-6)


class Luck:
    """Random numbers for the steps. Those for each element are drawn where the tensor is: a CPU takes a
    second for what a GPU does in a millisecond. Single ones are drawn on the host, where nothing waits for a
    GPU.

    literals: numbers of the task's text (literals.py). faint: what `faint_alone` has chosen in other tensors
    of the draw, {size of a dimension: indices}."""

    def __init__(
        self,
        generator: torch.Generator,
        device: torch.device,
        literals: tuple[float, ...] = (),
        faint: dict[int, set[int]] | None = None,
    ):
        self.literals = literals
        self.faint = {} if faint is None else faint
        self.host = self.local = generator
        self.device = device
        if device.type != "cpu":
            seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
            self.local = torch.Generator(device).manual_seed(int(seed))

    def number(self, low: float, high: float) -> float:
        return float(torch.empty((), device="cpu").uniform_(low, high, generator=self.host))

    def below(self, n: int) -> int:
        return min(int(self.number(0, 1) * n), n - 1)

    def uniform(self, shape, low: float = 0.0, high: float = 1.0) -> Tensor:
        fresh = torch.empty(shape, dtype=torch.float32, device=self.device)
        return fresh.uniform_(low, high, generator=self.local)

    def normal(self, shape, deviation: float) -> Tensor:
        fresh = torch.empty(shape, dtype=torch.float32, device=self.device)
        return fresh.normal_(0, deviation, generator=self.local)


# ---- steps: each distorts a tensor in place ----


def signs(x: Tensor, luck: Luck) -> None:
    """Half of all elements change their sign. A task on `rand` alone never sees a negative number."""
    x.mul_((luck.uniform(x.shape) < 0.5).to(x.dtype).mul_(-2).add_(1))


def factors(x: Tensor, luck: Luck) -> None:
    """A scale from 1/2 to 4, and factors from 1/2 to 2 along one dimension. A constant factor of the draw is
    no longer that of the answer."""
    x.mul_(2.0 ** luck.number(-1, 2))
    if x.dim():
        dim = luck.below(x.dim())
        shape = [1] * x.dim()
        shape[dim] = x.shape[dim]
        x.mul_(torch.exp2(luck.uniform(shape, -1, 1)).to(x.dtype))


def apart(x: Tensor, luck: Luck) -> None:
    """Of each run of columns of the last dimension one lies above the others, and one below, by twice the
    RMS.

    All rows choose the same expert, whose capacity is not enough for them. A gate stays open for a whole
    sequence, so that what lies far back counts. A variance in one pass loses a digit, which fp32 has.
    """
    n = x.shape[-1] if x.dim() else 0
    if n < 3:
        return
    width = min(RUN, n)
    runs = n // width
    first = torch.arange(runs, device=x.device) * width
    above = (luck.uniform(runs) * width).long().clamp_(max=width - 1)
    below = (above + 1 + (luck.uniform(runs) * (width - 1)).long().clamp_(max=width - 2)) % width
    offset = torch.zeros(n, device=x.device)
    offset[first + above], offset[first + below] = 2, -2
    x.add_((offset * x.float().square().mean().sqrt()).to(x.dtype))


def one_sign(x: Tensor, luck: Luck) -> None:
    """One slice of the first dimension, and one of the last, has no negative number: a minimum that starts at
    0, or that is padded with 0, shows. What is all negative is the business of `sink`."""
    for dim in {0, x.dim() - 1} if x.dim() else ():
        if x.shape[dim] > 1:
            x.select(dim, luck.below(x.shape[dim])).abs_()


def tails(x: Tensor, luck: Luck) -> None:
    """Log-normal factors, so that a few elements are ten times the others, and an offset."""
    x.mul_(luck.normal(x.shape, 0.8).exp_().to(x.dtype)).add_(luck.number(-1.5, 1.5))


def slices(x: Tensor, luck: Luck) -> list[tuple[int, int]]:
    """What lies last is large in the first and in the last dimension, another slice of each is small.

    Exponentials overflow unless the maximum is subtracted, an epsilon counts, a tail that is left out shows.
    Returns [(dimension, index of its small slice)].
    """
    found = []
    outer = {0, x.dim() - 1}
    for dim in range(x.dim()):
        n = x.shape[dim]
        if n == 1:
            continue
        index = luck.below(n - 1)
        small = x.select(dim, index).mul_(SMALL)
        if dim in outer:
            large = x.select(dim, n - 1)
            # once, where two large slices meet: attention scores, which are products, stay below the 1e6 that
            # many kernels take for infinity, and fp16 has room for them
            if found and found[0][0] == 0 and dim:
                large.select(0, x.shape[0] - 1).div_(LARGE)
            large.mul_(LARGE)
        # small as a whole, for norms over all dimensions but this one: without what is large
        for other in outer - {dim}:
            last = x.shape[other]
            if last > 1:
                small.select(other - (other > dim), last - 1).div_(LARGE)
        found.append((dim, index))
    return found


def padded_slices(x: Tensor, luck: Luck) -> list[tuple[int, set[int]]]:
    """As `slices`, and one slice is zeros, where norms divide by nothing, signs vanish and all
    elements tie.

    Returns [(dimension, indices of its slices that are not as usual)].
    """
    found = []
    for dim, small in slices(x, luck):
        n = x.shape[dim]
        zero = (small + 1) % (n - 1)
        if n > 2:
            x.select(dim, zero).fill_(0)
        found.append((dim, {small, zero, n - 1}))
    return found


def faint_slices(x: Tensor, luck: Luck) -> None:
    """As `padded_slices`, and some of the others are faint."""
    for dim, taken in padded_slices(x, luck):
        make_faint(x, dim, taken, luck)


def faint_alone(x: Tensor, luck: Luck) -> None:
    """Some slices of each dimension are faint, and none is large: where exponentials overflow.

    They are others than those of the tensors before: of two rows that are both faint a product is nothing.
    """
    for dim, n in enumerate(x.shape):
        taken = luck.faint.setdefault(n, set())
        if 2 * len(taken) < n:
            make_faint(x, dim, taken, luck)


def make_faint(x: Tensor, dim: int, taken: set[int], luck: Luck) -> None:
    """Up to three slices are as small as an eps is: another one, or one at another place, shows. What lies in
    them keeps its proportions, so no digit is lost. taken: those that may not be chosen."""
    sizes, n = list(FAINT), x.shape[dim]
    for _ in range(min(len(sizes), n // 4)):
        size = sizes.pop(luck.below(len(sizes)))
        index = nth_free(luck.below(n - len(taken)), taken)
        taken.add(index)
        part = x.select(dim, index)
        rms = part.float().square().mean().sqrt().clamp(min=size)
        part.copy_((part.float() * (size / rms)).to(x.dtype))


def nth_free(number: int, taken: set[int]) -> int:
    """The index with this number among 0, 1, 2, ... without those that are taken. A dimension may have 2^27,
    so nobody lists them.
    >>> [nth_free(i, {0, 3}) for i in range(4)]
    [1, 2, 4, 5]
    """
    for index in sorted(taken):
        number += index <= number
    return number


def sink(x: Tensor, luck: Luck) -> None:
    """All elements are below -200, and differ: a maximum that starts at 0 shows, and so does a
    padding of 0.

    They differ by about as much as they lie below 0: a variance in one pass, which loses the square of
    mean over deviation, has nothing to lose here.
    """
    apart = (x.float() - x.float().mean()).abs_()
    usual = apart.square().mean().sqrt().clamp_(min=1e-6)
    x.copy_(-(DEEP + 1 + DEEP * apart / usual))


def ties(x: Tensor, luck: Luck) -> None:
    """Half of the elements become multiples of 2, 1, 1/2 ... 1/64: they lie on the edges where rounding,
    integer division and comparison decide.

    Not the large ones: a scale that is made of a row's maximum would put half of the row on an edge that
    rounding errors decide.
    """
    step = torch.exp2((luck.uniform(x.shape) * 8).floor_().sub_(1))
    snapped = (x.float() * step).round_().div_(step).to(x.dtype)
    usual = x.float().square().mean().sqrt()
    chosen = (luck.uniform(x.shape) < 0.5) & (x.abs() <= usual)
    x.copy_(torch.where(chosen, snapped, x))


def equals(x: Tensor, luck: Luck) -> None:
    """Half of the elements become multiples of about half the RMS, large ones too: of the largest some are
    equal, whatever the dimension along which the task looks for them."""
    usual = x.float().square().mean().sqrt().clamp_(min=SMALLEST)
    step = torch.exp2(usual.log2().floor_() - 1)
    snapped = (x.float() / step).round_().mul_(step).to(x.dtype)
    x.copy_(torch.where(luck.uniform(x.shape) < 0.5, snapped, x))


def at_literals(x: Tensor, luck: Luck) -> None:
    """One element in 16 is a number of the task's text or its negative, or next to one: as far as that lies
    within the range of x."""
    eps, found = torch.finfo(x.dtype).eps, []
    for number in luck.literals:
        found += [sign * number * step for sign in (1, -1) for step in (1, 1, 1 - eps, 1 + eps)]
    if not found:
        return
    numbers = torch.tensor(found, dtype=torch.float64).to(x.device, x.dtype)
    chosen = numbers[(luck.uniform(x.shape) * len(found)).long().clamp_(max=len(found) - 1)]
    inside = (chosen >= x.min()) & (chosen <= x.max())
    x.copy_(torch.where((luck.uniform(x.shape) < 1 / 16) & inside, chosen, x))


def lean(x: Tensor, luck: Luck) -> None:
    """Of what lies between 0 and 1, a third of the elements moves near 0, and a third near 1."""
    if not within(x, 0, 1):
        return
    chance = luck.uniform(x.shape)
    power = x.float().pow(6)
    near = torch.where(chance < 1 / 3, power, torch.where(chance > 2 / 3, 1 - power, x.float()))
    x.copy_(near.to(x.dtype))


def edges(x: Tensor, luck: Luck) -> None:
    """Of what lies between 0 and 1 (probabilities, labels), one element in eight is 0, one is 1,
    and one is 1/2."""
    if not within(x, 0, 1):
        return
    lean(x, luck)
    chance = luck.uniform(x.shape)
    x.masked_fill_(chance < 1 / 8, 0).masked_fill_(chance > 7 / 8, 1)
    x.masked_fill_((chance > 3 / 8) & (chance < 4 / 8), 0.5)


def wild(x: Tensor, luck: Luck) -> None:
    """One element in 24 is NaN, one is infinity and one is minus infinity."""
    chance = luck.uniform(x.shape) * 24
    x.masked_fill_(chance < 1, math.nan).masked_fill_((chance >= 1) & (chance < 2), math.inf)
    x.masked_fill_((chance >= 2) & (chance < 3), -math.inf)


def holes(x: Tensor, luck: Luck) -> None:
    """One element in 16 is NaN."""
    x.masked_fill_(luck.uniform(x.shape) < 1 / 16, math.nan)


def infinite(x: Tensor, luck: Luck) -> None:
    """One element in 16 is infinity."""
    x.masked_fill_(luck.uniform(x.shape) < 1 / 16, math.inf)


def beyond(x: Tensor, luck: Luck) -> None:
    """One element in 16 is beyond int32, or beyond int16 if the dtype has no larger numbers: to round by a
    cast to an integer is wrong there."""
    low = 31.0 if torch.finfo(x.dtype).max > 2.0**34 else 15.0
    size = torch.exp2(luck.uniform(x.shape, low, low + 0.9)) * luck.uniform(x.shape, -1, 1).sign()
    x.copy_(torch.where(luck.uniform(x.shape) < 1 / 16, size.to(x.dtype), x))


def soften(x: Tensor, luck: Luck) -> None:
    """Half of the labels 0 and 1 become numbers in between."""
    chance = luck.uniform(x.shape, -1, 1).to(x.dtype)
    x.copy_(torch.where(chance > 0, chance, x))


# ---- kinds ----

Step = Callable[[Tensor, Luck], object]
KINDS: dict[str, tuple[Step, ...]] = {
    "plain": (),
    "scaled": (signs, factors, apart, one_sign),
    "tied": (signs, factors, apart, one_sign, ties, at_literals),
    "equals": (signs, factors, apart, one_sign, ties, at_literals, equals),
    "scaled beside faint": (signs, factors, apart, one_sign, faint_alone),
    "tied beside faint": (signs, factors, apart, one_sign, ties, at_literals, faint_alone),
    "equals beside faint": (signs, factors, apart, one_sign, ties, at_literals, equals, faint_alone),
    "positive": (factors,),  # signs are kept, for tasks that take logarithms or roots
    "tied positive": (factors, ties, at_literals),
    "heavy": (signs, tails),
    "uneven": (signs, tails, slices),
    "padded": (signs, tails, padded_slices),
    "faint": (signs, tails, faint_slices),
    "faint heavy": (signs, tails, faint_alone),
    "uneven positive": (factors, slices),
    "padded positive": (factors, padded_slices),
    "faint positive": (factors, faint_slices),
    "sunk": (tails, sink),
    "inside": (lean,),  # for tasks that take probabilities and nothing else
    "edges": (edges,),
    "wild": (wild,),
    "holes": (holes,),
    "infinite": (infinite,),
    "beyond": (signs, beyond),
}
# Of several tensors only the first that is drawn is distorted.
ONCE = frozenset(["sunk", "holes", "infinite", "beyond"])
# Only the first is distorted so, others in another way: of two rows that are both faint a product is nothing.
FIRST_ALONE = {"faint": "padded", "faint heavy": "heavy", "faint positive": "padded positive"}
# All but the first are distorted so, and that in another way: an eps beside them counts too.
OTHERS_ALONE = {
    "scaled beside faint": "scaled",
    "tied beside faint": "tied",
    "equals beside faint": "equals",
}
# Under these a task's constants are moved too. What it makes of zeros or ones alone (a first state, a mask to
# be) is drawn: floats up to 0.25 off; when padded, one truth value in eight is the other one, and one integer
# 1 in eight is 0. What it makes of other numbers is scaled as a whole, which keeps its order.
PADDED = frozenset(["padded", "faint", "padded positive", "faint positive"])
CONSTANTS_TOO = PADDED | {"uneven", "uneven positive"}


def distort(
    x: Tensor,
    kind: str,
    generator: torch.Generator,
    literals: tuple[float, ...] = (),
    faint: dict[int, set[int]] | None = None,
) -> None:
    """Do a kind's steps to a tensor in place; integers and truth values are left alone.

    Both parts of complex numbers are distorted alike. faint: that of Luck.
    """
    if x.is_complex() and not x.is_conj():
        state = generator.get_state()
        for part in torch.view_as_real(x.detach()).unbind(-1):
            generator.set_state(state)
            distort(part, kind, generator, literals)
    if not x.is_floating_point() or not x.numel():
        return
    with torch.no_grad():
        x, luck = x.detach(), Luck(generator, x.device, literals, faint)
        for step in KINDS[kind]:
            step(x, luck)


def kind_of(kind: str, number: int) -> str:
    """The kind that a tensor is distorted under, by its number among those that a draw of `kind` distorts."""
    return (FIRST_ALONE if number else OTHERS_ALONE).get(kind, kind)


def within(x: Tensor, low: float, high: float) -> bool:
    return bool(((x >= low) & (x <= high)).all())
