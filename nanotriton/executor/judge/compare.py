"""Comparison of answers, which are trees of tensors: exact structure, shape and dtype, then finiteness, then values.

Tolerance. The reference's answer is there twice: in its own dtype, and in float64. The first against the second is the error that the
reference's own dtype earns on this draw, e. A candidate is right where, element by element,

    |candidate - float64| <= tolerance * (rms + |float64|),   tolerance = max(FLOOR[dtype], SLACK[dtype] * e)

with rms the root mean square of the float64 answer and e in the same units, and if errors above FLOOR are not much more frequent than the
reference's own (too_common). Nor may a quarter of the values be off by a tenth of themselves where the reference's are precise: beside some huge ones
they would be within the tolerance whatever they are. FLOOR leaves room for another order of summation and for the GPU's fast exp and
division, and none for fp32 work done in TF32 or bf16, whose error on signed inputs is near 3e-4 whatever the size.
An answer without a float64 twin (the task insists on a dtype) is judged against its own dtype at four times the floor.
"""

import math
from dataclasses import dataclass, field

import torch

from nanotriton.plan.trees import describe, leaves, tensors
from nanotriton.verdict import Fault, ValueFault

FLOOR = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.float8_e4m3fn: 0.13,
    torch.float8_e5m2: 0.26,
}
# others: 3, their own rounding is all the error there should be
SLACK = {torch.float64: 10.0, torch.float32: 10.0}
KERNELBENCH = {torch.float16: 1e-2, torch.bfloat16: 1e-2}  # atol = rtol; others: 1e-4
CHUNK, GPU_CHUNK = 1 << 22, 1 << 23  # elements compared at a time, in a dozen float64 temporaries


# ---- trees ----


def same_structure(got, want, path: str = "the answer") -> None:
    """Raise Fault unless both trees have the same containers, keys and kinds of leaves."""
    container = next((kind for kind in (tuple, list, dict) if isinstance(want, kind)), None)
    alike = (
        isinstance(got, container) and len(got) == len(want)
        if container
        else not isinstance(got, tuple | list | dict)
    )
    if alike and container is None:
        both = isinstance(got, torch.Tensor), isinstance(want, torch.Tensor)
        alike = all(both) or (not any(both) and type(got) is type(want))
    if alike and container is dict:
        alike = list(got) == list(want)
    if not alike:
        raise Fault("wrong_shape", f"{path} is {describe(got)}; the reference returns {describe(want)}")
    if container:
        for key in want if container is dict else range(len(want)):
            same_structure(got[key], want[key], f"{path}[{key!r}]")


def all_finite(tree) -> bool:
    floats = (t for t in tensors(tree) if t.is_floating_point())
    # of float8 torch can't tell
    return all(bool(torch.isfinite(t.half() if t.itemsize == 1 else t).all()) for t in floats)


# ---- values ----


@dataclass(frozen=True)
class Answer:
    """A reference's answer in the task's dtype and in float64 (None: there is none), and its inputs as each left them, if they were kept."""

    own: object
    exact: object | None
    inputs_exact: list | None
    inputs: list | None
    # of outputs that something was compared with
    scales: dict[str, "Scale"] = field(default_factory=dict, repr=False)


def compare(got, answer: Answer, hurry: bool = False) -> float:
    """The worst error over the RMS; raises Fault if the tree `got` is not the answer. hurry: as soon as that is plain, without saying where."""
    same_structure(got, answer.own)
    exact = dict(leaves(answer.exact)) if answer.exact is not None else {}
    worst = 0.0
    for (where, g), (_, own) in zip(leaves(got), leaves(answer.own), strict=True):
        if isinstance(own, torch.Tensor):
            worst = max(
                worst, compare_tensor(f"output{where}", g, own, exact.get(where), answer.scales, hurry)
            )
        elif isinstance(own, float):
            if not math.isclose(g, own, rel_tol=1e-5, abs_tol=1e-6) and not (
                math.isnan(g) and math.isnan(own)
            ):
                raise Fault("wrong_value", f"output{where} is {g}; the reference returns {own}")
        elif g != own:
            raise Fault("wrong_value", f"output{where} is {g!r}; the reference returns {own!r}")
    return worst


