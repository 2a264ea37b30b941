"""Are two answers of a test the same, and could the test have told them apart?

A TritonBench test has no float64 twin: there is one answer of the gold file and one of the candidate's.
Structures (containers, keys, lengths, shapes, dtypes), booleans, integers and text must be equal.
Floating-point numbers must agree within TOLERANCE[dtype] * (rms + |gold|), where rms is the root mean square
of the gold tensor. A gold kernel that names no precision multiplies in TF32, so fp32 gets the tolerance that
TF32 earns.
"""

import math
from typing import Any

import torch

from nanotriton.executor.judge.comparison.compare import same_structure
from nanotriton.plan.trees import leaves, mapped, tensors
from nanotriton.verdict import Fault

TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}
FP8_TOLERANCE = 0.3  # of the dtypes that TOLERANCE does not name


def check_answer(got: Any, want: Any) -> None:
    """Raise Fault (wrong_shape, wrong_dtype, not_finite, wrong_value) unless `got` is the answer `want`."""
    same_structure(got, want)
    for (path, a), (_, b) in zip(leaves(got), leaves(want), strict=True):
        where = f"the answer{path}"
        if not isinstance(b, torch.Tensor):
            if not same_value(a, b):
                raise Fault("wrong_value", f"{where} is {a!r:.80}; the gold file's is {b!r:.80}")
            continue
        if a.shape != b.shape:
            shapes = f"shape {tuple(a.shape)}; the gold file's has {tuple(b.shape)}"
            raise Fault("wrong_shape", f"{where} has {shapes}")
        if a.dtype != b.dtype:
            message = f"{where} is {a.dtype}; the gold file's is {b.dtype}"
            raise Fault("wrong_dtype", message.replace("torch.", ""))
        check_tensor(a, b, where)


def same_value(a: Any, b: Any) -> bool:
    """Whether two values that are no tensors are equal; floats may differ as fp32 tensors may."""
    if not isinstance(b, float):
        return a == b
    both_nan = math.isnan(a) and math.isnan(b)
    return a == b or both_nan or math.isclose(a, b, rel_tol=TOLERANCE[torch.float32])


def check_tensor(a: torch.Tensor, b: torch.Tensor, where: str) -> None:
    """Raise Fault unless `a` has the values of `b`: two tensors of the same shape and dtype."""
    if b.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not b.is_floating_point():
        if wrong := int((a != b).sum()):
            raise Fault("wrong_value", f"{where}: {wrong} of {b.numel()} elements differ")
        return
    tolerance = TOLERANCE.get(b.dtype, FP8_TOLERANCE)
    a, b = a.double(), b.double()
    finite = b.isfinite()
    # A NaN equals nothing, so a number stands for it: one that is no infinity.
    same_infinities = torch.equal(a[~finite].nan_to_num(1.5), b[~finite].nan_to_num(1.5))
    a, b, a_finite = a[finite], b[finite], bool(a[finite].isfinite().all())
    if not same_infinities or not a_finite:
        raise Fault("not_finite", f"{where}: infinities and NaNs are not where the gold file's are")
    rms = b.pow(2).mean().sqrt().item() if b.numel() else 0.0
    error = (a - b).abs()
    wrong = int((error > tolerance * (rms + b.abs())).sum())
    if wrong:
        worst = error.max().item() / rms if rms else math.inf
        message = f"{where}: {wrong} of {b.numel()} elements differ, by up to {worst:.2g} of the RMS"
        raise Fault("wrong_value", message)


def weakness(want: Any) -> list[str]:
    """Why a test that gives this answer can't tell right from wrong; empty if it can."""
    if want is None:
        return ["no answer"]
    found = []
    if not any(t.is_floating_point() or t.is_complex() for t in tensors(want)):
        found.append("no float tensor")
    if all(t.numel() <= 1 for t in tensors(want)):
        found.append("only shapes, booleans or sums")
    try:
        check_answer(mapped(want, torch.zeros_like), want)
    except Fault:
        return found
    return [*found, "zeros pass"]
