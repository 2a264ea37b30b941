"""GRPO: sample Triton kernels for PyTorch modules, run them, and make what works more likely (arXiv 2402.03300, 2507.05687).

    torchrun train_grpo.py                                             # no GPU, no download: SFT from nothing, then GRPO
    torchrun train_grpo.py --model FOLDER_OR_HUB_ID --tasks DIR        # a real model on your own modules
    torchrun --nproc-per-node 4 train_grpo.py --model Qwen/Qwen3-8B --tasks KernelBench/level1 --recipe autotriton

`--tasks` is a folder of KernelBench-format files (Model, get_inputs, get_init_inputs); empty means the synthetic grammar.
Without `--model`, train_sft.py's own code first makes one. The run lives in out/NAME/: checkpoints, metrics.jsonl,
samples.jsonl, curves.png, summary.json and model/, a Hugging Face folder. The same command continues a run that was stopped.
"""

import nanotriton  # first, because it says what is supported where something is missing  # noqa: F401

# isort: split

from dataclasses import dataclass
from typing import Annotated, Literal

from nanotriton import config


@dataclass
class Config:
    name: str = "laptop"  # the run's folder under --out
    out: str = "out"  # where runs live
    fresh: bool = False  # delete what a run of this name left, instead of continuing it
    seed: Annotated[int, ">= 0"] = 0  # of tasks, samples and, without --model, of the model itself
    # autotriton: the paper's numbers; flags given win over it
    recipe: Literal["default", "autotriton"] = "default"
    model: str = ""  # Hugging Face folder or hub id; empty: train_sft.py makes a small one
    sft_steps: Annotated[int, ">= 1"] = 540  # its length (train_sft.py's --steps), when there is no --model
    sft_examples: Annotated[int, ">= 1"] = 12000  # and the pairs that it trains on
    tasks: str = ""  # a task file or a folder of them; empty: synthetic tasks
    # a folder of tasks for the held-out measurements; empty: synthetic ones, and none with --tasks
    heldout: str = ""
    steps: Annotated[int, ">= 1"] = 130  # rollouts; with --model 200
    prompts: Annotated[int, ">= 1"] = 32  # tasks a step, over all ranks
    group: Annotated[int, ">= 2"] = 8  # samples of each task (G), of which equal ones are run once
    epochs: Annotated[int, ">= 1"] = 2  # passes over the samples of one rollout; with --model 1
    updates: Annotated[int, ">= 1"] = 2  # optimizer steps of one pass; with --model 1
    # token mean, sequence mean, constant length, ...
    loss: Literal["dapo", "grpo", "dr_grpo", "cispo", "gspo"] = "dapo"
    # the baseline, and whether it is divided by the group's std
    advantage: Literal["mean_std", "mean", "rloo"] = "mean_std"
    # the ratio is clipped to [1 - low, 1 + high]; none: as the paper of the loss says
    clip_low: Annotated[float | None, "> 0"] = None
    # dapo: 0.2 and 0.28 (clip-higher), grpo and dr_grpo: 0.2, cispo: 1 and 4, gspo: 3e-4 and 4e-4
    clip_high: Annotated[float | None, "> 0"] = None
    # sampler against trainer: the clip corrects, or importance weights
    mismatch: Literal["bypass", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "bypass"
    )
    # weight of the KL term to the model at the start (k3 with the live ratio)
    kl: Annotated[float, ">= 0"] = 0.0
    # fp32 masters; adam8: bf16 parameters, the sampler's too, and 8-bit moments: an 8B on one GPU
    optimizer: Literal["adamw", "adam8"] = "adamw"
    # peak learning rate: linear warm-up, then a cosine to 0; with --model 1e-6
    lr: Annotated[float, "> 0"] = 2e-4
    warmup: Annotated[float, ">= 0", "<= 1"] = 0.05  # share of the steps in which it rises
    clip: Annotated[float, "> 0"] = 1.0  # largest norm of the gradient
    temperature: Annotated[float, "> 0"] = 1.0  # of the samples; the loss uses the same
    max_tokens: Annotated[int, ">= 1"] = 128  # longest completion; with --model 2048
    # dynamic sampling: rounds in which groups of equal rewards are replaced by fresh tasks
    resample: Annotated[int, ">= 0"] = 0
    # a cut completion: keeps its reward, leaves the batch, or a length penalty
    truncated: Literal["keep", "mask", "soft"] = "keep"
    policy: Literal["strict", "kernelbench", "autotriton", "none"] = "strict"  # what counts as Triton
    mode: Literal["replay", "process"] = "replay"  # how candidates are run
    # a Python file with reward(verdict, completion, task) -> float | None; empty: Triton and
    # correct, and the next two
    reward: str = ""
    # credit of a candidate that fails in its values only; less for one that fails earlier
    partial: Annotated[float, ">= 0", "< 1"] = 0.0
    # what 4 times as fast as PyTorch adds to a correct one; over 0: candidates are timed (a GPU's
    # replay)
    speed: Annotated[float, ">= 0"] = 0.0
    timeout: Annotated[float, "> 0"] = 10.0  # seconds a candidate may take at each stage
    micro_tokens: Annotated[int, ">= 64"] = 16384  # tokens of one forward and backward pass
    eval_every: Annotated[int, ">= 1"] = 65  # steps between measurements on the dev set
    # held-out test tasks before and after (2 samples each, and greedy)
    eval_tasks: Annotated[int, ">= 0"] = 256
    save_every: Annotated[int, ">= 1"] = 1  # steps between checkpoints; with --model 10
    # a control: rewards permuted within the batch; success must not rise with it
    shuffle_rewards: bool = False


