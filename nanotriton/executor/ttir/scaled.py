"""tt.dot_scaled: a matrix product of narrow floats with a scale for every 32 numbers along K.

Source: OCP Microscaling Formats (MX) Specification, 2023. A scale is a power of two, e8m0: 2**(code - 127),
and NaN for code 255. Numbers are e4m3, e5m2, fp16, bf16, or e2m1 with two in a byte, the low half first. As
on GPUs without such instructions (sm_90) numbers are scaled first, which is exact, and then multiplied.
"""

import numpy as np

from .ops import Step, check, full
from .types import Op, Type

GROUP = 32  # numbers along K for one scale
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
FORMATS = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "fp16": "f16", "bf16": "bf16", "e2m1": "i8"}


def dot_scaled(op: Op) -> Step:
    """[.., M, K] @ [.., K, N] + [.., M, N] in float32.

    Operands: a, its scale, b, its scale, c. Scales may be missing.
    """
    left, right = op.attrs.get("lhs", ""), op.attrs.get("rhs", "")
    check(left in FORMATS and right in FORMATS, op)
    check(3 <= len(op.operands) <= 5 and len(op.results) == 1, op)
    acc = op.rtypes[0]
    check(acc.elem == "f32" and op.otypes[-1] == acc and len(acc.shape) >= 2, op)
    rest = list(zip(op.operands[:-1], op.otypes[:-1]))  # (slot, type), as far as they are not taken yet
    a, a_type = rest.pop(0)
    depth = a_type.shape[-1] * (2 if left == "e2m1" else 1)  # K
    a_scale = take_scale(rest, depth, acc.shape[-2], leave=1)
    b, b_type = rest.pop(0)
    b_scale = take_scale(rest, depth, acc.shape[-1], leave=0)
    check(not rest, op)
    packed = 2 if right == "e2m1" else 1
    check(a_type.elem == FORMATS[left] and b_type.elem == FORMATS[right], op)
    check(a_type.shape[:-1] == acc.shape[:-1], op)
    check(b_type.shape == (*acc.shape[:-2], depth // packed, acc.shape[-1]), op)
    c, (out,) = op.operands[-1], op.results

    def step(v, frame):
        x = numbers(full(v[a], a_type.shape), left, -1)
        y = numbers(full(v[b], b_type.shape), right, -2)
        if a_scale is not None:
            x = x * factors(full(v[a_scale], (*acc.shape[:-1], depth // GROUP)))
        if b_scale is not None:
            scales = full(v[b_scale], (*acc.shape[:-2], acc.shape[-1], depth // GROUP))
            y = y * factors(scales).swapaxes(-1, -2)
        v[out] = v[c] + np.matmul(x, y)

    return step


def take_scale(rest: list[tuple[int, Type]], depth: int, rows: int, leave: int) -> int | None:
    """Take the next operand if it is a scale of so many rows -> its slot. leave: operands that must stay."""
    if len(rest) <= leave:
        return None
    kind = rest[0][1]
    if kind.elem != "i8" or kind.shape[-2:] != (rows, depth // GROUP):
        return None
    return rest.pop(0)[0]


def numbers(x: np.ndarray, kind: str, axis: int) -> np.ndarray:
    """The numbers as float32. Those of e2m1 lie in pairs along the axis."""
    if kind != "e2m1":
        return x
    bits = np.moveaxis(x, axis, -1).view(np.uint8)
    both = np.stack((E2M1[bits & 15], E2M1[bits >> 4]), -1)
    return np.moveaxis(both.reshape(*both.shape[:-2], -1), -1, axis)


def factors(scales: np.ndarray) -> np.ndarray:
    """e8m0 codes [.., rows, K / 32] -> factors [.., rows, K]."""
    codes = scales.astype(np.int8).view(np.uint8).astype(np.int32)
    found = np.where(codes == 255, np.float32(np.nan), np.ldexp(np.float32(1), codes - 127))
    return np.repeat(found, GROUP, -1)
