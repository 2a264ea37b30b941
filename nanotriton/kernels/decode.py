"""Decode attention over a paged KV cache, built for groups: each prompt is read once for all of its samples.

A sample's context is two runs of pages. The *prefix* is its prompt, shared by the group, and may end in a
partly filled page. The *tail* is what the sample generated. It starts on a page of its own, so that nothing
is ever copied on write. Softmax over the two is merged through log-sum-exp, exactly (Hydragen, arXiv
2402.05099; split-KV as in Flash-Decoding):

    prefix:  the queries of up to R samples of a group are one tile of R x (heads per KV head) rows. It goes
             over each page of the prefix
    tail:    one sample's queries go over its own pages. They start from the prefix's (max, sum, output), and
             so end merged. A sample that is alone with its prompt goes over that first, in the same program

One layer of the cache is `k_cache, v_cache [pages, kv_heads, page_size, head_dim]`: a page of one head is
contiguous. Any head size is taken: the kernels' tiles are as wide as the next power of two, and what is past
the head is masked.

On CUDA a Triton kernel runs for the prefixes (not where every sample is alone), one for the tails, and one
more where long tails are split. They read lengths and page tables on the device, so a CUDA graph replays them
for any lengths. Elsewhere the torch twin runs (decode_twin.py). Programs start in the order of the rows, so
the longest should come first: one that starts last runs on alone.
"""

import torch
import triton
import triton.language as tl

from nanotriton.kernels.decode_twin import DecodeBatch, decode_attention_torch
from nanotriton.kernels.layers import device_limits, early, wait_for_previous

PROGRAMS = 528  # 4 for each of an H100's 132 multiprocessors: with fewer, tails are split
# of prefixes only 2 fit on one; and each split more is one result more to write and to merge
PREFIX_PROGRAMS = 264
MAX_SPLITS = 32
TILE_ROWS = 64  # of queries in a prefix tile, at most


def decode_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: DecodeBatch
) -> torch.Tensor:
    """Causal attention of one new token a row over its prefix and tail, scale 1/sqrt(head_dim).

    q [B, heads, head_dim] -> [B, heads, head_dim] in q's dtype. Softmax and sums are in fp32. heads is a
    multiple of kv_heads.
    """
    if q.is_cuda:
        return _decode_cuda(q, k_cache, v_cache, batch)
    return decode_attention_torch(q, k_cache, v_cache, batch)


# ---- the kernels


def _options(q: torch.Tensor, lanes: int, page_size: int) -> dict[str, int]:
    """Warps and stages for tiles of heads that are `lanes` wide.

    Three stages hold two pages of keys and values in shared memory, beside the queries. Where that is too
    much, pages are not loaded ahead. Four warps' registers hold a tile of 128 lanes.
    """
    need = (2 * 2 * page_size + TILE_ROWS) * lanes * q.element_size()
    return dict(num_warps=8 if lanes > 128 else 4, num_stages=3 if need <= device_limits(q)[1] else 1)


