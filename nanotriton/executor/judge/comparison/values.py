"""Errors of one output, measured: what checks.py looks at.

Both answers are walked in float64 pieces, and all that is found comes to the host at once, so that a
comparison waits for a GPU once. In this file `got`, `own` and `exact` are one output: the candidate's, the
reference's in the task's dtype, and the reference's in float64 (None: there is none). w stands for the
float64 value, g and o for the other two. An error is (g - w) / (|w| + rms), with rms the root mean square
of the float64 output.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

FLOOR = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.float8_e4m3fn: 0.13,
    torch.float8_e5m2: 0.26,
}
# Others: 3, because their own rounding is all the error there should be.
SLACK = {torch.float64: 10.0, torch.float32: 10.0}
REDUCED_SLACK = 2.0
# The most that rounding to nearest moves a number by, as a share of it.
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-9}
UNIT32 = 2.0**-24
CHUNK, GPU_CHUNK = 1 << 22, 1 << 23  # elements compared at a time, in a dozen float64 temporaries
SMALL = 64  # values of an output that is compared value by value
BREAKDOWN = 10  # times FLOOR: a reference with such errors of its own in many places says nothing
TINY = 64.0  # times itself: the scale of a value that is far smaller than the others of a small output
COARSE = 0.1  # of itself: more than that is no rounding


@dataclass(frozen=True)
class Precision:
    """What a reference's own arithmetic earns every candidate.

    length: the most numbers that it sums for one value. reduced: its fp32 products are rounded to TF32, as
    those of convolutions are on a GPU by torch's default. near_zero: it calls a function that keeps the
    digits of an input near 0, such as expm1, and so must a candidate.
    """

    length: int = 1
    reduced: bool = False
    near_zero: bool = False

    def floor(self, dtype: torch.dtype) -> float:
        """FLOOR, but for fp32 never below what one accumulator earns over a sum of `length` numbers.

        Its error grows as a random walk, sqrt(length) roundings, and we allow twice that. TF32 has as many
        bits as fp16.
        """
        floor = FLOOR.get(dtype, 0.3)
        if dtype != torch.float32:
            return floor
        if self.reduced:
            floor = FLOOR[torch.float16]
        return max(floor, 2 * UNIT32 * math.sqrt(self.length))

    def slack(self, dtype: torch.dtype) -> float:
        """SLACK. Two ways to multiply in TF32 are no further apart than twice what one of them is off."""
        if self.reduced and dtype == torch.float32:
            return REDUCED_SLACK
        return SLACK.get(dtype, 3.0)


FULL = Precision()


@dataclass(frozen=True)
class Usual:
    """What an output of few values is on other draws, value by value: flat tensors in float64.

    A loss, an entropy or a mean may come near 0 by chance, or because a softmax saturates. How near says
    nothing about what its terms earn; what usually stands in its place does.

    size: RMS of the float64 values. error: RMS of what the reference's own dtype earns there.
    """

    size: torch.Tensor
    error: torch.Tensor


@dataclass(frozen=True)
class Moments:
    """Sums over the elements of an answer whose error e is within FLOOR, with q = w / (|w| + rms).

    Larger errors are no rounding: a rounding that fell to the other side before a comparison, a step, a cast.
    `too_common` counts them.
    """

    e: float  # the sum of e
    ee: float  # of e^2
    eq: float  # of e q
    eeqq: float  # of (e q)^2

    @staticmethod
    def of(error: torch.Tensor, q: torch.Tensor, floor: float) -> torch.Tensor:
        """One piece's sums."""
        e = torch.where(error.abs() <= floor, error, 0.0)
        eq = e * q
        return torch.stack([e.sum(), e.square().sum(), eq.sum(), eq.square().sum()])


@dataclass(frozen=True)
class Scale:
    """What the errors of one output are measured by: known of the reference alone.

    The first three are tensors of one number, so that nothing waits for a GPU.
    """

    rms: torch.Tensor  # of the finite values, and at least `smallest`; 1 if that is 0 or too large
    tolerance: torch.Tensor
    broken: torch.Tensor  # how many of the reference's own errors are above BREAKDOWN * floor
    # What `measure` hands on, (5,) or (11,): rms; tolerance; how many values are not 0; whether all values
    # are finite, without which nothing here holds unless it is masked; broken. If `coarse`, then those of
    # Moments for the reference's own answer, and the sums of q^2 and q^4.
    known: torch.Tensor
    masked: bool  # what is not finite is no number here: it is there, or it is not
    floor: float
    slack: float
    small: bool  # an output of so few values that they are compared one by one
    # a dtype whose rounding is large enough to hide a mistake in, and a float64 answer to see it by
    coarse: bool
    usual: Usual | None = None  # of a small output, if other draws were asked

    @property
    def clean(self) -> bool:
        """Whether all values are finite."""
        return bool(self.known[3])


def sizes(w: torch.Tensor, usual: Usual | None) -> torch.Tensor:
    """How large values are, or usually are."""
    return w.abs() if usual is None else torch.maximum(w.abs(), usual.size)


