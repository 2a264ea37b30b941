"""GRPO and its relatives: advantages, losses, corrections. They are pure functions of tensors.

docs/rules.md says what must hold.

Sequences are packed. A per-token tensor is [T]: the tokens of all sequences of a microbatch end to end.
`seq_ids` [T] int64 says which sequence, 0..B-1 in this microbatch, a token belongs to. A sequence lies in one
microbatch only. `mask` [T] is 1 on tokens that were sampled and are to be learned from, and 0 on all others.

    d_t = logp_t - old_t      r_t = exp(d_t)      A_t = advantage of t's sequence      m_t = mask

One optimizer step, whatever the number of microbatches and ranks:

    normalizer = all_sum(sum(count(mask, seq_ids, kind)))   # over every microbatch, before the first backward
    for each microbatch:
        loss, stats = policy_loss(logp, old, A, mask, seq_ids, normalizer, kind)
        loss.backward()
    gradients are *summed* over ranks; summarize(all stats, all_sum, all_max) goes to the log

Nothing averages over a microbatch: the mean of such means is another loss, and can have the other sign. On
policy r = 1 and the loss *value* is near 0 whatever is learned; its gradient is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """What a loss needs beside its formula in `policy_loss`.

    clip: (low, high) of its paper: the ratio may move in [1 - low, 1 + high].
    mean: what it is a mean over. "tokens": all tokens alike. "sequences": of each the mean over its tokens.
        "length": tokens, divided by the longest answer that may be sampled for each sequence.
    counts_untaught: whether samples without a policy term, whose group has no spread, are in the
        denominator all the same. DAPO and CISPO are means over the tokens of groups with spread, which
        dynamic sampling leaves alone; the others are means over all samples.
    old: whose logprobs are `old` when no importance weight stands between sampler and trainer.
    """

    clip: tuple[float, float]
    mean: Literal["tokens", "sequences", "length"]
    counts_untaught: bool
    old: Literal["sampler", "trainer"] = "sampler"


# The surrogate of a loss is policy_loss's; one that has no branch there has PPO's clip.
LOSSES = {
    "grpo": Loss((0.2, 0.2), "sequences", True),  # DeepSeekMath, arXiv 2402.03300
    "dapo": Loss((0.2, 0.28), "tokens", False),  # clip-higher: DAPO, arXiv 2503.14476
    "dr_grpo": Loss((0.2, 0.2), "length", True),  # Understanding R1-Zero-like training, arXiv 2503.20783
    "cispo": Loss((1.0, 4.0), "tokens", False),  # MiniMax-M1, arXiv 2506.13585: no lower bound, ratios to 5
    # arXiv 2507.18071. A sequence's ratio is clipped so close to 1 that in bf16 the difference between
    # sampler and trainer would clip half of the samples.
    "gspo": Loss((3e-4, 4e-4), "sequences", True, old="trainer"),
}
# exp(20) = 5e8. Past it the ratio is constant: an infinite one makes 0 * inf = NaN in the backward
MAX_LOG_RATIO = 20.0


# ---- advantages
def advantages(
    rewards: Sequence[float | None],
    group_ids: Sequence[int],
    kind: str = "mean_std",
    eps: float = 1e-6,
    std_floor: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The advantage of each sample over its group -> (advantage [B] float64, taught [B] bool).

        mean      A = R - mean(R)                                      Dr. GRPO, arXiv 2503.20783
        mean_std  A = (R - mean(R)) / (max(std(R), std_floor) + eps)   GRPO, arXiv 2402.03300; std with ddof 1
        rloo      A = R - mean of the others' R                        RLOO, arXiv 2402.14740
        rejection A = max(R, 0): no baseline, only what is paid        RAFT, arXiv 2304.06767, 2504.11343
                  is imitated, as in rejection-sampling fine-tuning

    rewards [B]: a sample with None or NaN leaves the batch (the infrastructure failed, the answer was cut
    off). It takes no part in its group's mean and std, its advantage is 0, and it teaches nothing. group_ids
    [B]: any integers, one a prompt *index* (by text, equal prompts would merge). std_floor: the reward's
    noise, in its own units, so that noise is not blown up to unit variance. taught: whether the sample has
    a policy term, because its group has spread, rewards that differ. Where it has none, the advantage is
    exactly 0. Max and min decide, since the mean of equal rewards may be off by an ulp. For `rejection` it is
    whether the sample is paid.

    >>> [x.tolist() for x in advantages([1.0, 0.0, 0.5, 0.5, None], [7, 7, 3, 3, 3], kind="mean")]
    [[0.5, -0.5, 0.0, 0.0, 0.0], [True, True, False, False, False]]
    """
    r = torch.tensor([float("nan") if x is None else float(x) for x in rewards], dtype=torch.float64)  # [B]
    valid = ~r.isnan()  # [B]
    if kind == "rejection":
        paid = torch.where(valid, r, 0.0).clamp(min=0)  # [B]
        return paid, paid > 0
    _, group = torch.unique(torch.as_tensor(group_ids), return_inverse=True)  # [B], from 0 on

    n = per_group(torch.ones_like(r), group, valid, "sum")  # [B]
    highest = per_group(r, group, valid, "amax")  # [B]
    lowest = per_group(r, group, valid, "amin")  # [B]
    spread = valid & (highest > lowest)  # [B]
    mean = per_group(r, group, valid, "sum") / n.clamp(min=1)  # [B]
    centred = torch.where(spread, r - mean, 0.0)  # [B]
    if kind == "mean":
        return centred, spread
    if kind == "rloo":
        return centred * n / (n - 1).clamp(min=1), spread
    if kind == "mean_std":
        variance = per_group(centred**2, group, valid, "sum") / (n - 1).clamp(min=1)  # [B]
        return centred / (variance.sqrt().clamp(min=std_floor) + eps), spread
    raise ValueError(f"unknown advantage {kind!r}: mean_std, mean, rloo or rejection")


