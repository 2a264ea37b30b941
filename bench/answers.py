"""Are two answers of a test the same, and could the test have told? For tests without a float64 twin: one gold answer, one candidate's.

Structures are compared exactly (containers, keys, lengths, shapes, dtypes), booleans, integers and text too, floating numbers within
TOLERANCE[dtype] * (rms + |gold|). Gold kernels multiply in TF32 where they say nothing else, so fp32 gets what TF32 earns.
"""

import math
from typing import Any

import torch

from nanotriton.executor.judge.compare import same_structure
from nanotriton.plan.trees import leaves, mapped
from nanotriton.verdict import Fault

# others (fp8): 0.3
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}


def compare(got: Any, want: Any) -> None:
    """Raise Fault (wrong_shape, wrong_dtype, not_finite, wrong_value) unless `got` is the answer `want`."""
    same_structure(got, want)
    for (where, a), (_, b) in zip(leaves(got), leaves(want), strict=True):
        where = f"the answer{where}"
        if not isinstance(b, torch.Tensor):
            if not same_value(a, b):
                raise Fault("wrong_value", f"{where} is {a!r:.80}; the gold file's is {b!r:.80}")
            continue
        if a.shape != b.shape:
            raise Fault(
                "wrong_shape", f"{where} has shape {tuple(a.shape)}; the gold file's has {tuple(b.shape)}"
            )
        if a.dtype != b.dtype:
            raise Fault(
                "wrong_dtype", f"{where} is {a.dtype}; the gold file's is {b.dtype}".replace("torch.", "")
            )
        compare_tensors(a, b, where)


def same_value(a: Any, b: Any) -> bool:
    if isinstance(b, float):
        return (
            a == b
            or (math.isnan(a) and math.isnan(b))
            or math.isclose(a, b, rel_tol=TOLERANCE[torch.float32])
        )
    return a == b


def compare_tensors(a: torch.Tensor, b: torch.Tensor, where: str) -> None:
    if b.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not b.is_floating_point():
        if wrong := int((a != b).sum()):
            raise Fault("wrong_value", f"{where}: {wrong} of {b.numel()} elements differ")
        return
    tolerance = TOLERANCE.get(b.dtype, 0.3)
    a, b = a.double(), b.double()
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(1.5), b[~finite].nan_to_num(1.5)) or not bool(
        a[finite].isfinite().all()
    ):
        raise Fault("not_finite", f"{where}: infinities and NaNs are not where the gold file's are")
    a, b = a[finite], b[finite]
    rms = b.pow(2).mean().sqrt().item() if b.numel() else 0.0
    wrong = (a - b).abs() > tolerance * (rms + b.abs())
    if count := int(wrong.sum()):
        worst = (a - b).abs().max().item() / rms if rms else math.inf
        raise Fault(
            "wrong_value", f"{where}: {count} of {b.numel()} elements differ, by up to {worst:.2g} of the RMS"
        )


def weakness(want: Any) -> list[str]:
    """Why a test that gives this answer can't tell right from wrong; empty if it can."""
    if want is None:
        return ["no answer"]
    values = [v for _, v in leaves(want)]
    floats = [t for t in values if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())]
    found = [] if floats else ["no float tensor"]
    if all(not isinstance(v, torch.Tensor) or v.numel() <= 1 for v in values):
        found.append("only shapes, booleans or sums")
    try:
        compare(mapped(want, torch.zeros_like), want)
    except Fault:
        return found
    return [*found, "zeros pass"]
