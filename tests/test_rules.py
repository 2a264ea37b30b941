"""docs/rules.md, rule by rule: test_rule_N... fails if rule N is broken. Longer tests are in each module's own file."""

import json
import math
import re
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from safetensors.torch import load_file, save_file

import train_grpo
from nanotriton import config, grpo, heldout, trainer
from nanotriton.data import pack, score
from nanotriton.kernels import logprob
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.log import Log
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import Checkpointer
from nanotriton.parallel.world import World
from nanotriton.reward.reward import reward
from nanotriton.rollout import Episode
from nanotriton.runs.advice import Advice
from nanotriton.runs.report import Step, Update, report
from nanotriton.runs.run import Clock
from nanotriton.sampler.sampler import Request, Sampler
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig, ModelError
from nanotriton.transformer.weights import load_config, load_model, save_model
from nanotriton.verdict import STATUSES, UNSCORED, Verdict

RULES = Path(__file__).parent.parent / "docs" / "rules.md"
VOCAB, VALID = 24, 20  # the embedding is padded by four rows
ones = torch.ones


def make_model(seed=0, **changes):
    shape = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = Transformer(ModelConfig("llama", **shape | changes)).init_weights(seed)
    with torch.no_grad():  # away from the uniform distribution that N(0, 0.02) gives
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed + p.numel()))
    return model


def sampled(model, prompts, n=3, temperature=0.7, stop=frozenset({3, 5})):
    """[len(prompts)][n] samples of seeds that are functions of their place."""
    sampler = Sampler(model, kv_gib=0.02, valid_vocab=VALID, max_batch=64)
    seeds = [[seed_of(0, Stream.SAMPLES, 0, i, j) for j in range(n)] for i in range(len(prompts))]
    requests = [
        Request(p, n=n, max_tokens=12, temperature=temperature, stop_ids=stop, seeds=s)
        for p, s in zip(prompts, seeds)
    ]
    return sampler.generate(requests)


PROMPTS = [[1, 2, 3], [7], [4, 4, 9, 11, 2], [19, 0]]


def test_every_rule_has_a_test_that_names_it():
    rules = [int(n) for n in re.findall(r"^(\d+)\. ", RULES.read_text(), flags=re.MULTILINE)]
    tested = {
        int(n) for n in re.findall(r"^def test_rule_(\d+)_", Path(__file__).read_text(), flags=re.MULTILINE)
    }
    assert rules == list(range(1, 22)) and tested == set(rules)
    for file in re.findall(r"tests/[\w/]+\.py", RULES.read_text()):
        assert (RULES.parent.parent / file).exists(), file


# ---- tokens, masks, logprobs
# -----------------------------------------------------------------------------------------
def test_rule_01_ids_are_trained_on_as_sampled_and_masks_come_from_lengths():
    """Id 0, a pad id elsewhere, and an end id inside count like any other; nothing is decoded on the way."""
    batch = pack([([0, 3], [0, 5, 0, 0]), ([9], [3])])
    assert batch.ids.tolist() == [0, 3, 0, 5, 0, 0, 9, 3] and batch.targets.tolist() == [0, 5, 0, 0, 3]
    assert batch.rows.tolist() == [0, 0, 0, 0, 1] and batch.where.tolist() == [1, 2, 3, 4, 6]