def _splits(units: int, programs: int) -> int:
    """Into how many parts the pages of a unit (a KV head of a tile, or of a row) are split.

    A power of two that depends on the shapes alone, as CUDA graphs need it.
    """
    want = max(1, min(programs // units, MAX_SPLITS))
    return 1 << (want.bit_length() - 1)


@triton.jit
def _heads_mask(live, d, DIM: tl.constexpr, LANES: tl.constexpr):
    """For a tile of one head a row, LANES wide: the rows that are live, and of those DIM elements."""
    mask = live[:, None]
    if LANES > DIM:
        mask = mask & (d < DIM)[None, :]
    return mask


@triton.jit
def _part(length, split, PAGE: tl.constexpr, SPLITS: tl.constexpr):
    """The pages, from first to before last, that a split reads of a run of so many tokens."""
    pages = tl.cdiv(length, PAGE)
    part = tl.cdiv(pages, SPLITS)
    return split * part, tl.minimum(split * part + part, pages)


@triton.jit
def _attend_pages_kernel(
    q,
    top,
    total,
    acc,
    k_head,
    v_head,
    table,
    first,
    last,
    length,
    page_stride,
    scale,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Online softmax, base 2, over pages first to last of a page table.

    (top, total, acc) goes in and comes out: the largest score so far, and the sums of weights and of values.
    """
    n, d = tl.arange(0, PAGE), tl.arange(0, LANES)
    inside = n[:, None] * DIM + d[None, :]
    for j in range(first, last):
        start = tl.load(table + j).to(tl.int64) * page_stride
        live = j * PAGE + n < length  # half a page of a tail, on average, is not read
        mask = _heads_mask(live, d, DIM, LANES)
        k = tl.load(k_head + start + inside, mask=mask, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        score = tl.where(live[None, :], score, -1e30)
        best = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - best[:, None])
        shrink = tl.exp2(top - best)
        v = tl.load(v_head + start + inside, mask=mask, other=0.0)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        total = total * shrink + tl.sum(weight, 1)
        top = best
    return top, total, acc


@triton.jit
def _prefix_kernel(
    q,
    k_cache,
    v_cache,
    table,
    tile_group,
    tile_len,
    tile_rows,
    out,
    lse,
    q_row,
    table_stride,
    page_stride,
    rows,
    scale,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program (KV head, split, tile): R rows x SHARE heads against a part of the prompt.

    -> out [SPLITS, B, heads, D], lse [SPLITS, B, heads] (base 2).
    """
    wait_for_previous(EARLY)
    kv_head, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(tile_len + tile)
    if length == 0:
        return
    first, last = _part(length, split, PAGE, SPLITS)
    i, d = tl.arange(0, BLOCK), tl.arange(0, LANES)
    row = tl.load(tile_rows + tile * R + i // SHARE, mask=i < R * SHARE, other=-1)
    live = row >= 0
    head = kv_head * SHARE + i % SHARE
    mask = _heads_mask(live, d, DIM, LANES)
    tile_q = tl.load(q + row[:, None] * q_row + head[:, None] * DIM + d[None, :], mask=mask, other=0.0)
    top, total = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, LANES], tl.float32)
    top, total, acc = _attend_pages_kernel(
        tile_q,
        top,
        total,
        acc,
        k_cache + kv_head * PAGE * DIM,
        v_cache + kv_head * PAGE * DIM,
        table + tl.load(tile_group + tile) * table_stride,
        first,
        last,
        length,
        page_stride,
        scale,
        PAGE,
        DIM,
        LANES,
        PRECISION,
    )
    at = (split * rows + row) * HEADS + head
    empty = first >= last
    tl.store(lse + at, tl.where(empty, -1e30, top + tl.log2(total)), mask=live)
    tl.store(out + at[:, None] * DIM + d[None, :], tl.where(empty, 0.0, acc / total[:, None]), mask=mask)


@triton.jit
def _tail_kernel(
    q,
    k_cache,
    v_cache,
    table,
    slot,
    tail_len,
    prefix_table,
    tile_group,
    tile_len,
    prefix_out,
    prefix_lse,
    out,
    lse,
    q_row,
    table_stride,
    page_stride,
    rows,
    scale,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program (KV head, split, row): SHARE heads against a part of the tail.

    The first split starts from the prefix's result. Without PREFIX_SPLITS there is none: tile i is row i, and
    each split reads its part of the prefix too. With one split `out` is the answer [B, heads, D], and lse
    isn't used. With more, both are partial, as the prefix's are.
    """
    wait_for_previous(EARLY)
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(tail_len + row)
    i, d = tl.arange(0, BLOCK), tl.arange(0, LANES)
    live = i < SHARE
    head = kv_head * SHARE + i
    mask = _heads_mask(live, d, DIM, LANES)
    tile_q = tl.load(q + row * q_row + head[:, None] * DIM + d[None, :], mask=mask, other=0.0)
    k_head, v_head = k_cache + kv_head * PAGE * DIM, v_cache + kv_head * PAGE * DIM
    top, total = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, LANES], tl.float32)
    if PREFIX_SPLITS == 0:
        prefix_length = tl.load(tile_len + row)
        first, last = _part(prefix_length, split, PAGE, SPLITS)
        top, total, acc = _attend_pages_kernel(
            tile_q,
            top,
            total,
            acc,
            k_head,
            v_head,
            prefix_table + tl.load(tile_group + row) * table_stride,
            first,
            last,
            prefix_length,
            page_stride,
            scale,
            PAGE,
            DIM,
            LANES,
            PRECISION,
        )
    else:
        reads = live & (split == 0) & (length > 0)  # a padding row has no prefix either
        for s in tl.static_range(PREFIX_SPLITS):
            at = (s * rows + row) * HEADS + head
            part_lse = tl.load(prefix_lse + at, mask=reads, other=-1e30)
            part_out = tl.load(
                prefix_out + at[:, None] * DIM + d[None, :], mask=mask & reads[:, None], other=0.0
            )
            best = tl.maximum(top, part_lse)
            shrink, weight = tl.exp2(top - best), tl.exp2(part_lse - best)
            acc = acc * shrink[:, None] + part_out * weight[:, None]
            total = total * shrink + tl.where(reads, weight, 0.0)
            top = best
    first, last = _part(length, split, PAGE, SPLITS)
    top, total, acc = _attend_pages_kernel(
        tile_q,
        top,
        total,
        acc,
        k_head,
        v_head,
        table + tl.load(slot + row) * table_stride,
        first,
        last,
        length,
        page_stride,
        scale,
        PAGE,
        DIM,
        LANES,
        PRECISION,
    )
    at = (split * rows + row) * HEADS + head
    empty = total == 0.0  # a split without pages, or padding
    answer = tl.where(empty[:, None], 0.0, acc / total[:, None])
    tl.store(out + at[:, None] * DIM + d[None, :], answer.to(out.dtype.element_ty), mask=mask)
    if SPLITS > 1:
        tl.store(lse + at, tl.where(empty, -1e30, top + tl.log2(total)), mask=live)


@triton.jit
def _merge_kernel(
    parts,
    lse,
    out,
    count,
    SPLITS: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program one (row, head): parts [SPLITS, count, D], lse [SPLITS, count] -> out [count, D]."""
    wait_for_previous(EARLY)
    at = tl.program_id(0)
    s, d = tl.arange(0, SPLITS), tl.arange(0, LANES)
    part_lse = tl.load(lse + s * count + at)
    weight = tl.exp2(part_lse - tl.max(part_lse, 0))
    part = tl.load(parts + (s * count + at)[:, None] * DIM + d[None, :], mask=(d < DIM)[None, :], other=0.0)
    answer = tl.sum(part * (weight / tl.sum(weight, 0))[:, None], 0)
    tl.store(out + at * DIM + d, answer.to(out.dtype.element_ty), mask=d < DIM)


def _decode_cuda(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: DecodeBatch
) -> torch.Tensor:
    """decode_attention by the kernels: the prefix, the tail, and the merging of what was split."""
    rows, heads, dim = q.shape
    kv_heads, page_size = k_cache.shape[1:3]
    if q.stride(1) != dim or q.stride(2) != 1:
        q = q.contiguous()
    share, (tiles, per_tile) = heads // kv_heads, batch.tile_rows.shape
    alone = (tiles, per_tile) == (rows, 1)
    prefix_splits = 0 if alone else _splits(tiles * kv_heads, PREFIX_PROGRAMS)
    splits = _splits(rows * kv_heads, PROGRAMS)
    if not batch.cache:
        new = lambda *shape: torch.empty(shape, dtype=torch.float32, device=q.device)
        batch.cache["prefix"] = new(prefix_splits, rows, heads, dim), new(prefix_splits, rows, heads)
        batch.cache["tail"] = (
            (new(splits, rows, heads, dim), new(splits, rows, heads)) if splits > 1 else (None, None)
        )
    prefix_out, prefix_lse = batch.cache["prefix"]
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    tail_out, tail_lse = batch.cache["tail"] if splits > 1 else (out, prefix_lse)
    lanes = max(16, triton.next_power_of_2(dim))  # tl.dot wants 16 at least
    options = _options(q, lanes, page_size)
    shape = dict(
        HEADS=heads,
        SHARE=share,
        PAGE=page_size,
        DIM=dim,
        LANES=lanes,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        **early(q),
    )
    scale = dim**-0.5 * 1.4426950408889634  # softmax in base 2
    if not alone:
        _prefix_kernel[(kv_heads, prefix_splits, tiles)](
            q,
            k_cache,
            v_cache,
            batch.prefix_table,
            batch.tile_group,
            batch.tile_len,
            batch.tile_rows,
            prefix_out,
            prefix_lse,
            q.stride(0),
            batch.prefix_table.stride(0),
            k_cache.stride(0),
            rows,
            scale,
            R=per_tile,
            BLOCK=max(16, triton.next_power_of_2(per_tile * share)),
            SPLITS=prefix_splits,
            **shape,
            **options,
        )
    _tail_kernel[(kv_heads, splits, rows)](
        q,
        k_cache,
        v_cache,
        batch.tail_table,
        batch.slot,
        batch.tail_len,
        batch.prefix_table,
        batch.tile_group,
        batch.tile_len,
        prefix_out,
        prefix_lse,
        tail_out,
        tail_lse,
        q.stride(0),
        batch.tail_table.stride(0),
        k_cache.stride(0),
        rows,
        scale,
        BLOCK=max(16, triton.next_power_of_2(share)),
        PREFIX_SPLITS=prefix_splits,
        SPLITS=splits,
        **shape,
        **options,
    )
    if splits > 1:
        options = dict(num_warps=1, **early(q))
        _merge_kernel[(rows * heads,)](
            tail_out, tail_lse, out, rows * heads, SPLITS=splits, DIM=dim, LANES=lanes, **options
        )
    return out
