"""What stands between the product that makes q, k and v and a sampler's attention, in one kernel: the norm of
each head of q and k (Qwen3), their rotation, and k and v into the paged cache.

`place` runs the kernel on CUDA and its torch twin elsewhere. The kernel rounds where the twin's separate
steps round, so that a sampler sees what the trainer's forward computes.
"""

import triton
import triton.language as tl
from torch import Tensor

from nanotriton.kernels.launch import early, wait_for_previous
from nanotriton.kernels.layers import norm_and_rotate, tokens_are_whole


def place(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    rotation: tuple[Tensor, Tensor] | None,
    k_cache: Tensor,
    v_cache: Tensor,
    page: Tensor,
    offset: Tensor,
) -> tuple[Tensor, Tensor]:
    """q [T, H, D] and k [T, Hkv, D] normed and rotated; that k, and v as it is, go to one layer's cache.

    norms: the weights [D] of q's and of k's norm, and eps; None for a model without.
    rotation: cos and sin, each [T, D / 2] fp32; None for a layer that does not rotate.
    k_cache and v_cache are [pages, Hkv, page_size, D]; token t goes to (page[t], offset[t]).
    q, k and v may be parts of each row of something wider. On CUDA q and k are overwritten.
    """
    run = place_cuda if q.is_cuda else place_torch
    return run(q, k, v, norms, rotation, k_cache, v_cache, page, offset)


def place_torch(q, k, v, norms, rotation, k_cache, v_cache, page, offset) -> tuple[Tensor, Tensor]:
    """The twin of place_cuda."""
    q, k = norm_and_rotate(q, k, norms, rotation)
    k_cache[page, :, offset] = k
    v_cache[page, :, offset] = v
    return q, k


def place_cuda(q, k, v, norms, rotation, k_cache, v_cache, page, offset) -> tuple[Tensor, Tensor]:
    """place by the kernel: one program a token."""
    q, k, v = (x if tokens_are_whole(x) else x.contiguous() for x in (q, k, v))
    (tokens, heads, dim), kv_heads = q.shape, k.shape[1]
    q_weight, k_weight, eps = norms or (q, q, 0.0)
    cos, sin = (x.contiguous() for x in rotation) if rotation else (q, q)
    block_heads, lanes = triton.next_power_of_2(heads), triton.next_power_of_2(dim // 2)
    _place_kernel[(tokens,)](
        q,
        k,
        v,
        q_weight,
        k_weight,
        cos,
        sin,
        k_cache,
        v_cache,
        page,
        offset,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        eps,
        H=heads,
        HKV=kv_heads,
        HEADS=block_heads,
        KV_HEADS=triton.next_power_of_2(kv_heads),
        HALF=dim // 2,
        LANES=lanes,
        PAGE=k_cache.shape[2],
        NORM=norms is not None,
        ROTATE=rotation is not None,
        num_warps=8 if block_heads * lanes >= 1024 else 4,
        **early(q),
    )
    return q, k


@triton.jit
def _halves_kernel(
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
    """The two halves of heads, in fp32: x[at] and x[at + HALF], normed and rotated."""
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
    return a, b


@triton.jit
def _place_kernel(
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos_ptr,
    sin_ptr,
    k_cache,
    v_cache,
    page,
    offset,
    q_row,
    k_row,
    v_row,
    eps,
    H: tl.constexpr,
    HKV: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    LANES: tl.constexpr,
    PAGE: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program one token: all heads of q in place, of k in place and in the cache, of v in the cache."""
    wait_for_previous(EARLY)
    DIM: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    head, kv_head, lane = tl.arange(0, HEADS), tl.arange(0, KV_HEADS), tl.arange(0, LANES)
    inside = lane < HALF
    cos, sin = 1.0, 0.0
    if ROTATE:
        cos = tl.load(cos_ptr + token * HALF + lane, inside, 0.0)[None, :]
        sin = tl.load(sin_ptr + token * HALF + lane, inside, 0.0)[None, :]

    at = token * q_row + head[:, None] * DIM + lane[None, :]
    mask = (head < H)[:, None] & inside[None, :]
    a, b = _halves_kernel(q, q_weight, at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
    tl.store(q + at, a.to(q.dtype.element_ty), mask)
    tl.store(q + at + HALF, b.to(q.dtype.element_ty), mask)

    at = token * k_row + kv_head[:, None] * DIM + lane[None, :]
    mask = (kv_head < HKV)[:, None] & inside[None, :]
    a, b = _halves_kernel(k, k_weight, at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
    tl.store(k + at, a.to(k.dtype.element_ty), mask)
    tl.store(k + at + HALF, b.to(k.dtype.element_ty), mask)

    slot = (tl.load(page + token).to(tl.int64) * HKV + kv_head) * PAGE + tl.load(offset + token)
    put = slot[:, None] * DIM + lane[None, :]
    tl.store(k_cache + put, a.to(k.dtype.element_ty), mask)
    tl.store(k_cache + put + HALF, b.to(k.dtype.element_ty), mask)
    at = token * v_row + kv_head[:, None] * DIM + lane[None, :]
    tl.store(v_cache + put, tl.load(v + at, mask), mask)
    tl.store(v_cache + put + HALF, tl.load(v + at + HALF, mask), mask)
