"""Held-out success: what a model can do with tasks that it was not trained on."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from nanotriton import stop
from nanotriton.executor.executor import Executor
from nanotriton.log import ratio
from nanotriton.rollout import judged, rollout
from nanotriton.run import Run
from nanotriton.sampler import Sampler
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks.prompt import DEFAULT, Prompt
from nanotriton.tasks.task import Task
from nanotriton.tokenizer import Tokenizer
from nanotriton.trainer import Trainer


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
    mine = run.world.share(list(enumerate(tasks)))
    for key, count, temperature in (("success", 2, 1.0), ("greedy", 1, 0.0)):
        seeds = [[seed_of(seed, Stream.HELDOUT, 0, i, j) for j in range(count)] for i, _ in mine]
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
        run.samples(e.row(step, f"{split}/{key}") for group in groups for e in group)
        scored = [e for group in groups for e in group if e.verdict.scored]
        right, total = run.world.all_sum(
            torch.tensor([sum(e.verdict.correct for e in scored), len(scored)], dtype=torch.float64)
        ).tolist()
        result |= {key: ratio(right, total), f"{key}_n": int(total)}
        if key == "success":
            shares = [[e.verdict.correct for e in group if e.verdict.scored] for group in groups]
            result["success_se"] = clustered_error(run.world.gather(shares))
            found = Counter(e.verdict.status for group in groups for e in group)
            result["statuses"] = dict(sum(run.world.gather(found), Counter()).most_common())
    return result


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
