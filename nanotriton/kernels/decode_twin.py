"""The torch twin of decode attention, and what the kernels (decode.py) and it are given: a DecodeBatch.

decode.py defines the words; read it first. `decode_attention_torch`, at the end, is what runs where there is
no GPU. Pages are the batch dimension of its matrix products: each page is attended to alone, and the results
are merged through log-sum-exp. So a dense cache is read in place, and no key is gathered.
"""

from dataclasses import dataclass, field

import torch

MASKED = -1e30  # finite, so that a page that belongs to nobody gives garbage for nobody and no NaN


@dataclass
class DecodeBatch:
    """What B rows attend to, one new token each, whose key is in its tail's page already. int32 tensors.

    A row with tail_len 0 is padding: nothing is read for it, and its output is zero.
    """

    slot: torch.Tensor  # [B] the row's line in tail_table
    tail_len: torch.Tensor  # [B] tokens in the tail, the new one included
    tail_table: torch.Tensor  # [slots, W] page ids; W: as many as the longest context has
    tile_group: torch.Tensor  # [T] the tile's line in prefix_table
    tile_len: torch.Tensor  # [T] tokens in the prefix; 0 is an empty tile
    # [T, R] the rows of a tile, -1 where there is none; every row is in exactly one tile. As [B, 1], where
    # every row is alone with its prompt, tile i is row i
    tile_rows: torch.Tensor
    prefix_table: torch.Tensor  # [groups, W] page ids
    # the twin's lists of pages, and the kernels' partial results: made once, used by every layer
    cache: dict = field(default_factory=dict)


@dataclass
class _Pages:
    """The N pages that U units read, laid end to end. A unit is a row, or a tile of rows."""

    ids: torch.Tensor | slice  # [N]; a slice where most pages of a range are used: then nothing is gathered
    owner: torch.Tensor  # [N] the unit that reads page n, or U for a page in the slice that nobody here reads
    mask: torch.Tensor  # [N, 1, 1, page_size] fp32, 0 or MASKED, to add to the scores
    where: torch.Tensor  # [U * J] which n is the unit's j-th page, or N past its last
    most: int  # J, the pages of the unit that has most


@dataclass
class _Reads:
    """What a batch of B rows and T tiles of R rows reads, the same in every layer."""

    prefix: _Pages  # of the tiles
    tail: _Pages  # of the rows
    tile_rows: torch.Tensor  # [T * R] int64, the row in each place of the tiles; 0 where there is none
    where: torch.Tensor  # [B] the place of each row
    padding: torch.Tensor  # the rows that read nothing


def _reads(batch: DecodeBatch, rows: int, page_size: int) -> _Reads:
    """What this batch reads, found out once."""
    if "twin" not in batch.cache:
        tile_rows = batch.tile_rows.long()
        where = torch.zeros(rows + 1, dtype=torch.long, device=tile_rows.device)
        # -1 lands in the spare last entry
        where[tile_rows.flatten()] = torch.arange(tile_rows.numel(), device=tile_rows.device)
        batch.cache["twin"] = _Reads(
            _list_pages(batch.prefix_table, batch.tile_group, batch.tile_len, page_size),
            _list_pages(batch.tail_table, batch.slot, batch.tail_len, page_size),
            tile_rows.clamp(min=0).flatten(),
            where[:rows],
            (batch.tail_len == 0).nonzero()[:, 0],
        )
    return batch.cache["twin"]


