"""GRPO: sample Triton kernels for PyTorch modules, run them, and make those that work more likely.

arXiv 2402.03300 (GRPO), 2507.05687 (AutoTriton).

    python train_grpo.py                                        # no GPU, no download: SFT, then GRPO
    python train_grpo.py --model FOLDER_OR_HUB_ID --tasks DIR   # a real model on your own modules
    torchrun --nproc-per-node 4 train_grpo.py --model Qwen/Qwen3-8B --tasks DIR --recipe autotriton

`--tasks` is a folder of KernelBench-format files (Model, get_inputs, get_init_inputs), or a .jsonl file with
a task a line, as collect_data.py writes them; empty means the synthetic grammar. Without `--model`,
train_sft.py's own code first makes one. The run lives in out/NAME/: checkpoints, metrics.jsonl,
samples.jsonl, curves.png, summary.json and model/, a Hugging Face folder. The same command continues a run
that was stopped.
"""

import nanotriton  # first, because it says what is supported where something is missing  # noqa: F401

# isort: split

from dataclasses import dataclass, field
from typing import Annotated, Literal

from nanotriton import config
from nanotriton.options import JudgeOptions, LossOptions, RewardOptions, SmallModelOptions, TraceOptions
from nanotriton.parallel import stop


@dataclass
class Config(config.Options):
    """The options of the algorithm. --help lists the others as well, which are in nanotriton/options.py."""

    name: str = "laptop"  # the run's folder under --out
    out: str = "out"  # where runs live
    fresh: bool = False  # delete what a run of this name left, instead of continuing it
    seed: Annotated[int, ">= 0"] = 0  # of tasks, samples and, without --model, of the model itself
    # autotriton: the paper's numbers; flags given win over it
    recipe: Literal["default", "autotriton"] = "default"
    model: str = ""  # Hugging Face folder or hub id; empty: train_sft.py makes a small one
    template: str = ""  # variables for its chat template, in JSON: '{"enable_thinking": false}'
    # a file with {source} in it: how tasks are put to the model; empty: as nanotriton/tasks/prompt.py does it
    prompt: str = ""
    tasks: str = ""  # a task file, a folder of them, or a .jsonl of them; empty: synthetic tasks
    # of --tasks: drawn anew every epoch, or as they stand in the file, for a curriculum
    order: Literal["shuffled", "given"] = "shuffled"

    steps: Annotated[int, ">= 1"] = 80  # rollouts; with --model 200
    # end after the step in which so many minutes are over, in all starts together; 0: after --steps
    minutes: Annotated[float, ">= 0"] = 0.0
    prompts: Annotated[int, ">= 1"] = 32  # tasks a step, over all ranks
    group: Annotated[int, ">= 2"] = 8  # samples of each task (G), of which equal ones are run once
    temperature: Annotated[float, "> 0"] = 1.0  # of the samples; the loss uses the same
    max_tokens: Annotated[int, ">= 1"] = 128  # longest completion; with --model 2048
    # a cut completion: keeps its reward, leaves the batch, or a length penalty
    truncated: Literal["keep", "mask", "soft"] = "keep"
    # dynamic sampling: rounds in which groups of equal rewards are replaced by fresh tasks
    resample: Annotated[int, ">= 0"] = 0
    # sample the next step's tasks while this step's samples are judged: nobody waits for the executor, and
    # samples are one step older than the weights that learn from them
    ahead: bool = False

    # the baseline, and whether it is divided by the group's std; rejection: none, what is paid is imitated
    advantage: Literal["mean_std", "mean", "rloo", "rejection"] = "mean_std"
    # token mean, sequence mean, constant length, ...
    loss: Literal["dapo", "grpo", "dr_grpo", "cispo", "gspo"] = "dapo"
    epochs: Annotated[int, ">= 1"] = 2  # passes over the samples of one rollout; with --model 1
    updates: Annotated[int, ">= 1"] = 2  # optimizer steps of one pass; with --model 1

    # fp32 masters; adam8: bf16 parameters, the sampler's too, and 8-bit moments: an 8B on one GPU
    optimizer: Literal["adamw", "adam8"] = "adamw"
    # rank of the adapters (LoRA) that are trained on all linear layers while the rest stays as it is; 0: no
    # adapters, all weights are trained. Adapters want about 10 times the learning rate
    lora: Annotated[int, ">= 0"] = 0
    # peak learning rate: linear warm-up, then a cosine to 0; with --model 1e-6
    lr: Annotated[float, "> 0"] = 2e-4
    warmup: Annotated[float, ">= 0", "<= 1"] = 0.05  # share of the steps in which it rises
    min_lr: Annotated[float, ">= 0", "<= 1"] = 0.0  # share of the peak that it never falls below
    clip: Annotated[float, "> 0"] = 1.0  # largest norm of the gradient
    micro_tokens: Annotated[int, ">= 64"] = 16384  # tokens of one forward and backward pass
    # GiB of the sampler's KV memory on each GPU; 0: 70% of what is free there when training has its share
    kv_gib: Annotated[float, ">= 0"] = 0.0

    losses: LossOptions = field(default_factory=LossOptions)
    paid: RewardOptions = field(default_factory=RewardOptions)
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    trace: TraceOptions = field(default_factory=TraceOptions)
    small: SmallModelOptions = field(default_factory=SmallModelOptions)

    def validate(self) -> None:
        config.json_object("--template", self.template)
        if self.ahead and self.resample:
            raise config.ConfigError("--ahead: not with --resample, which waits for verdicts to sample more")
        if self.ahead and (self.judge.time or self.paid.speed):
            raise config.ConfigError("--ahead: not with --time or --speed, which want the GPU for themselves")
        if self.ahead and self.loss == "gspo" and self.losses.mismatch == "bypass":
            raise config.ConfigError(
                "--ahead: not with --loss gspo and --mismatch bypass, whose ratio knows nothing of the "
                "weights that drew the samples; with --mismatch sequence_truncate it does"
            )
        self.losses.validate(self.loss)
        self.paid.validate()

    def ignored(self) -> dict[str, str]:
        """{an option that does nothing beside these: why}"""
        found = self.losses.ignored()
        if not self.tasks:
            found["order"] = "without --tasks"
        if not self.tasks and not self.trace.heldout:
            found["preflight"] = "without --tasks or --heldout"
        if not self.trace.eval_tasks:
            found |= dict.fromkeys(("heldout", "eval_every"), "with --eval-tasks 0")
        if self.model:
            small = dict.fromkeys(
                config.options(SmallModelOptions), "with --model: it is for the small model"
            )
            return found | small
        return found | {"template": "without --model: the small model has no chat template"}


