"""One kernel between the product that makes q, k and v and a sampler's attention.

It norms each head of q and k (Qwen3), rotates it, and writes k and v to the paged cache.

CachedAttention.place (sampler/kv_cache.py) calls `place` once a layer. `place` runs the kernel on CUDA and
its torch twin elsewhere. The trainer's forward has no cache and calls `norm_and_rotate` (heads.py) instead.
The kernel rounds where those separate steps round, so that a sampler sees what the trainer computes.
"""

import triton
import triton.language as tl
from torch import Tensor

from nanotriton.kernels.heads import constants, norm_and_rotate, normed_and_rotated, or_any
from nanotriton.kernels.launch import early, wait_for_previous
from nanotriton.kernels.layers import tokens_are_whole


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
    """The twin of place_cuda: place in separate steps."""
    q, k = norm_and_rotate(q, k, norms, rotation)
    k_cache[page, :, offset] = k
    v_cache[page, :, offset] = v
    return q, k


def place_cuda(q, k, v, norms, rotation, k_cache, v_cache, page, offset) -> tuple[Tensor, Tensor]:
    """place by the kernel."""
    q, k, v = (x if tokens_are_whole(x) else x.contiguous() for x in (q, k, v))
    q_weight, k_weight, eps = norms or (None, None, 0.0)
    cos, sin = rotation or (None, None)
    _place_kernel[(len(q),)](
        q,
        k,
        v,
        *or_any(q, q_weight, k_weight, cos, sin),
        k_cache,
        v_cache,
        page,
        offset,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        eps,
        **constants(q, k, q_weight, cos),
        PAGE=k_cache.shape[2],
        **early(q),
    )
    return q, k


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
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    LANES: tl.constexpr,
    PAGE: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program one token: all heads of q in place, of k in place and in the cache, of v in the cache.

    A tile is one half of every head. LANES is HALF, half a head, padded to a power of two.
    """
    wait_for_previous(EARLY)
    DIM: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    head, kv_head = tl.arange(0, HEADS_PADDED), tl.arange(0, KV_HEADS_PADDED)
    lane = tl.arange(0, LANES)
    inside = lane < HALF
    cos, sin = 1.0, 0.0
    if ROTATE:
        cos = tl.load(cos_ptr + token * HALF + lane, inside, 0.0)[None, :]
        sin = tl.load(sin_ptr + token * HALF + lane, inside, 0.0)[None, :]

    at = token * q_row + head[:, None] * DIM + lane[None, :]
    mask = (head < HEADS)[:, None] & inside[None, :]
    a, b = normed_and_rotated(q, q_weight, at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
    tl.store(q + at, a, mask)
    tl.store(q + at + HALF, b, mask)

    at = token * k_row + kv_head[:, None] * DIM + lane[None, :]
    mask = (kv_head < KV_HEADS)[:, None] & inside[None, :]
    a, b = normed_and_rotated(k, k_weight, at, mask, lane, cos, sin, eps, HALF, NORM, ROTATE)
    tl.store(k + at, a, mask)
    tl.store(k + at + HALF, b, mask)

    # the token's entry in each head's page
    entry = (tl.load(page + token).to(tl.int64) * KV_HEADS + kv_head) * PAGE + tl.load(offset + token)
    put = entry[:, None] * DIM + lane[None, :]
    tl.store(k_cache + put, a, mask)
    tl.store(k_cache + put + HALF, b, mask)
    at = token * v_row + kv_head[:, None] * DIM + lane[None, :]
    tl.store(v_cache + put, tl.load(v + at, mask), mask)
    tl.store(v_cache + put + HALF, tl.load(v + at + HALF, mask), mask)