def test_rule_02_the_end_token_is_in_the_loss_and_is_a_set():
    groups = sampled(make_model(), PROMPTS)
    ended = [s for g in groups for s in g if s.finish_reason == "stop"]
    assert {s.ids[-1] for s in ended} == {3, 5} and all(len(s.logprobs) == len(s.ids) for s in ended)
    batch = pack([(PROMPTS[s.request], s.ids) for s in ended])
    assert batch.targets[batch.rows.diff(append=torch.tensor([-1])) != 0].tolist() == [
        s.ids[-1] for s in ended
    ]
    raw = ModelConfig("llama").to_hf(torch.float32) | {"eos_token_id": 3}
    assert ModelConfig.from_hf(raw, {"eos_token_id": [5, 3]}).eos_token_ids == (3, 5)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_rule_03_sampler_and_trainer_score_the_same_distribution(temperature):
    model = make_model()
    flat = [s for g in sampled(model, PROMPTS, temperature=temperature) for s in g]
    # padded ids are never drawn, and take no mass in the trainer:
    assert max(t for s in flat for t in s.ids) < VALID
    batch = pack([(PROMPTS[s.request], s.ids) for s in flat])
    ours = score(model, batch, temperature, VALID)[0]
    theirs = torch.tensor([x for s in flat for x in s.logprobs])
    assert (ours - theirs).abs().max() < 1e-5
    assert (score(model, batch, temperature)[0] - theirs).abs().max() > 1e-3  # ... with it they would differ
    assert (score(model, batch, 1.3, VALID)[0] - theirs).abs().max() > 1e-2
    fields = config.options(train_grpo.Config)
    assert (
        "top_p" not in fields
        and "top_k" not in fields
        and (Request([1]).top_p, Request([1]).top_k) == (1.0, 0)
    )


def test_rule_04_logits_are_fp32_before_the_softmax():
    g = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 256, generator=g).bfloat16() for n in (64, 500))
    targets = torch.randint(0, 500, (64,), generator=g)
    exact = (hidden.double() @ weight.double().T).log_softmax(1)
    picked = exact.gather(1, targets[:, None])[:, 0]
    logp, entropy = token_logprobs(hidden, weight, targets)
    assert logp.dtype == entropy.dtype == torch.float32 and (logp - picked).abs().max() < 1e-4
    rounded = (hidden @ weight.T).float().log_softmax(1).gather(1, targets[:, None])[:, 0]
    # what bf16 logits would have done to the ratio of an identical policy
    assert (rounded - picked).abs().max() > 0.05


def test_rule_05_first_tokens_are_independent_and_seeds_are_per_sample():
    model, n = make_model(), 600
    seeds = [
        [seed_of(0, Stream.SAMPLES, step, i, j) for j in range(2)] for step in range(20) for i in range(30)
    ]
    out = Sampler(model, kv_gib=0.02, valid_vocab=VALID).generate(
        [Request([1], n=2, max_tokens=1, seeds=s) for s in seeds]
    )
    pairs = np.zeros((VALID, VALID))
    for a, b in out:
        pairs[a.ids[0], b.ids[0]] += 1
    # the rest together, so that no expected count is tiny
    common = np.argsort(pairs.sum(0) + pairs.sum(1))[-6:]
    cells = [*common, None]
    inside = lambda k: np.isin(np.arange(VALID), common, invert=True) if k is None else np.arange(VALID) == k
    table = np.array([[pairs[np.ix_(inside(a), inside(b))].sum() for b in cells] for a in cells])
    expected = table.sum(1, keepdims=True) * table.sum(0) / n
    chi2, freedom = ((table - expected) ** 2 / expected).sum(), (len(cells) - 1) ** 2
    assert abs(chi2 - freedom) / math.sqrt(2 * freedom) < 4
    assert np.trace(table) < 0.6 * n  # a shared first token would put all on the diagonal
    # another number of ranks: each draws every second request, and every sample is what it was
    whole = [[s.ids for s in g] for g in sampled(model, PROMPTS)]
    for rank in range(2):
        requests = [
            Request(
                PROMPTS[i],
                n=3,
                max_tokens=12,
                temperature=0.7,
                stop_ids=frozenset({3, 5}),
                seeds=[seed_of(0, Stream.SAMPLES, 0, i, j) for j in range(3)],
            )
            for i in World(rank, 2).share(range(4))
        ]
        got = Sampler(model, kv_gib=0.02, valid_vocab=VALID).generate(requests)
        assert [[s.ids for s in g] for g in got] == World(rank, 2).share(whole)


