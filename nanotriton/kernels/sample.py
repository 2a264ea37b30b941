"""Draw one token a row from logits: temperature, top-k, top-p, and the logprob under the distribution it was drawn from.

Randomness is one number u in [0, 1) a token, a pure function of (the sample's seed, how many tokens it has): what else is
in the batch, how it is batched, on which rank, plays no part. The token is where the cumulative distribution passes u, so
a vocabulary of 150,000 needs one random number and not one for each entry.
"""

import numpy as np
import torch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014) on uint64, wrapping."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """seeds [B] uint64, counters [B] -> u [B] float64 in [0, 1): draw number `counter` of the SplitMix64 stream mix(seed).

    The host knows both, so it is the one that computes u, for the CPU and the GPU alike.
    """
    state = _mix(seeds + GOLDEN) + (counters.astype(np.uint64) + np.uint64(1)) * GOLDEN
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def restrict(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf outside the support. logits [B, V]; top_k [B] int, 0 is off; top_p [B], 1 is off; top-k first.

    top-p keeps the smallest set of most likely tokens whose mass is at least p: a token stays if those above it have
    less than p. The most likely one always stays. Equal logits are kept in order of id.
    """
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ranked = ranked.masked_fill((top_k[:, None] > 0) & (rank >= top_k[:, None]), -torch.inf)
    above = ranked.softmax(-1).cumsum(-1)
    above = torch.cat([above.new_zeros(len(above), 1), above[:, :-1]], dim=-1)
    ranked = ranked.masked_fill((top_p[:, None] < 1) & (above >= top_p[:, None]), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ranked)


def sample_tokens(
    logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor, valid_vocab: int | None = None,
    top_k: torch.Tensor | None = None, top_p: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """logits [B, V] fp32, temperature [B] fp32, u [B] float64 -> tokens [B] int64, logprobs [B] fp32.

    Temperature 0 takes the most likely token (the first of equals) and reports its logprob at temperature 1. Ids from
    valid_vocab on (rows that pad an embedding) are never drawn and carry no mass. top_k and top_p are given together or
    not at all: see `restrict`.
    """
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    if valid_vocab is not None and valid_vocab < logits.shape[-1]:
        scaled[:, valid_vocab:] = -torch.inf
    if top_k is not None:
        scaled = restrict(scaled, torch.where(greedy, 0, top_k), torch.where(greedy, 1.0, top_p))
    return _draw(scaled, greedy, u)


def _draw(scaled: torch.Tensor, greedy: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = scaled.softmax(-1)
    cdf = p.to(torch.float64).cumsum_(-1)
    # The first id whose cdf is above u * total; such an id has mass of its own.
    tokens = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]
    if greedy.any():
        tokens = torch.where(greedy, scaled.argmax(-1), tokens)
    return tokens, p.gather(-1, tokens[:, None])[:, 0].log()
