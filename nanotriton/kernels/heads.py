"""The heads of q and k on their way to attention: normed (Qwen3), then rotated (RoPE).

`norm_and_rotate` is what the trainer calls, and differentiates. Both are bound by memory, so norm and
rotation are one kernel forward and one backward. These run on CUDA. Elsewhere their torch twins do,
`<name>_torch`, which have the same arguments and the same answer. The sampler calls `place` instead
(place.py), which also writes to the cache; the two forward kernels share `normed_and_rotated`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from nanotriton.kernels.launch import device_limits
from nanotriton.kernels.layers import rms_norm_backward_torch, rms_norm_forward_torch, tokens_are_whole

PROGRAMS = 8  # of the backward, a multiprocessor


def norm_and_rotate(
    q: Tensor,
    k: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    rotation: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """The heads of q [T, H, D] and k [T, Hkv, D] normed, then rotated.

    norms: the weights [D] of q's and of k's RMS norm (arXiv 1910.07467), and eps. rotation: cos and sin, each
    [T, D / 2] fp32, by which the two halves of every head are turned (arXiv 2104.09864, in Hugging Face's
    half-split layout). Either may be None, for a model or a layer without.
    """
    if norms is None and rotation is None:
        return q, k
    q_weight, k_weight, eps = norms or (None, None, 0.0)
    cos, sin = rotation or (None, None)
    return _NormAndRotate.apply(q, k, q_weight, k_weight, eps, cos, sin)


class _NormAndRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, q_weight, k_weight, eps, cos, sin):
        normed = (None, None) if q_weight is None else (q, k)  # a rotation alone has no need of them
        ctx.save_for_backward(*normed, q_weight, k_weight, cos, sin)
        ctx.eps = eps
        return (heads_forward if q.is_cuda else heads_forward_torch)(q, k, q_weight, k_weight, eps, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, dq, dk):
        q, k, q_weight, k_weight, cos, sin = ctx.saved_tensors
        run = heads_backward if dq.is_cuda else heads_backward_torch
        return *run(dq, dk, q, k, q_weight, k_weight, ctx.eps, cos, sin), None, None, None


# ---- forward


def heads_forward(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """norm_and_rotate without a gradient. No weight: no norm; no cos: no rotation."""
    q, k = (x if tokens_are_whole(x) else x.contiguous() for x in (q, k))
    q_out, k_out = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k))
    if len(q):
        _forward_kernel[(len(q),)](
            q,
            k,
            *or_any(q, q_weight, k_weight, cos, sin),
            q_out,
            k_out,
            q.stride(0),
            k.stride(0),
            eps,
            **constants(q, k, q_weight, cos),
        )
    return q_out, k_out


def heads_forward_torch(q, k, q_weight, k_weight, eps, cos, sin) -> tuple[Tensor, Tensor]:
    if q_weight is not None:
        q, _ = rms_norm_forward_torch(q, q_weight, eps, None)
        k, _ = rms_norm_forward_torch(k, k_weight, eps, None)
    return (q, k) if cos is None else (rotated(q, cos, sin), rotated(k, cos, sin))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D] turned, computed in fp32 and rounded once. With -sin it is turned back."""
    cos, sin = cos[:, None], sin[:, None]
    (a, b), out = x.float().chunk(2, dim=-1), torch.empty(x.shape, dtype=torch.float32, device=x.device)
    out_a, out_b = out.chunk(2, dim=-1)
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1.0)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin)
    return out.to(x.dtype)


