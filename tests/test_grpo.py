"""nanotriton/grpo.py against the NumPy oracle (values to 1e-9, gradients by autograd against finite differences)."""

import doctest

import numpy as np
import oracle
import pytest
import torch

from nanotriton import grpo

EPS = 1e-6
REWARDS = np.array([1.0, 0.0, 0.5, 0.0])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], float)
OLD = np.array(
    [[-0.5, -1, -2, -0.1, -3], [-0.7, -1.2, -0.3, -9, -9], [-2.5, -9, -9, -9, -9], [-1, -1, -1, -1, -1]]
)
DELTA = np.array(
    [[0.0, 0.5, -0.5, 0.05, -0.1], [1.5, -0.4, 0.1, 7, 7], [0.3, 7, 7, 7, 7], [0.2, 0.2, 0.2, 0.2, 0.2]]
)
LOGP, REF = OLD + DELTA, OLD - 0.3
ROLLOUT = OLD + np.array(
    [[0.02, -0.01, -0.9, 0, 0.1], [0, 0.3, -0.2, 5, 5], [1.5, 5, 5, 5, 5], [0, 0, 0, 0, 0]]
)
ADVANTAGE = oracle.adv_group(REWARDS, "std1", EPS)
SEQ = torch.arange(4).repeat_interleave(5)
T = lambda a: torch.tensor(np.asarray(a, float)).flatten()
PER_TOKEN = T(np.repeat(ADVANTAGE[:, None], 5, 1))
close = lambda a, b: np.testing.assert_allclose(np.asarray(a, float), b, rtol=1e-9, atol=1e-9)


def reference(kind, x, low, high, dual=None, weight=1.0):
    """The oracle's loss of logprobs x [4, 5] (fully masked rows are dropped before any loss)."""
    rows = MASK.sum(1) > 0
    x, old, adv, mask = x[rows], OLD[rows], ADVANTAGE[rows], MASK[rows]
    if kind == "gspo":
        loss = oracle.gspo(x, old, adv, mask, low, high)
    elif kind == "cispo":
        loss = oracle.cispo_value(x, old, adv, 1 + high)
    else:
        loss = (
            oracle.dual_clip(x, old, adv, low, high, dual)
            if dual
            else oracle.ppo_clip(x, old, adv, low, high)
        )
    weight = np.broadcast_to(weight, MASK.shape)[rows]
    mode = {"dapo": "token", "cispo": "token", "grpo": "seq", "gspo": "seq", "dr_grpo": "drgrpo"}[kind]
    return oracle.agg(loss * weight, mask, mode, L_max=8)


def ours(kind, x, pieces=((0, 1, 2, 3),), **options):
    """Loss and gradient [4, 5], the sequences split into microbatches, packed without padding beyond what MASK says."""
    x = T(x).requires_grad_()
    picks = [torch.cat([torch.arange(5 * i, 5 * i + 5) for i in p]) for p in pieces]
    seqs = [torch.arange(len(p)).repeat_interleave(5) for p in pieces]
    mask, weight = T(MASK), options.pop("weight", None)
    normalizer = sum(grpo.count(mask[i], s, kind, max_length=8) for i, s in zip(picks, seqs))
    total, parts = 0.0, []
    for i, s in zip(picks, seqs):
        w = None if weight is None else T(weight)[i]
        loss, stats = grpo.policy_loss(
            x[i], T(OLD)[i], PER_TOKEN[i], mask[i], s, normalizer, kind, weight=w, **options
        )
        loss.backward()
        total += loss.item()
        parts.append(stats)
    return total, x.grad.view(4, 5).numpy(), grpo.summarize(parts)


def test_the_examples_in_the_docstrings():
    result = doctest.testmod(grpo, extraglobs={"torch": torch})
    assert result.failed == 0 and result.attempted >= 9


@pytest.mark.parametrize("kind,mode", [("mean", "none"), ("mean_std", "std1"), ("rloo", "rloo")])
def test_advantages_equal_the_oracle_group_by_group(kind, mode):
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=n) for n in (4, 2, 7)]
    ids = np.repeat([9, -3, 4], [4, 2, 7])
    order = rng.permutation(13)  # groups need not be contiguous
    adv, spread = grpo.advantages(list(np.concatenate(groups)[order]), list(ids[order]), kind, eps=EPS)
    close(adv, np.concatenate([oracle.adv_group(g, mode, EPS) for g in groups])[order])
    assert spread.all()