def _list_pages(table: torch.Tensor, line: torch.Tensor, length: torch.Tensor, page_size: int) -> _Pages:
    """The pages of units that have these lines [U] of a page table, and lengths [U] in tokens."""
    units, device = len(line), table.device
    most = max(-(-int(length.max()) // page_size), 1)
    # [U, J] tokens from each page on
    left = length[:, None] - torch.arange(0, most * page_size, page_size, device=device)
    used = left > 0
    pages = table.index_select(0, line)[:, :most].long()
    ids, owner, filled = pages[used], used.nonzero()[:, 0], left[used]
    if len(ids) == 0:
        mask = torch.zeros(0, 1, 1, page_size, device=device)
        where = torch.zeros(units, dtype=torch.long, device=device)
        return _Pages(ids, owner, mask, where, most=1)
    low, high = (int(x) for x in ids.aminmax())
    size = high + 1 - low
    # To read a stray page in place costs as much as a used one. To gather all costs about twice that again.
    if 2 * len(ids) > size:
        spread = torch.full((2, size), units, device=device)
        spread[1] = 0
        spread[:, ids - low] = torch.stack([owner, filled])
        if int((spread[0] < units).sum()) == len(ids):  # no page is read by two tiles
            where = torch.where(used, pages - low, size)
            return _Pages(slice(low, high + 1), spread[0], _mask(spread[1], page_size), where.flatten(), most)
    where = torch.full(used.shape, len(ids), device=device)
    where[used] = torch.arange(len(ids), device=device)
    return _Pages(ids, owner, _mask(filled, page_size), where.flatten(), most)


def _mask(filled: torch.Tensor, page_size: int) -> torch.Tensor:
    """What to add to the scores of pages with so many tokens in them: [N] -> [N, 1, 1, page_size]."""
    inside = torch.arange(page_size, device=filled.device) < filled[:, None]  # [N, page_size]
    return torch.where(inside, 0.0, MASKED)[:, None, None]


def _padded(x: torch.Tensor, fill: float) -> torch.Tensor:
    """x with one more entry at its end, for indices that stand for nothing."""
    return torch.cat([x, x.new_full((1, *x.shape[1:]), fill)])


def _attend_pages(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, pages: _Pages
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [U, kv_heads, rows, D] over each of its unit's pages alone.

    -> (out [U, J, kv_heads, rows, D], lse [U, J, kv_heads, rows]), to be merged over the J pages.
    """
    if isinstance(pages.ids, slice):
        k, v = k_cache[pages.ids].float(), v_cache[pages.ids].float()  # in fp32 a view
    else:
        k, v = k_cache.index_select(0, pages.ids).float(), v_cache.index_select(0, pages.ids).float()
    # [N, kv_heads, rows, page_size]
    score = (_padded(q, 0.0).index_select(0, pages.owner) @ k.transpose(-1, -2)).add_(pages.mask)
    weight = score.softmax(-1)
    # The largest weight of a softmax is 1 / sum(exp(score - max)). (torch's exp is ten times slower where it
    # underflows.)
    lse = score.amax(-1) - weight.amax(-1).log_()
    shape = (len(q), pages.most)
    out = _padded(weight @ v, 0.0).index_select(0, pages.where).unflatten(0, shape)
    return out, _padded(lse, MASKED).index_select(0, pages.where).unflatten(0, shape)


def decode_attention_torch(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: DecodeBatch
) -> torch.Tensor:
    """The twin of decode_attention, with its arguments, on any device. On a GPU it synchronises."""
    rows, heads, dim = q.shape
    kv_heads, page_size = k_cache.shape[1:3]
    share = heads // kv_heads
    reads = _reads(batch, rows, page_size)
    scaled = (q.float() * dim**-0.5).view(rows, kv_heads, share, dim)
    tiles = scaled.index_select(0, reads.tile_rows).unflatten(0, batch.tile_rows.shape)
    tiles = tiles.transpose(1, 2).flatten(2, 3)  # [T, kv_heads, R * share, D]

    def by_row(x: torch.Tensor) -> torch.Tensor:
        """Results of tiles [T, J, kv_heads, R * share, ...] as those of rows [B, J, kv_heads, share, ...]."""
        x = x.unflatten(3, (-1, share)).movedim(3, 1)
        return x.reshape(-1, *x.shape[2:]).index_select(0, reads.where)

    parts = (
        [by_row(x) for x in _attend_pages(tiles, k_cache, v_cache, reads.prefix)],
        _attend_pages(scaled, k_cache, v_cache, reads.tail),
    )
    out, lse = (torch.cat(pair, dim=1) for pair in zip(*parts))  # [B, all pages, kv_heads, share, ...]
    out = (out * lse.softmax(1)[..., None]).sum(1)
    if len(reads.padding):
        out[reads.padding] = 0.0
    return out.view(rows, heads, dim).to(q.dtype)