def per_group(x: Tensor, group: Tensor, valid: Tensor, reduce: str) -> Tensor:
    """The valid x [B] of each one's group, reduced -> [B]. reduce: "sum", "amax" or "amin"."""
    out = x.new_zeros(len(x)).scatter_reduce_(0, group[valid], x[valid], reduce, include_self=False)
    return out[group]


def has_spread(rewards: Sequence[float | None]) -> bool:
    """Whether the rewards of one group differ, None and NaN apart. Otherwise the group teaches nothing.

    >>> has_spread([0.0, None, 1.0]), has_spread([1.0, None, 1.0])
    (True, False)
    """
    _, spread = advantages(rewards, [0] * len(rewards), "mean")
    return bool(spread.any())


# ---- the normaliser and the sum over tokens
def count(mask: Tensor, seq_ids: Tensor, kind: str = "dapo", max_length: int | None = None) -> Tensor:
    """A microbatch's share of the loss's denominator -> scalar float64.

    It is to be summed over all microbatches and ranks.

        dapo, cispo   sum of m                     every token counts alike
        grpo, gspo    sequences with any m = 1     every sequence counts alike
        dr_grpo       those * max_length           no length is favoured; max_length is the limit of sampling

    >>> mask, seq_ids = torch.tensor([0, 1, 1, 0, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 2])
    >>> [count(mask, seq_ids, kind, max_length=8).item() for kind in ("dapo", "grpo", "dr_grpo")]
    [3.0, 2.0, 16.0]
    """
    mean = loss_named(kind).mean
    if mean == "tokens":
        return mask.bool().sum().double()
    sequences = (lengths_of(mask, seq_ids) > 0).sum().double()
    if mean == "sequences":
        return sequences
    if not max_length:
        raise ValueError(f"{kind} divides by max_length, the longest response that may be sampled")
    return sequences * max_length


def aggregate(
    values: Tensor, mask: Tensor, seq_ids: Tensor, normalizer: Tensor | float, kind: str = "dapo"
) -> Tensor:
    """This microbatch's share of a loss term: per-token values v [T] -> scalar. All masked: 0.

    dapo, cispo, dr_grpo   sum_t m_t v_t / normalizer
    grpo, gspo             sum_i (sum_{t in i} m_t v_t / n_i) / normalizer, with n_i the tokens of sequence i
    """
    mask = mask.bool()
    values = torch.where(mask, values, 0.0)  # [T]
    if loss_named(kind).mean == "sequences":
        lengths = lengths_of(mask, seq_ids).clamp(min=1)  # [B]
        values = values / lengths[seq_ids].to(values.dtype)  # [T]
    return values.sum() / max(float(normalizer), 1.0)