def passes(got, answer: Answer) -> bool:
    try:
        compare(got, answer, hurry=True)
    except Fault:
        return False
    return True


def repeats(answer: Answer, own, exact) -> bool:
    """Whether another run of the reference gives the same answer but for rounding: atomics add in any order.

    own, exact: of the other run, in its own dtype and in float64. In float64 rounding leaves next to nothing,
    so what is left there was drawn, or read off a clock. It may be half of FLOOR / SLACK, which cannot widen
    the tolerance: that comes of two runs.
    """
    if not passes(own, Answer(answer.own, None, None, None)):
        return False
    if answer.exact is None or exact is None:
        return answer.exact is exact
    dtypes, one, other = [t.dtype for t in tensors(answer.own)], tensors(answer.exact), tensors(exact)
    if not len(dtypes) == len(one) == len(other):
        return False
    for dtype, x, y in zip(dtypes, one, other, strict=True):
        if difference(x, y) > FLOOR.get(dtype, 0.3) / SLACK.get(dtype, 3.0) / 2:
            return False
    return True


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference over RMS plus value. Infinite for other shapes, dtypes, or integers that differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if one.is_complex():
        return difference(torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj()))
    if not one.is_floating_point() or not one.numel():
        return 0.0 if torch.equal(one, other) else math.inf
    found = measure(other, one, None, scale_of(one, None, masked=True), hurry=False).relative
    return found if math.isfinite(found) else math.inf


def compare_tensor(
    name: str,
    got: torch.Tensor,
    own: torch.Tensor,
    exact: torch.Tensor | None,
    scales: dict[str, "Scale"],
    hurry: bool,
) -> float:
    """The worst error over the RMS of one output; raises Fault on another shape, dtype, or values out of tolerance."""
    if got.shape != own.shape:
        raise Fault(
            "wrong_shape", f"{name} has shape {tuple(got.shape)}; the reference's is {tuple(own.shape)}"
        )
    if got.dtype != own.dtype:
        raise Fault("wrong_dtype", f"{name} is {short(got.dtype)}; the reference's is {short(own.dtype)}")
    if exact is not None and exact.shape != own.shape:
        exact = None
    if own.is_complex():
        return compare_tensor(
            name,
            *(t if t is None else torch.view_as_real(t.resolve_conj()) for t in (got, own, exact)),
            scales,
            hurry,
        )
    if not own.is_floating_point():
        return compare_exactly(name, got, own, exact)
    if not own.numel():
        return 0.0
    if name not in scales:
        scales[name] = scale_of(own, exact, masked=False)
    found = measure(got, own, exact, scales[name], hurry)
    if not found.clean and not scales[name].masked:
        scales[name] = scale_of(own, exact, masked=True)
        found = measure(got, own, exact, scales[name], hurry)
    scale, right = scales[name], found.relative <= found.tolerance  # NaN is not
    if hurry and not right:
        raise ValueFault(f"{name} is wrong", found.worst)
    if not math.isfinite(found.relative):
        lost = sum(
            int((~torch.isfinite(g) & torch.isfinite(o)).sum()) for _, g, o, _, _ in chunks(got, own, None)
        )
        if lost:
            raise Fault("not_finite", f"{name}: {lost} of {own.numel()} values are NaN or infinite")
    if own.itemsize == 1:  # one step of float8 is so large that only few elements may be one off
        different = sum(
            int((~((g == o) | (g.isnan() & o.isnan()))).sum()) for _, g, o, _, _ in chunks(got, own, None)
        )
        if different > 16 + own.numel() / 8:
            raise wrong_values(name, got, own, exact, scale, 1e-3, found.worst)
    if not right:
        raise wrong_values(name, got, own, exact, scale, found.tolerance, found.worst)
    if (
        exact is not None
        and found.relative > scale.floor
        and (level := too_common(got, own, exact, scale, found.tolerance))
    ):
        raise wrong_values(name, got, own, exact, scale, level, found.worst)
    few = 16 + found.nonzero / 4
    # this many are off by a tenth: is the reference itself precise there?
    if exact is not None and found.coarse > few:
        off = lambda g, o, w: ((g - w).abs() > 0.1 * w.abs()) & ((o - w).abs() < 0.01 * w.abs())
        coarse = sum(int(off(g, o, w).sum()) for _, g, o, w, _ in chunks(got, own, exact, scale.masked))
        if coarse > few:
            raise ValueFault(
                f"{name}: {coarse} of {own.numel()} values, small ones, are off by more than a tenth of what they should be",
                found.worst,
            )
    return found.worst