# The defaults above are for the small model. A pretrained one moves gently, answers at length, and is big to
# save.
PRETRAINED = dict(steps=200, epochs=1, updates=1, lr=1e-6, kl=0.0, max_tokens=2048, save_every=10)
# AutoTriton's numbers (arXiv 2507.05687, section 4.1): mean per sequence, symmetric clip, KL to the start.
AUTOTRITON = PRETRAINED | dict(
    prompts=64, loss="grpo", clip_low=0.2, clip_high=0.2, kl=1e-3, kl_estimator="k3", max_tokens=16384
)
Config.presets = {"model": {"*": PRETRAINED}, "recipe": {"autotriton": AUTOTRITON}}

if __name__ == "__main__":
    # before torch is imported, which takes seconds: --help, a mistake and Ctrl-C are answered at once
    stop.leave_at_once()
    options = config.parse(Config)

import random
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

import train_sft
from nanotriton import grpo, schedule
from nanotriton.data import score
from nanotriton.heldout import measure
from nanotriton.log import counted
from nanotriton.microbatch import MicroBatch, Totals, denominators, merge, microbatch, sample_stats
from nanotriton.parallel import distributed
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World, idle_cores
from nanotriton.reward.reward import reward_function, total
from nanotriton.reward.try_out import try_out
from nanotriton.rollout import Episode, judged, of_groups, rollout
from nanotriton.runs.preflight import GivenTasks, fit_tasks
from nanotriton.runs.report import Step, Update, conclude, report
from nanotriton.runs.run import Clock, Run, check_model, check_timed, make_executor, sync_weights
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks import synthetic
from nanotriton.tasks.prompt import read_prompt
from nanotriton.tasks.sets import task_sets, tasks_of
from nanotriton.tasks.task import Task
from nanotriton.trainer import Trainer, make_trainer, score_rows, set_old_logprobs