def own_errors(o: torch.Tensor, w: torch.Tensor, usual: Usual | None) -> torch.Tensor:
    """How far off the reference's own dtype is, or usually is."""
    apart = (o - w).abs_()
    return apart if usual is None else torch.maximum(apart, usual.error)


def scale_of(
    own: torch.Tensor,
    exact: torch.Tensor | None,
    masked: bool,
    precision: Precision = FULL,
    usual: Usual | None = None,
) -> Scale:
    """What the errors of one output are measured by. masked: what is not finite is left out."""
    floor, slack = precision.floor(own.dtype), precision.slack(own.dtype)
    rms, clean = rms_of(own, exact, masked)
    if usual is not None:
        rms = torch.maximum(rms, usual.size.square().mean().sqrt())
    earned, nonzero, broken = (torch.zeros_like(rms) for _ in range(3))
    coarse = exact is not None and own.dtype in UNIT
    moments: list[torch.Tensor] = []  # of each piece
    if exact is not None:
        for _, _, o, w, _ in chunks(None, own, exact, masked):
            size = sizes(w, usual).add_(rms)
            error = (o - w).div_(size)
            apart = error.abs()
            broken += (apart > BREAKDOWN * floor).sum()
            if usual is not None:
                apart = torch.maximum(apart, usual.error / size)
            earned = torch.maximum(earned, apart.max())
            nonzero += w.count_nonzero()
            if coarse:
                q = w / size
                squares = torch.stack([q.square().sum(), q.pow(4).sum()])
                moments.append(torch.cat([Moments.of(error, q, floor), squares]))
        tolerance = earned.mul_(slack).clamp_(min=floor)
    else:
        tolerance = torch.full_like(rms, 4 * floor)
    known = torch.stack([rms, tolerance, nonzero, clean.double(), broken])
    if moments:
        known = torch.cat([known, torch.stack(moments).sum(0)])
    small = own.numel() <= SMALL
    return Scale(rms, tolerance, broken, known, masked, floor, slack, small, coarse, usual)


def scale_alone(
    own: torch.Tensor, exact: torch.Tensor, precision: Precision = FULL, usual: Usual | None = None
) -> Scale:
    """The scale of an output that nothing is compared with yet: a masked one, if not all values are finite.

    On a GPU this waits for it. Where something is compared, `measure` tells, which waits anyway.
    """
    scale = scale_of(own, exact, False, precision, usual)
    return scale if scale.clean else scale_of(own, exact, True, precision, usual)