def test_rule_06_the_mismatch_of_sampler_and_trainer_is_measured():
    model = make_model()
    flat = [s for g in sampled(model, PROMPTS) for s in g]
    rollout = torch.tensor([x for s in flat for x in s.logprobs])
    logp = score(model, pack([(PROMPTS[s.request], s.ids) for s in flat]), 0.7, VALID)[0]
    stats = grpo.summarize([grpo.ratio_stats(logp, rollout, ones(len(logp)), prefix="mismatch_")])
    assert stats["mismatch_tokens"] == len(rollout)
    assert (
        abs(stats["mismatch_ratio"] - 1) < 1e-5
        and abs(stats["mismatch_ratio_max"] - 1) < 1e-5
        and stats["mismatch_kl"] < 1e-9
    )
    stats = grpo.summarize([grpo.ratio_stats(logp + 0.1, rollout, ones(len(logp)), prefix="mismatch_")])
    assert stats["mismatch_ratio"] == pytest.approx(math.exp(0.1), rel=1e-4)


def test_rule_07_packed_equals_one_sequence_at_a_time():
    model = make_model()
    pairs = [([1, 2], [3, 4, 5]), ([6], [7]), ([8, 9, 1, 1], [2, 0, 0, 3, 5, 19])]

    def run(parts):
        model.zero_grad()
        outputs = [score(model, pack(part), 0.9, VALID) for part in parts]
        sum((logp.sum() + 0.3 * entropy.sum()) for logp, entropy in outputs).backward()
        return (
            torch.cat([x for x, _ in outputs]),
            torch.cat([x for _, x in outputs]),
            {n: p.grad.clone() for n, p in model.named_parameters()},
        )

    packed, alone = run([pairs]), run([[p] for p in pairs])
    for a, b in zip(packed[:2], alone[:2]):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for name, g in alone[2].items():
        assert (packed[2][name] - g).abs().max() <= 1e-5 * g.abs().max(), name


def test_rule_08_a_weight_update_drops_what_was_cached():
    old, new = make_model(seed=0), make_model(seed=5)
    sampler = Sampler(make_model(seed=0), kv_gib=0.02)
    ask = [Request([4, 5, 6, 7, 8], n=2, max_tokens=8, seeds=[1, 2])]
    ids = lambda s: [x.ids for x in s.generate(ask)[0]]
    before = ids(sampler)
    sampler.update_weights(new)
    assert ids(sampler) == ids(Sampler(new, kv_gib=0.02)) != before == ids(Sampler(old, kv_gib=0.02))


# ---- the loss
# --------------------------------------------------------------------------------------------------------
# the oracle's golden values were printed with 1e-4
A = oracle.adv_group(np.array([1.0, 0.0, 0.5, 0.0]), "std1", 1e-4)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], float)
OLD = np.array(
    [[-0.5, -1, -2, -0.1, -3], [-0.7, -1.2, -0.3, -9, -9], [-2.5, -9, -9, -9, -9], [-1, -1, -1, -1, -1]]
)
DELTA = np.array(
    [[0.0, 0.5, -0.5, 0.05, -0.1], [1.5, -0.4, 0.1, 7, 7], [0.3, 7, 7, 7, 7], [0.2, 0.2, 0.2, 0.2, 0.2]]
)
SEQ = torch.arange(4).repeat_interleave(5)
flat = lambda a: torch.tensor(np.broadcast_to(a, MASK.shape).copy()).flatten()


def loss_of(kind, rows=slice(None), normalizer=None, mask=MASK, **options):
    take = lambda a: flat(a).view(4, 5)[rows].flatten()
    m, seq = take(mask), SEQ[: 5 * len(range(4)[rows])]
    total = grpo.count(m, seq, kind, max_length=8) if normalizer is None else normalizer
    options = {"clip_low": 0.2, "clip_high": 0.2} | options
    return grpo.policy_loss(take(OLD + DELTA), take(OLD), take(A[:, None]), m, seq, total, kind, **options)[
        0
    ].item()


