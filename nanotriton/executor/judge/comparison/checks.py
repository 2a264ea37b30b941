"""What one tensor of an answer must be: a table of named checks, run in order, of which the first that fails
decides.

The reference's answer is there twice: in its own dtype, and in float64. The distance between the two is the
error e that the reference's own dtype earns on this draw. The main check, `bounds`, asks for every element
that

    |candidate - float64| <= tolerance * (rms + |float64|),   tolerance = max(FLOOR[dtype], SLACK[dtype] * e)

with rms the root mean square of the float64 answer and e in the same units. FLOOR leaves room for another
order of summation and for the GPU's fast exp and division. It leaves none for fp32 work done in TF32 or
bf16, whose error on signed inputs is near 3e-4 whatever the size. Where the reference itself works in
TF32, as torch's convolutions do on a GPU, a candidate may too (values.Precision). The other checks close
what this bound leaves open: CHECKS says in which order, and each check's docstring why. An answer without a
float64 twin is judged against its own dtype at four times the floor.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from nanotriton.executor.judge.comparison import values
from nanotriton.executor.judge.comparison.answer import Output
from nanotriton.executor.judge.comparison.values import COARSE, UNIT, chunks, too_common
from nanotriton.executor.replay.poison import unwritten
from nanotriton.verdict import Fault, HoleFault, ValueFault

SIGMAS = 6.0  # standard errors that chance may move a mean by
SPREAD = 2.0  # times the RMS error of the reference: four roundings of the whole answer instead of one
MORE_SPREAD = 2.0  # times SPREAD, at most, where a rounding of the inputs makes so much
ROUNDING = 0.38  # RMS error of one rounding to nearest, in units of UNIT times the RMS of what is rounded
DIGITS, FEW = 1e-3, 8  # of `near_zero`: a share of a value, and how many values may be further off


def compare_tensor(output: Output, checks: tuple[Callable, ...]) -> float:
    """The worst error over the RMS of one output; raises the Fault of the first check that fails."""
    same_shape(output)
    same_dtype(output)
    own, exact = output.own, output.exact
    if exact is not None and exact.shape != own.shape:
        output = replace(output, exact=None)
    if own.is_complex():
        output = replace(
            output,
            got=as_real(output.got),
            own=as_real(own),
            exact=None if output.exact is None else as_real(output.exact),
        )
    if not own.numel():
        return 0.0
    floats = output.own.is_floating_point()
    for check in checks:
        if (check is not equal) == floats:
            check(output)
    return output.errors.worst if floats else 0.0


def as_real(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t.resolve_conj())


def same_shape(output: Output) -> None:
    """A shape that broadcasts to the right one is another shape."""
    got, own = tuple(output.got.shape), tuple(output.own.shape)
    if got != own:
        raise Fault("wrong_shape", f"{output.name} has shape {got}; the reference's is {own}")


def same_dtype(output: Output) -> None:
    """A caller may rely on the dtype, and all tolerances follow from it."""
    got, own = output.got.dtype, output.own.dtype
    if got != own:
        raise Fault("wrong_dtype", f"{output.name} is {short(got)}; the reference's is {short(own)}")


def finiteness(output: Output) -> None:
    """NaN and infinities stand where the reference has them. A hole has no size, so no bound would see it."""
    if output.hurry or math.isfinite(output.errors.relative):
        return
    pieces = chunks(output.got, output.own, None)
    lost = sum(int((~torch.isfinite(g) & torch.isfinite(o)).sum()) for _, g, o, _, _ in pieces)
    if lost:
        message = f"{output.name}: {lost} of {output.own.numel()} values are NaN or infinite"
        raise HoleFault(message, min(lost, unwritten(output.got)))


def bounds(output: Output) -> None:
    """Every element is within the tolerance."""
    if not output.errors.relative <= output.errors.tolerance:  # NaN is not
        raise wrong_values(output, output.errors.tolerance)


def float8_steps(output: Output) -> None:
    """One step of float8 is so large that only few elements may be one off."""
    if output.own.itemsize > 1:
        return
    different = output.count(lambda g, o, w: ~((g == o) | (g.isnan() & o.isnan())))
    if different > 16 + output.own.numel() / 8:
        raise wrong_values(output, 1e-3)


def one_by_one(output: Output) -> None:
    """Each value of a small output counts, on a scale of its own: several kinds may stand side by side.

    Beside a sum of squares of 1e6 a mean of 1 is within the tolerance of `bounds` whatever it is.
    """
    if output.errors.one_by_one > 1:
        raise wrong_values(output, None)


def frequency(output: Output) -> None:
    """Large errors are not much more frequent than the reference's own."""
    if output.exact is None or output.errors.relative <= output.scale.floor:
        return
    level = too_common(output.got, output.own, output.exact, output.scale, output.errors.tolerance)
    if level:
        raise wrong_values(output, level)


