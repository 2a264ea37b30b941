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

import copy
import math
from dataclasses import dataclass

import torch

FLOOR = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float8_e4m3fn: 0.13, torch.float8_e5m2: 0.26}
SLACK = {torch.float64: 10.0, torch.float32: 10.0}  # others: 3, their own rounding is all the error there should be
KERNELBENCH = {torch.float16: 1e-2, torch.bfloat16: 1e-2}  # atol = rtol; others: 1e-4
CHUNK, GPU_CHUNK = 1 << 22, 1 << 23  # elements compared at a time, in a dozen float64 temporaries


class Fault(Exception):
    """Why an answer is wrong: a verdict's status, and one line."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class TaskFault(Fault):
    """The task's fault, or ours: it says nothing of the candidate, and is never scored."""


class ValueFault(Fault):
    """Wrong values. `max_error` is over the RMS; `reduced`: fp32, and as far off as TF32 or half precision would be."""

    def __init__(self, message: str, max_error: float, reduced: bool = False):
        super().__init__("wrong_value", message)
        self.max_error, self.reduced = max_error, reduced


# ---- trees ----


def leaves(tree, path: str = "") -> list[tuple[str, object]]:
    """[(where, leaf)] of nested tuples, lists and dicts, in order. `where` is "" for a bare tensor, else like "[1]"."""
    if isinstance(tree, list | tuple):
        return [leaf for i, v in enumerate(tree) for leaf in leaves(v, f"{path}[{i}]")]
    if isinstance(tree, dict):
        return [leaf for k, v in tree.items() for leaf in leaves(v, f"{path}[{k!r}]")]
    return [(path, tree)]


def describe(tree) -> str:
    """A tree's structure in words: "a tuple of 2", "a tensor"."""
    if isinstance(tree, torch.Tensor):
        return "a tensor"
    if isinstance(tree, list | tuple | dict):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "None" if tree is None else f"a {type(tree).__name__}"


def same_structure(got, want, path: str = "the answer") -> None:
    """Raise Fault unless both trees have the same containers, keys and kinds of leaves."""
    container = next((kind for kind in (tuple, list, dict) if isinstance(want, kind)), None)
    alike = isinstance(got, container) and len(got) == len(want) if container else not isinstance(got, tuple | list | dict)
    if alike and container is None:
        tensors = isinstance(got, torch.Tensor), isinstance(want, torch.Tensor)
        alike = (tensors[0] and tensors[1]) or (not any(tensors) and type(got) is type(want))
    if alike and container is dict:
        alike = list(got) == list(want)
    if not alike:
        raise Fault("wrong_shape", f"{path} is {describe(got)}; the reference returns {describe(want)}")
    if container:
        for key in want if container is dict else range(len(want)):
            same_structure(got[key], want[key], f"{path}[{key!r}]")