def test_rule_09_the_mismatch_has_a_correction_on_the_policy_term_only():
    rollout = flat(OLD) - torch.where(flat(MASK) > 0, 0.5, 3.0)
    assert torch.equal(grpo.mismatch(None, rollout, flat(MASK), SEQ)[0], rollout)  # bypass: the clip does it
    _, weight = grpo.mismatch(
        flat(OLD).requires_grad_(), rollout, flat(MASK), SEQ, "token_truncate", high=1.5
    )
    assert not weight.requires_grad and (weight[flat(MASK) > 0] == 1.5).all()
    assert loss_of("dapo", weight=weight) == pytest.approx(1.5 * loss_of("dapo"), rel=1e-12)


def test_rule_10_the_normaliser_counts_every_microbatch_and_rank():
    rows = [slice(i, i + 1) for i in range(4)]
    right = sum(loss_of("dapo", r, normalizer=MASK.sum()) for r in rows)
    wrong = np.mean([loss_of("dapo", r) for r in rows[:3]])
    assert right == pytest.approx(loss_of("dapo"), abs=1e-12) == pytest.approx(-0.1697661467, abs=1e-10)
    assert wrong == pytest.approx(0.0369159710, abs=1e-10)  # the mean of microbatch means has the other sign
    for kind in grpo.LOSSES:  # counts add up whatever the cut
        m, cuts = flat(MASK), [(0, 5), (5, 15), (15, 20)]
        parts = sum(grpo.count(m[a:b], SEQ[a:b] - SEQ[a], kind, 8) for a, b in cuts)
        assert parts == grpo.count(m, SEQ, kind, 8)


def test_rule_11_clip_and_the_three_aggregations():
    assert loss_of("grpo") == pytest.approx(0.0369159710, abs=1e-10)
    assert loss_of("dapo", clip_high=0.28) == pytest.approx(-0.1836894507, abs=1e-10)
    rows = MASK.sum(1) > 0
    expected = oracle.agg(oracle.ppo_clip((OLD + DELTA)[rows], OLD[rows], A[rows]), MASK[rows], "drgrpo", 8)
    assert loss_of("dr_grpo") == pytest.approx(expected, abs=1e-12)
    for kind in grpo.LOSSES:
        # the masked row is as if absent
        assert loss_of(kind, slice(0, 3)) == pytest.approx(loss_of(kind), abs=1e-12)
        assert loss_of(kind, mask=MASK * 0) == 0.0


def test_rule_12_advantages_are_by_prompt_index_and_constant_groups_are_dropped():
    same_text = grpo.advantages([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1])  # one prompt twice: two groups, both dull
    assert same_text[0].tolist() == [0.0] * 4 and not same_text[1].any()
    adv, spread = grpo.advantages([0.1, 0.1, 0.1, 1.0, 0.0], [0, 0, 0, 1, 1], "mean")
    assert adv.tolist() == [0, 0, 0, 0.5, -0.5] and spread.tolist() == [False] * 3 + [True] * 2
    noise = [1.0, 1.001, 0.999]
    assert (
        grpo.advantages(noise, [0] * 3)[0].abs().max() > 0.9
        and grpo.advantages(noise, [0] * 3, std_floor=0.05)[0].abs().max() < 0.03
    )