def test_rejection_imitates_what_is_paid_and_nothing_else():
    advantage, taught = grpo.advantages(
        [1.0, 1.0, 0.0, -0.5, None, 0.5], [0, 0, 1, 1, 1, 2], kind="rejection"
    )
    assert advantage.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.5]
    assert taught.tolist() == [True, True, False, False, False, True]


@pytest.mark.parametrize("kind", ["mean", "mean_std", "rloo"])
def test_advantages_of_constant_single_and_missing_rewards(kind):
    # three equal 0.1: their mean is not exactly 0.1 in floating point, yet nothing may come of it
    rewards = [0.1, 0.1, 0.1, 1.0, None, 0.0, float("nan"), 2.0]
    adv, spread = grpo.advantages(rewards, [0, 0, 0, 1, 1, 1, 1, 2], kind)
    assert spread.tolist() == [False, False, False, True, False, True, False, False]
    assert (adv[~spread] == 0).all()
    close(
        adv[[3, 5]],
        oracle.adv_group(np.array([1.0, 0.0]), {"mean": "none", "mean_std": "std1"}.get(kind, kind), EPS),
    )
    empty, none = grpo.advantages([], [], kind)
    assert empty.shape == none.shape == (0,)


def test_the_floor_keeps_noise_small():
    noisy = [1.0, 1.001, 0.999, 1.0]
    assert grpo.advantages(noisy, [0] * 4)[0].abs().max() > 1
    assert grpo.advantages(noisy, [0] * 4, std_floor=0.1)[0].abs().max() < 0.011


@pytest.mark.parametrize(
    "kind,low,high,dual",
    [
        ("dapo", 0.2, 0.28, None),
        ("dapo", 0.2, 0.2, 3.0),
        ("grpo", 0.2, 0.2, None),
        ("dr_grpo", 0.2, 0.2, None),
        ("cispo", 1.0, 4.0, None),
        ("gspo", 3e-4, 4e-4, None),
        ("gspo", 0.2, 0.2, None),
    ],
)
def test_losses_equal_the_oracle(kind, low, high, dual):
    loss, grad, _ = ours(kind, LOGP, clip_low=low, clip_high=high, dual_clip=dual)
    close(loss, reference(kind, LOGP, low, high, dual))
    if kind == "cispo":  # the ratio has no gradient, so finite differences of the value are not it
        expected = oracle.cispo_grad(LOGP, OLD, ADVANTAGE, 1 + high) * MASK / MASK.sum()
        close(grad, expected)
    else:
        expected = oracle.fd(lambda x: reference(kind, x, low, high, dual), LOGP)
        np.testing.assert_allclose(grad, expected, atol=1e-8)
    assert np.abs(grad).max() > 1e-3 and (grad[MASK == 0] == 0).all()


@pytest.mark.parametrize("kind", grpo.LOSSES)
def test_defaults_are_the_papers_and_any_split_gives_the_same(kind):
    low, high = grpo.LOSSES[kind].clip
    whole, grad, stats = ours(kind, LOGP)
    close(whole, reference(kind, LOGP, low, high))
    for pieces in ([(0,), (1,), (2,), (3,)], [(0, 3), (2, 1)], [(3,), (1, 0, 2)]):
        loss, g, s = ours(kind, LOGP, pieces)
        close(loss, whole)
        close(g, grad)
        assert s == pytest.approx(stats)


def test_dual_clip_bounds_what_a_huge_ratio_can_cost():
    x = OLD + np.where(MASK > 0, 6.0, 0.0)
    free, _, _ = ours("dapo", x)
    bounded, grad, _ = ours("dapo", x, dual_clip=3.0)
    assert free > 50 and bounded < 3 * np.abs(ADVANTAGE).max()
    assert (grad == 0).all()  # every token is past one clip or the other
    # INTELLECT-2's delta
    close(bounded, oracle.agg(oracle.two_sided(x, OLD, ADVANTAGE, 0.2, 0.28, 3.0), MASK, "token"))