def bias(output: Output) -> None:
    """Rounding has no sign: the answer is not too large or too small as a whole, nor shifted.

    All values times 1.02 are within bf16's tolerance, one by one. Two slopes are looked at: the mean error,
    and that of the error over the value (a common factor). Allowed is what rounding one common factor or
    term to the dtype would do, four times what the reference has, and chance.
    """
    if not output.scale.coarse:
        return
    e, unit = output.errors, UNIT[output.own.dtype]
    shift, chance = e.mine.e / e.count, math.sqrt(e.mine.ee) / e.count
    if abs(shift) > unit + 4 * abs(e.own.e) / e.count + SIGMAS * chance:
        raise output.fault(
            f"the values are off by {shift:+.2g} on average; rounding has no sign: round once, at the end"
        )
    if e.qq > 0:
        gain, chance = e.mine.eq / e.qq, math.sqrt(e.mine.eeqq) / e.qq
        if abs(gain) > unit + 4 * abs(e.own.eq) / e.qq + SIGMAS * chance:
            raise output.fault(
                f"the values are {1 + gain:.4f} times what they should be; rounding has no sign:"
                " round once, at the end"
            )


def spread(output: Output) -> None:
    """The RMS error is not much larger than the reference's own. It is where a term is left out.

    Allowed are SPREAD times the reference's, or those of a single rounding to the dtype if that is more (of
    numbers that are not normal: a step), and chance: a few large values may make up all of the answer. It may
    be a rounding of the answer or of the inputs: scores of attention are large where q and k are, and then a
    rounding of q moves the answer by many of its own.
    """
    if not output.scale.coarse:
        return
    e, unit = output.errors, UNIT[output.own.dtype]
    usual = max(e.own.ee, (ROUNDING * unit) ** 2 * e.qq + e.step**2)
    of_inputs = output.answer.rounding.get(output.name, 0.0)
    usual = max(usual, min(of_inputs, MORE_SPREAD**2 * usual))
    chance = 8 * math.sqrt(e.qqqq) / e.qq if e.qq > 0 else 8.0
    ratio = math.sqrt(e.mine.ee / usual) if usual > 0 else 0.0
    if ratio > SPREAD + chance:
        what = f"the RMS error is {ratio:.1f} times the reference's own"
        raise output.fault(f"{what}: is a term left out, or a sum kept in {short(output.own.dtype)}?")


def small_values(output: Output) -> None:
    """Not a quarter of the values are off by a tenth of themselves, where the reference's are precise.

    Beside some huge ones they would be within the tolerance whatever they are.
    """
    few = 16 + output.errors.nonzero / 4
    if output.exact is None or output.errors.coarse <= few:
        return
    coarse = len(coarse_places(output))
    if coarse > few:
        values_ = f"{coarse} of {output.own.numel()} values, small ones,"
        raise output.fault(f"{values_} are off by more than a tenth of what they should be")