def test_rule_13_kl_terms_have_the_gradients_that_are_said():
    z, ref = (
        torch.randn(5, dtype=torch.float64, requires_grad=True),
        torch.randn(5, dtype=torch.float64).log_softmax(0),
    )
    p = z.log_softmax(0).exp()
    gradient = lambda f: torch.autograd.grad(f, z, retain_graph=True)[0]
    expectation = lambda k: gradient((p.detach() * k).sum())
    logp = z.log_softmax(0)
    reverse, forward = gradient((p * (p.log() - ref)).sum()), gradient((ref.exp() * (ref - logp)).sum())
    one = ones(5)
    assert torch.allclose(expectation(grpo.kl(logp, ref, one, "k2")), reverse)
    assert torch.allclose(expectation(grpo.kl(logp, ref, one, "k3")), forward)
    assert torch.allclose(expectation(grpo.kl(logp, ref, one, "k3", old=logp.detach())), reverse)
    assert expectation(logp - ref).abs().max() < 1e-12  # k1 as a loss teaches nothing: refused
    with pytest.raises(ValueError, match="zero in expectation"):
        grpo.kl(logp, ref, one, "k1")
    assert config.make(train_grpo.Config, **train_grpo.PRETRAINED).losses.kl == 0.0


def test_rule_14_truncated_and_failed_samples_leave_numerator_and_denominator():
    statuses = "correct infra_error wrong_value weak_task correct"
    verdicts = [Verdict(status) for status in statuses.split()]
    verdicts.insert(3, Verdict("unsupported", stage="task"))
    rewards = [reward(verdict) for verdict in verdicts]
    assert rewards == [1.0, None, 0.0, None, None, 1.0]
    cut = [False, False, False, False, False, True]
    adv, spread = grpo.advantages(grpo.truncation(rewards, [5] * 6, cut, "mask", 5), [0] * 6, "mean")
    assert adv.tolist() == [0.5, 0, -0.5, 0, 0, 0] and spread.tolist() == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]
    assert all(reward(Verdict(s)) is None for s in UNSCORED) and all(
        reward(Verdict(s)) is not None for s in STATUSES - UNSCORED
    )


class Recorder:
    """A run that keeps what it is told."""

    world, advice = World(), Advice()
    say = print

    def samples(self, rows):
        self.rows = list(rows)

    def step(self, stage, step, of, seconds, keys, **numbers):
        self.numbers = numbers


def test_rule_15_on_policy_the_loss_is_zero_its_gradient_is_not_and_all_is_logged():
    logp = torch.randn(6, dtype=torch.float64, requires_grad=True)
    seq, adv = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([1.0, 1, 1, -1, -1, -1])
    loss, stats = grpo.policy_loss(logp, logp.detach(), adv, ones(6), seq, 6)
    loss.backward()
    assert loss.item() == 0 and torch.allclose(logp.grad, -adv.double() / 6)
    stats |= {"entropy": torch.tensor([6 * 0.7, 6.0])}
    task = Task("t", "source")
    episodes = [
        Episode(task, [1], [2, 3], [-1.0, -1.0], "stop", reward=1.0, spread=True),
        Episode(task, [1], [2], [-1.0], "length", reward=0.0, spread=True),
    ]
    run = Recorder()
    report(run, 1, train_grpo.Config(), Step(episodes, [Update(loss.item(), 0.5, [stats])], Clock()))
    told = run.numbers
    assert (
        told["reward"] == 0.5
        and told["spread"] == 1.0
        and told["norm"] == 0.5
        and told["length"] == 1.5
        and told["truncated"] == 0.5
    )
    assert (
        told["loss"] == 0
        and told["clip_fraction"] == 0
        and told["kl_sampler"] == 0
        and told["ratio_max"] == 1.0
        and told["entropy"] == pytest.approx(0.7)
    )
    assert told["statuses"] == {"no_code": 2}


# ---- weights, optimizer, resume
# --------------------------------------------------------------------------------------
def test_rule_16_masters_are_fp32_and_move_at_a_small_rate():
    model = make_model().float()
    distributed.shard(model, World())
    model.compute_dtype = torch.bfloat16  # as on a GPU
    optimizer = distributed.adamw(model, 1e-6)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    (-score(model, pack([([1], [2, 3, 4])]))[0].sum()).backward()
    optimizer.step()
    for name, p in model.named_parameters():
        moved = (p.detach() - before[name])[(p.grad.abs() > 1e-6) & (before[name].abs() > 1e-3)]
        assert p.dtype == torch.float32 and len(moved) and (moved != 0).all(), name
        # bf16 parameters would have stood still
        assert (p.detach().bfloat16() == before[name].bfloat16()).float().mean() > 0.95


