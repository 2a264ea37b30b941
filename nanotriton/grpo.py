"""GRPO and its relatives: advantages, losses, corrections. Pure functions of tensors; docs/rules.md says what must hold.

Sequences are packed. Every per-token tensor is [T], the tokens of all sequences of a microbatch end to end, and
`seq_ids` [T] int64 says which sequence (0..B-1 in this microbatch) a token belongs to. A sequence lies in one microbatch
only. `mask` [T] is 1 on the tokens that were sampled and are to be learned from, and 0 on prompts and on what was dropped.

    d_t = logp_t - old_t      r_t = exp(d_t)      A_t = advantage of t's sequence      m_t = mask

One optimizer step, whatever the number of microbatches and ranks:

    normalizer = all_sum(sum(count(mask, seq_ids, kind) over this rank's microbatches))   # before the first backward
    for each microbatch: loss, stats = policy_loss(logp, old, A, mask, seq_ids, normalizer, kind); loss.backward()
    gradients are *summed* over ranks; summarize(all stats, all_sum, all_max) goes to the log

Nothing averages over a microbatch: the mean of such means is another loss, and can have the other sign. On policy r = 1
and the loss *value* is near 0 whatever is learned; its gradient is not.
"""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import torch
from torch import Tensor

# (clip_low, clip_high) of each loss, from its paper. The ratio may move in [1 - low, 1 + high].
CLIP = {
    "grpo": (0.2, 0.2),  # DeepSeekMath, arXiv 2402.03300
    "dapo": (0.2, 0.28),  # clip-higher: DAPO, arXiv 2503.14476
    "dr_grpo": (0.2, 0.2),  # Understanding R1-Zero-like training, arXiv 2503.20783
    "cispo": (1.0, 4.0),  # MiniMax-M1, arXiv 2506.13585: no lower bound, ratios up to 5
    "gspo": (3e-4, 4e-4),  # arXiv 2507.18071: of a sequence's geometric mean, hence so narrow
}
PER_SEQUENCE = {"grpo", "gspo"}  # mean over sequences of the mean over tokens; the others sum over tokens
# exp(20) = 5e8. Past it the ratio is constant: an infinite one makes 0 * inf = NaN in the backward
MAX_LOG_RATIO = 20.0


