"""The numbers of a GRPO step and of a whole run.

They go to the console, to metrics.jsonl, samples.jsonl and summary.json.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanotriton import grpo
from nanotriton.log import counted, ratio, took
from nanotriton.parallel.world import World
from nanotriton.rollout import Episode
from nanotriton.runs.advice import commonest
from nanotriton.runs.run import Clock, Run
from nanotriton.verdict import STATUSES


@dataclass
class Update:
    """The outcome of one optimizer step."""

    loss: float  # over all ranks
    norm: float  # of the gradient of all ranks, before clipping
    stats: list[dict[str, Tensor]]  # of each microbatch of this rank, for grpo.summarize()


@dataclass
class Step:
    """The outcome of one step, on this rank."""

    episodes: list[Episode]
    updates: list[Update]
    clock: Clock  # seconds by part of the step


def report(run: Run, step: int, cfg: Any, done: Step) -> None:
    """One line on the console, every number to metrics.jsonl, every rank's samples to samples.jsonl.

    On policy the ratio is 1 and the loss near 0 whatever is learned: watch the reward, not the loss.
    """
    total = totals(done.episodes, run.world)
    samples = total["samples"]
    stats = [part for update in done.updates for part in update.stats]
    policy = grpo.summarize(stats, run.world.all_sum, run.world.all_max)
    parts = mean_parts(done.episodes, total["scored"], run.world)
    run.samples(e.row(step, "train") for e in done.episodes)

    numbers = {
        "samples": int(samples),
        "reward": ratio(total["reward"], total["scored"]),
        **parts,
        "spread": total["spread"] / samples,
        "no_spread": 1 - total["groups_with_spread"] / total["groups"],
        "length": total["length"] / samples,
        "truncated": total["truncated"] / samples,
        "distinct": total["distinct"] / samples,
        "scored": total["scored"] / samples,
        "pass_at_k": ratio(total["groups_solved"], total["groups_scored"]),
        **policy,
        "loss": sum(update.loss for update in done.updates) / len(done.updates),
        "norm": sum(update.norm for update in done.updates) / len(done.updates),
        "statuses": {s: int(total[s]) for s in sorted(STATUSES) if total[s]},
    }
    status, share = commonest(numbers["statuses"])
    note = f"mostly {status} {share:.2f}"
    run.step("grpo", step, cfg.steps, done.clock.seconds, shown(numbers, parts), note=note, **numbers)
    if advice := run.advice.of(step, done.episodes, numbers, run.world):
        run.say(advice)


def shown(numbers: dict[str, Any], parts: dict[str, float]) -> list[str]:
    """The numbers on the console, of all that metrics.jsonl gets. docs/glossary.md defines them."""
    names = ["reward", *parts]
    if numbers["scored"] < 1:  # our failure, or the task's: samples.jsonl says which
        names.append("scored")
    names += ["no_spread", "length", "entropy", "kl_ref"]  # the last one with --kl
    if numbers["tokens"]:
        names += ["kl_sampler", "clip_fraction", "norm"]
    return [name for name in names if name in numbers]


def mean_parts(episodes: list[Episode], scored: float, world: World) -> dict[str, float]:
    """The mean of each named part of the reward over the `scored` samples of all ranks, as reward/NAME.

    A sample without that part has 0 of it, so the means add up to the mean reward.
    """
    sums: Counter[str] = Counter()  # whose update() adds, and keeps what is negative
    for episode in episodes:
        sums.update(episode.parts)
    everywhere: Counter[str] = Counter()
    for rank in world.gather(sums):
        everywhere.update(rank)
    return {f"reward/{name}": ratio(everywhere[name], scored) for name in sorted(everywhere)}


def totals(episodes: list[Episode], world: World) -> dict[str, float]:
    """Sums over the samples of all ranks: of rewards, lengths, and of how many are what."""
    statuses = Counter(e.verdict.status for e in episodes)
    sums = {
        "samples": len(episodes),
        "scored": sum(e.reward is not None for e in episodes),
        "reward": sum(e.reward for e in episodes if e.reward is not None),
        "length": sum(len(e.ids) for e in episodes),
        "truncated": sum(e.finish_reason == "length" for e in episodes),
        "spread": sum(e.spread for e in episodes),
        "distinct": len({(id(e.task), *e.ids) for e in episodes}),
        "groups": len({e.group for e in episodes}),
        "groups_scored": len({e.group for e in episodes if e.verdict.scored}),
        "groups_solved": len({e.group for e in episodes if e.verdict.correct}),
        "groups_with_spread": len({e.group for e in episodes if e.spread}),
    }
    sums |= {status: statuses[status] for status in sorted(STATUSES)}
    values = world.all_sum(torch.tensor(list(sums.values()), dtype=torch.float64))
    return dict(zip(sums, values.tolist()))


def summary(run: Run, cfg: Any) -> dict:
    """The numbers of summary.json: success on held-out tasks before and after GRPO, sampled and greedy."""
    tests = [r for r in run.read() if r["stage"] == "grpo/test"]
    # a run may have grown, and has measured more than twice then: the last measurement counts
    ends = [tests[0], tests[-1]] if len(tests) > 1 else tests
    out = {}
    for when, row in zip(("before", "after"), ends):
        for name, key in (("heldout", "success"), ("heldout_se", "success_se"), ("greedy", "greedy")):
            out[f"{name}_{when}"] = row[key]
    sft = run.folder / "sft" / "summary.json"
    seconds_sft = json.loads(sft.read_text())["seconds"] if sft.exists() else 0.0
    seconds = run.seconds()
    return out | {
        "heldout_samples": tests[-1]["success_n"] if tests else 0,
        "heldout_tasks": tests[-1]["greedy_n"] if tests else 0,
        "seconds_sft": seconds_sft,
        "seconds_grpo": round(seconds, 1),
        "seconds": round(seconds_sft + seconds, 1),
        "seed": cfg.seed,
        "steps": run.done,
        "shuffle_rewards": cfg.paid.shuffle_rewards,
    }


def result(numbers: dict[str, Any], rewards: list[float]) -> str:
    """A run in one line: what it began with, and what it came to.

    numbers: of summary.json. rewards: the mean reward of each step, for a run without held-out tasks.
    """
    if "heldout_after" in numbers:
        name = "success"
        before = numbers["heldout_before"]
        after = numbers["heldout_after"]
        of = f"on {counted(numbers['heldout_tasks'], 'test task')}"
    else:
        name = "mean reward"
        before = rewards[0]
        after = rewards[-1]
        of = "from the first step to the last"
    return f"{name} {before:.3f} -> {after:.3f} {of}, in {took(numbers['seconds'])}"


def conclude(run: Run, cfg: Any) -> None:
    """The last curves and numbers of a run that is done, and a word on where they are."""
    if not run.main:
        return  # the files are the main rank's
    run.plot()
    numbers = summary(run, cfg)
    run.summary(**numbers)
    run.say(
        f"{run.folder} is done: curves.png, samples.jsonl, summary.json, and model/, a Hugging Face folder"
    )
    run.say(f"to look at it: python -m nanotriton.browse {run.folder}")
    run.say(result(numbers, [row["reward"] for row in run.read() if row["stage"] == "grpo"]))