def test_rule_17_the_head_sums_in_fp32_and_holds_few_logits(monkeypatch):
    held, make = [], logprob._logits
    monkeypatch.setattr(logprob, "CPU_BYTES", 16 * 4 * 64)
    monkeypatch.setattr(
        logprob, "_logits", lambda h, w, *rest: held.append((len(h), len(w))) or make(h, w, *rest)
    )
    hidden = ones(1024, 8, dtype=torch.bfloat16)
    weight = torch.zeros(64, 8, requires_grad=True)  # an fp32 master
    logp, entropy = token_logprobs(hidden, weight, torch.full((1024,), 7))
    (grad,) = torch.autograd.grad(logp.sum(), weight, retain_graph=True)
    # forward a few rows, backward a few columns of 1,024 x 64
    assert held == [(16, 64)] * 64 + [(1024, 1)] * 64
    assert grad.dtype == torch.float32 and torch.allclose(
        grad[7], torch.tensor(1024 * (1 - 1 / 64)), rtol=5e-3
    )
    assert torch.allclose(grad[8], torch.tensor(-1024 / 64), rtol=1e-3)
    hidden, weight = torch.zeros(512, 8, dtype=torch.bfloat16, requires_grad=True), torch.ones(1024, 8)
    (grad,) = torch.autograd.grad(
        token_logprobs(hidden, weight, torch.zeros(512, dtype=torch.long))[0].sum(), hidden
    )
    assert grad.abs().max() < 1e-3  # 1, then 512 chunks of -1/512 each: a bf16 sum would have stayed at 1
    assert entropy.requires_grad
    model = make_model().to(torch.bfloat16)
    assert all(t.dtype == torch.float32 for t in (model.inv_freq, *model.rope_tables(torch.arange(3))))


