"""tl.dot_scaled against the same product in float64."""

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import evaluate

pytestmark = pytest.mark.skipif(not hasattr(tl, "dot_scaled"), reason="this Triton has none")
M, N, K = 16, 32, 64
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@triton.jit
def product(A, SA, B, SB, C, M: tl.constexpr, N: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr, K: tl.constexpr,
            LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALES: tl.constexpr):  # fmt: skip
    m, n, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    a = tl.load(A + m[:, None] * KA + tl.arange(0, KA)[None, :])
    b = tl.load(B + tl.arange(0, KB)[:, None] * N + n[None, :])
    sa = tl.load(SA + m[:, None] * (K // 32) + s[None, :]) if SCALES != "right" else None
    sb = tl.load(SB + n[:, None] * (K // 32) + s[None, :]) if SCALES != "left" else None
    c = tl.dot_scaled(a, sa, LEFT, b, sb, RIGHT)
    tl.store(C + m[:, None] * N + n[None, :], c)


def drawn(kind: str, shape: tuple[int, int], axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(the tensor that a kernel gets, its numbers in float64)."""
    generator = torch.Generator().manual_seed(axis)
    if kind == "e2m1":
        codes = torch.randint(0, 16, shape, generator=generator)
        low, high = (codes.movedim(axis, 0)[i::2].movedim(0, axis) for i in (0, 1))
        return (low | high << 4).to(torch.uint8).contiguous(), E2M1[codes].double()
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}[kind]
    x = torch.randn(shape, generator=generator).to(dtype)
    return x, x.double()


@pytest.mark.parametrize("scales", ["both", "left", "right"])
@pytest.mark.parametrize(
    "left,right", [("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e5m2", "e2m1"), ("bf16", "e4m3")]
)
def test_products(left, right, scales):
    if left == "bf16" and scales != "right":
        pytest.skip("only the narrow operand has a scale")
    a, x = drawn(left, (M, K), 1)
    b, y = drawn(right, (K, N), 0)
    generator = torch.Generator().manual_seed(7)
    sa = torch.randint(120, 135, (M, K // 32), generator=generator, dtype=torch.uint8)
    sb = torch.randint(120, 135, (N, K // 32), generator=generator, dtype=torch.uint8)
    c = torch.empty(M, N)
    sizes = {"M": M, "N": N, "K": K, "KA": a.shape[1], "KB": b.shape[0]}
    evaluate(product, (1,), a, sa, b, sb, c, **sizes, LEFT=left, RIGHT=right, SCALES=scales)
    factor = lambda s: (2.0 ** (s.double() - 127)).repeat_interleave(32, 1)
    if scales != "right":
        x = x * factor(sa)
    if scales != "left":
        y = y * factor(sb).T
    assert ((c.double() - x @ y).abs() <= 1e-6 * (x.abs() @ y.abs())).all()
