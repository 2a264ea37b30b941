"""Decode attention over a paged KV cache, built for groups: each prompt is read once for all of its samples.

A sample's context is two runs of pages: the *prefix* (its prompt, shared by the group, possibly ending in a partly filled
page) and its private *tail* (what it generated, starting on a page of its own, so that nothing is ever copied on write).
Softmax over the two is merged through log-sum-exp, exactly (Hydragen, arXiv 2402.05099; split-KV as in Flash-Decoding):

    prefix:  the queries of up to R samples of a group are one tile of R x (heads per KV head) rows, against each prefix page
    tail:    one sample's queries against its own pages; it starts from the prefix's (max, sum, output), so it ends merged

One layer of the cache is `k_cache, v_cache [pages, kv_heads, page_size, head_dim]`: a page of one head is contiguous.
On CUDA two Triton kernels run (three when long tails are split), all reading lengths and page tables on the device: a
CUDA graph replays them for any lengths. The torch twin makes *pages* the batch dimension of its matrix products, so that
a dense cache is read in place and no key is gathered.
"""

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

MASKED = -1e30  # finite, so that a page that belongs to nobody gives garbage for nobody and no NaN


@dataclass
class DecodeBatch:
    """What B query rows (one new token each) attend to. int32 tensors; the new token's key is already in its tail page.

    A row with tail_len 0 is padding: nothing is read for it and its output is zero.
    """

    slot: torch.Tensor  # [B] the row's line in tail_table
    tail_len: torch.Tensor  # [B] tokens in the tail, the new one included
    tail_table: torch.Tensor  # [slots, W] page ids
    tile_group: torch.Tensor  # [T] the tile's line in prefix_table
    tile_len: torch.Tensor  # [T] tokens in the prefix; 0 is an empty tile
    tile_rows: torch.Tensor  # [T, R] the rows of a tile, -1 where there is none; every row is in exactly one tile
    prefix_table: torch.Tensor  # [groups, W] page ids
    cache: dict = field(default_factory=dict)  # the twin's page lists and the kernels' scratch: made once, used by every layer


def decode_attention(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: DecodeBatch) -> torch.Tensor:
    """Causal attention of one new token a row over its prefix and tail, scale 1/sqrt(head_dim).

    q [B, heads, head_dim] -> [B, heads, head_dim] in q's dtype; softmax and sums in fp32; heads % kv_heads == 0.
    """
    if q.is_cuda:
        return _decode_cuda(q, k_cache, v_cache, batch)
    return decode_attention_torch(q, k_cache, v_cache, batch)