def test_rule_18_the_loader_takes_all_and_refuses_what_it_does_not_know(tmp_path):
    model = make_model(head_dim=6, tie_word_embeddings=True)
    save_model(model, tmp_path)
    assert not list(tmp_path.glob("*.index.json"))  # an index is optional
    again, config = load_model(tmp_path)
    assert config.head_dim == 6 and again.head_weight is again.model.embed_tokens.weight
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"extra": torch.zeros(1)}, file)
    with pytest.raises(ModelError, match="extra"):
        load_model(tmp_path)
    save_file({k: v for k, v in tensors.items() if "norm" not in k}, file)
    with pytest.raises(ModelError, match="missing"):
        load_model(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    for change, named in (
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope.*supported: default, linear"),
        ({"sliding_window": 128}, "sliding-window"),
        ({"model_type": "mamba"}, "mamba.*supported: llama, qwen2, qwen3"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(raw | change))
        with pytest.raises(ModelError, match=named):
            load_config(tmp_path)


def test_rule_19_a_resumed_run_is_the_straight_one_to_the_bit_with_its_files_cut_back(tmp_path):
    def advance(model, optimizer, log, steps):
        for step in steps:
            noise = torch.rand(())
            (-score(model, pack([([1], [2, 3, 4 + step])]))[0].sum() * noise).backward()
            optimizer.step()
            optimizer.zero_grad()
            log.step("grpo", step, 4, {}, (), noise=noise.item())

    def start():
        model = make_model()
        return model, distributed.adamw(distributed.shard(model, World()), 1e-3), Log(tmp_path)

    model, optimizer, log = start()
    saver = Checkpointer(tmp_path / "checkpoints", World())
    advance(model, optimizer, log, range(2))
    saver.save(2, model, optimizer, {"position": log.position()})
    advance(model, optimizer, log, range(2, 4))
    straight = (tmp_path / "metrics.jsonl").read_text()

    other, fresh, log = start()  # killed here, and started again
    step, state = saver.load_latest(other, fresh)
    log.rewind(state["position"])
    advance(other, fresh, log, range(step, 4))
    assert (tmp_path / "metrics.jsonl").read_text() == straight and straight.count("\n") == 4
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_rule_20_saved_before_it_is_evaluated_and_so_is_what_was_sampled(monkeypatch):
    """train_grpo.main with everything that costs time replaced by a word in a list."""
    said = []

    class Fake:
        folder, world, main = Path("nowhere"), World(), True
        __enter__ = lambda self: self
        __exit__ = lambda self, *_: None
        finished = lambda self: False
        resume = lambda self, *_: 0
        continued = False
        training = lambda self, *_: self
        end_step = lambda self, *_: said.append("save")
        __getattr__ = lambda self, name: lambda *a, **k: said.append(name)

    monkeypatch.setattr(train_grpo, "Run", lambda *_: Fake())
    monkeypatch.setattr(train_grpo.distributed, "load", lambda *_, **__: (make_model(), make_model().config))
    monkeypatch.setattr(train_grpo, "task_sets", lambda *_: (["a", "b"], ["d"], ["t"]))
    monkeypatch.setattr(trainer, "make_sampler", lambda *_: Fake())
    for name in ("make_executor", "check_model"):
        monkeypatch.setattr(train_grpo, name, lambda *_: Fake())
    episode = lambda: Episode(Task("t", "source"), [1], [2, 3], [-1.0, -1.0], "stop")
    monkeypatch.setattr(
        train_grpo, "rollout", lambda tasks, n, *_, **__: [[episode() for _ in range(n)] for _ in tasks]
    )
    monkeypatch.setattr(train_grpo, "update_policy", lambda *_, **__: Update(0.0, 0.0, []))
    monkeypatch.setattr(train_grpo, "report", lambda *_: said.append("report"))
    monkeypatch.setattr(train_grpo, "conclude", lambda *_: None)
    monkeypatch.setattr(heldout, "heldout", lambda *_, split, **__: said.append(f"measure {split}") or {})
    options = dict(model="x", kl=0.0, steps=2, prompts=2, group=2, eval_every=1, save_every=1)
    train_grpo.main(config.make(train_grpo.Config, **options), World())
    order = [w for w in said if w in ("report", "save", "export") or w.startswith("measure")]
    assert order == [
        "measure test",
        "report",
        "save",
        "measure dev",
        "report",
        "save",
        "export",
        "measure test",
    ]

    row = json.loads(json.dumps(episode().row(3, "train")))
    assert row["task_source"] == "source" and Verdict(**row["verdict"]) == episode().verdict == Verdict(
        "no_code"
    )
    assert {"step", "completion", "reward", "advantage", "finish_reason"} <= row.keys()


class Beside(World):
    """A world in which the other rank holds what `other` says."""

    other: dict

    def gather(self, x):
        return [x, self.other(x)]


def test_rule_21_ranks_that_differ_are_noticed():
    model = make_model()
    digest = distributed.check_same(distributed.full_params(model), World())
    world = Beside()
    object.__setattr__(world, "other", lambda mine: dict(mine))
    assert distributed.check_same(distributed.full_params(model), world) == digest
    object.__setattr__(world, "other", lambda mine: mine | {"model.norm.weight": "another"})
    with pytest.raises(RuntimeError, match=r"different parameters, first model\.norm\.weight"):
        distributed.check_same(distributed.full_params(model), world)
    with torch.no_grad():
        model.model["layers"][1].mlp.up_proj.weight[3, 4].add_(1e-7)
    assert distributed.check_same(distributed.full_params(model), World()) != digest