@triton.jit
def normed_and_rotated(
    x,
    weight,
    at,
    mask,
    lane,
    cos,
    sin,
    eps,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """The heads x[at] (their first halves) and x[at + HALF] (their second), normed and rotated.

    -> both halves, computed in fp32 and rounded as x is.
    """
    a = tl.load(x + at, mask, 0.0).to(tl.float32)
    b = tl.load(x + at + HALF, mask, 0.0).to(tl.float32)
    if NORM:
        inside = lane < HALF
        weight_a = tl.load(weight + lane, inside, 0.0).to(tl.float32)[None, :]
        weight_b = tl.load(weight + HALF + lane, inside, 0.0).to(tl.float32)[None, :]
        rstd = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
        # rounded, as the result of a norm that stands alone is
        a = (a * rstd * weight_a).to(x.dtype.element_ty).to(tl.float32)
        b = (b * rstd * weight_b).to(x.dtype.element_ty).to(tl.float32)
    if ROTATE:
        turned = a * cos - b * sin
        b = b * cos + a * sin
        a = turned
    return a.to(x.dtype.element_ty), b.to(x.dtype.element_ty)


@triton.jit
def _forward_kernel(
    q,
    k,
    q_weight,
    k_weight,
    cos_ptr,
    sin_ptr,
    q_out,
    k_out,
    q_row,
    k_row,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    LANES: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Each program one token: all heads of q and of k.

    A tile is one half of every head. LANES is HALF, half a head, padded to a power of two.
    """
    DIM: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    cos, sin = 1.0, 0.0
    if ROTATE:
        cos = tl.load(cos_ptr + token * HALF + lane, lane < HALF, 0.0)[None, :]
        sin = tl.load(sin_ptr + token * HALF + lane, lane < HALF, 0.0)[None, :]

    head = tl.arange(0, HEADS_PADDED)
    inside = head[:, None] * DIM + lane[None, :]
    mask = (head < HEADS)[:, None] & (lane < HALF)[None, :]
    at = token * q_row + inside
    a, b = normed_and_rotated(q, q_weight, at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
    to = q_out + token * (HEADS * DIM) + inside
    tl.store(to, a, mask)
    tl.store(to + HALF, b, mask)

    head = tl.arange(0, KV_HEADS_PADDED)
    inside = head[:, None] * DIM + lane[None, :]
    mask = (head < KV_HEADS)[:, None] & (lane < HALF)[None, :]
    at = token * k_row + inside
    a, b = normed_and_rotated(k, k_weight, at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
    to = k_out + token * (KV_HEADS * DIM) + inside
    tl.store(to, a, mask)
    tl.store(to + HALF, b, mask)


# ---- backward


def heads_backward(
    dq: Tensor,
    dk: Tensor,
    q: Tensor | None,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k and both weights, from those of what heads_forward made of q and k.

    Without a norm q and k are not needed, and the weights have none. Theirs are summed in fp32, and come in
    the weights' dtype.
    """
    dq, dk = dq.contiguous(), dk.contiguous()
    q, k = (y if x is None else x if tokens_are_whole(x) else x.contiguous() for x, y in ((q, dq), (k, dk)))
    q_grad, k_grad = torch.empty_like(dq), torch.empty_like(dk)
    processors, _ = device_limits(dq)
    programs = min(len(dq), PROGRAMS * processors)
    parts = torch.empty(2, programs, dq.shape[-1], dtype=torch.float32, device=dq.device)
    if len(dq):
        _backward_kernel[(programs,)](
            dq,
            dk,
            q,
            k,
            *or_any(dq, q_weight, k_weight, cos, sin),
            q_grad,
            k_grad,
            parts,
            q.stride(0),
            k.stride(0),
            eps,
            len(dq),
            **constants(dq, dk, q_weight, cos),
        )
    if q_weight is None:
        return q_grad, k_grad, None, None
    q_weight_grad, k_weight_grad = parts.sum(1)
    return q_grad, k_grad, q_weight_grad.to(q_weight.dtype), k_weight_grad.to(k_weight.dtype)


def heads_backward_torch(dq, dk, q, k, q_weight, k_weight, eps, cos, sin):
    if cos is not None:
        dq, dk = rotated(dq, cos, -sin), rotated(dk, cos, -sin)
    if q_weight is None:
        return dq, dk, None, None
    dq, q_weight_grad = rms_norm_backward_torch(q, q_weight, eps, dq, None)
    dk, k_weight_grad = rms_norm_backward_torch(k, k_weight, eps, dk, None)
    return dq, dk, q_weight_grad, k_weight_grad


@triton.jit
def _gradient(
    dy,
    x,
    weight,
    grad,
    at,
    x_at,
    mask,
    lane,
    cos,
    sin,
    eps,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Write the gradient of some heads -> what both halves of the weight's gradient gain from each."""
    da = tl.load(dy + at, mask, 0.0).to(tl.float32)
    db = tl.load(dy + at + HALF, mask, 0.0).to(tl.float32)
    if ROTATE:  # a rotation's gradient is the inverse rotation
        turned = da * cos + db * sin
        db = db * cos - da * sin
        da = turned
    weight_a, weight_b = da, db  # replaced where there is a norm
    if NORM:
        inside = lane < HALF
        a = tl.load(x + x_at, mask, 0.0).to(tl.float32)
        b = tl.load(x + x_at + HALF, mask, 0.0).to(tl.float32)
        ga = da * tl.load(weight + lane, inside, 0.0).to(tl.float32)[None, :]
        gb = db * tl.load(weight + HALF + lane, inside, 0.0).to(tl.float32)[None, :]
        square, slope = tl.sum(a * a + b * b, 1)[:, None], tl.sum(ga * a + gb * b, 1)[:, None]
        rstd = tl.rsqrt(square / (2 * HALF) + eps)
        weight_a, weight_b = da * (a * rstd), db * (b * rstd)
        pull = slope * rstd * rstd / (2 * HALF)
        da, db = (ga - a * pull) * rstd, (gb - b * pull) * rstd
    tl.store(grad + at, da.to(grad.dtype.element_ty), mask)
    tl.store(grad + at + HALF, db.to(grad.dtype.element_ty), mask)
    return weight_a, weight_b


@triton.jit(do_not_specialize=["tokens"])
def _backward_kernel(
    dq,
    dk,
    q,
    k,
    q_weight,
    k_weight,
    cos_ptr,
    sin_ptr,
    q_grad,
    k_grad,
    parts,
    q_row,
    k_row,
    eps,
    tokens,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    LANES: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Each program goes over tokens: the gradients of their heads, and its part of the weights'.

    parts: [2, programs, D], of q's weight and of k's.
    """
    DIM: tl.constexpr = 2 * HALF
    lane = tl.arange(0, LANES)
    head, kv_head = tl.arange(0, HEADS_PADDED), tl.arange(0, KV_HEADS_PADDED)
    mask = (head < HEADS)[:, None] & (lane < HALF)[None, :]
    kv_mask = (kv_head < KV_HEADS)[:, None] & (lane < HALF)[None, :]
    q_sum_a = tl.zeros((HEADS_PADDED, LANES), tl.float32)
    q_sum_b = tl.zeros((HEADS_PADDED, LANES), tl.float32)
    k_sum_a = tl.zeros((KV_HEADS_PADDED, LANES), tl.float32)
    k_sum_b = tl.zeros((KV_HEADS_PADDED, LANES), tl.float32)
    for number in range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = tl.full([], number, tl.int64)
        cos, sin = 1.0, 0.0
        if ROTATE:
            cos = tl.load(cos_ptr + token * HALF + lane, lane < HALF, 0.0)[None, :]
            sin = tl.load(sin_ptr + token * HALF + lane, lane < HALF, 0.0)[None, :]
        inside = head[:, None] * DIM + lane[None, :]
        at, x_at = token * (HEADS * DIM) + inside, token * q_row + inside
        a, b = _gradient(dq, q, q_weight, q_grad, at, x_at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
        q_sum_a += a
        q_sum_b += b
        inside = kv_head[:, None] * DIM + lane[None, :]
        at, x_at = token * (KV_HEADS * DIM) + inside, token * k_row + inside
        a, b = _gradient(dk, k, k_weight, k_grad, at, x_at, kv_mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
        k_sum_a += a
        k_sum_b += b
    if NORM:
        to = parts + tl.program_id(0) * DIM + lane
        tl.store(to, tl.sum(q_sum_a, 0), lane < HALF)
        tl.store(to + HALF, tl.sum(q_sum_b, 0), lane < HALF)
        to += tl.num_programs(0) * DIM
        tl.store(to, tl.sum(k_sum_a, 0), lane < HALF)
        tl.store(to + HALF, tl.sum(k_sum_b, 0), lane < HALF)


# ---- both, and place.py


def or_any(stand_in: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """What a kernel does not read may be any tensor."""
    return [stand_in if x is None else x.contiguous() for x in tensors]


def constants(q: Tensor, k: Tensor, weight: Tensor | None, cos: Tensor | None) -> dict[str, int | bool]:
    """The constants of kernels whose programs have all heads of a token, and their warps."""
    (_, heads, dim), kv_heads = q.shape, k.shape[1]
    heads_padded, lanes = triton.next_power_of_2(heads), triton.next_power_of_2(dim // 2)
    return dict(
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEADS_PADDED=heads_padded,
        KV_HEADS_PADDED=triton.next_power_of_2(kv_heads),
        HALF=dim // 2,
        LANES=lanes,
        NORM=weight is not None,
        ROTATE=cos is not None,
        num_warps=8 if heads_padded * lanes >= 1024 else 4,
    )