def write_kv(k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, page: torch.Tensor, offset: torch.Tensor) -> None:
    """Put k, v [T, kv_heads, head_dim] at (page [T], offset [T]) of one layer's cache."""
    if not k.is_cuda:
        k_cache[page, :, offset] = k
        v_cache[page, :, offset] = v
        return
    tokens, heads, dim = k.shape
    block = triton.next_power_of_2(heads * dim)
    _write_kernel[(tokens,)](
        k, v, k_cache, v_cache, page, offset, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        heads, dim, k_cache.shape[2], BLOCK=block, num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------- torch twin


@dataclass
class _Pages:
    """The pages that U units (rows, or tiles) read, flattened: page n belongs to unit owner[n] and holds length[n] of its tokens."""

    ids: torch.Tensor | slice  # [N]; a slice where most pages of a range are used: then nothing is gathered
    owner: torch.Tensor  # [N] unit, or U for a page in the slice that nobody here reads
    mask: torch.Tensor  # [N, 1, 1, page_size] fp32, 0 or MASKED, to add to the scores
    where: torch.Tensor  # [U * J] which n is the unit's j-th page, or N past its last
    most: int  # J


def _list_pages(table: torch.Tensor, line: torch.Tensor, length: torch.Tensor, page_size: int) -> _Pages:
    units, longest = len(line), max(int(length.max()), 1)
    first = torch.arange(0, longest, page_size)  # the token each page of a unit starts with
    used = first < length[:, None]  # [U, J]
    owner, j = used.nonzero(as_tuple=True)
    ids = table[line.long()[owner], j].long()
    filled = (length[owner] - first[j]).clamp(max=page_size)
    where = torch.full(used.shape, len(ids))
    where[used] = torch.arange(len(ids))
    low, high = (int(ids.min()), int(ids.max()) + 1) if len(ids) else (0, 0)
    # Reading a stray page in place costs as much as a used one; gathering all of them costs about twice that again.
    if len(ids) * 2 > high - low and len(ids) == len(ids.unique()):
        where = torch.full(used.shape, high - low)
        where[used] = ids - low
        owner, filled = _spread(owner, ids - low, high - low, units), _spread(filled, ids - low, high - low, 0)
        ids = slice(low, high)
    mask = torch.where(torch.arange(page_size) < filled[:, None], 0.0, MASKED)[:, None, None]
    return _Pages(ids, owner, mask, where.flatten(), len(first))


def _spread(x: torch.Tensor, index: torch.Tensor, size: int, fill: int) -> torch.Tensor:
    return torch.full((size,), fill, dtype=x.dtype).index_copy_(0, index, x)


def _padded(x: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.cat([x, x.new_full((1, *x.shape[1:]), fill)])


def _attend_pages(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, pages: _Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """q [U, kv_heads, rows, D] over each unit's pages -> (out [U, J, kv_heads, rows, D], lse [U, J, kv_heads, rows]) by page."""
    if isinstance(pages.ids, slice):
        k, v = k_cache[pages.ids].float(), v_cache[pages.ids].float()  # in fp32 a view
    else:
        k, v = k_cache.index_select(0, pages.ids).float(), v_cache.index_select(0, pages.ids).float()
    score = (_padded(q, 0.0).index_select(0, pages.owner) @ k.transpose(-1, -2)).add_(pages.mask)  # [N, kv_heads, rows, page_size]
    weight = score.softmax(-1)
    # The largest weight of a softmax is 1 / sum(exp(score - max)). (torch's exp is ten times slower where it underflows.)
    lse = score.amax(-1) - weight.amax(-1).log_()
    shape = (len(q), pages.most)
    out = _padded(weight @ v, 0.0).index_select(0, pages.where).unflatten(0, shape)
    return out, _padded(lse, MASKED).index_select(0, pages.where).unflatten(0, shape)


def decode_attention_torch(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: DecodeBatch) -> torch.Tensor:
    """The twin of decode_attention: same arguments, any device whose tensors can be read (it synchronises)."""
    rows, heads, dim = q.shape
    kv_heads, page_size = k_cache.shape[1:3]
    share = heads // kv_heads
    if "twin" not in batch.cache:
        tile_rows = batch.tile_rows.long()
        place = torch.zeros(rows + 1, dtype=torch.long)  # where in the flattened tiles a row is
        place[tile_rows.flatten()] = torch.arange(tile_rows.numel())  # -1 lands in the spare last entry
        batch.cache["twin"] = (
            _list_pages(batch.prefix_table, batch.tile_group, batch.tile_len, page_size),
            _list_pages(batch.tail_table, batch.slot, batch.tail_len, page_size),
            tile_rows.clamp(min=0).flatten(), place[:rows],
        )  # fmt: skip
    prefix, tail, tile_rows, place = batch.cache["twin"]
    scaled = (q.float() * dim**-0.5).view(rows, kv_heads, share, dim)
    tiles = scaled.index_select(0, tile_rows).unflatten(0, batch.tile_rows.shape).transpose(1, 2).flatten(2, 3)

    def by_row(x: torch.Tensor) -> torch.Tensor:  # [T, J, kv_heads, R * share, ...] -> [B, J, kv_heads, share, ...]
        x = x.unflatten(3, (-1, share)).movedim(3, 1)
        return x.reshape(-1, *x.shape[2:]).index_select(0, place)

    parts = [by_row(x) for x in _attend_pages(tiles, k_cache, v_cache, prefix)], _attend_pages(scaled, k_cache, v_cache, tail)
    out, lse = (torch.cat(pair, dim=1) for pair in zip(*parts))  # [B, all pages, kv_heads, share, ...]
    out = (out * lse.softmax(1)[..., None]).sum(1)
    return out.view(rows, heads, dim).masked_fill_((batch.tail_len == 0)[:, None, None], 0.0).to(q.dtype)
