"""Decode attention over a paged KV cache, built for groups: each prompt is read once for all of its samples.

The sampler's decode step calls `decode_attention` once a layer (Sampler.step in sampler/sampler.py). Read it
first, then the kernels in the order in which they run: `_prefix_kernel`, `_tail_kernel`, `_merge_kernel`.

- *row*: the new token of one sample. q has B of them. A *query* is one head of a row.
- *prefix*: the prompt of a sample, shared by its group. Its last page may be partly filled.
- *tail*: what a sample has generated. It starts on a page of its own: nothing is ever copied on write.
- *page table*: ids of pages. It has one *line* for each prefix, or for each tail.
- *tile*: up to R rows of one group.
- *split*: one of the parts into which the pages of a prefix or tail are divided, each for its own program.

Softmax over prefix and tail is merged through log-sum-exp, exactly (Hydragen, arXiv 2402.05099; split-KV as
in Flash-Decoding):

    prefix:  the queries of a tile, R x (heads per KV head) of them, go over each page of the prefix together
    tail:    one row's queries go over its own pages. They start from the prefix's (max, sum, output), and
             so end merged. A row that is alone with its prompt goes over that first, in the same program

One layer of the cache is `k_cache, v_cache [pages, kv_heads, page_size, head_dim]`: a page of one head is
contiguous. Any head size is taken: the kernels' tiles are as wide as the next power of two, `LANES`, and what
is past the head is masked.

On CUDA a Triton kernel runs for the prefixes (not where every row is alone), one for the tails, and one more
where tails are split. They read lengths and page tables on the device, so a CUDA graph replays them for any
lengths. Elsewhere the torch twin runs (decode_twin.py). Programs start in the order of the rows, so the
longest should come first: one that starts last runs on alone.
"""

import torch
import triton
import triton.language as tl

from nanotriton.kernels.decode_twin import DecodeBatch, decode_attention_torch
from nanotriton.kernels.launch import device_limits, early, wait_for_previous

PROGRAMS = 528  # 4 for each of an H100's 132 multiprocessors: with fewer, tails are split
# Of the prefixes' programs only 2 fit on one, and each split more is one result more to write and to merge.
PREFIX_PROGRAMS = 264
MAX_SPLITS = 32
TILE_QUERIES = 64  # in a tile of a prefix, at most
LOG2_E = 1.4426950408889634  # exp(x) is exp2(x * LOG2_E): the kernels' softmax is in base 2


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
#
# A program holds its queries [BLOCK, LANES] and, for each of them, a *state* of softmax over the keys read so
# far: (top, total, acc), the largest score [BLOCK], the sum of weights 2 ** (score - top) [BLOCK], and the
# sum of the values so weighted [BLOCK, LANES]. -1e30 is the score of no key. It is finite, so that a state
# without keys makes no NaN.
#
# Page tables, lengths and tiles are DecodeBatch's (decode_twin.py). q_row, table_stride and page_stride are
# the elements from one row, line or page to the next. SHARE: heads per KV head. R: rows of a tile, at most.
# BLOCK: queries of a program, padded to a power of two. PAGE: tokens of a page. DIM: elements of a head.


@triton.jit
def _mask_of_heads(live, d, DIM: tl.constexpr, LANES: tl.constexpr):
    """For n heads of queries or keys, [n, LANES]: those that are live [n], and of each its DIM elements."""
    mask = live[:, None]
    if LANES > DIM:
        mask = mask & (d < DIM)[None, :]
    return mask


@triton.jit
def _pages_of_split(length, split, PAGE: tl.constexpr, SPLITS: tl.constexpr):
    """Of `length` tokens, the pages that a split reads: (the first, the one after the last)."""
    pages = tl.cdiv(length, PAGE)
    part = tl.cdiv(pages, SPLITS)
    return split * part, tl.minimum(split * part + part, pages)


@triton.jit
def _no_keys(BLOCK: tl.constexpr, LANES: tl.constexpr):
    """The state before any key is read."""
    top = tl.full([BLOCK], -1e30, tl.float32)
    return top, tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK, LANES], tl.float32)