# The defaults above are for the small model. A pretrained one moves gently, answers at length, and is big to
# save.
PRETRAINED = dict(steps=200, epochs=1, updates=1, lr=1e-6, max_tokens=2048, save_every=10)
# AutoTriton's numbers (arXiv 2507.05687, section 4.1): mean per sequence, symmetric clip, KL to the start.
AUTOTRITON = PRETRAINED | dict(
    prompts=64, loss="grpo", clip_low=0.2, clip_high=0.2, kl=1e-3, max_tokens=16384
)
PRESETS = {"model": {"*": PRETRAINED}, "recipe": {"autotriton": AUTOTRITON}}

if __name__ == "__main__":
    # before torch is imported, which takes seconds: --help and a mistake are answered at once
    options = config.parse(Config, presets=PRESETS)

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

import train_sft
from nanotriton import distributed, grpo
from nanotriton.data import pack, score
from nanotriton.executor.executor import Executor
from nanotriton.model import Transformer
from nanotriton.rollout import Episode, prompts_of, rollout, seed_of
from nanotriton.run import (
    Clock,
    Run,
    check_model,
    check_timed,
    heldout,
    launch,
    make_executor,
    make_sampler,
    sync_weights,
)
from nanotriton.sampler import Sampler
from nanotriton.tasks import synthetic
from nanotriton.tasks.task import Task, load_tasks
from nanotriton.tokenizer import Tokenizer
from nanotriton.verdict import STATUSES, Verdict
from nanotriton.world import World, idle_cores
from reward.reward import RewardConfig, load_reward, reward


@dataclass
class Parts:
    """What a step works with, on this rank."""

    cfg: Config
    world: World
    tasks: Sequence[Task]
    reward_of: Callable[[Verdict, str, Task], float | None]
    tokenizer: Tokenizer
    model: Transformer  # sharded over the ranks
    reference: Transformer | None  # the model at the start, for the KL term
    optimizer: torch.optim.Optimizer
    sampler: Sampler
    executor: Executor


