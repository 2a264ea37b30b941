"""The tasks of a GRPO run: those that it trains on, those of each step, and those that it is measured on."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanotriton import config, schedule
from nanotriton.rows import is_rows
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks import synthetic
from nanotriton.tasks.task import Task, find_tasks


def task_sets(
    cfg: Any, own: Sequence[Task] = (), heldout: Sequence[Task] = ()
) -> tuple[list[Task], list[Task], list[Task]]:
    """(training tasks, dev tasks, test tasks). Settings are chosen on dev; test is looked at before and after
    only. own, heldout: the tasks of --tasks and of --heldout, if there are any.
    """
    count = cfg.trace.eval_tasks
    given = list(heldout[:count])
    if own:
        return list(own), given, given
    return (
        synthetic.generate("rl", cfg.steps * cfg.prompts, cfg.seed),
        given or synthetic.generate("dev", count // 2, cfg.seed),
        given or synthetic.generate("test", count, cfg.seed),
    )


def read_tasks(option: str, path: str) -> tuple[list[Task], dict[str, str]]:
    """The tasks that an option names, and {name: why it is no task} of the other files; nothing for "".
    ConfigError if there is no task.
    """
    if not path:
        return [], {}
    try:
        tasks, others = find_tasks(path)
    except ValueError as error:
        raise config.ConfigError(f"{option} {error}") from None
    if not tasks:
        name, reason = next(iter(others.items()), ("", "it holds no task"))
        where = ""
        if name and Path(path).is_dir():
            where = f"no task in this folder; {name}.py: "
        elif is_rows(path):
            where = f"no task in this file; {name}: "
        raise config.ConfigError(f"{option} {path}: {where}{reason}")
    return tasks, others


def tasks_of(
    step: int, tasks: Sequence[Task], prompts: int, rounds: int, seed: int, order: str = "shuffled"
) -> list[tuple[int, Task]]:
    """The (group, task) pairs of one step, the same on every rank.

    The first `prompts` are the step's own. The others, enough for `rounds` more of as many, may replace
    groups without spread. order: "shuffled" or "given", as the option says.
    """
    if order == "given":
        chosen = [place % len(tasks) for place in range(step * prompts, (step + 1) * prompts)]
    else:
        chosen = schedule.indices(step, prompts, len(tasks), seed)
    if rounds:
        others = sorted(set(range(len(tasks))) - set(chosen))
        spare = min(prompts * rounds, len(others))
        chosen += random.Random(seed_of(seed, Stream.SPARE_TASKS, step)).sample(others, spare)
    return [(number, tasks[index]) for number, index in enumerate(chosen)]