def rms_of(own: torch.Tensor, exact: torch.Tensor | None, masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(the RMS of the float64 values, whether all values of both are finite)."""
    norms, counts = [], []
    for _, _, o, w, finite in chunks(None, own, exact, masked):
        norms.append(torch.stack([torch.linalg.vector_norm(w), torch.linalg.vector_norm(o)]))
        counts.append(finite.sum().double() if masked else len(w))
    norm, overall = torch.stack(norms).square_().sum(0).sqrt_().unbind()
    rms = norm / sum(counts) ** 0.5
    known = rms.nan_to_num(1.0, 1.0).clamp(min=smallest(own.dtype))
    return torch.where(rms > 0, known, 1.0), torch.isfinite(norm + overall)


def smallest(dtype: torch.dtype) -> float:
    """The smallest normal number.

    What is smaller has the same few digits behind the point, and fewer of them count.
    """
    return torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 0.0


def smallest_step(dtype: torch.dtype) -> float:
    """What lies between two numbers that are not normal."""
    return smallest(dtype) * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


@dataclass(frozen=True)
class Errors:
    """A candidate's errors, and the reference's beside them: numbers on the host.

    The first five tell of the output and its reference alone (Scale.known).
    """

    count: int  # values
    clean: float  # whether all are finite
    tolerance: float
    nonzero: float  # how many are not 0
    broken: float  # how many the reference itself has far off
    step: float  # what lies between two numbers that are not normal, over the RMS
    worst: float  # over the RMS
    # The worst error; NaN or infinite where a value is not finite and should be, or the other way round.
    relative: float
    coarse: float  # how many values are off by more than COARSE of themselves
    # Of a small output: the worst error of a value, over what is allowed for that value. Else 0.
    one_by_one: float
    mine: Moments  # the candidate's
    own: Moments  # the reference's
    qq: float  # the sum of q^2, with the q of Moments
    qqqq: float  # and of q^4


def measure(
    got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor | None, scale: Scale, hurry: bool
) -> Errors:
    """The errors of one output. hurry: stop at the first piece with an error beyond the tolerance."""
    parts = []
    for _, g, o, w, _ in chunks(got, own, exact, scale.masked):
        parts.append(measure_piece(g, o, w, own.dtype, exact is None, scale))
        if hurry and len(w) < own.numel() and not bool(parts[-1][1] <= scale.tolerance):
            break
    numbers = torch.cat([scale.known, *parts]).tolist()  # one wait for the GPU
    known, found = numbers[: len(scale.known)], numbers[len(scale.known) :]
    rms, tolerance, nonzero, clean, broken, *theirs = known
    width = len(parts[0])
    pieces = [found[start : start + width] for start in range(0, len(found), width)]
    worst, relative, coarse, *mine = zip(*pieces, strict=True)
    one_by_one = mine.pop(0) if scale.small else [0.0]
    if not scale.coarse:
        mine, theirs = [[0.0]] * 4, [0.0] * 6
    return Errors(
        count=own.numel(),
        clean=clean,
        tolerance=tolerance,
        nonzero=nonzero,
        broken=broken,
        step=smallest_step(own.dtype) / rms,
        worst=largest(worst) / rms,
        relative=largest(relative),
        coarse=sum(coarse),
        one_by_one=largest(one_by_one),
        mine=Moments(*map(sum, mine)),
        own=Moments(*theirs[:4]),
        qq=theirs[4],
        qqqq=theirs[5],
    )


def largest(numbers: Iterable[float]) -> float:
    """The largest number; NaN if one of them is."""
    numbers = list(numbers)
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def measure_piece(g, o, w, dtype: torch.dtype, alone: bool, scale: Scale) -> torch.Tensor:
    """[worst difference, worst error, number of coarse values], then of a small output the worst of
    one_by_one, and if the scale is coarse the sums of Moments."""
    difference, size = g - w, sizes(w, scale.usual)
    apart = difference.abs()
    coarse = (apart > COARSE * size).sum(dtype=torch.float64)
    scaled = size + scale.rms
    found = [apart.max(), (apart / scaled).max(), coarse]
    if scale.small:
        found.append((apart / allowed(o, w, dtype, alone, scale)).max())
    if not scale.coarse:
        return torch.stack(found)
    moments = Moments.of(difference / scaled, w / scaled, scale.floor)
    return torch.cat([torch.stack(found), moments])


def allowed(o: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, alone: bool, scale: Scale) -> torch.Tensor:
    """How far each value of a small output may be off: its scale is its own, not that of its neighbours.

    A value that is far below the RMS may be one of another kind, or what is left of numbers that cancel. So
    it gets up to TINY times itself (but never COARSE of itself, nor less than the rounding of its
    neighbours), and what the reference's own dtype earns right there. What usually stands there, and the
    reference's sensitivity, may allow more (trials/fairness.py).
    """
    size = sizes(w, scale.usual)
    own_scale = torch.minimum(size * min(TINY, COARSE / scale.floor), scale.rms)
    own_scale = own_scale.clamp_(min=scale.rms * UNIT.get(dtype, UNIT32))
    slack = 4.0 if alone else 1.0
    earned = own_errors(o, w, scale.usual) * scale.slack
    enough = torch.maximum((size + own_scale) * (slack * scale.floor), earned)
    return enough.clamp_(min=smallest_step(dtype))


def too_common(got, own, exact, scale: Scale, tolerance: float) -> float | None:
    """An error that too many elements have, or None.

    Too many are more than 16, and eight times those where the reference's own dtype earns it.

    Where a reference rounds, masks or compares, its own dtype decides a few elements otherwise than
    float64, and one is enough for a tolerance of a whole step. It is meant for such elements, not for a
    candidate that leaves the step out everywhere. Of a small output no value is excused so.
    """
    levels = [scale.floor * 2.0**k for k in range(64) if scale.floor * 2.0**k < tolerance]
    counts = torch.zeros(2, len(levels), dtype=torch.int64, device=own.device)
    slack, excused = scale.slack, 0 if scale.small else 16
    for _, g, o, w, _ in chunks(got, own, exact, scale.masked):
        size = sizes(w, scale.usual).add_(scale.rms)
        theirs = own_errors(o, w, scale.usual).mul_(slack)
        for row, error in enumerate(((g - w).abs_().div_(size), theirs.div_(size))):
            counts[row] += torch.stack([(error > level).sum() for level in levels])
    for level, theirs, reference in zip(levels, *counts.tolist(), strict=True):
        if theirs > excused + 8 * reference:
            return level
    return None


def chunks(got, own, exact, masked: bool = False) -> Iterator[tuple]:
    """(start, got, own, float64 answer, None) in flat pieces: a large answer costs little memory.

    masked: where the own answer is not finite all three are 0, but `got` is infinite there unless it is the
    same; where only the float64 answer is not finite, it is the own one. In place of None: where the own
    answer is finite.
    """
    flat = [None if t is None else t.detach().reshape(-1) for t in (got, own, exact)]
    size = CHUNK if own.device.type == "cpu" else GPU_CHUNK
    for start in range(0, own.numel(), size):
        g, o, w = (None if t is None else t[start : start + size].double() for t in flat)
        w, finite = o if w is None else w, None
        if masked:
            finite = torch.isfinite(o)
            w = torch.where(finite, torch.where(torch.isfinite(w), w, o), 0.0)
            if g is not None:
                g = torch.where(finite, g, torch.where((g == o) | (g.isnan() & o.isnan()), 0.0, math.inf))
            o = torch.where(finite, o, 0.0)
        yield start, g, o, w, finite