def main(cfg: Config, world: World) -> None:
    distributed.check_optimizer(cfg.optimizer, world)
    if cfg.speed:
        check_timed(world, cfg.mode)
    # mistakes in what was named come out before anything is trained, or deleted by --fresh
    tasks, dev, test = task_sets(cfg)
    reward_of = reward_function(cfg)
    if cfg.model:
        check_model(cfg.model)
    run = Run(cfg, world, "grpo")
    if run.finished():
        return
    model_folder = cfg.model or small_model(cfg, world)
    tokenizer = Tokenizer(model_folder)
    share = cfg.optimizer == "adam8"
    model, model_config = distributed.load(
        model_folder,
        world,
        cfg.optimizer,
        cfg.micro_tokens,
        copies=(not share) + (cfg.kl > 0) / world.world_size,
    )
    # one too long comes out now
    prompts_of(
        [*(tasks if cfg.tasks else []), *(test if cfg.heldout else [])],
        tokenizer,
        model_config.max_position_embeddings,
    )
    reference = distributed.load_reference(model_folder, world) if cfg.kl else None
    optimizer = distributed.adamw(model, cfg.lr)
    sampler = make_sampler(
        model_config, world, tokenizer, model if share else None, distributed.moments_to_come(optimizer)
    )

    with make_executor(world, cfg.seed, cfg.mode, cfg.policy, cfg.timeout, cfg.speed > 0) as executor:
        parts = Parts(cfg, world, tasks, reward_of, tokenizer, model, reference, optimizer, sampler, executor)
        start = run.resume(model, optimizer)
        sync_weights(sampler, model, world)
        measure = partial(
            heldout,
            run,
            sampler=sampler,
            executor=executor,
            tokenizer=tokenizer,
            max_tokens=cfg.max_tokens,
            seed=cfg.seed,
        )
        for step in range(start, cfg.steps + 1):
            if step == 0 and test and not run.found("test", 0):
                run.evaluated("test", 0, cfg.steps, **measure(test, step=0, split="test"))
            # the test set says how it is at the ends
            if dev and step % cfg.eval_every == 0 and 0 < step < cfg.steps and not run.found("eval", step):
                run.evaluated("eval", step, cfg.steps, **measure(dev, step=step, split="dev"))
            if step == cfg.steps:
                break
            report(run, step + 1, cfg, *grpo_step(step, parts))
            if (step + 1) % cfg.save_every == 0 or step + 1 == cfg.steps:
                if world.world_size > 1:
                    distributed.check_same(sampler.model.named_parameters(), world)
                run.save(step + 1, model, optimizer)

        run.export(model, tokenizer)  # before it is measured: an evaluation that dies costs no training
        if test and not run.found("test", cfg.steps):
            run.evaluated("test", cfg.steps, cfg.steps, **measure(test, step=cfg.steps, split="test"))
    run.plot()
    run.summary(**summary(run, cfg))
    run.say(
        f"{run.folder} is done: curves.png, samples.jsonl, summary.json, and model/, a Hugging Face folder"
    )


