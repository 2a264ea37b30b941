"""An optimizer step of ours against TRL's GRPOTrainer, in fp32 on the CPU: the loss, and its gradient for every parameter.

TRL scores a padded batch of Llama in transformers; ours merges equal samples, packs, and cuts microbatches. TRL's
own _compute_loss makes the loss of both the policy's and the reference's logprobs.
"""

import collections
import math
from types import SimpleNamespace

import pytest
import torch

from nanotriton import config
from nanotriton.parallel import distributed
from nanotriton.parallel.world import World
from nanotriton.rollout import Episode
from nanotriton.runs.run import Clock
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig

trl = pytest.importorskip("trl")
transformers = pytest.importorskip("transformers")
import train_grpo  # noqa: E402

VOCAB, LIMIT, PROMPT = 40, 9, 3
LENGTHS = [9, 4, 1, 7, 9, 3, 5, 5, 2, 8, 6, 4]  # 3 groups of 4 samples
ADVANTAGES = [1.2, -0.7, -0.5, 0.0, -1.4, 0.5, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0]  # the last group has no spread
TAUGHT = [True] * 8 + [False] * 4
WINDOW = torch.arange(LIMIT) < torch.tensor(LENGTHS)[:, None]  # [12, 9]


def llama(seed: int):
    """A random Llama of transformers, far from uniform."""
    shape = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    options = transformers.LlamaConfig(vocab_size=VOCAB, num_key_value_heads=2, **shape)
    model = transformers.LlamaForCausalLM(options).float().train()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.2 + (1.0 if p.ndim == 1 else 0.0))
    return model


def ours_of(hf) -> Transformer:
    model = Transformer(ModelConfig.from_hf(hf.config.to_dict()))
    model.load_state_dict({k: v for k, v in hf.state_dict().items() if k in model.state_dict()})
    return distributed.shard(model, World())


def scores(hf, ids):
    """Logprobs and entropies [B, 9] of the completions in ids [B, 12]."""
    logp = hf(ids).logits[:, PROMPT - 1 : -1].log_softmax(-1)  # [B, 9, vocab]
    picked = logp.gather(-1, ids[:, PROMPT:, None])[..., 0]
    return picked, -(logp.exp() * logp).sum(-1)


