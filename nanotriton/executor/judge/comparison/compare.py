"""Is a tree of tensors the reference's answer? checks.py looks at each of its tensors."""

import math
from collections.abc import Callable

import torch

from nanotriton.executor.judge.comparison import values
from nanotriton.executor.judge.comparison.answer import Answer, Output
from nanotriton.executor.judge.comparison.checks import CHECKS, compare_tensor
from nanotriton.executor.judge.comparison.values import FLOOR, SLACK, measure, scale_alone, scale_of
from nanotriton.plan.trees import describe, identical, leaves, tensors
from nanotriton.verdict import Fault

KERNELBENCH = {torch.float16: 1e-2, torch.bfloat16: 1e-2}  # atol = rtol; others: 1e-4


def compare(got, answer: Answer, hurry: bool = False, checks: tuple[Callable, ...] | None = None) -> float:
    """The worst error over the RMS; raises Fault if the tree `got` is not the answer.

    hurry: as soon as that is plain, without saying where. checks: None for all.
    """
    same_structure(got, answer.own)
    exact = dict(leaves(answer.exact)) if answer.exact is not None else {}
    worst = 0.0
    for (where, g), (_, own) in zip(leaves(got), leaves(answer.own), strict=True):
        if isinstance(own, torch.Tensor):
            output = Output(f"output{where}", g, own, exact.get(where), answer, hurry)
            worst = max(worst, compare_tensor(output, CHECKS if checks is None else checks))
        else:
            same_number(f"output{where}", g, own)
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
    if _same_bits(own, answer.own) and _same_bits(exact, answer.exact):
        return True
    if not passes(own, Answer(answer.own, None, None, None)):
        return False
    if answer.exact is None or exact is None:
        return answer.exact is exact
    dtypes = [t.dtype for t in tensors(answer.own)]
    one = tensors(answer.exact)
    other = tensors(exact)
    if not len(dtypes) == len(one) == len(other):
        return False
    for dtype, x, y in zip(dtypes, one, other, strict=True):
        if difference(x, y) > FLOOR.get(dtype, 0.3) / SLACK.get(dtype, 3.0) / 2:
            return False
    return True


def _same_bits(one, other) -> bool:
    """Whether two trees hold the same: as nearly all references give it on a CPU, and quick to tell."""
    ones, others = leaves(one), leaves(other)
    if len(ones) != len(others):
        return False
    for (_, x), (_, y) in zip(ones, others, strict=True):
        if type(x) is not type(y):
            return False
        if not isinstance(x, torch.Tensor):
            if x != y:
                return False
        elif x.shape != y.shape or x.dtype != y.dtype or not identical(x, y):
            return False
    return True


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference over RMS plus value. Infinite for other shapes, dtypes or integers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if one.is_complex():
        return difference(torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj()))
    if not one.is_floating_point() or not one.numel():
        return 0.0 if torch.equal(one, other) else math.inf
    found = measure(other, one, None, scale_of(one, None, masked=True), hurry=False).relative
    return found if math.isfinite(found) else math.inf


def same_structure(got, want, path: str = "the answer") -> None:
    """Raise Fault unless both trees have the same containers, keys and kinds of leaves."""
    container = next((kind for kind in (tuple, list, dict) if isinstance(want, kind)), None)
    if container is None:
        alike = same_leaf(got, want)
    else:
        alike = isinstance(got, container) and (container is dict or len(got) == len(want))
    if alike and container is dict and list(got) != list(want):
        was, should = str(list(got))[:200], str(list(want))[:200]  # got's are a stranger's
        raise Fault("wrong_shape", f"{path} has the keys {was}; the reference's has {should}, in this order")
    if not alike:
        raise Fault("wrong_shape", f"{path} is {describe(got)}; the reference returns {describe(want)}")
    if container:
        for key in want if container is dict else range(len(want)):
            same_structure(got[key], want[key], f"{path}[{key!r}]")