# ---- the algorithm
def grpo_step(step: int, trainer: Trainer) -> Step:
    """One iteration of GRPO: sample, judge, compare, learn, and hand the new weights to the sampler."""
    cfg, world = trainer.cfg, trainer.world
    clock = Clock(world.device)
    # (group's number, task) pairs, the same list on every rank
    queue = tasks_of(step, trainer.tasks, cfg.prompts, cfg.resample, cfg.seed, cfg.order)
    episodes: list[Episode] = []  # this rank's
    sampled = 0  # groups, over all ranks
    missing = cfg.prompts  # groups that still lack spread
    stale = trainer.ahead is not None  # --ahead has sampled this step's groups before the last update

    for _ in range(1 + cfg.resample):
        batch, queue = queue[:missing], queue[missing:]
        if not batch:
            break
        # 1. Sample G completions of each task. They are executed while others are still being sampled.
        groups = trainer.ahead if stale else sample(step, world.share(batch), trainer)
        trainer.ahead = sample_ahead(step + 1, trainer)
        clock("sample")

        # 2. Rewards: is it Triton, is it right? A sample without a reward leaves the batch.
        with stop.at_once(world):  # Ctrl-C does not wait for the verdicts
            fresh = list(chain(*judged(groups)))
        seed = seed_of(cfg.seed, Stream.SHUFFLED_REWARDS, step, world.rank, len(episodes))
        set_rewards(fresh, trainer, seed)
        episodes += fresh
        sampled += len(batch)
        clock("reward")  # what did not hide behind sampling

        # A group of equal rewards teaches nothing: --resample puts a fresh task in its place (DAPO, 3.2).
        with_spread = sum(grpo.has_spread(rewards_of(group)) for group in groups)
        missing -= sum(world.gather(with_spread))
        clock("wait")  # for the rank that sampled longest
        if not missing:
            break
    trainer.sampler.free()  # the KV memory is the training's until the next rollout

    # 3. Advantages: how much better a sample is than the others of its task.
    set_advantages(episodes, trainer)
    rewarded = [e for e in episodes if e.reward is not None]

    # 4. Policy gradient: a few optimizer steps, each on its own groups.
    updates = []
    with idle_cores(world):  # torch may use the cores that judged
        if grpo.needs_old(cfg.loss, cfg.losses.mismatch):
            set_old_logprobs(rewarded, trainer)
            clock("logprobs")
        groups_of = schedule.update_groups(sampled, cfg.epochs, cfg.updates, step, cfg.seed)
        for number, chosen in enumerate(groups_of):
            done = step * len(groups_of) + number  # updates so far
            every = cfg.steps * len(groups_of)  # updates of the run
            rate = schedule.learning_rate(done, every, cfg.lr, cfg.warmup, cfg.min_lr)
            distributed.set_lr(trainer.optimizer, rate)
            first = number == 0 and not stale  # update since the sampler got the weights that it drew with
            updates.append(update_policy(of_groups(rewarded, chosen), trainer, clock, first))

    # 5. The sampler gets the new weights. Its cached keys and values are gone already.
    sync_weights(trainer.sampler, trainer.model, world)
    clock("sync")
    return Step(episodes, updates, clock)


def update_policy(episodes: list[Episode], trainer: Trainer, clock: Clock, first: bool) -> Update:
    """One optimizer step on this rank's episodes, which all have a reward.

    The denominators count the samples of every rank and microbatch before the first backward, so the loss and
    its gradient don't depend on how the batch is cut. first: the weights are still those that the samples
    were drawn from, so the difference between the policy and the sampler is that of their arithmetic alone,
    and is measured.
    """
    cfg, world, model = trainer.cfg, trainer.world, trainer.model
    totals = denominators(episodes, cfg.loss, cfg.max_tokens, world)
    regularized = cfg.losses.kl > 0 or cfg.losses.entropy_bonus > 0
    rows = merge(episodes)
    stats = []
    if not regularized:
        # A group without spread has no gradient. Its logprobs count in statistics, which are of all samples.
        untaught = [row for row in rows if not row.episode.taught]
        rows = [row for row in rows if row.episode.taught]
        if totals.tokens > totals.taught:  # some rank has such rows; then all ranks score, as FSDP wants
            for micro, logp, entropy in score_rows(untaught, trainer):
                stats.append(sample_stats(micro, logp, entropy, first))
        clock("logprobs")

    loss = torch.zeros((), device=world.device)
    micro_batches = distributed.balance([row.tokens for row in rows], cfg.micro_tokens, world)
    for chosen in distributed.accumulate(model, micro_batches):
        micro = microbatch([rows[k] for k in chosen], world.device)
        micro_loss, micro_stats = loss_of(micro, totals, trainer, first)
        clock("logprobs")  # the forward passes of the policy and of the reference
        micro_loss.backward()
        clock("backward")
        loss += micro_loss.detach()
        stats.append(micro_stats)

    norm = distributed.clip_grad_norm(model, cfg.clip)
    if totals.taught > 0 or (regularized and totals.tokens > 0):
        trainer.optimizer.step()  # not without a gradient: momentum alone would move the weights
    trainer.optimizer.zero_grad(set_to_none=True)
    clock("optimizer")
    return Update(world.all_sum(loss).item(), float(norm), stats)


