"""Held-out success: what a model can do with tasks that it was not trained on."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from nanotriton.executor.executor import Executor
from nanotriton.log import ratio
from nanotriton.parallel import stop
from nanotriton.rollout import Episode, judged, rollout
from nanotriton.runs.run import Run
from nanotriton.sampler.sampler import Sampler
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks.prompt import DEFAULT, Prompt
from nanotriton.tasks.task import Task
from nanotriton.trainer import Trainer
from nanotriton.transformer.tokenizer import Tokenizer


def clustered_error(ranks: list[list[list[bool]]]) -> float:
    """The standard error of held-out success, from [rank][task][sample] successes.

    The samples of one task are alike, so it is the tasks that are independent: the standard deviation of
    their means over the root of their number (Miller, arXiv 2411.00640, section 2.2).

    >>> clustered_error([[[True, True], [False, False]], [[True, False]]])
    0.288...
    """
    means = [sum(task) / len(task) for tasks in ranks for task in tasks if task]
    if len(means) < 2:
        return 0.0
    return statistics.stdev(means) / math.sqrt(len(means))


def heldout(
    run: Run,
    tasks: Sequence[Task],
    *,
    step: int,
    split: str,
    sampler: Sampler,
    executor: Executor,
    tokenizer: Tokenizer,
    max_tokens: int,
    seed: int,
    prompt: Prompt = DEFAULT,
) -> dict[str, Any]:
    """Success on held-out tasks: two samples each at temperature 1, and one greedy.

    Every rank's samples are kept in samples.jsonl and counted.

    The same seeds at every step (common random numbers): a difference between two steps is the model's, not
    the draw's.
    """
    result: dict[str, Any] = {}
    mine = run.world.share(list(enumerate(tasks)))  # (number, task) of this rank's
    for key, count, temperature in (("success", 2, 1.0), ("greedy", 1, 0.0)):
        seeds = []  # [len(mine)][count]
        for i, _ in mine:
            seeds.append([seed_of(seed, Stream.HELDOUT, 0, i, j) for j in range(count)])
        with stop.at_once(run.world):
            groups = judged(
                rollout(
                    [t for _, t in mine],
                    count,
                    sampler,
                    executor,
                    tokenizer,
                    seeds=seeds,
                    temperature=temperature,
                    max_tokens=max_tokens,
                    prompt=prompt,
                    desc=f"{split} {key}",
                )
            )
        episodes = list(chain(*groups))
        run.samples(e.row(step, f"{split}/{key}") for e in episodes)
        successes = [successes_of(group) for group in groups]  # [task][sample]
        right, scored = sum(map(sum, successes)), sum(map(len, successes))
        counts = torch.tensor([right, scored], dtype=torch.float64)
        right, scored = run.world.all_sum(counts).tolist()
        result |= {key: ratio(right, scored), f"{key}_n": int(scored)}
        if key == "success":
            result["success_se"] = clustered_error(run.world.gather(successes))
            statuses = run.world.gather(Counter(e.verdict.status for e in episodes))
            result["statuses"] = dict(sum(statuses, Counter()).most_common())
    return result


def successes_of(group: list[Episode]) -> list[bool]:
    """Whether each sample of a task that has a score is right."""
    return [episode.verdict.correct for episode in group if episode.verdict.scored]


def measure(run: Run, trainer: Trainer, kind: str, tasks: list[Task], step: int) -> None:
    """Held-out success of a GRPO run after `step` steps, on the test set ("test") or on the dev set ("eval").

    Nothing happens where there are no tasks, or where a run that was stopped here has measured it.
    """
    if not tasks or run.found(kind, step):
        return
    result = heldout(
        run,
        tasks,
        step=step,
        split={"test": "test", "eval": "dev"}[kind],
        sampler=trainer.sampler,
        executor=trainer.executor,
        tokenizer=trainer.tokenizer,
        max_tokens=trainer.cfg.max_tokens,
        seed=trainer.cfg.seed,
        prompt=trainer.prompt,
    )
    run.evaluated(kind, step, trainer.cfg.steps, **result)