@triton.jit
def _add_pages(
    q,
    state,
    cache,
    line,
    first,
    last,
    length,
    scale,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    LANES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The state after pages first to last of a page table's line are read too: online softmax, base 2.

    q: the queries. cache: where the keys and the values of one KV head begin, and page_stride. length: tokens
    that the whole line holds.
    """
    top, total, acc = state
    k_head, v_head, page_stride = cache
    n, d = tl.arange(0, PAGE), tl.arange(0, LANES)
    inside = n[:, None] * DIM + d[None, :]
    for j in range(first, last):
        start = tl.load(line + j).to(tl.int64) * page_stride
        live = j * PAGE + n < length  # half a page of a tail, on average, is not read
        mask = _mask_of_heads(live, d, DIM, LANES)
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
def _add_results(
    state,
    out,
    lse,
    row,
    rows,
    head,
    d,
    reads,
    mask,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The state after the results of SPLITS programs are added, for those queries (row, head) that `reads`.

    out [SPLITS, rows, HEADS, DIM], lse [SPLITS, rows, HEADS].
    """
    top, total, acc = state
    for s in tl.static_range(SPLITS):
        at = (s * rows + row) * HEADS + head
        part_lse = tl.load(lse + at, mask=reads, other=-1e30)
        part_out = tl.load(out + at[:, None] * DIM + d[None, :], mask=mask & reads[:, None], other=0.0)
        best = tl.maximum(top, part_lse)
        shrink, weight = tl.exp2(top - best), tl.exp2(part_lse - best)
        acc = acc * shrink[:, None] + part_out * weight[:, None]
        total = total * shrink + tl.where(reads, weight, 0.0)
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
    """Each program (KV head, split, tile): R rows x SHARE heads against a part of their prefix.

    -> out [SPLITS, B, heads, D], lse [SPLITS, B, heads] (base 2): the results of each split, by themselves.
    """
    wait_for_previous(EARLY)
    kv_head, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(tile_len + tile)
    if length == 0:
        return
    first, last = _pages_of_split(length, split, PAGE, SPLITS)
    query, d = tl.arange(0, BLOCK), tl.arange(0, LANES)
    row = tl.load(tile_rows + tile * R + query // SHARE, mask=query < R * SHARE, other=-1)
    live = row >= 0
    head = kv_head * SHARE + query % SHARE
    mask = _mask_of_heads(live, d, DIM, LANES)
    tile_q = tl.load(q + row[:, None] * q_row + head[:, None] * DIM + d[None, :], mask=mask, other=0.0)
    state = _no_keys(BLOCK, LANES)
    cache = k_cache + kv_head * PAGE * DIM, v_cache + kv_head * PAGE * DIM, page_stride
    line = table + tl.load(tile_group + tile) * table_stride
    top, total, acc = _add_pages(
        tile_q, state, cache, line, first, last, length, scale, PAGE, DIM, LANES, PRECISION
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
    """Each program (KV head, split, row): SHARE heads against a part of the row's tail.

    The first split starts from the prefix's results, of PREFIX_SPLITS splits. Where that is 0 there are none:
    tile i is row i, and each split reads its part of the prefix too. With one split `out` is the answer
    [B, heads, D], and lse isn't used. With more, both are partial, as the prefix's are.
    """
    wait_for_previous(EARLY)
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(tail_len + row)
    query, d = tl.arange(0, BLOCK), tl.arange(0, LANES)
    live = query < SHARE
    head = kv_head * SHARE + query
    mask = _mask_of_heads(live, d, DIM, LANES)
    tile_q = tl.load(q + row * q_row + head[:, None] * DIM + d[None, :], mask=mask, other=0.0)
    cache = k_cache + kv_head * PAGE * DIM, v_cache + kv_head * PAGE * DIM, page_stride
    state = _no_keys(BLOCK, LANES)
    if PREFIX_SPLITS == 0:
        prefix_length = tl.load(tile_len + row)
        first, last = _pages_of_split(prefix_length, split, PAGE, SPLITS)
        line = prefix_table + tl.load(tile_group + row) * table_stride
        state = _add_pages(
            tile_q, state, cache, line, first, last, prefix_length, scale, PAGE, DIM, LANES, PRECISION
        )
    else:
        reads = live & (split == 0) & (length > 0)  # a padding row has no prefix either
        state = _add_results(
            state, prefix_out, prefix_lse, row, rows, head, d, reads, mask, HEADS, DIM, PREFIX_SPLITS
        )
    first, last = _pages_of_split(length, split, PAGE, SPLITS)
    line = table + tl.load(slot + row) * table_stride
    top, total, acc = _add_pages(
        tile_q, state, cache, line, first, last, length, scale, PAGE, DIM, LANES, PRECISION
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
    """Each program merges the parts of one query, of count = B x heads. A part weighs 2 ** lse.

    parts [SPLITS, count, D], lse [SPLITS, count] -> out [count, D].
    """
    wait_for_previous(EARLY)
    at = tl.program_id(0)
    s, d = tl.arange(0, SPLITS), tl.arange(0, LANES)
    part_lse = tl.load(lse + s * count + at)
    weight = tl.exp2(part_lse - tl.max(part_lse, 0))
    part = tl.load(parts + (s * count + at)[:, None] * DIM + d[None, :], mask=(d < DIM)[None, :], other=0.0)
    answer = tl.sum(part * (weight / tl.sum(weight, 0))[:, None], 0)
    tl.store(out + at * DIM + d, answer.to(out.dtype.element_ty), mask=d < DIM)


# ---- their launches


def _options(q: torch.Tensor, lanes: int, page_size: int) -> dict[str, int]:
    """Warps and stages for tiles of heads that are `lanes` wide.

    Three stages hold two pages of keys and values in shared memory, beside the queries. Where that is too
    much, pages are not loaded ahead. Four warps' registers hold a tile of 128 lanes.
    """
    need = (2 * 2 * page_size + TILE_QUERIES) * lanes * q.element_size()
    return dict(num_warps=8 if lanes > 128 else 4, num_stages=3 if need <= device_limits(q)[1] else 1)


def _splits(units: int, programs: int) -> int:
    """Into how many parts the pages of a unit are split. A unit is one KV head of a tile, or of a row.

    It is a power of two that depends on the shapes alone, as CUDA graphs need it.
    """
    want = max(1, min(programs // units, MAX_SPLITS))
    return 1 << (want.bit_length() - 1)


def _lanes(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))  # tl.dot wants 16 at least


def _common(q: torch.Tensor, k_cache: torch.Tensor) -> dict:
    """The constants and options that the prefixes' and the tails' kernel are launched with alike."""
    heads, dim = q.shape[1:]
    kv_heads, page_size = k_cache.shape[1:3]
    lanes = _lanes(dim)
    return dict(
        HEADS=heads,
        SHARE=heads // kv_heads,
        PAGE=page_size,
        DIM=dim,
        LANES=lanes,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        **early(q),
        **_options(q, lanes, page_size),
    )


def _partial_results(splits: int, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the results of so many splits: out [splits, B, heads, D] and lse [splits, B, heads], fp32."""
    rows, heads, dim = q.shape
    new = lambda *shape: torch.empty(shape, dtype=torch.float32, device=q.device)
    return new(splits, rows, heads, dim), new(splits, rows, heads)


def _decode_cuda(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: DecodeBatch
) -> torch.Tensor:
    """decode_attention by the kernels: the prefixes, the tails, and the merging of what was split."""
    rows, heads, dim = q.shape
    kv_heads = k_cache.shape[1]
    if q.stride(1) != dim or q.stride(2) != 1:
        q = q.contiguous()
    tiles, per_tile = batch.tile_rows.shape
    alone = (tiles, per_tile) == (rows, 1)  # every row is: the tails' kernel reads the prompts as well
    prefix_splits = 0 if alone else _splits(tiles * kv_heads, PREFIX_PROGRAMS)
    splits = _splits(rows * kv_heads, PROGRAMS)
    if "prefix" not in batch.cache:
        batch.cache["prefix"] = _partial_results(prefix_splits, q)
        batch.cache["tail"] = _partial_results(splits, q) if splits > 1 else None
    prefix = batch.cache["prefix"]
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    # A tail that is not split has its answer at once. Its lse is not written: any tensor will do.
    tail = batch.cache["tail"] if splits > 1 else (out, prefix[1])
    if not alone:
        _launch_prefixes(q, k_cache, v_cache, batch, prefix, prefix_splits)
    _launch_tails(q, k_cache, v_cache, batch, prefix, prefix_splits, tail, splits)
    if splits > 1:
        _launch_merge(*tail, out, splits)
    return out


def _launch_prefixes(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: DecodeBatch,
    prefix: tuple[torch.Tensor, torch.Tensor],
    splits: int,
) -> None:
    """Write the results of all prefixes to `prefix` (see _partial_results)."""
    tiles, per_tile = batch.tile_rows.shape
    kv_heads = k_cache.shape[1]
    rows, heads, dim = q.shape
    _prefix_kernel[(kv_heads, splits, tiles)](
        q,
        k_cache,
        v_cache,
        batch.prefix_table,
        batch.tile_group,
        batch.tile_len,
        batch.tile_rows,
        *prefix,
        q.stride(0),
        batch.prefix_table.stride(0),
        k_cache.stride(0),
        rows,
        dim**-0.5 * LOG2_E,
        R=per_tile,
        BLOCK=max(16, triton.next_power_of_2(per_tile * heads // kv_heads)),
        SPLITS=splits,
        **_common(q, k_cache),
    )


def _launch_tails(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: DecodeBatch,
    prefix: tuple[torch.Tensor, torch.Tensor],
    prefix_splits: int,
    tail: tuple[torch.Tensor, torch.Tensor],
    splits: int,
) -> None:
    """Write the results of all rows to `tail`: the answer, or partial results where they are split."""
    kv_heads = k_cache.shape[1]
    rows, heads, dim = q.shape
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
        *prefix,
        *tail,
        q.stride(0),
        batch.tail_table.stride(0),
        k_cache.stride(0),
        rows,
        dim**-0.5 * LOG2_E,
        BLOCK=max(16, triton.next_power_of_2(heads // kv_heads)),
        PREFIX_SPLITS=prefix_splits,
        SPLITS=splits,
        **_common(q, k_cache),
    )


def _launch_merge(parts: torch.Tensor, lse: torch.Tensor, out: torch.Tensor, splits: int) -> None:
    """Merge the partial results of the tails into `out` [B, heads, D]."""
    rows, heads, dim = out.shape
    _merge_kernel[(rows * heads,)](
        parts,
        lse,
        out,
        rows * heads,
        SPLITS=splits,
        DIM=dim,
        LANES=_lanes(dim),
        num_warps=1,
        **early(out),
    )