def test_infinite_ratios_and_masked_rubbish_leave_the_gradient_finite():
    x, old = LOGP.copy(), OLD.copy()
    x[0, 0], old[0, 0] = 0.0, -2000.0
    x[3, :], old[3, :] = np.nan, -np.inf
    t = T(x).requires_grad_()
    for kind in grpo.LOSSES:
        loss, stats = grpo.policy_loss(t, T(old), PER_TOKEN, T(MASK), SEQ, 9, kind)
        (grad,) = torch.autograd.grad(loss, t)
        assert loss.isfinite() and grad.isfinite().all() and all(v.isfinite().all() for v in stats.values())
    ref = T(old).clone()
    ref[0] = 2000.0
    (grad,) = torch.autograd.grad(grpo.kl(t, ref, T(MASK)).sum(), t)
    assert grad.isfinite().all()


@pytest.mark.parametrize("kind", grpo.LOSSES)
def test_an_all_masked_and_an_empty_batch_give_zero(kind):
    for n in (6, 0):
        x = torch.randn(n, requires_grad=True)
        zero, seq = torch.zeros(n), torch.arange(n) // 2
        normalizer = grpo.count(zero, seq, kind, max_length=4)
        loss, stats = grpo.policy_loss(x, torch.randn(n), torch.randn(n), zero, seq, normalizer, kind)
        loss.backward()
        assert loss.item() == 0 and (x.grad == 0).all() and normalizer == 0
        assert grpo.summarize([stats])["clip_fraction"] == 0


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_mismatch_weights_equal_the_oracle(mode):
    old, weight = grpo.mismatch(T(OLD), T(ROLLOUT), T(MASK), SEQ, mode)
    expected = oracle.is_weight(OLD, ROLLOUT, MASK, mode.replace("sequence", "seq"))
    assert torch.equal(old, T(OLD))
    close(weight, expected.flatten())
    close(
        ours("dapo", LOGP, weight=weight, clip_high=0.2)[0],
        reference("dapo", LOGP, 0.2, 0.2, weight=expected),
    )
    low = grpo.mismatch(T(OLD), T(ROLLOUT), T(MASK), SEQ, mode, high=1.5, low=0.9)[1]
    close(low, oracle.is_weight(OLD, ROLLOUT, MASK, mode.replace("sequence", "seq"), 1.5, 0.9).flatten())


def test_bypass_takes_the_samplers_logprobs():
    old, weight = grpo.mismatch(None, T(ROLLOUT), T(MASK), SEQ)
    assert torch.equal(old, T(ROLLOUT)) and weight is None
    old, weight = grpo.mismatch(T(OLD), T(ROLLOUT), T(MASK), SEQ, "none")
    assert torch.equal(old, T(OLD)) and weight is None
    with pytest.raises(ValueError, match="needs the trainer's old"):
        grpo.mismatch(None, T(ROLLOUT), T(MASK), SEQ, "token_mask")


def test_kl_values_equal_the_oracle():
    for kind in ("k2", "k3"):
        ours_ = grpo.aggregate(grpo.kl(T(LOGP), T(REF), T(MASK), kind), T(MASK), SEQ, MASK.sum())
        close(ours_, oracle.agg(getattr(oracle, kind)(LOGP, REF), MASK, "token"))
    live = grpo.kl(T(LOGP), T(REF), T(MASK), "k3", old=T(OLD))
    close(live, (np.exp(LOGP - OLD) * oracle.k3(LOGP, REF) * MASK).flatten())