@dataclass(frozen=True)
class Scale:
    """What the errors of one output are measured by: known of the reference alone, in tensors of one number, so that nothing waits for a GPU."""

    rms: torch.Tensor  # of the finite values; 1 if that is 0 or too large
    tolerance: torch.Tensor
    nonzero: torch.Tensor  # how many values are not 0
    clean: torch.Tensor  # whether all values are finite. If they are not, nothing above holds unless it is
    masked: bool  # what is not finite is no number here: it is there, or it is not
    floor: float


def scale_of(own: torch.Tensor, exact: torch.Tensor | None, masked: bool) -> Scale:
    norms, counts = [], []
    for _, _, o, w, finite in chunks(None, own, exact, masked):
        norms.append(torch.stack([torch.linalg.vector_norm(w), torch.linalg.vector_norm(o)]))
        counts.append(finite.sum().double() if masked else len(w))
    norm, overall = torch.stack(norms).square_().sum(0).sqrt_().unbind()
    rms = norm / sum(counts) ** 0.5
    rms = torch.where(rms > 0, rms.nan_to_num(1.0, 1.0), 1.0)
    earned, nonzero, floor = torch.zeros_like(rms), torch.zeros_like(rms), FLOOR.get(own.dtype, 0.3)
    if exact is not None:
        for _, _, o, w, _ in chunks(None, own, exact, masked):
            earned = torch.maximum(earned, (o - w).abs_().div_(w.abs().add_(rms)).max())
            nonzero += w.count_nonzero()
    tolerance = (
        torch.full_like(rms, 4 * floor)
        if exact is None
        else earned.mul_(SLACK.get(own.dtype, 3.0)).clamp_(min=floor)
    )
    return Scale(rms, tolerance, nonzero, torch.isfinite(norm + overall), masked, floor)


@dataclass(frozen=True)
class Errors:
    """A candidate's, and what is allowed."""

    clean: float
    tolerance: float
    nonzero: float
    worst: float  # over the RMS
    # the worst over RMS and the value itself; NaN or infinite where a value is not finite and
    # should be, or the other way round
    relative: float
    coarse: float  # how many values are off by more than a tenth of themselves


def measure(
    got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor | None, scale: Scale, hurry: bool
) -> Errors:
    parts = []
    for _, g, _, w, _ in chunks(got, own, exact, scale.masked):
        error, size = (g - w).abs_(), w.abs()
        coarse, worst = (error > 0.1 * size).sum(), error.max()
        parts.append(torch.stack([worst, error.div_(size.add_(scale.rms)).max(), coarse.double()]))
        if hurry and len(w) < own.numel() and not bool(parts[-1][1] <= scale.tolerance):
            break
    worst, relative, coarse = torch.stack(parts).unbind(1)
    known = [scale.clean.double(), scale.tolerance, scale.nonzero.double()]
    # one wait for the GPU
    return Errors(*torch.stack([*known, worst.max() / scale.rms, relative.max(), coarse.sum()]).tolist())