def same_leaf(got, want) -> bool:
    if isinstance(got, tuple | list | dict):
        return False
    if isinstance(want, torch.Tensor):
        return isinstance(got, torch.Tensor)
    return not isinstance(got, torch.Tensor) and type(got) is type(want)


def same_number(name: str, got, own) -> None:
    """Leaves that are no tensors: floats up to fp32's rounding, anything else exactly."""
    if not isinstance(own, float):
        if got != own:
            raise Fault("wrong_value", f"{name} is {got!r}; the reference returns {own!r}")
    elif not math.isclose(got, own, rel_tol=1e-5, abs_tol=1e-6) and not (math.isnan(got) and math.isnan(own)):
        raise Fault("wrong_value", f"{name} is {got}; the reference returns {own}")


def all_finite(tree) -> bool:
    floats = (t for t in tensors(tree) if t.is_floating_point())
    # of float8 torch can't tell
    return all(bool(torch.isfinite(t.half() if t.itemsize == 1 else t).all()) for t in floats)


def is_fair(answer: Answer, infinite: bool = False) -> bool:
    """Whether a stressed trial with this answer counts: it is finite, and its dtype does not break down.

    infinite: infinities are fair too, as the maximum of an empty row is one, if they are those of float64 and
    less than half of an output.
    """
    return (all_finite(answer.own) or (infinite and _infinite_alike(answer))) and not breaks_down(answer)


def _floats(tree) -> list[torch.Tensor]:
    """The tensors of a tree that can hold infinities and be compared: of float8 torch can't tell."""
    return [t for t in tensors(tree) if t.is_floating_point() and t.itemsize > 1]


def _infinite_alike(answer: Answer) -> bool:
    """Whether the reference has the infinities of float64, in less than half of each output."""
    own, exact = _floats(answer.own), _floats(answer.exact)
    if len(own) != len(exact):
        return False
    for one, other in zip(own, exact, strict=True):
        places = one.isinf()
        if one.shape != other.shape or one.isnan().any() or places.sum() * 2 > places.numel():
            return False
        if not torch.equal(other[places].to(one.dtype), one[places]) or other[~places].isinf().any():
            return False
    return True


def breaks_down(answer: Answer) -> bool:
    """Whether the reference's own dtype is far off in more than one value of a hundred.

    Such a trial excuses almost any answer. Single values that are far off are steps (a comparison, a
    rounding) that fell to the other side, and no breakdown.
    """
    fill_scales(answer)
    for where, own in leaves(answer.own):
        scale = answer.scales.get(f"output{where}")
        if scale is not None and own.is_floating_point() and float(scale.broken) > own.numel() / 100:
            return True
    return False


def fill_scales(answer: Answer) -> None:
    """Measure the reference's outputs that nothing was compared with yet, where there is a float64 answer."""
    exact = dict(leaves(answer.exact)) if answer.exact is not None else {}
    for where, own in leaves(answer.own):
        twin, name = exact.get(where), f"output{where}"
        if not isinstance(own, torch.Tensor) or not own.is_floating_point() or not own.numel():
            continue
        if twin is not None and twin.shape == own.shape and name not in answer.scales:
            answer.scales[name] = scale_alone(own, twin, answer.precision, answer.usual.get(name))


def kernelbench_allclose(got, own) -> bool:
    """What KernelBench's own check would say, tensor by tensor.

    That is torch.allclose with atol = rtol = 1e-4 (1e-2 for half types).
    """
    for (_, g), (_, o) in zip(leaves(got), leaves(own), strict=True):
        if not isinstance(o, torch.Tensor):
            continue
        limit = KERNELBENCH.get(o.dtype, 1e-4)
        if g.shape != o.shape:
            return False
        # allclose makes several temporaries
        size = values.CHUNK if o.device.type == "cpu" else values.GPU_CHUNK
        for a, b in zip(g.reshape(-1).split(size), o.reshape(-1).split(size)):
            if b.is_floating_point() and b.itemsize == 1:  # torch has no arithmetic in float8
                a, b = a.half(), b.half()
            if not torch.allclose(a.to(b.dtype), b, atol=limit, rtol=limit):
                return False
    return True