def small_slices(output: Output) -> None:
    """Nor is a quarter of a slice, which is all values with one index in one dimension.

    It may be a column of scores beside columns of pixels, and too few values for `small_values`. Slices that
    stress makes small are let off: honest formulas have an absolute error there (2 * sigmoid(2 * x) - 1).
    """
    if not output.answer.usual_inputs:
        return
    shape = output.own.shape
    sizes = [output.own.numel() // n for n in shape]
    few = [16 + size / 4 for size in sizes]
    if output.exact is None or output.errors.coarse <= min(few, default=math.inf):
        return
    coarse = coarse_places(output)
    for dim, n in enumerate(shape):
        inner = math.prod(shape[dim + 1 :])
        counts = torch.bincount(coarse // inner % n, minlength=n)
        worst = int(counts.argmax())
        if int(counts[worst]) > few[dim]:
            place = ", ".join(str(worst) if d == dim else ":" for d in range(len(shape)))
            values_ = f"{int(counts[worst])} of the {sizes[dim]} values [{place}], small ones,"
            raise output.fault(f"{values_} are off by more than a tenth of what they should be")


def coarse_places(output: Output) -> torch.Tensor:
    """Flat indices of values that are off by a tenth of themselves, where the reference's are precise."""
    usual = output.scale.usual
    return output.places(
        lambda g, o, w: ((g - w).abs() > COARSE * values.sizes(w, usual)) & ((o - w).abs() < 0.01 * w.abs())
    )


def near_zero(output: Output) -> None:
    """Small values keep their digits where the reference takes care of them: exp(x) - 1 is 0 near 0, and
    expm1 is not."""
    if not output.answer.precision.near_zero or output.exact is None or output.own.itemsize < 4:
        return
    lost = output.count(
        lambda g, o, w: ((g - w).abs() > DIGITS * w.abs()) & ((o - w).abs() < DIGITS / 100 * w.abs())
    )
    if lost > FEW:
        raise output.fault(f"{lost} of {output.own.numel()} values near 0 have lost their digits")


def equal(output: Output) -> None:
    """Integers and booleans are equal, except where float64 decides otherwise than the reference's own dtype.

    There (a tie, a rounding edge) they are no further off than four times what lies between the two.
    """
    name, got, own, exact = output.name, output.got, output.own, output.exact
    differs = got != own
    if own.dtype == torch.bool:  # torch takes any byte but 0 for True, also one that nobody wrote
        differs |= got.view(torch.uint8) > 1
    if exact is not None and bool(differs.any()):
        apart = (exact.double() - own.double()).abs()
        differs &= (own == exact) | ((got.double() - own.double()).abs() > 4 * apart)
    if not bool(differs.any()):
        return
    at = int(differs.reshape(-1).to(torch.uint8).argmax())
    pair = got.reshape(-1)[at].item(), own.reshape(-1)[at].item()
    where, count = f"{name}{index(at, own.shape)}", f"{int(differs.sum())} of {own.numel()} values differ"
    raise ValueFault(f"{where} is {pair[0]}; the reference says {pair[1]} ({count})", math.inf)


# In this order: what is plainly wrong has the plainest message.
# `equal` is for integers, the others for floats.
BY_VALUE = (
    equal,
    finiteness,
    bounds,
    float8_steps,
    one_by_one,
    frequency,
    small_values,
    small_slices,
    near_zero,
)
STATISTICS = (bias, spread)
CHECKS = BY_VALUE + STATISTICS


# ---- messages ----


def wrong_values(output: Output, tolerance: float | None) -> ValueFault:
    """The fault of an answer that is known to be out of tolerance: where first, and how often.

    tolerance: None for that of a small output, value by value.
    """
    worst, own, scale = output.errors.worst, output.own, output.scale
    if output.hurry:
        return ValueFault(f"{output.name} is wrong", worst)
    wrong, first = 0, None
    for start, g, o, w, _ in chunks(output.got, own, output.exact, scale.masked):
        if tolerance is None:
            limit = values.allowed(o, w, own.dtype, output.exact is None, scale)
        else:
            limit = values.sizes(w, scale.usual).add_(scale.rms).mul_(tolerance)
        bad = ~((g - w).abs_() <= limit)
        wrong += int(bad.sum())
        if first is None and bool(bad.any()):
            first = start + int(bad.to(torch.uint8).argmax())
    got, want = (float(t.detach().reshape(-1)[first]) for t in (output.got, own))
    where, count = f"{output.name}{index(first, own.shape)}", f"{wrong} of {own.numel()} values differ"
    message = f"{where} is {got:.6g}; the reference says {want:.6g} ({count})"
    return ValueFault(message, worst, own.dtype == torch.float32 and worst < 2e-2)


def index(flat: int, shape: torch.Size) -> str:
    """The place of a flat index, as one would write it: "[2, 17]"."""
    place = []
    for n in reversed(shape):
        flat, i = divmod(flat, n)
        place.append(str(i))
    return f"[{', '.join(reversed(place))}]" if place else ""


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
