"""One optimizer step of train_grpo.py: which samples each term is a mean of, and what is measured."""

import math
from types import SimpleNamespace

import pytest
import torch

import train_grpo
from nanotriton import config, grpo
from nanotriton.data import pack, score
from nanotriton.parallel import distributed
from nanotriton.parallel.world import World
from nanotriton.rollout import Episode
from nanotriton.runs.advice import Advice
from nanotriton.runs.report import Step, report
from nanotriton.runs.run import Clock
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.verdict import Verdict

PROMPT, VOCAB = [1, 2], 24


def make(seed: int) -> Transformer:
    shape = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    model = Transformer(ModelConfig("llama", **shape, num_attention_heads=4)).init_weights(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed + p.numel()))
    return distributed.shard(model, World())


@torch.no_grad()
def scored(model: Transformer, ids: list[int]) -> tuple[list[float], list[float]]:
    logp, entropy = score(model, pack([(PROMPT, ids)]), 1.0, VOCAB)
    return logp.tolist(), entropy.tolist()


def episode(ids: list[int], advantage: float | None, group: int = 0, gap: float = 0.0) -> Episode:
    """A sample with the trainer's own logprobs as `old`; the sampler's lie `gap` below. None: without spread."""
    logp, _ = scored(make(0), ids)
    sampled = [x - gap for x in logp]
    e = Episode(
        Task("t", "s"), PROMPT, ids, sampled, "stop", old=logp if gap else None, group=group, reward=0.0
    )
    e.advantage, e.taught = advantage or 0.0, advantage is not None
    return e


class Keep:
    """An optimizer that moves nothing and keeps the gradients."""

    def __init__(self, model: Transformer):
        self.model, self.steps = model, 0

    def step(self):
        self.steps += 1

    def zero_grad(self, set_to_none):
        self.grads = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}


def step(episodes: list[Episode], first: bool = True, **options):
    """-> (gradients, statistics, whether the optimizer made a step)."""
    cfg = config.make(train_grpo.Config, **dict(clip=1e9, kl=0.0, max_tokens=8) | options)
    model = make(0)
    reference = make(7).requires_grad_(False) if cfg.losses.kl else None
    tokenizer = SimpleNamespace(vocab_size=VOCAB)
    optimizer = Keep(model)
    trainer = train_grpo.Trainer(
        cfg, World(), [], None, tokenizer, model, reference, optimizer, sampler=None, executor=None
    )
    update = train_grpo.update_policy(episodes, trainer, Clock(), first)
    return optimizer.grads, grpo.summarize(update.stats), optimizer.steps == 1


def factor(a: dict, b: dict) -> float:
    """The number by which all gradients of `b` are multiplied in `a`."""
    flat = lambda grads: torch.cat([grads[name].flatten() for name in sorted(grads)])
    x, y = flat(a), flat(b)
    ratio = (x @ y / (y @ y)).item()
    assert (x - ratio * y).norm() < 1e-4 * x.norm().clamp(min=1e-9)
    return ratio


TAUGHT = [([3, 4, 5], 1.0), ([6, 7], -0.8), ([8, 9, 3, 4], 0.3)]


def taught(gap: float = 0.0) -> list[Episode]:
    return [episode(ids, a, 0, gap) for ids, a in TAUGHT]


def dull(gap: float = 0.0) -> list[Episode]:
    return [episode(ids, None, 1, gap) for ids in ([3, 3], [4, 5, 6], [4, 5, 6])]


@pytest.mark.parametrize("loss", ["grpo", "gspo", "dr_grpo"])
def test_a_mean_over_samples_counts_groups_without_spread(loss):
    alone, both = step(taught(), loss=loss)[0], step(taught() + dull(), loss=loss)[0]
    assert factor(both, alone) == pytest.approx(3 / 6, rel=1e-4)