def too_common(got, own, exact, scale: Scale, tolerance: float) -> float | None:
    """An error that too many elements have, or None: more than 16, and eight times those where the reference's own dtype earns it.

    Where a reference rounds, masks or compares, its own dtype decides a few elements otherwise than float64, and one is enough for a
    tolerance of a whole step. It is meant for such elements, not for a candidate that leaves the step out everywhere.
    """
    levels = [scale.floor * 2.0**k for k in range(64) if scale.floor * 2.0**k < tolerance]
    counts, slack = (
        torch.zeros(2, len(levels), dtype=torch.int64, device=own.device),
        SLACK.get(own.dtype, 3.0),
    )
    for _, g, o, w, _ in chunks(got, own, exact, scale.masked):
        size = w.abs().add_(scale.rms)
        for row, error in enumerate(((g - w).abs_().div_(size), (o - w).abs_().div_(size).mul_(slack))):
            counts[row] += torch.stack([(error > level).sum() for level in levels])
    return next(
        (
            level
            for level, theirs, reference in zip(levels, *counts.tolist(), strict=True)
            if theirs > 16 + 8 * reference
        ),
        None,
    )


def wrong_values(name: str, got, own, exact, scale: Scale, tolerance: float, worst: float) -> ValueFault:
    """The fault of an answer that is known to be out of tolerance: where first, and how often."""
    wrong, first = 0, None
    for start, g, _, w, _ in chunks(got, own, exact, scale.masked):
        bad = ~((g - w).abs_() <= w.abs().add_(scale.rms).mul_(tolerance))
        wrong += int(bad.sum())
        if first is None and bool(bad.any()):
            first = start + int(bad.to(torch.uint8).argmax())
    values = [float(t.detach().reshape(-1)[first]) for t in (got, own)]
    message = f"{name}{index(first, own.shape)} is {values[0]:.6g}; the reference says {values[1]:.6g} ({wrong} of {own.numel()} values differ)"
    return ValueFault(message, worst, own.dtype == torch.float32 and worst < 2e-2)


def chunks(got, own, exact, masked: bool = False):
    """(start, got, own, float64 answer, None) in flat float64 pieces, so that a large answer costs little memory.

    masked: where the own answer is not finite all three are 0, but `got` is infinite there unless it is the same; where only the float64
    answer is not finite, it is the own one. In place of None: where the own answer is finite.
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


def compare_exactly(name: str, got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor | None) -> float:
    """Integers and booleans are equal, except where float64 decides otherwise than the reference's own dtype (a tie, a rounding edge).

    There they are no further off than four times what lies between the two.
    """
    differs = got != own
    if own.dtype == torch.bool:  # torch takes any byte but 0 for True, also one that nobody wrote
        differs |= got.view(torch.uint8) > 1
    if exact is not None and bool(differs.any()):
        differs &= (own == exact) | (
            (got.double() - own.double()).abs() > 4 * (exact.double() - own.double()).abs()
        )
    if not bool(differs.any()):
        return 0.0
    at = int(differs.reshape(-1).to(torch.uint8).argmax())
    values = got.reshape(-1)[at].item(), own.reshape(-1)[at].item()
    message = f"{name}{index(at, own.shape)} is {values[0]}; the reference says {values[1]} ({int(differs.sum())} of {own.numel()} values differ)"
    raise ValueFault(message, math.inf)


def index(flat: int, shape: torch.Size) -> str:
    """The place of a flat index, as one would write it: "[2, 17]"."""
    place = []
    for n in reversed(shape):
        flat, i = divmod(flat, n)
        place.append(str(i))
    return f"[{', '.join(reversed(place))}]" if place else ""


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def kernelbench_allclose(got, own) -> bool:
    """What KernelBench's own check would say: torch.allclose with atol = rtol = 1e-4 (1e-2 for half types), tensor by tensor."""
    for (_, g), (_, o) in zip(leaves(got), leaves(own), strict=True):
        if isinstance(o, torch.Tensor):
            limit = KERNELBENCH.get(o.dtype, 1e-4)
            if g.shape != o.shape:
                return False
            size = CHUNK if o.device.type == "cpu" else GPU_CHUNK  # allclose makes several temporaries
            for a, b in zip(g.reshape(-1).split(size), o.reshape(-1).split(size)):
                if b.is_floating_point() and b.itemsize == 1:  # torch has no arithmetic in float8
                    a, b = a.half(), b.half()
                if not torch.allclose(a.to(b.dtype), b, atol=limit, rtol=limit):
                    return False
    return True