# ---- advantages
# ------------------------------------------------------------------------------------------------------
def advantages(
    rewards: Sequence[float | None],
    group_ids: Sequence[int],
    kind: str = "mean_std",
    eps: float = 1e-6,
    std_floor: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """How much better a sample is than its group -> (advantage [B] float64, spread [B] bool).

        mean      A = R - mean(R)                                      Dr. GRPO, arXiv 2503.20783
        mean_std  A = (R - mean(R)) / (max(std(R), std_floor) + eps)   GRPO, arXiv 2402.03300; std with ddof 1
        rloo      A = R - mean of the others' R                        RLOO, arXiv 2402.14740

    rewards [B]; None or NaN means the sample leaves the batch (the infrastructure failed, the answer was cut off): it
    takes no part in its group's mean and std, its advantage is 0 and its spread False.
    group_ids [B]: any integers, one a prompt *index* (by text, equal prompts would merge).
    std_floor: the reward's noise, in its own units, so that noise is not blown up to unit variance.
    spread: the sample's group has rewards that differ. Where not, the advantage is exactly 0: drop those samples from
    the loss *and* from count(). Max and min decide, since the mean of equal rewards may be off by an ulp.

    >>> [x.tolist() for x in advantages([1.0, 0.0, 0.5, 0.5, None], [7, 7, 3, 3, 3], kind="mean")]
    [[0.5, -0.5, 0.0, 0.0, 0.0], [True, True, False, False, False]]
    """
    r = torch.tensor([float("nan") if x is None else float(x) for x in rewards], dtype=torch.float64)
    valid = ~r.isnan()
    _, group = torch.unique(torch.as_tensor(group_ids), return_inverse=True)

    # [B] -> [B]: what x's valid members of the group make
    def per_group(x: Tensor, reduce: str = "sum") -> Tensor:
        return x.new_zeros(len(x)).scatter_reduce_(0, group[valid], x[valid], reduce, include_self=False)[
            group
        ]

    n = per_group(torch.ones_like(r))
    spread = valid & (per_group(r, "amax") > per_group(r, "amin"))
    centred = torch.where(spread, r - per_group(r) / n.clamp(min=1), 0.0)
    if kind == "mean":
        return centred, spread
    if kind == "rloo":
        return centred * n / (n - 1).clamp(min=1), spread
    if kind == "mean_std":
        std = (per_group(centred**2) / (n - 1).clamp(min=1)).sqrt()
        return centred / (std.clamp(min=std_floor) + eps), spread
    raise ValueError(f"unknown advantage {kind!r}: mean_std, mean or rloo")


# ---- the normaliser and the sum over tokens
# --------------------------------------------------------------------------
def count(mask: Tensor, seq_ids: Tensor, kind: str = "dapo", max_length: int | None = None) -> Tensor:
    """What a microbatch adds to the loss's denominator -> scalar float64. Sum it over every microbatch of every rank.

        dapo, cispo   sum of m                     every token counts alike
        grpo, gspo    sequences with any m = 1     every sequence counts alike
        dr_grpo       those * max_length           no length is favoured; max_length is the limit of sampling

    >>> mask, seq_ids = torch.tensor([0, 1, 1, 0, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 2])
    >>> [count(mask, seq_ids, kind, max_length=8).item() for kind in ("dapo", "grpo", "dr_grpo")]
    [3.0, 2.0, 16.0]
    """
    _check(kind)
    if kind in ("dapo", "cispo"):
        return mask.bool().sum().double()
    if kind == "dr_grpo" and not max_length:
        raise ValueError("dr_grpo divides by max_length, the longest response that may be sampled")
    return (_lengths(mask, seq_ids) > 0).sum().double() * (max_length if kind == "dr_grpo" else 1)


def aggregate(
    values: Tensor, mask: Tensor, seq_ids: Tensor, normalizer: Tensor | float, kind: str = "dapo"
) -> Tensor:
    """This microbatch's share of a loss term: per-token values [T] -> scalar, divided by the normaliser. All masked: 0.
    sum_t m_t v_t / normalizer; for grpo and gspo sum_i (sum_{t in i} m_t v_t / n_i) / normalizer."""
    _check(kind)
    mask = mask.bool()
    values = torch.where(mask, values, 0.0)
    if kind in PER_SEQUENCE:
        values = values / _lengths(mask, seq_ids).clamp(min=1)[seq_ids].to(values.dtype)
    return values.sum() / max(float(normalizer), 1.0)


def _lengths(mask: Tensor, seq_ids: Tensor) -> Tensor:
    """Unmasked tokens of each sequence, [B] int64."""
    sequences = int(seq_ids.max()) + 1 if len(seq_ids) else 0
    return torch.zeros(sequences, dtype=torch.long, device=mask.device).index_add_(
        0, seq_ids, mask.bool().long()
    )


def _check(kind: str) -> None:
    if kind not in CLIP:
        raise ValueError(f"unknown loss {kind!r}: {', '.join(CLIP)}")


# ---- the loss
# --------------------------------------------------------------------------------------------------------
def policy_loss(
    logp: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    seq_ids: Tensor,
    normalizer: Tensor | float,
    kind: str = "dapo",
    clip_low: float | None = None,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped policy-gradient loss of a microbatch, to minimise -> (scalar, statistics for summarize()).

        grpo, dapo, dr_grpo   -min(r A, clip(r, 1 - low, 1 + high) A)       PPO's, arXiv 1707.06347; they differ in count()
        gspo                  the same with s = exp(mean of d over the sequence) in r's place, arXiv 2507.18071. Its
                              gradient reaches every token of the sequence (GSPO-token: the same for one A a sequence)
        cispo                 -sg(clip(r, 1 - low, 1 + high)) A logp         arXiv 2506.13585: clipped tokens still learn

    logp, old, advantage, mask, seq_ids: [T]. Only logp has a gradient. normalizer: see count().
    clip_low, clip_high: None takes the paper's, CLIP[kind].
    dual_clip c > 1: for A < 0 the loss is at most -c A (arXiv 1912.09729), so that a huge ratio cannot explode.
    weight [T]: a factor on this term, see mismatch().

    >>> logp, old = torch.tensor([0.3, 0.3]).log(), torch.tensor([0.2, 0.2]).log()
    >>> policy_loss(logp, old, torch.tensor([1.0, -1.0]), torch.ones(2), torch.tensor([0, 1]), normalizer=2)[0]
    tensor(0.1100)
    """
    _check(kind)
    low, high = (
        default if given is None else given for given, default in zip((clip_low, clip_high), CLIP[kind])
    )
    mask = mask.bool()
    advantage = advantage.to(logp.dtype)
    log_ratio = torch.where(mask, logp - old.to(logp.dtype), 0.0)
    stats = ratio_stats(logp, old, mask)
    if kind == "gspo":
        lengths = _lengths(mask, seq_ids)
        total = log_ratio.detach().new_zeros(len(lengths)).index_add_(0, seq_ids, log_ratio.detach())
        mean = (total / lengths.clamp(min=1))[seq_ids]
        # the value is the sequence's, the gradient the token's own
        log_ratio = mean + log_ratio - log_ratio.detach()
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    if kind == "cispo":
        loss = -clipped.detach() * advantage * torch.where(mask, logp, 0.0)
        binds = ratio != clipped
    else:
        loss = -torch.minimum(ratio * advantage, clipped * advantage)
        binds = clipped * advantage < ratio * advantage
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ValueError(f"dual_clip must be over 1, not {dual_clip}")
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)
    if weight is not None:
        loss = loss * weight.to(loss.dtype)
    stats["clip_fraction"] = (binds & mask).sum().double()
    return aggregate(loss, mask, seq_ids, normalizer, kind), stats


def kl(logp: Tensor, ref: Tensor, mask: Tensor, kind: str = "k3", old: Tensor | None = None) -> Tensor:
    """Distance to the reference policy as a loss term, per token [T] (0 where masked); aggregate() it. d = logp - ref.

        k2  d^2 / 2             its gradient is that of KL(pi || ref)
        k3  exp(-d) + d - 1     its value estimates KL(pi || ref), its gradient is that of KL(ref || pi)
        k3 with `old`           times the live ratio exp(logp - old): the gradient of KL(pi || ref), DeepSeek-V3.2

    k1 = d is refused: as a loss its gradient is zero in expectation. Estimators: Schulman, "Approximating KL divergence";
    gradients: arXiv 2506.09477. `old` is what the samples were drawn from.

    >>> kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -9.0]), torch.tensor([1, 0]), kind="k2")
    tensor([0.1250, 0.0000])
    """
    mask = mask.bool()
    d = torch.where(mask, logp - ref.to(logp.dtype), 0.0)
    if kind not in ("k2", "k3"):
        raise ValueError(f"unknown KL estimator {kind!r}: k2 or k3 (k1's gradient is zero in expectation)")
    out = 0.5 * d**2 if kind == "k2" else (-d).clamp(max=MAX_LOG_RATIO).exp() + d - 1
    if old is None:
        return out
    live = torch.where(mask, logp - old.to(logp.dtype), 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return out * live


def mismatch(
    old: Tensor | None,
    rollout: Tensor,
    mask: Tensor,
    seq_ids: Tensor,
    mode: str = "bypass",
    high: float = 2.0,
    low: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """The sampler's probabilities are not quite the trainer's: what to do -> (old [T], weight [T] or None) for policy_loss.

        bypass             old := rollout, the clip corrects; the trainer's own `old` isn't needed (pass None)
        none               old as it is: to see what the mismatch does
        token_truncate     w_t = clip(exp(old_t - rollout_t), low, high)       TIS, fengyao.notion.site/off-policy-rl
        token_mask         w_t where low <= w_t <= high, else 0                IcePop, arXiv 2510.18855
        sequence_truncate, sequence_mask    the same with w = exp(sum of the sequence's differences)

    rollout [T]: the logprobs that the sampler recorded. w has no gradient.
    >>> mismatch(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0]), torch.ones(2), torch.tensor([0, 0]), "token_truncate")[1]
    tensor([1., 2.])
    """
    if mode == "bypass":
        return rollout, None
    if old is None:
        raise ValueError(f"mismatch mode {mode!r} needs the trainer's old logprobs; only bypass does without")
    if mode == "none":
        return old, None
    level, _, rule = mode.partition("_")
    if level not in ("token", "sequence") or rule not in ("truncate", "mask"):
        raise ValueError(f"unknown mismatch mode {mode!r}: bypass, none or (token|sequence)_(truncate|mask)")
    d = torch.where(mask.bool(), old - rollout, 0.0).detach()
    if level == "sequence":
        d = d.new_zeros(len(_lengths(mask, seq_ids))).index_add_(0, seq_ids, d)[seq_ids]
    w = d.exp()
    return old, w.clamp(low, high) if rule == "truncate" else torch.where((w < low) | (w > high), 0.0, w)


def ratio_stats(logp: Tensor, other: Tensor, mask: Tensor, prefix: str = "") -> dict[str, Tensor]:
    """How far logp is from other: sums over the unmasked tokens, and a maximum, of r = exp(logp - other) and of
    kl = r - 1 - log r, never negative. With prefix="mismatch_": the trainer's logp against the sampler's."""
    d = torch.where(mask.bool(), logp.detach().double() - other.double(), 0.0)
    ratio = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    kept = torch.where(mask.bool(), ratio, 0.0)
    return {
        "tokens": mask.bool().sum().double(),
        f"{prefix}kl": (ratio - 1 - d).sum(),
        f"{prefix}ratio": kept.sum(),
        f"{prefix}ratio_max": kept.max() if len(kept) else d.sum(),
    }


def summarize(
    parts: Sequence[dict[str, Tensor]],
    all_sum: Callable[[Tensor], Tensor] = lambda x: x,
    all_max: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, float]:
    """Statistics of a step from those of its microbatches: means over all tokens of all ranks, maxima (`..._max`), and the
    number of tokens. Every rank calls it with at least one part; all_sum and all_max are World's."""
    keys = list(parts[0])
    table = torch.stack([torch.stack([part[k].double() for k in keys]) for part in parts])  # [parts, keys]
    sums, peaks = all_sum(table.sum(0)).tolist(), all_max(table.amax(0)).tolist()
    tokens = max(sums[keys.index("tokens")], 1.0)
    mean = {k: s / tokens for k, s in zip(keys, sums)}
    return (
        mean
        | {k: p for k, p in zip(keys, peaks) if k.endswith("_max")}
        | {"tokens": sums[keys.index("tokens")]}
    )