def clone(tree):
    """A private copy of a tree: fresh memory, same strides."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone(memory_format=torch.preserve_format)
    if isinstance(tree, list | tuple):
        return type(tree)(clone(v) for v in tree)
    if isinstance(tree, dict):
        return {k: clone(v) for k, v in tree.items()}
    return copy.deepcopy(tree)


def widen(tree):
    """A copy with every floating tensor in float64."""
    if isinstance(tree, torch.Tensor):
        wide = torch.float64 if tree.is_floating_point() else torch.complex128 if tree.is_complex() else tree.dtype
        return tree.detach().to(wide, copy=True)
    if isinstance(tree, list | tuple):
        return type(tree)(widen(v) for v in tree)
    if isinstance(tree, dict):
        return {k: widen(v) for k, v in tree.items()}
    return copy.deepcopy(tree)


def all_finite(tree) -> bool:
    floats = (t for _, t in leaves(tree) if isinstance(t, torch.Tensor) and t.is_floating_point())
    return all(bool(torch.isfinite(t.half() if t.itemsize == 1 else t).all()) for t in floats)  # of float8 torch can't tell


# ---- values ----


@dataclass(frozen=True)
class Answer:
    """A reference's answer in the task's dtype and in float64 (None: there is none), and its inputs as each left them, if they were kept."""

    own: object
    exact: object | None
    inputs_exact: list | None
    inputs: list | None


def compare(got, answer: Answer) -> float:
    """The worst error over the RMS; raises Fault if the tree `got` is not the answer."""
    same_structure(got, answer.own)
    exact = dict(leaves(answer.exact)) if answer.exact is not None else {}
    worst = 0.0
    for (where, g), (_, own) in zip(leaves(got), leaves(answer.own), strict=True):
        if isinstance(own, torch.Tensor):
            worst = max(worst, compare_tensor(f"output{where}", g, own, exact.get(where)))
        elif isinstance(own, float):
            if not math.isclose(g, own, rel_tol=1e-5, abs_tol=1e-6) and not (math.isnan(g) and math.isnan(own)):
                raise Fault("wrong_value", f"output{where} is {g}; the reference returns {own}")
        elif g != own:
            raise Fault("wrong_value", f"output{where} is {g!r}; the reference returns {own!r}")
    return worst


def compare_tensor(name: str, got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor | None) -> float:
    """The worst error over the RMS of one output; raises Fault on another shape, dtype, or values out of tolerance."""
    if got.shape != own.shape:
        raise Fault("wrong_shape", f"{name} has shape {tuple(got.shape)}; the reference's is {tuple(own.shape)}")
    if got.dtype != own.dtype:
        raise Fault("wrong_dtype", f"{name} is {short(got.dtype)}; the reference's is {short(own.dtype)}")
    if exact is not None and exact.shape != own.shape:
        exact = None
    if own.is_complex():
        return compare_tensor(name, *(t if t is None else torch.view_as_real(t.resolve_conj()) for t in (got, own, exact)))
    if not own.is_floating_point():
        return compare_exactly(name, got, own, exact)
    rms = root_mean_square(own, exact)
    worst, earned, relative, counts = 0.0, 0.0, 0.0, [0, 0, 0, 0]
    for _, g, o, w in chunks(got, own, exact):
        finite, size = torch.isfinite(o), rms + w.abs()
        alike = (g == o) | (g.isnan() & o.isnan())  # where the reference itself is not finite
        error, own_error = (g - w).abs(), (o - w).abs()
        coarse = (error > 0.1 * w.abs()) & (own_error < 0.01 * w.abs())
        error = torch.where(finite, error, torch.where(alike, 0.0, math.inf))
        own_error = torch.where(finite, own_error / size, 0.0)
        found = [error.max() / rms, own_error.max(), torch.where(finite, error / size, error).nan_to_num(math.inf).max()]
        found += [x.sum().double() for x in (~torch.isfinite(g) & finite, ~alike, coarse, w != 0)]
        found = torch.stack(found).tolist()  # one wait for the GPU
        worst, earned, relative = max(worst, found[0]), max(earned, found[1]), max(relative, found[2])
        counts = [n + int(m) for n, m in zip(counts, found[3:], strict=True)]
    lost, different, coarse, nonzero = counts
    if lost:
        raise Fault("not_finite", f"{name}: {lost} of {own.numel()} values are NaN or infinite")
    if own.itemsize == 1 and different > 16 + own.numel() / 8:  # one step of float8 is so large that only few elements may be one off
        raise wrong_values(name, got, own, exact, rms, 1e-3, worst)
    floor, slack = FLOOR.get(own.dtype, 0.3), SLACK.get(own.dtype, 3.0)
    tolerance = 4 * floor if exact is None else max(floor, slack * earned)
    if relative > tolerance:
        raise wrong_values(name, got, own, exact, rms, tolerance, worst)
    if exact is not None and relative > floor and (level := too_common(got, own, exact, rms, floor, slack, earned)):
        raise wrong_values(name, got, own, exact, rms, level, worst)
    if exact is not None and coarse > 16 + nonzero / 4:
        raise ValueFault(f"{name}: {coarse} of {own.numel()} values, small ones, are off by more than a tenth of what they should be", worst)
    return worst


def too_common(got, own, exact, rms: float, floor: float, slack: float, earned: float) -> float | None:
    """An error that too many elements have, or None: more than 16, and eight times those where the reference's own dtype earns it.

    Where a reference rounds, masks or compares, its own dtype decides a few elements otherwise than float64, and one is enough for a
    tolerance of a whole step. It is meant for such elements, not for a candidate that leaves the step out everywhere.
    """
    levels = [floor * 2.0**k for k in range(64) if floor * 2.0**k < slack * earned]
    counts = torch.zeros(2, len(levels), dtype=torch.int64, device=own.device)
    for _, g, o, w in chunks(got, own, exact):
        kept = torch.where(torch.isfinite(o), 1 / (rms + w.abs()), 0.0)
        for row, error in enumerate(((g - w).abs() * kept, (o - w).abs() * kept * slack)):
            counts[row] += torch.stack([(error > level).sum() for level in levels])
    return next((level for level, theirs, reference in zip(levels, *counts.tolist(), strict=True) if theirs > 16 + 8 * reference), None)


def wrong_values(name: str, got, own, exact, rms: float, tolerance: float, worst: float) -> ValueFault:
    """The fault of an answer that is known to be out of tolerance: where first, and how often."""
    wrong, first = 0, None
    for start, g, o, w in chunks(got, own, exact):
        bad = torch.where(torch.isfinite(o), ~((g - w).abs() <= tolerance * (rms + w.abs())), ~((g == o) | (g.isnan() & o.isnan())))
        wrong += int(bad.sum())
        if first is None and bool(bad.any()):
            at = int(bad.to(torch.uint8).argmax())
            first = (start + at, float(g[at]), float(o[at]))
    message = f"{name}{index(first[0], own.shape)} is {first[1]:.6g}; the reference says {first[2]:.6g} ({wrong} of {own.numel()} values differ)"
    return ValueFault(message, worst, own.dtype == torch.float32 and worst < 2e-2)


def chunks(got, own, exact):
    """(start, got, own, float64 answer) in flat float64 pieces, so that a large answer costs little memory.

    Where only the float64 answer is not finite, it is the own one.
    """
    flat, size = [t.detach().reshape(-1) for t in (got, own, own if exact is None else exact)], CHUNK if own.device.type == "cpu" else GPU_CHUNK
    for start in range(0, own.numel(), size):
        g, o, w = (t[start : start + size].double() for t in flat)
        yield start, g, o, torch.where(torch.isfinite(w), w, o) if exact is not None else w


def root_mean_square(own: torch.Tensor, exact: torch.Tensor | None) -> float:
    """Of the answer's finite values; 1 if that is 0 or too large."""
    sums = [0.0, 0.0]
    for _, _, _, w in chunks(own, own, exact):
        finite = torch.isfinite(w)
        found = torch.stack([torch.where(finite, w, 0.0).square().sum(), finite.sum().double()]).tolist()
        sums = [a + b for a, b in zip(sums, found)]
    rms = math.sqrt(sums[0] / max(sums[1], 1.0))
    return rms if 0 < rms < math.inf else 1.0


def compare_exactly(name: str, got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor | None) -> float:
    """Integers and booleans are equal, except where float64 decides otherwise than the reference's own dtype (a tie, a rounding edge).

    There they are no further off than four times what lies between the two.
    """
    differs = got != own
    if own.dtype == torch.bool:  # torch takes any byte but 0 for True, also one that nobody wrote
        differs |= got.view(torch.uint8) > 1
    if exact is not None and bool(differs.any()):
        differs &= (own == exact) | ((got.double() - own.double()).abs() > 4 * (exact.double() - own.double()).abs())
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