def grpo_step(
    step: int, parts: Parts
) -> tuple[list[Episode], Tensor, list[dict[str, Tensor]], list[float], Clock]:
    """The algorithm -> (this rank's samples, which of them taught, statistics of the microbatches, gradient norms, seconds by part)."""
    cfg, world, model, optimizer, sampler, tokenizer = (
        parts.cfg,
        parts.world,
        parts.model,
        parts.optimizer,
        parts.sampler,
        parts.tokenizer,
    )
    clock, places, episodes = Clock(world.device), iter(draw(parts.tasks, cfg, step)), []

    def sample(n: int) -> list[tuple[int, list[float | None]]]:
        # 1. Sample G completions of each task. They are executed while others are still being sampled.
        batch = world.share(list(islice(places, n)))
        seeds = [[seed_of(cfg.seed, 1, step, i, j) for j in range(cfg.group)] for i, _ in batch]
        groups = rollout(
            [task for _, task in batch],
            cfg.group,
            sampler,
            parts.executor,
            tokenizer,
            seeds=seeds,
            temperature=cfg.temperature,
            max_tokens=cfg.max_tokens,
            clock=clock,
        )
        new = list(chain(*groups))

        # 2. Rewards: is it Triton, is it right? None (we failed, or the task is void) leaves the batch.
        rewards = [parts.reward_of(e.verdict, e.completion, e.task) for e in new]
        rewards = grpo.truncation(
            rewards,
            [len(e.ids) for e in new],
            [e.finish_reason == "length" for e in new],
            cfg.truncated,
            cfg.max_tokens,
            cache=max(cfg.max_tokens // 4, 1),
        )
        if cfg.shuffle_rewards:
            random.Random(seed_of(cfg.seed, 2, step, world.rank, len(episodes))).shuffle(rewards)
        for k, e in enumerate(new):
            e.group, e.reward = batch[k // cfg.group][0], rewards[k]
        episodes.extend(new)
        clock("reward")
        mine = [(i, rewards[k * cfg.group : (k + 1) * cfg.group]) for k, (i, _) in enumerate(batch)]
        every = sorted(chain(*world.gather(mine)))
        clock("wait")  # for the rank that sampled longest
        return every

    # A group of equal rewards teaches nothing: --resample puts fresh tasks in its place.
    drawn = grpo.dynamic_sampling(sample, want=cfg.prompts, rounds=1 + cfg.resample)[1]
    sampler.free()  # the KV memory is the training's until the next rollout

    # 3. Advantages: how much better than the other samples of the task. Noise of the clock is not blown up to
    # unit variance.
    advantages, spread = grpo.advantages(
        [e.reward for e in episodes],
        [e.group for e in episodes],
        cfg.advantage,
        std_floor=reward_config(cfg).noise,
    )
    taught: dict[int, list[Episode]] = {}
    for e, advantage, differs in zip(episodes, advantages.tolist(), spread):
        e.advantage = advantage
        if differs:
            taught.setdefault(e.group, []).append(e)

    # 4. Policy gradient: a few optimizer steps, each on its share of the groups.
    stats, norms = [], []
    with idle_cores(world):
        if cfg.mismatch != "bypass":
            trainer_logprobs(list(chain(*taught.values())), model, cfg, world, tokenizer)
            clock("logprobs")
        for update, share in enumerate(
            shares(drawn, cfg.epochs, cfg.updates, seed_of(cfg.seed, 3, step, 0, 0))
        ):
            each = cfg.epochs * cfg.updates
            distributed.set_lr(
                optimizer, train_sft.learning_rate(step * each + update, cfg.steps * each, cfg.lr, cfg.warmup)
            )
            chosen = [e for i in share for e in taught.get(i, [])]
            more, norm = update_policy(
                chosen, model, parts.reference, optimizer, cfg, world, tokenizer, clock
            )
            stats += more
            norms.append(norm)

    # 5. The sampler gets the new weights and forgets every cached key and value.
    sync_weights(sampler, model, world)
    clock("sync")
    return episodes, spread, stats, norms, clock


def update_policy(
    episodes: Sequence[Episode], model, reference, optimizer, cfg: Config, world, tokenizer, clock: Clock
):
    """One optimizer step on this rank's episodes -> (statistics of its microbatches, norm of the gradient before clipping).

    The normaliser counts the tokens of every rank and microbatch before the first backward, so the loss and its gradient
    don't depend on how the batch is cut. Samples that are equal to the token, with one advantage, are one row with a weight.
    """
    lengths = torch.tensor([len(e.ids) for e in episodes], dtype=torch.long)
    tokens = torch.arange(len(episodes)).repeat_interleave(lengths)
    normalizer = world.all_sum(
        grpo.count(torch.ones_like(tokens), tokens, cfg.loss, cfg.max_tokens).to(world.device)
    )
    merged: dict[tuple, list[Episode]] = {}
    for e in episodes:
        merged.setdefault((*e.prompt_ids, -1, *e.ids, e.advantage), []).append(e)
    rows = [same[0] for same in merged.values()]
    weights = [float(len(same)) for same in merged.values()]
    sampled, olds = [e.logprobs for e in rows], [e.old or e.logprobs for e in rows]
    stats = []
    parts = distributed.balance([len(e.prompt_ids) + len(e.ids) for e in rows], cfg.micro_tokens, world)
    for part in distributed.accumulate(model, parts):
        # a rank with nothing left still takes part: FSDP's collectives need every rank in every pass
        batch = pack([(rows[k].prompt_ids, rows[k].ids) for k in part] or [([0], [0])]).to(world.device)
        advantage = torch.tensor([rows[k].advantage for k in part] or [0.0], device=world.device)[batch.rows]
        weight = torch.tensor([weights[k] for k in part] or [0.0], device=world.device)[batch.rows]
        mask = torch.full_like(batch.rows, bool(part), dtype=torch.bool)
        drawn, old = (
            torch.tensor(list(chain(*(x[k] for k in part))) or [0.0], device=world.device)
            for x in (sampled, olds)
        )
        old, correction = grpo.mismatch(old, drawn, mask, batch.rows, cfg.mismatch)
        weight = weight if correction is None else weight * correction
        logp, entropy = score(model, batch, cfg.temperature, tokenizer.vocab_size)
        loss, more = grpo.policy_loss(
            logp,
            old,
            advantage,
            mask,
            batch.rows,
            normalizer,
            cfg.loss,
            cfg.clip_low,
            cfg.clip_high,
            weight=weight,
        )
        if reference is not None:
            with torch.no_grad():
                ref = score(reference, batch, cfg.temperature, tokenizer.vocab_size)[0]
            loss = loss + cfg.kl * grpo.aggregate(
                weight * grpo.kl(logp, ref, mask, old=old), mask, batch.rows, normalizer, cfg.loss
            )
        clock("logprobs")  # the forward passes: the policy's, and the reference's
        loss.backward()
        clock("backward")
        more["loss"] = loss.detach().double()
        more["entropy"] = torch.where(mask, entropy.detach(), 0.0).sum().double()
        stats.append(more)
    norm = distributed.clip_grad_norm(model, cfg.clip)
    # with no group that has spread there is nothing to learn, and momentum must not drift on
    if float(normalizer) > 0:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    clock("optimizer")
    return stats, float(norm)


@torch.no_grad()
def trainer_logprobs(
    episodes: Sequence[Episode], model, cfg: Config, world: World, tokenizer: Tokenizer
) -> None:
    """The trainer's own logprobs of what was sampled, before any update: `old`, where the sampler's are not taken for it."""
    parts = distributed.balance([len(e.prompt_ids) + len(e.ids) for e in episodes], cfg.micro_tokens, world)
    for part in parts:
        batch = pack([(episodes[k].prompt_ids, episodes[k].ids) for k in part] or [([0], [0])]).to(
            world.device
        )
        logp = score(model, batch, cfg.temperature, tokenizer.vocab_size)[0].tolist()
        for k in part:
            episodes[k].old, logp = logp[: len(episodes[k].ids)], logp[len(episodes[k].ids) :]


def shares(groups: int, epochs: int, updates: int, seed: int) -> list[list[int]]:
    """Which groups, of all ranks, each optimizer step learns from: `epochs` random partitions of them into `updates` parts."""
    rng = random.Random(seed)
    orders = [rng.sample(range(groups), groups) for _ in range(epochs)]
    return [order[k::updates] for order in orders for k in range(updates)]


def report(
    run: Run, step: int, cfg: Config, episodes: list[Episode], spread, stats, norms: list[float], clock: Clock
) -> None:
    """One line on the console, every number to metrics.jsonl, every rank's samples to samples.jsonl.

    On policy the ratio is 1 and the loss near 0 whatever is learned: watch the reward, not the loss.
    """
    world = run.world
    scored = [e for e in episodes if e.reward is not None]
    sums = dict(
        samples=len(episodes),
        scored=len(scored),
        reward=sum(e.reward for e in scored),
        length=sum(len(e.ids) for e in episodes),
        truncated=sum(e.finish_reason == "length" for e in episodes),
        spread=int(spread.sum()),
        distinct=len({(id(e.task), *e.ids) for e in episodes}),
    )
    statuses = Counter(dict.fromkeys(sorted(STATUSES), 0)) | Counter(e.verdict.status for e in episodes)
    names = list(sums) + sorted(STATUSES)
    totals = world.all_sum(
        torch.tensor([*sums.values(), *(statuses[s] for s in sorted(STATUSES))], dtype=torch.float64)
    ).tolist()
    t = dict(zip(names, totals))
    policy = grpo.summarize(stats, world.all_sum, world.all_max)
    # it has its normaliser already: the mean of the updates' losses
    policy["loss"] *= policy["tokens"] / len(norms)
    run.samples(e.row(step, "train") for e in episodes)
    # no group had spread: nothing was measured
    taught = ("entropy", "kl", "clip_fraction", "norm") if policy["tokens"] else ()
    # our failure, or the task's: samples.jsonl says which
    unscored = ("scored",) if t["scored"] < t["samples"] else ()
    run.step(
        "grpo",
        step,
        cfg.steps,
        clock.seconds,
        ("reward", *unscored, "spread", "length", *taught),
        samples=int(t["samples"]),
        reward=t["reward"] / max(t["scored"], 1),
        spread=t["spread"] / t["samples"],
        length=t["length"] / t["samples"],
        truncated=t["truncated"] / t["samples"],
        distinct=t["distinct"] / t["samples"],
        scored=t["scored"] / t["samples"],
        **policy,
        norm=sum(norms) / len(norms),
        statuses={s: int(t[s]) for s in sorted(STATUSES) if t[s]},
    )


def summary(run: Run, cfg: Config) -> dict:
    """What summary.json says: held-out test success before and after GRPO, sampled at temperature 1 and greedy."""
    tests = [r for r in run.read() if r["stage"] == "grpo/test"]
    out = {
        f"{name}_{when}": row[key]
        for when, row in zip(("before", "after"), tests)
        for name, key in (("heldout", "success"), ("greedy", "greedy"))
    }
    sft = run.folder / "sft" / "summary.json"
    return out | {
        "heldout_samples": tests[-1]["success_n"] if tests else 0,
        "heldout_tasks": tests[-1]["greedy_n"] if tests else 0,
        "seconds_sft": json.loads(sft.read_text())["seconds"] if sft.exists() else 0.0,
        "seconds_grpo": round(run.seconds(), 1),
        "seed": cfg.seed,
        "steps": cfg.steps,
        "shuffle_rewards": cfg.shuffle_rewards,
    }


def draw(tasks: Sequence[Task], cfg: Config, step: int) -> list[tuple[int, Task]]:
    """The (place in the batch, task) pairs of one step, the same on every rank: --prompts of them, then those that may
    replace groups without spread, which are none of the step's own."""
    chosen = train_sft.indices(step, cfg.prompts, len(tasks), cfg.seed)
    if cfg.resample:
        others = sorted(set(range(len(tasks))) - set(chosen))
        spare = min(cfg.prompts * cfg.resample, len(others))
        chosen += random.Random(seed_of(cfg.seed, 6, step, 0, 0)).sample(others, spare)
    return list(enumerate(tasks[i] for i in chosen))


def reward_function(cfg: Config) -> Callable[[Verdict, str, Task], float | None]:
    """(verdict, completion, task) -> the reward, or None for a sample that leaves the batch."""
    if not cfg.reward:
        return lambda verdict, completion, task: reward(verdict, reward_config(cfg))
    try:
        return load_reward(cfg.reward)
    except ValueError as error:
        raise config.ConfigError(f"--reward {error}") from None


def reward_config(cfg: Config) -> RewardConfig:
    """The length penalty is not among it: --truncated soft."""
    return RewardConfig(partial=cfg.partial, speed=cfg.speed)


def task_sets(cfg: Config) -> tuple[list[Task], list[Task], list[Task]]:
    """(training tasks, dev tasks, test tasks). Settings are chosen on dev; test is looked at before and after only."""
    given = read_tasks("--heldout", cfg.heldout)[: cfg.eval_tasks] if cfg.heldout else []
    if cfg.tasks:
        return read_tasks("--tasks", cfg.tasks), given, given
    return (
        synthetic.generate("rl", cfg.steps * cfg.prompts, cfg.seed),
        given or synthetic.generate("dev", cfg.eval_tasks // 2, cfg.seed),
        given or synthetic.generate("test", cfg.eval_tasks, cfg.seed),
    )


def read_tasks(option: str, path: str) -> list[Task]:
    try:
        return load_tasks(path)
    except ValueError as error:
        raise config.ConfigError(f"{option} {error}") from None


def small_model(cfg: Config, world: World) -> str:
    """Make the model with train_sft.py, or find it made -> its folder. A mistake is told in this script's options."""
    try:
        return train_sft.main(sft_config(cfg), world)
    except config.ConfigError as error:
        raise config.ConfigError(
            str(error).replace("--steps", "--sft-steps").replace("--examples", "--sft-examples")
        ) from None


def sft_config(cfg: Config) -> train_sft.Config:
    """The SFT run inside this run's folder: out/NAME/sft. A run that measures on few tasks does so there too."""
    return train_sft.Config(
        name="sft",
        out=str(Path(cfg.out) / cfg.name),
        seed=cfg.seed,
        steps=cfg.sft_steps,
        examples=cfg.sft_examples,
        eval_tasks=min(cfg.eval_tasks, train_sft.Config.eval_tasks),
        max_tokens=min(cfg.max_tokens, train_sft.Config.max_tokens),
    )


if __name__ == "__main__":
    launch(main, options)