def test_kl_gradients_are_those_that_the_docstring_says():
    """Exact, by enumerating a 5-way categorical: E_{y~p}[d/dz k(log p(y))] against the gradients of the two KLs."""
    rng = np.random.default_rng(0)
    z, q = rng.normal(size=5), np.exp(oracle_log_softmax(rng.normal(size=5)))
    p = lambda z: np.exp(oracle_log_softmax(z))
    reverse = oracle.fd(lambda z: (p(z) * (np.log(p(z)) - np.log(q))).sum(), z)  # KL(pi || ref)
    forward = oracle.fd(lambda z: -(q * np.log(p(z))).sum(), z)  # KL(ref || pi)
    for kind, live, expected in (("k2", False, reverse), ("k3", False, forward), ("k3", True, reverse)):
        zt = torch.tensor(z, requires_grad=True)
        logp = zt.log_softmax(0)
        k = grpo.kl(logp, torch.tensor(np.log(q)), torch.ones(5), kind, old=logp.detach() if live else None)
        (grad,) = torch.autograd.grad((logp.exp().detach() * k).sum(), zt)
        np.testing.assert_allclose(grad, expected, atol=1e-8)


def oracle_log_softmax(z):
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def test_statistics_are_means_over_tokens_not_over_microbatches():
    _, _, stats = ours("dapo", LOGP, [(0,), (1,), (2, 3)])
    kept, ratio = MASK > 0, np.exp(DELTA)
    assert stats["tokens"] == 9
    close(stats["ratio"], ratio[kept].mean())
    close(stats["ratio_max"], ratio[kept].max())
    close(stats["kl_sampler"], (ratio - 1 - DELTA)[kept].mean())
    A = np.repeat(ADVANTAGE[:, None], 5, 1)
    close(stats["clip_fraction"], (((A > 0) & (ratio > 1.28)) | ((A < 0) & (ratio < 0.8)))[kept].mean())
    sums, peaks = [], []
    parts = [grpo.ratio_stats(T(LOGP), T(ROLLOUT), T(MASK), prefix="mismatch_")]
    out = grpo.summarize(parts, lambda x: sums.append(x) or x * 2, lambda x: peaks.append(x) or x)
    # two collectives, however many statistics
    assert out["mismatch_tokens"] == 18 and len(sums) == len(peaks) == 1
    close(out["mismatch_ratio_max"], np.exp(LOGP - ROLLOUT)[kept].max())


def test_overlong_and_truncation_policies():
    for n in (10, 12, 13, 16):
        close(grpo.soft_overlong(n, 16, 4), oracle.soft_overlong(n, 16, 4))
    rewards, lengths, cut = [1.0, 0.0, None, 1.0], [9, 16, 16, 14], [False, True, True, False]
    assert grpo.truncation(rewards, lengths, cut, "keep", 16) == rewards
    assert grpo.truncation(rewards, lengths, cut, "mask", 16) == [1.0, None, None, 1.0]
    assert grpo.truncation(rewards, lengths, cut, "soft", 16, 4) == [1.0, -1.0, None, 0.5]
    with pytest.raises(ValueError, match="cache"):
        grpo.soft_overlong(3, 16, 0)


def test_only_rewards_that_differ_are_spread():
    assert grpo.has_spread([0, 1]) and grpo.has_spread([0, 0.5, None]) and grpo.has_spread([0.0, 1e-9])
    for dull in ([], [1], [0, 0], [1, None], [0.1, 0.1, 0.1], [1.0, float("nan")]):
        assert not grpo.has_spread(dull)


@pytest.mark.parametrize(
    "call",
    [
        lambda: grpo.advantages([1.0], [0], "std"),
        lambda: grpo.count(T([1]), SEQ[:1], "ppo"),
        lambda: grpo.kl(T([0]), T([0]), T([1]), "k1"),
        lambda: grpo.count(T([1]), SEQ[:1], "dr_grpo"),
        lambda: grpo.truncation([1.0], [1], [False], "drop", 4),
        lambda: grpo.mismatch(T([0]), T([0]), T([1]), SEQ[:1], "tis"),
        lambda: grpo.policy_loss(*[T([1])] * 4, SEQ[:1], 1, dual_clip=0.5),
    ],
)
def test_a_wrong_option_is_one_clear_line(call):
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) > 20


@pytest.mark.parametrize("value", [torch.tensor(0.5), 0.5, torch.ones(3)])
def test_a_statistic_of_another_form_is_named(value):
    parts = [{"mine": grpo.statistic(torch.ones(2), torch.ones(2), torch.ones(2))}, {"mine": value}]
    with pytest.raises(ValueError, match=r"statistic 'mine': statistic\(\) makes one of per-token values"):
        grpo.summarize(parts)
