"""Draw one token a row from logits: temperature, top-k, top-p, and the logprob under the distribution it was
drawn from.

Randomness is one number u in [0, 1) a token, a pure function of (the sample's seed, how many tokens it
has): what else is in the batch, how it is batched, on which rank, plays no part. The token is where the
cumulative distribution passes u, so a vocabulary of 150,000 needs one random number and not one for
each entry.
"""

import numpy as np
import torch
import triton
import triton.language as tl

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014) on uint64, wrapping."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """seeds [B] uint64, counters [B] -> u [B] float64 in [0, 1): draw number `counter` of the SplitMix64
    stream mix(seed).

    The host knows both, so it is the one that computes u, for the CPU and the GPU alike.
    """
    state = _mix(seeds + GOLDEN) + (counters.astype(np.uint64) + np.uint64(1)) * GOLDEN
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def restrict(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf outside the support. logits [B, V]; top_k [B] int, 0 is off; top_p [B], 1 is off; top-k first.

    top-p keeps the smallest set of most likely tokens whose mass is at least p: a token stays if those
    above it have less than p. The most likely one always stays. Equal logits are kept in order of id.
    """
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ranked = ranked.masked_fill((top_k[:, None] > 0) & (rank >= top_k[:, None]), -torch.inf)
    above = ranked.softmax(-1).cumsum(-1)
    above = torch.cat([above.new_zeros(len(above), 1), above[:, :-1]], dim=-1)
    ranked = ranked.masked_fill((top_p[:, None] < 1) & (above >= top_p[:, None]), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ranked)


def sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    u: torch.Tensor,
    valid_vocab: int | None = None,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [B, V] fp32, temperature [B] fp32, u [B] float64 -> tokens [B] int64, logprobs [B] fp32.

    Temperature 0 takes the most likely token (the first of equals) and reports its logprob at
    temperature 1. Ids from valid_vocab on (rows that pad an embedding) are never drawn and carry no
    mass. top_k and top_p are given together or not at all: see `restrict`.
    """
    valid = logits.shape[-1] if valid_vocab is None else min(valid_vocab, logits.shape[-1])
    if top_k is None and logits.is_cuda:
        return _sample_cuda(logits, temperature, u, valid)
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    scaled[:, valid:] = -torch.inf
    if top_k is not None:
        scaled = restrict(scaled, torch.where(greedy, 0, top_k), torch.where(greedy, 1.0, top_p))
        if logits.is_cuda:
            return _sample_cuda(scaled, torch.where(greedy, 0.0, 1.0), u, valid)
    return sample_tokens_torch(scaled, greedy, u)


def sample_tokens_torch(
    scaled: torch.Tensor, greedy: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The twin of the kernels, from scaled and masked logits."""
    p = scaled.softmax(-1)
    cdf = p.to(torch.float64).cumsum_(-1)
    # The first id whose cdf is above u * total; such an id has mass of its own.
    tokens = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]
    if greedy.any():
        tokens = torch.where(greedy, scaled.argmax(-1), tokens)
    return tokens, p.gather(-1, tokens[:, None])[:, 0].log()


BLOCK = 4096


@triton.jit
def _block_kernel(logits, temperature, top, total, best, vocab, valid, blocks, BLOCK: tl.constexpr):
    """(row, block): max, sum of exp(z - max) and the id of the max, of z = logits / temperature in one block
    of ids."""
    row, block = tl.program_id(0), tl.program_id(1)
    t = tl.load(temperature + row)
    i = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row.to(tl.int64) * vocab + i, mask=i < valid, other=-float("inf")) / tl.where(
        t == 0, 1.0, t
    )
    high = tl.maximum(tl.max(z, 0), -1e30)  # finite where every id is masked
    at = row * blocks + block
    tl.store(top + at, high)
    tl.store(total + at, tl.sum(tl.exp(z - high), 0))
    tl.store(best + at, block * BLOCK + tl.argmax(z, 0))


@triton.jit
def _pick_kernel(
    logits,
    temperature,
    u,
    top,
    total,
    best,
    tokens,
    logprobs,
    vocab,
    valid,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One row: the block in which the cumulative mass passes u, then the id in it. Cumulative sums are in
    fp64."""
    row = tl.program_id(0)
    t = tl.load(temperature + row)
    b = tl.arange(0, BLOCKS)
    tops = tl.load(top + row * blocks + b, mask=b < blocks, other=-1e30)
    sums = tl.load(total + row * blocks + b, mask=b < blocks, other=0.0)
    high = tl.max(tops, 0)
    mass = (sums * tl.exp(tops - high)).to(tl.float64)
    cdf = tl.cumsum(mass, 0)
    whole = tl.sum(mass, 0)
    target = tl.load(u + row) * whole
    last = tl.max(tl.where(mass > 0, b, 0), 0)  # rounding must not lead past the mass
    block = tl.minimum(tl.sum((cdf <= target).to(tl.int32), 0), last)
    target -= tl.sum(tl.where(b < block, mass, 0.0), 0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row.to(tl.int64) * vocab + i, mask=i < valid, other=-float("inf")) / tl.where(
        t == 0, 1.0, t
    )
    p = tl.exp(z - high).to(tl.float64)
    last = tl.max(tl.where(p > 0, i, 0), 0)
    drawn = tl.minimum(block * BLOCK + tl.sum((tl.cumsum(p, 0) <= target).to(tl.int32), 0), last)
    likeliest = tl.load(best + row * blocks + tl.argmax(tops, 0))
    token = tl.where(t == 0, likeliest, drawn)
    chosen = tl.where(t == 0, high, tl.max(tl.where(i == drawn, z, -float("inf")), 0))
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, (chosen - high - tl.log(whole)).to(tl.float32))


def _sample_cuda(
    logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor, valid: int
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    top, total = torch.empty((2, rows, blocks), dtype=torch.float32, device=logits.device)
    best = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    logits = logits.contiguous()
    _block_kernel[(rows, blocks)](
        logits, temperature, top, total, best, vocab, valid, blocks, BLOCK=BLOCK, num_warps=8
    )
    _pick_kernel[(rows,)](
        logits,
        temperature,
        u,
        top,
        total,
        best,
        tokens,
        logprobs,
        vocab,
        valid,
        blocks,
        BLOCK=BLOCK,
        BLOCKS=triton.next_power_of_2(blocks),
        num_warps=8,
    )
    return tokens, logprobs