@pytest.fixture(scope="module")
def batch():
    """Ids, the logprobs of the old policy, of the sampler and of the reference: [12, 12], and [12, 9] each."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (12, PROMPT + LIMIT), generator=generator)
    ids[4:8, :PROMPT], ids[8:, :PROMPT] = ids[4, :PROMPT], ids[8, :PROMPT]
    ids[:4, :PROMPT] = ids[0, :PROMPT]
    ids[7], ids[3] = ids[6], ids[6]  # two equal samples in a group, and one like them elsewhere
    ids[3, :PROMPT] = ids[0, :PROMPT]
    with torch.no_grad():
        now = scores(llama(0), ids)[0]
        reference = scores(llama(7), ids)[0]
    old = now - 0.4 * torch.randn(now.shape, generator=generator)
    sampled = old + 0.3 * torch.randn(now.shape, generator=generator)
    return SimpleNamespace(ids=ids, old=old, sampled=sampled, reference=reference)


def theirs(batch, rows: int, importance, loss_type: str, **options):
    """TRL's loss of the first `rows` samples, and its gradients."""
    hf = llama(0)
    trainer = object.__new__(trl.GRPOTrainer)
    attributes = dict(
        loss_type=loss_type,
        importance_sampling_level="token",
        epsilon_low=0.2,
        epsilon_high=0.2,
        beta=0.0,
        entropy_coef=0.0,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=importance is not None,
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        max_completion_length=LIMIT,
        current_gradient_accumulation_steps=1,
        _metrics={"train": collections.defaultdict(list)},
    )
    named = {"delta": None, "use_bias_correction_kl": False} | options
    trainer.args = SimpleNamespace(steps_per_generation=1, **named)
    trainer.__dict__ |= attributes | options
    trainer._entropy_bonus_enabled = trainer.entropy_coef > 0
    trainer.model = hf
    same = lambda x, *_, **__: x
    trainer.accelerator = SimpleNamespace(
        num_processes=1, gather=same, reduce=same, gather_for_metrics=same, sync_gradients=True
    )
    trainer._get_per_token_logps_and_entropies = lambda model, ids, *_, **__: (*scores(model, ids), None)
    mask = WINDOW[:rows].long()
    loss = trainer._compute_loss(
        hf,
        {
            "prompt_ids": batch.ids[:rows, :PROMPT],
            "prompt_mask": torch.ones(rows, PROMPT, dtype=torch.long),
            "completion_ids": batch.ids[:rows, PROMPT:],
            "completion_mask": mask,
            "advantages": torch.tensor(ADVANTAGES[:rows]),
            "old_per_token_logps": batch.old[:rows],
            "ref_per_token_logps": batch.reference[:rows],
            "importance_sampling_ratio": importance,
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    return loss.item(), {name: p.grad for name, p in hf.named_parameters()}


class Keep:
    """An optimizer that keeps the gradients."""

    def __init__(self, model):
        self.model = model

    def step(self):
        self.grads = {name: p.grad.clone() for name, p in self.model.named_parameters()}

    def zero_grad(self, set_to_none):
        pass


def ours(batch, rows: int, **options):
    """Our loss of the same samples, and its gradients."""
    cfg = config.make(train_grpo.Config, **dict(max_tokens=LIMIT, clip=1e9, kl=0.0) | options)
    cfg.micro_tokens = 25  # several microbatches
    episodes = []
    for k, n in enumerate(LENGTHS[:rows]):
        prompt, completion = batch.ids[k, :PROMPT].tolist(), batch.ids[k, PROMPT : PROMPT + n].tolist()
        old = batch.old[k, :n].tolist()
        sampled = batch.sampled[k, :n].tolist() if cfg.losses.mismatch != "bypass" else old
        episode = Episode(Task("t", "t"), prompt, completion, sampled, "stop", old=old, reward=0.0)
        episode.advantage, episode.taught = ADVANTAGES[k], TAUGHT[k]
        episodes.append(episode)
    model = ours_of(llama(0))
    reference = ours_of(llama(7)).requires_grad_(False) if cfg.losses.kl else None
    tokenizer = SimpleNamespace(vocab_size=VOCAB)
    trainer = train_grpo.Trainer(
        cfg, World(), [], None, tokenizer, model, reference, Keep(model), sampler=None, executor=None
    )
    update = train_grpo.update_policy(episodes, trainer, Clock(), first=True)
    return update.loss, trainer.optimizer.grads


def importance_of(batch, mode: str, low: float = 0.0, high: float = 2.0):
    """TRL's importance_sampling_ratio [8, 9] or [8, 1]."""
    difference = (batch.old - batch.sampled)[:8] * WINDOW[:8]
    if mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    weight = difference.exp()
    if mode.endswith("truncate"):
        return weight.clamp(low, high)
    return weight.masked_fill((weight < low) | (weight > high), 0.0)


# name: (samples, TRL's options, ours). DAPO and CISPO leave groups without spread alone, so they get none.
CASES = {
    "grpo": (12, dict(loss_type="grpo"), dict(loss="grpo")),
    "dr_grpo": (12, dict(loss_type="dr_grpo"), dict(loss="dr_grpo")),
    "gspo": (
        12,
        dict(loss_type="grpo", importance_sampling_level="sequence", epsilon_low=3e-4, epsilon_high=4e-4),
        dict(loss="gspo"),
    ),
    "gspo, wide": (
        12,
        dict(loss_type="grpo", importance_sampling_level="sequence", epsilon_high=0.28),
        dict(loss="gspo", clip_low=0.2, clip_high=0.28),
    ),
    "dapo": (8, dict(loss_type="dapo", epsilon_high=0.28), dict(loss="dapo")),
    "cispo": (8, dict(loss_type="cispo", epsilon_high=5.0), dict(loss="cispo")),
    "dual clip": (8, dict(loss_type="dapo", epsilon_high=0.28, delta=1.5), dict(loss="dapo", dual_clip=1.5)),
    "grpo with KL": (12, dict(loss_type="grpo", beta=0.3), dict(loss="grpo", kl=0.3, kl_estimator="k3")),
    "dapo with KL times the ratio": (
        8,
        dict(loss_type="dapo", epsilon_high=0.28, beta=0.3, use_bias_correction_kl=True),
        dict(loss="dapo", kl=0.3, kl_estimator="k3_ratio"),
    ),
    "entropy bonus": (
        12,
        dict(loss_type="grpo", entropy_coef=0.2),
        dict(loss="grpo", entropy_bonus=0.2),
    ),
}


def equal(theirs, ours):
    (loss, grads), (our_loss, our_grads) = theirs, ours
    assert abs(loss) > 1e-3 and our_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert grads.keys() == our_grads.keys()
    for name, grad in grads.items():
        assert grad.norm() > 1e-6 and (grad - our_grads[name]).norm() < 2e-5 * grad.norm(), name


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_trl(batch, name):
    rows, trls, options = CASES[name]
    equal(theirs(batch, rows, None, **trls), ours(batch, rows, **options))


@pytest.mark.parametrize("bounds", [(0.0, 2.0), (0.5, 1.5)])
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_importance_weights_are_those_of_trl(batch, mode, bounds):
    low, high = bounds
    weight = importance_of(batch, mode, low, high)
    assert len(weight.unique()) > 1 and math.isfinite(weight.sum())
    options = dict(loss="dapo", mismatch=mode, mismatch_low=low, mismatch_high=high)
    equal(theirs(batch, 8, weight, "dapo", epsilon_high=0.28), ours(batch, 8, **options))