@pytest.mark.parametrize("loss", ["dapo", "cispo"])
def test_a_mean_over_tokens_leaves_groups_without_spread_alone(loss):
    alone, both = step(taught(), loss=loss)[0], step(taught() + dull(), loss=loss)[0]
    assert factor(both, alone) == pytest.approx(1.0, rel=1e-4)


def test_groups_without_spread_have_a_kl_term():
    kl = dict(kl=0.1, loss="grpo")
    gradient, stats, moved = step(dull(), **kl)
    assert moved and stats["tokens"] == 0 and stats["kl_ref"] > 0.01
    norm = torch.stack([g.norm() for g in gradient.values()]).norm()
    assert norm > 1e-4
    with_taught = step([episode(ids, 0.0) for ids, _ in TAUGHT] + dull(), **kl)[0]
    only = step([episode(ids, None) for ids, _ in TAUGHT] + dull(), **kl)[0]
    assert factor(with_taught, only) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_ratio"])
def test_the_kl_term_has_no_importance_weight(mode, estimator):
    """At advantage 0 only the KL term is left. The weights of the policy term are exp(0.5), or masked."""
    options = dict(kl=0.1, kl_estimator=estimator)
    plain = step([episode([3, 4, 5], 0.0), episode([6, 7], 0.0)], **options)[0]
    weighted = step(
        [episode([3, 4, 5], 0.0, gap=0.5), episode([6, 7], 0.0, gap=0.5)],
        mismatch=mode,
        mismatch_high=1.2,
        **options,
    )[0]
    assert factor(weighted, plain) == pytest.approx(1.0, rel=1e-4)


def test_the_entropy_bonus_is_a_mean_over_all_samples():
    gradient, _, moved = step(dull(), entropy_bonus=0.5, loss="grpo")
    assert moved
    model = make(0)
    every = [(PROMPT, e.ids) for e in dull()]
    (-0.5 * score(model, pack(every), 1.0, VOCAB)[1].mean()).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    assert factor(gradient, wanted) == pytest.approx(1.0, rel=1e-4)


def test_nothing_to_learn_is_no_step():
    assert not step(dull())[2] and not step([])[2] and not step([], kl=0.1)[2]
    assert step(taught())[2]


@pytest.mark.parametrize("options", [{}, {"kl": 0.1}])
def test_the_entropy_is_the_mean_over_every_token_of_every_sample(options):
    """Equal samples are scored once and counted as many; so are samples of groups without spread."""
    samples = [episode([3, 4, 5], 1.0) for _ in range(7)] + [episode([6, 7], -7.0)] + dull()
    stats = step(samples, **options)[1]
    entropies = [x for e in samples for x in scored(make(0), e.ids)[1]]
    assert stats["entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)
    assert stats["tokens"] == 7 * 3 + 2


@pytest.mark.parametrize("loss", grpo.LOSSES)
@pytest.mark.parametrize("mode", ["bypass", "token_truncate", "sequence_mask"])
def test_the_mismatch_is_measured_at_the_first_update_for_every_choice(loss, mode):
    samples = taught(gap=0.1) + dull(gap=0.1)
    stats = step(samples, loss=loss, mismatch=mode)[1]
    assert stats["mismatch_tokens"] == sum(len(e.ids) for e in samples)
    assert stats["mismatch_ratio"] == pytest.approx(math.exp(0.1), rel=1e-4)
    assert stats["mismatch_kl"] == pytest.approx(math.exp(0.1) - 1.1, rel=1e-2)
    drift = 0.0 if grpo.needs_old(loss, mode) else math.exp(0.1) - 1.1  # of the policy from `old`
    assert stats["kl_sampler"] == pytest.approx(drift, abs=1e-5)
    assert not [key for key in step(samples, first=False, loss=loss)[1] if key.startswith("mismatch")]


def test_gspo_is_not_clipped_by_the_mismatch():
    """Its bounds are 3e-4 and 4e-4, far below the difference of sampler and trainer in bf16."""
    stats = step(taught(gap=0.02), loss="gspo")[1]
    assert stats["clip_fraction"] == 0 and stats["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert {kind: "trainer" if kind == "gspo" else "sampler" for kind in grpo.LOSSES} == {
        kind: loss.old for kind, loss in grpo.LOSSES.items()
    }
    with pytest.raises(ValueError, match=r"gspo .* needs the trainer's old"):
        grpo.mismatch(None, torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.long), kind="gspo")