def loss_of(
    micro: MicroBatch, totals: Totals, trainer: Trainer, first: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one microbatch of N completion tokens -> (scalar, statistics for grpo.summarize()).

    first: see update_policy.
    """
    cfg, options = trainer.cfg, trainer.cfg.losses
    vocab = trainer.tokenizer.vocab_size
    logp, entropy = score(trainer.model, micro.packed, cfg.temperature, vocab)  # [N], [N]
    # old [N]: what the ratio is taken against. importance [N]: weights of the loss, or None
    old, importance = grpo.mismatch(
        micro.old,
        micro.sampled,
        micro.taught,
        micro.seq_ids,
        mode=options.mismatch,
        low=options.mismatch_low,
        high=options.mismatch_high,
        kind=cfg.loss,
    )
    loss, stats = grpo.policy_loss(
        logp,
        old,
        micro.advantage,
        micro.taught,
        micro.seq_ids,
        totals.policy,
        kind=cfg.loss,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
        weight=importance,
        copies=micro.copies,
    )
    stats |= sample_stats(micro, logp, entropy, first)

    # The other terms have no importance weight, and all samples have them, whatever their spread. The entropy
    # is a mean over tokens whatever the loss.
    if trainer.reference is not None:
        with torch.no_grad():
            reference, _ = score(trainer.reference, micro.packed, cfg.temperature, vocab)  # [N]
        # "k3_ratio" is k3 times the ratio to the policy that drew the samples
        estimator = options.kl_estimator.removesuffix("_ratio")
        drawn_by = old if options.kl_estimator.endswith("_ratio") else None
        distance = grpo.kl(logp, reference, micro.mask, estimator, drawn_by)  # [N]
        term = grpo.aggregate(distance * micro.copies, micro.mask, micro.seq_ids, totals.samples, cfg.loss)
        loss = loss + options.kl * term
        estimate = grpo.kl(logp.detach(), reference, micro.mask, "k3")  # [N]
        stats["kl_ref"] = grpo.statistic(estimate, micro.mask, micro.copies)
    if options.entropy_bonus:
        bonus = grpo.aggregate(entropy * micro.copies, micro.mask, micro.seq_ids, totals.tokens)
        loss = loss - options.entropy_bonus * bonus
    return loss, stats


# ---- its parts
def sample(step: int, batch: Sequence[tuple[int, Task]], trainer: Trainer) -> list[list[Episode]]:
    """[len(batch)][G] samples of these (group, task) pairs, which the executor has."""
    cfg = trainer.cfg
    seeds = []  # [len(batch)][G], the same however the groups are spread over the ranks
    for number, _ in batch:
        seeds.append([seed_of(cfg.seed, Stream.SAMPLES, step, number, k) for k in range(cfg.group)])
    with stop.at_once(trainer.world):
        groups = rollout(
            [task for _, task in batch],
            cfg.group,
            trainer.sampler,
            trainer.executor,
            trainer.tokenizer,
            seeds=seeds,
            temperature=cfg.temperature,
            max_tokens=cfg.max_tokens,
            prompt=trainer.prompt,
            # one draw of inputs for a group: what the reference makes of it is computed once
            draw=f"seed {cfg.seed}, step {step}",
        )
    for (number, _), group in zip(batch, groups):
        for episode in group:
            episode.group = number
    return groups


def sample_ahead(step: int, trainer: Trainer) -> list[list[Episode]] | None:
    """With --ahead, the samples of the next step's tasks: the executor has this step's to judge meanwhile.

    There is one batch a step then, because --ahead goes without --resample.
    """
    cfg = trainer.cfg
    if not cfg.ahead or step >= cfg.steps:
        return None
    batch = tasks_of(step, trainer.tasks, cfg.prompts, 0, cfg.seed, cfg.order)
    return sample(step, trainer.world.share(batch), trainer)


def set_rewards(episodes: list[Episode], trainer: Trainer, seed: int) -> None:
    """The reward of each sample, after the policy on long answers. None: our failure, or the task is void."""
    cfg = trainer.cfg
    earned = [trainer.reward_of(e.verdict, e.completion, e.task) for e in episodes]
    rewards = grpo.truncation(
        [total(value) for value in earned],
        [len(e.ids) for e in episodes],
        [e.finish_reason == "length" for e in episodes],
        cfg.truncated,
        cfg.max_tokens,
        cache=max(cfg.max_tokens // 4, 1),
    )
    for episode, value, reward in zip(episodes, earned, rewards):
        if isinstance(value, dict) and reward is not None:
            penalty = reward - total(value)
            episode.parts = value | ({"overlong": penalty} if penalty else {})
    if cfg.paid.shuffle_rewards:
        random.Random(seed).shuffle(rewards)
    for episode, value in zip(episodes, rewards):
        episode.reward = value


def rewards_of(episodes: list[Episode]) -> list[float | None]:
    """Their rewards. None: the sample leaves the batch."""
    return [episode.reward for episode in episodes]


def set_advantages(episodes: list[Episode], trainer: Trainer) -> None:
    """The advantage of each sample, whether it teaches, and whether its group has rewards that differ."""
    rewards, groups = rewards_of(episodes), [e.group for e in episodes]
    advantages, taught = grpo.advantages(
        rewards,
        groups,
        trainer.cfg.advantage,
        std_floor=trainer.reward_of.noise,  # noise of the clock is not blown up to unit variance
    )
    _, spread = grpo.advantages(rewards, groups, "mean")
    for number, episode in enumerate(episodes):
        episode.advantage = advantages[number].item()
        episode.taught = bool(taught[number])
        episode.spread = bool(spread[number])


# ---- the run
def main(cfg: Config, world: World) -> None:
    """Check what was asked for, load it, train, and say what came of it."""
    # mistakes come out before anything is trained, or deleted by --fresh; of your own loss and advantage too
    grpo.loss_named(cfg.loss)
    grpo.advantages([0.0, 1.0], [0, 0], cfg.advantage)
    distributed.check_optimizer(cfg.optimizer, world, cfg.lora)
    timed = cfg.judge.time or cfg.paid.speed > 0
    if timed:
        check_timed(world, cfg.judge.mode, "--speed" if cfg.paid.speed else "--time")
    given = [GivenTasks("--tasks", cfg.tasks), GivenTasks("--heldout", cfg.trace.heldout)]
    reward_of, prompt = reward_function(cfg.paid), read_prompt(cfg.prompt)
    note = try_out(reward_of, (given[0].tasks or synthetic.generate("rl", 1, cfg.seed))[0], timed)
    if cfg.model:
        check_model(cfg.model)
    run = Run(cfg, world, "grpo")
    if run.finished():
        return
    if note:
        run.say(note)

    if not cfg.tasks:
        run.say(f"{run.folder}: drawing {counted(cfg.steps * cfg.prompts, 'training task')}")
    tasks, dev, test = task_sets(cfg, *fit_tasks(given, run, cfg.judge, cfg.trace.preflight))
    if cfg.trace.eval_tasks and not test:
        run.say("nothing is measured before and after: --heldout names tasks for that")
    base = cfg.model or train_sft.small_model(cfg, world)
    trainer = make_trainer(cfg, run, base, tasks, test, reward_of, prompt)
    judge = cfg.judge
    with (
        trainer.sampler,
        make_executor(world, cfg.seed, judge.mode, judge.policy, judge.timeout, timed) as trainer.executor,
    ):
        train(run, trainer, dev, test)
    conclude(run, cfg)


def train(run: Run, trainer: Trainer, dev: list[Task], test: list[Task]) -> None:
    """All steps, from the newest checkpoint on, with a measurement before, between and after."""
    cfg, world, model = trainer.cfg, trainer.world, trainer.model
    start = run.resume(model, trainer.optimizer)
    sync_weights(trainer.sampler, model, world)
    with run.training(model, trainer.optimizer):
        if start == 0:
            measure(run, trainer, "test", test, 0)
        for step in range(start, cfg.steps):
            if step > 0 and step % cfg.trace.eval_every == 0:
                measure(run, trainer, "eval", dev, step)
            report(run, step + 1, cfg, grpo_step(step, trainer))
            last = step + 1 == cfg.steps or run.over(cfg.minutes)
            due = last or (step + 1) % cfg.trace.save_every == 0
            if due and world.world_size > 1:
                distributed.check_same(trainer.sampler.model.named_parameters(), world)
            run.end_step(step + 1, model, trainer.optimizer, due)
            if last:
                break
    # before it is measured: an evaluation that dies costs no training
    run.export(model, trainer.tokenizer, trainer.base)
    measure(run, trainer, "test", test, run.done)


if __name__ == "__main__":
    program(main, options)