# ---- lengths, and groups that teach nothing
# --------------------------------------------------------------------------
def soft_overlong(length: int, max_length: int, cache: int) -> float:
    """DAPO's soft overlong punishment, added to the reward: 0, then linear to -1 at the limit (arXiv 2503.14476, eq. 13).

    >>> [soft_overlong(n, max_length=16, cache=4) for n in (10, 12, 13, 16)]
    [0.0, 0.0, -0.25, -1.0]
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"soft overlong needs 0 < cache <= max_length, not {cache} and {max_length}")
    return min(0.0, (max_length - cache - length) / cache)


def truncation(
    rewards: Sequence[float | None],
    lengths: Sequence[int],
    cut: Sequence[bool],
    policy: str,
    max_length: int,
    cache: int = 0,
) -> list[float | None]:
    """Rewards after the stated policy on long answers. cut[i]: the answer hit max_length without an end token.

        keep   nothing happens: a cut answer has the reward that it earned, most often 0
        mask   a cut answer leaves the batch (None): the loss, the denominator and its group's baseline
        soft   soft_overlong() is added for every answer, cut or not

    >>> truncation([1.0, 0.0, None], [9, 16, 16], [False, True, True], "mask", max_length=16)
    [1.0, None, None]
    """
    if policy == "keep":
        return list(rewards)
    if policy == "mask":
        return [None if c else r for r, c in zip(rewards, cut)]
    if policy == "soft":
        return [
            None if r is None else r + soft_overlong(n, max_length, cache) for r, n in zip(rewards, lengths)
        ]
    raise ValueError(f"unknown truncation policy {policy!r}: keep, mask or soft")


def dynamic_sampling(
    draw: Callable[[int], Sequence[tuple[Any, Sequence[float | None]]]], want: int, rounds: int
) -> tuple[list[Any], int]:
    """Replace groups without spread -> (at most `want` groups that have spread, number of groups drawn).

    DAPO, arXiv 2503.14476, section 3.2. draw(k) samples and scores k new groups and returns each with its rewards (none:
    the prompts ran out). It is called at most `rounds` times, each time for the groups that are still missing: the budget
    is in rounds because a round lasts as long as its longest sample, however few groups it has. Where that was not
    enough the step is smaller, never padded.
    """
    kept, drawn = [], 0
    for _ in range(rounds):
        groups = draw(want - len(kept)) if len(kept) < want else []
        if not groups:
            break
        drawn += len(groups)
        kept += [
            g for g, rewards in groups if len({r for r in rewards if r is not None and not isnan(r)}) > 1
        ]
    return kept[:want], drawn