def test_the_two_sides_of_the_clip_are_told_apart():
    old = torch.zeros(6)
    logp = torch.tensor([1.5, 0.5, 0.5, 1.5, 0.5, 1.0]).log()  # the ratios
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    seq_ids, mask = torch.arange(6), torch.ones(6)
    copies = torch.tensor([2.0, 1, 1, 1, 1, 1])
    _, parts = grpo.policy_loss(logp, old, advantage, mask, seq_ids, 6, "dapo", copies=copies)
    stats = grpo.summarize([parts])
    assert stats["clip_fraction_high"] == pytest.approx(2 / 7)  # a good sample of ratio 1.5, drawn twice
    assert stats["clip_fraction_low"] == pytest.approx(2 / 7)  # two bad ones of ratio 0.5
    assert stats["clip_fraction"] == pytest.approx(4 / 7)


def test_equal_samples_weigh_as_many_in_loss_and_statistics():
    samples = [episode([3, 4, 5], 1.0), episode([3, 4, 5], 1.0), episode([6, 7], -2.0)]
    apart = [*samples]
    apart[1] = episode([3, 4, 5], 1.0 + 1e-9)  # no longer equal
    for loss in grpo.LOSSES:
        (a, b, _), (c, d, _) = step(samples, loss=loss), step(apart, loss=loss)
        assert factor(a, c) == pytest.approx(1.0, rel=1e-4)
        assert b == pytest.approx(d, rel=1e-5, abs=1e-9)


class Told:
    """A run that keeps what it is told."""

    world, advice = World(), Advice()
    say = print

    def samples(self, rows):
        list(rows)

    def step(self, stage, step, of, seconds, keys, **numbers):
        self.numbers = numbers


def test_pass_at_k_is_the_share_of_groups_with_a_right_sample():
    statuses = [
        ["correct", "wrong_value"],
        ["no_code", "no_code"],
        ["infra_error", "infra_error"],
        ["correct"] * 2,
    ]
    episodes = []
    for group, members in enumerate(statuses):
        for status in members:
            e = Episode(Task("t", "s"), [1], [2], [-1.0], "stop", verdict=Verdict(status), group=group)
            episodes.append(e)
    run = Told()
    cfg = train_grpo.Config()
    update = train_grpo.Update(0.0, 0.0, [{"tokens": torch.zeros(2), "kl_sampler": torch.zeros(2)}])
    report(run, 1, cfg, Step(episodes, [update], Clock()))
    assert run.numbers["pass_at_k"] == pytest.approx(2 / 3)


def test_options_that_do_not_go_together_are_one_line(capsys):
    for argv, says in (
        (["--dual-clip", "3", "--loss", "cispo"], "--dual-clip: not with --loss cispo"),
        (["--dual-clip", "1"], "--dual-clip 1.0: must be > 1"),
        (["--mismatch-low", "3"], "--mismatch-low 3.0: over --mismatch-high 2.0"),
        (["--template", "{"], "--template {: not JSON"),
        (["--template", "[1]"], "--template [1]: a JSON object is expected"),
        (["--kl-estimator", "k1"], "--kl-estimator k1: not one of k2, k3, k3_ratio"),
    ):
        with pytest.raises(SystemExit) as stop:
            config.parse(train_grpo.Config, argv)
        error = capsys.readouterr().err
        assert stop.value.code == 2 and says in error and error.count("\n") == 1
    paper = config.parse(train_grpo.Config, ["--recipe", "autotriton"]).losses
    assert (paper.kl_estimator, paper.kl) == ("k3", 1e-3)
