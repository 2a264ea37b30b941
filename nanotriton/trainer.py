"""What a GRPO step works with: the models, the optimizer, the sampler, and what makes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanotriton.data import score
from nanotriton.executor.executor import Executor
from nanotriton.microbatch import MicroBatch, Row, merge, microbatch
from nanotriton.parallel import distributed
from nanotriton.parallel.world import World
from nanotriton.reward.reward import RewardFunction
from nanotriton.rollout import Episode, prompts_of
from nanotriton.runs.run import Run, make_sampler
from nanotriton.sampler.sampler import Sampler
from nanotriton.tasks.prompt import DEFAULT, Prompt
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.tokenizer import Tokenizer


@dataclass
class Trainer:
    """Everything that a step works with, on this rank."""

    cfg: Any  # train_grpo.Config
    world: World
    tasks: Sequence[Task]
    reward_of: RewardFunction
    tokenizer: Tokenizer
    model: Transformer  # the policy, sharded over the ranks
    reference: Transformer | None  # the policy at the start, for the KL term
    optimizer: torch.optim.Optimizer
    sampler: Sampler
    executor: Executor | None  # None: it is started later
    prompt: Prompt = DEFAULT  # how a task is put to the model
    ahead: list[list[Episode]] | None = None  # the next step's groups, where --ahead has sampled them
    base: str = ""  # the folder or hub id that the policy began from


def make_trainer(
    cfg: Any,
    run: Run,
    base: str,
    tasks: Sequence[Task],
    test: Sequence[Task],
    reward_of: RewardFunction,
    prompt: Prompt,
) -> Trainer:
    """Load the model, and put beside it everything that a step needs but the executor.

    cfg: train_grpo.Config. base: the model's folder or hub id. tasks, test: to train on, and to measure on.
    ConfigError if a prompt of the user's own tasks is too long for the model.
    """
    world = run.world
    run.say(f"loading {base}")
    tokenizer = run.tokenizer(base, cfg.template)
    shared = cfg.optimizer == "adam8"  # the sampler reads the parameters that are trained
    copies = (not shared) + (cfg.losses.kl > 0) / world.world_size  # the sampler's, and the reference's shard
    model, model_config = distributed.load(
        base, world, cfg.optimizer, cfg.micro_tokens, copies, rank=cfg.lora, seed=cfg.seed
    )
    own = [*(tasks if cfg.tasks else []), *(test if cfg.trace.heldout else [])]
    prompts_of(own, tokenizer, model_config.max_position_embeddings, prompt)  # raises where one is too long
    reference = distributed.load_reference(base, world) if cfg.losses.kl else None
    optimizer = distributed.adamw(model, cfg.lr)
    sampler = make_sampler(
        model_config,
        world,
        tokenizer,
        model if shared else None,
        distributed.moments_to_come(optimizer),
        cfg.kv_gib,
    )
    return Trainer(
        cfg=cfg,
        world=world,
        tasks=tasks,
        reward_of=reward_of,
        tokenizer=tokenizer,
        model=model,
        reference=reference,
        optimizer=optimizer,
        sampler=sampler,
        executor=None,
        prompt=prompt,
        base=base,
    )


@torch.no_grad()
def score_rows(rows: list[Row], trainer: Trainer) -> Iterator[tuple[MicroBatch, Tensor, Tensor]]:
    """(microbatch, logprobs [N], entropies [N]) of these rows under the policy, without a gradient."""
    cfg, world = trainer.cfg, trainer.world
    for chosen in distributed.balance([row.tokens for row in rows], cfg.micro_tokens, world):
        micro = microbatch([rows[k] for k in chosen], world.device)
        yield micro, *score(trainer.model, micro.packed, cfg.temperature, trainer.tokenizer.vocab_size)


def set_old_logprobs(episodes: list[Episode], trainer: Trainer) -> None:
    """The trainer's own logprobs of each sample before any update."""
    for micro, logp, _ in score_rows(merge(episodes), trainer):
        values = iter(logp.tolist())
        for row in micro.rows:
            old = [next(values) for _ in row.episode.ids]
            for episode in row.equals:
                episode.old = old
