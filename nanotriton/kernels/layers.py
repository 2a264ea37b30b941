"""RMSNorm, RoPE and SwiGLU: what a transformer does between its matrix products."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None):
    """x / rms(x) * weight over the last axis, in fp32, rounded once to x's dtype.

    With a residual: s = x + residual is normalised, and (y, s) is returned.
    """
    if residual is None:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the halves of every head of q [T, H, D] and k [T, Hkv, D] by cos, sin [T, D / 2] fp32."""

    def rotate(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)

    return rotate(q), rotate(k)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in fp32, rounded once."""
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)