def sum_by_sequence(values: Tensor, seq_ids: Tensor) -> Tensor:
    """The sum of each sequence's values, [T] -> [B]."""
    sequences = int(seq_ids.max()) + 1 if len(seq_ids) else 0
    return values.new_zeros(sequences).index_add_(0, seq_ids, values)


def lengths_of(mask: Tensor, seq_ids: Tensor) -> Tensor:
    """The unmasked tokens of each sequence, [T] -> [B] int64."""
    return sum_by_sequence(mask.bool().long(), seq_ids)


def loss_named(kind: str) -> Loss:
    """The row of LOSSES with this name. ValueError for a loss that doesn't exist."""
    if kind not in LOSSES:
        raise ValueError(f"unknown loss {kind!r}: {', '.join(LOSSES)}")
    return LOSSES[kind]


# ---- the loss
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
    copies: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped policy-gradient loss of a microbatch, to minimise -> (scalar, statistics for summarize()).

        grpo, dapo, dr_grpo   -min(r A, clip(r, 1 - low, 1 + high) A)   PPO, arXiv 1707.06347; count() differs
        gspo                  -min(s A, clip(s, 1 - low, 1 + high) A)   arXiv 2507.18071, equations 5 to 7
        cispo                 -sg(clip(r, 1 - low, 1 + high)) A logp    arXiv 2506.13585

    In gspo, s = exp(mean of d over the sequence). In cispo clipped tokens still learn.

    logp, old, advantage, mask, seq_ids: [T]. Only logp has a gradient. normalizer: the sum of count() over
    the optimizer step. clip_low, clip_high: None takes the paper's, of LOSSES. dual_clip c > 1: for A < 0
    the loss is at most -c A (arXiv 1912.09729), so that a huge ratio cannot explode. weight [T]: the
    importance weight of the loss, see mismatch(). copies [T]: the number of equal samples that a token stands
    for, in the loss and in the statistics.

    >>> logp, old = torch.tensor([0.3, 0.3]).log(), torch.tensor([0.2, 0.2]).log()
    >>> advantage, mask, seq_ids = torch.tensor([1.0, -1.0]), torch.ones(2), torch.tensor([0, 1])
    >>> policy_loss(logp, old, advantage, mask, seq_ids, normalizer=2)[0]
    tensor(0.1100)
    """
    clip = loss_named(kind).clip
    if dual_clip is not None and (dual_clip <= 1 or kind == "cispo"):
        raise ValueError(f"dual_clip must be over 1 and not with cispo, not {dual_clip} with {kind}")
    copies = torch.ones_like(logp) if copies is None else copies
    low = clip[0] if clip_low is None else clip_low
    high = clip[1] if clip_high is None else clip_high
    mask = mask.bool()
    advantage = advantage.to(logp.dtype)  # [T], A

    log_ratio = torch.where(mask, logp - old.to(logp.dtype), 0.0)  # [T], d
    if kind == "gspo":
        log_ratio = mean_over_sequence(log_ratio, mask, seq_ids)  # [T], log s
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()  # [T], r or s
    clipped = ratio.clamp(1 - low, 1 + high)  # [T]

    if kind == "cispo":
        loss = -clipped.detach() * advantage * torch.where(mask, logp, 0.0)  # [T]
        binds = torch.ones_like(mask)  # [T], whatever the sign of A
    else:
        loss = -torch.minimum(ratio * advantage, clipped * advantage)  # [T]
        binds = clipped * advantage < ratio * advantage  # [T]
    if dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)  # [T]
    if weight is not None:
        loss = loss * weight.to(loss.dtype)  # [T]

    stats = ratio_stats(logp, old, mask, copies)
    stats["clip_fraction"] = statistic(binds & (ratio != clipped), mask, copies)
    stats["clip_fraction_low"] = statistic(binds & (ratio < 1 - low), mask, copies)
    stats["clip_fraction_high"] = statistic(binds & (ratio > 1 + high), mask, copies)
    return aggregate(loss * copies, mask, seq_ids, normalizer, kind), stats


def mean_over_sequence(log_ratio: Tensor, mask: Tensor, seq_ids: Tensor) -> Tensor:
    """Each token's d becomes the mean of its sequence's, [T] -> [T], with a gradient to the token itself.

    With one advantage a sequence, this has the gradient of GSPO's sequence ratio (GSPO-token, arXiv
    2507.18071, 4.3).
    """
    own = log_ratio.detach()  # [T]
    mean = sum_by_sequence(own, seq_ids) / lengths_of(mask, seq_ids).clamp(min=1)  # [B]
    return mean[seq_ids] + log_ratio - own


def kl(logp: Tensor, ref: Tensor, mask: Tensor, kind: str = "k3", old: Tensor | None = None) -> Tensor:
    """Distance to the reference policy as a loss term, per token [T], 0 where masked. aggregate() sums it.

        k2  d^2 / 2            its gradient is that of KL(pi || ref); d = logp - ref
        k3  exp(-d) + d - 1    its value estimates KL(pi || ref), its gradient is that of KL(ref || pi)
        k3 with `old`          times exp(logp - old), the live ratio: the gradient of KL(pi || ref)

    k3 is GRPO's (arXiv 2402.03300, equation 4); k3 with the ratio is DeepSeek-V3.2's. k1 = d is refused: as a
    loss its gradient is zero in expectation. Estimators: Schulman, "Approximating KL divergence"; gradients:
    arXiv 2506.09477. `old` [T]: the logprobs of the policy that drew the samples.

    >>> kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -9.0]), torch.tensor([1, 0]), kind="k2")
    tensor([0.1250, 0.0000])
    """
    mask = mask.bool()
    d = torch.where(mask, logp - ref.to(logp.dtype), 0.0)  # [T]
    if kind == "k2":
        distance = 0.5 * d**2  # [T]
    elif kind == "k3":
        distance = (-d).clamp(max=MAX_LOG_RATIO).exp() + d - 1  # [T]
    else:
        raise ValueError(f"unknown KL estimator {kind!r}: k2 or k3 (k1's gradient is zero in expectation)")
    if old is None:
        return distance
    log_ratio = torch.where(mask, logp - old.to(logp.dtype), 0.0)  # [T]
    return distance * log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def mismatch(
    old: Tensor | None,
    rollout: Tensor,
    mask: Tensor,
    seq_ids: Tensor,
    mode: str = "bypass",
    low: float = 0.0,
    high: float = 2.0,
    kind: str = "dapo",
) -> tuple[Tensor, Tensor | None]:
    """Correct for a sampler whose probabilities are not quite the trainer's.

    -> (old [T], weight [T] or None), for policy_loss().

        bypass              old := rollout, the clip corrects; if the loss takes the trainer's: as none
        none                old as it is: to see the effect of the mismatch
        token_truncate      w_t = clip(exp(old_t - rollout_t), low, high)   TIS: fengyao.notion.site
        token_mask          w_t where low <= w_t <= high, else 0            IcePop: arXiv 2510.18855
        sequence_truncate   the two rules with w = exp(sum of the differences over the sequence)
        sequence_mask

    old [T]: the trainer's logprobs before any update; None where needs_old() says so. rollout [T]: the
    logprobs that the sampler recorded. w has no gradient.

    >>> old, rollout = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0])
    >>> mismatch(old, rollout, torch.ones(2), torch.tensor([0, 0]), "token_truncate")[1]
    tensor([1., 2.])
    """
    if not needs_old(kind, mode):
        return rollout, None
    if old is None:
        raise ValueError(f"{kind} with mismatch mode {mode!r} needs the trainer's old logprobs")
    if mode in ("bypass", "none"):
        return old, None
    level, _, rule = mode.partition("_")
    if level not in ("token", "sequence") or rule not in ("truncate", "mask"):
        raise ValueError(f"unknown mismatch mode {mode!r}: bypass, none or (token|sequence)_(truncate|mask)")
    difference = torch.where(mask.bool(), old - rollout, 0.0).detach()  # [T]
    if level == "sequence":
        difference = sum_by_sequence(difference, seq_ids)[seq_ids]  # [T]
    weight = difference.exp()  # [T], w
    if rule == "truncate":
        return old, weight.clamp(low, high)
    return old, torch.where((weight < low) | (weight > high), 0.0, weight)


def needs_old(kind: str, mode: str) -> bool:
    """Whether the trainer must score the samples before its updates, for mismatch().

    >>> needs_old("dapo", "bypass"), needs_old("dapo", "token_mask"), needs_old("gspo", "bypass")
    (False, True, True)
    """
    return mode != "bypass" or loss_named(kind).old == "trainer"


# ---- statistics
def statistic(values: Tensor, mask: Tensor, copies: Tensor) -> Tensor:
    """The sum of the unmasked values [T], and the number of tokens that it is a sum of -> [2] float64.

    A token counts as often as its sample was drawn: `copies` [T].
    """
    weight = torch.where(mask.bool(), copies, 0.0).double()  # [T]
    kept = torch.where(mask.bool(), values.detach().double(), 0.0)  # [T]
    return torch.stack([(kept * weight).sum(), weight.sum()])


def ratio_stats(
    logp: Tensor, other: Tensor, mask: Tensor, copies: Tensor | None = None, prefix: str = ""
) -> dict[str, Tensor]:
    """The distance of logp [T] from other [T], for summarize().

    The means of r = exp(logp - other) and of kl = r - 1 - log r, which is never negative, and the largest r.
    With prefix="mismatch_" for the trainer's logp against the sampler's, under the same weights. Without one
    the distance is `kl_sampler`: how far updates have moved the policy from the model that sampled.
    """
    mask = mask.bool()
    copies = torch.ones_like(logp) if copies is None else copies
    d = torch.where(mask, logp.detach().double() - other.double(), 0.0)  # [T]
    ratio = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()  # [T]
    kept = torch.where(mask, ratio, 0.0)  # [T]
    largest = kept.max() if len(kept) else d.sum()
    return {
        f"{prefix}tokens": statistic(mask, mask, copies),
        f"{prefix}kl" if prefix else "kl_sampler": statistic(ratio - 1 - d, mask, copies),
        f"{prefix}ratio": statistic(ratio, mask, copies),
        f"{prefix}ratio_max": torch.stack([largest, largest]),
    }


def summarize(
    parts: Sequence[dict[str, Tensor]],
    all_sum: Callable[[Tensor], Tensor] = lambda x: x,
    all_max: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, float]:
    """The statistics of a step from those of its microbatches, each [2]: a sum and the number of its tokens.

    Each becomes a mean over its tokens on all ranks, but for maxima (`..._max`) and numbers (`...tokens`). A
    statistic need not be in every part, but each rank has the same ones; all_sum and all_max are World's.
    ValueError for one that is not of that form.
    """
    for key, value in chain(*(part.items() for part in parts)):
        if getattr(value, "shape", None) != (2,):
            raise ValueError(f"statistic {key!r}: statistic() makes one of per-token values; got {value!r}")
    keys = list(dict.fromkeys(chain(*parts)))
    if not keys:
        return {}
    nothing = torch.zeros_like(parts[0][keys[0]])
    rows = [torch.stack([part.get(key, nothing) for key in keys]) for part in parts]  # [keys, 2] each
    table = torch.stack(rows)  # [parts, keys, 2]
    sums = all_sum(table.sum(0)).tolist()  # [keys][2]
    peaks = all_max(table[..., 0].amax(0)).tolist()  # [keys]
    summary = {}
    for key, (total, tokens), peak in zip(keys, sums, peaks):
        summary[key] = total / max(tokens, 1.0)
        if key.endswith("tokens"):
            summary[key] = total
        if key.endswith("_max"):
            summary[key] = peak
    return summary


# ---- long answers
def soft_overlong(length: int, max_length: int, cache: int) -> float:
    """DAPO's soft overlong punishment, added to the reward: 0, then linear to -1 at the limit.

    arXiv 2503.14476, equation 13. `cache` is the number of tokens before the limit over which it grows.

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
    """Rewards [B] after the stated policy on long answers.

        keep   nothing happens: a cut answer has the reward that it earned, most often 0
        mask   a cut answer leaves the batch (None): the loss, the denominator and its group's baseline
        soft   soft_overlong() is added for every answer, cut or not

    lengths [B]: tokens. cut [B]: the answer hit max_length without an end token.

    >>> truncation([1.0, 0.0, None], [9, 16, 16], [False, True, True], "mask", max_length=16)
    [1.0, None, None]
    """
    if policy == "keep":
        return list(rewards)
    if policy == "mask":
        return [None if was_cut else reward for reward, was_cut in zip(rewards, cut)]
    if policy != "soft":
        raise ValueError(f"unknown truncation policy {policy!r}: keep, mask or soft")
    penalised: list[float | None] = []
    for reward, length in zip(rewards, lengths):
        penalised.append(None if reward is None else reward + soft_overlong(length, max_length, cache))
    return penalised
