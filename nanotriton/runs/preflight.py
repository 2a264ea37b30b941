"""Before anything is trained: which of the user's tasks can be judged? The others are named, and left out."""

import json
from dataclasses import asdict

from nanotriton import config
from nanotriton.executor.executor import Executor
from nanotriton.executor.preflight import POLICY, Finding, preflight
from nanotriton.log import counted
from nanotriton.options import JudgeOptions
from nanotriton.runs.run import Run
from nanotriton.tasks.sets import read_tasks
from nanotriton.tasks.task import Task

FILE = "tasks.jsonl"  # in the run's folder: a row for each task, with what was found out about it


class GivenTasks:
    """The tasks that an option names, as they were read. ConfigError if there is nothing where it points."""

    def __init__(self, option: str, path: str):
        self.option, self.path = option, path
        self.tasks, others = read_tasks(option, path)
        self.others = {name: Finding(False, reason) for name, reason in others.items()}

    @property
    def names(self) -> list[tuple[str, str]]:
        """(option, name) of each task, and of each that is none."""
        names = [task.name for task in self.tasks]
        return [(self.option, name) for name in (*names, *self.others)]

    def __len__(self) -> int:
        return len(self.names)

    def fit(self, found: dict[tuple[str, str], Finding]) -> list[Task]:
        """Those that can be judged, by what was found out of each (option, name)."""
        return [task for task in self.tasks if found[self.option, task.name].fit]


def fit_tasks(given: list[GivenTasks], run: Run, judge: JudgeOptions, look: bool = True) -> list[list[Task]]:
    """For each option the tasks that can be judged, the same on every rank; [] where no tasks are given.

    look: judge each of them first; otherwise all that are tasks at all are taken (--no-preflight).

    Says which are not, and why. A run that is continued keeps what was found out when it began, so that it
    trains on the same tasks; where it knows nothing of one, all are examined again. ConfigError if none is
    left of those that are given.
    """
    found = stored(run) if run.continued else {}
    if not all(name in found for tasks in given for name in tasks.names):
        found = examined(given, run, judge, look)
    for tasks in given:
        tell(tasks, found, run)
    for tasks in given:
        if tasks.path and not tasks.fit(found):
            raise config.ConfigError(
                f"{tasks.option} {tasks.path}: no task in it can be judged; the reasons stand above"
            )
    return [tasks.fit(found) for tasks in given]


def examined(
    given: list[GivenTasks], run: Run, judge: JudgeOptions, look: bool
) -> dict[tuple[str, str], Finding]:
    """{(option, name): what was found out}, of every task and of every other file; writes FILE."""
    world = run.world
    asked = [(tasks.option, task) for tasks in given for task in tasks.tasks]
    found = {(tasks.option, name): f for tasks in given for name, f in tasks.others.items()}
    if not look:
        found |= {(option, task.name): Finding(True, "") for option, task in asked}
    elif asked:
        run.say(f"checking {counted(len(asked), 'task')}: each is loaded, run, and judged with its own Model")
        mine = world.share(asked)
        device = str(world.device)
        # an executor of its own: it ends before the model takes the memory
        with Executor(device, judge.mode, policy=POLICY, timeout=judge.timeout) as executor:
            findings = preflight([task for _, task in mine], executor)
        for names, part in world.gather(([(o, t.name) for o, t in mine], findings)):
            found |= zip(names, part, strict=True)
    if run.main and found:
        rows = [{"option": o, "task": name, **asdict(f)} for (o, name), f in sorted(found.items())]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run.folder / FILE).write_text(text, encoding="utf-8")
    return found


def stored(run: Run) -> dict[tuple[str, str], Finding]:
    """What was found out when the run began, the same on every rank."""
    rows = run.world.gather(run.read(FILE) if run.main else [])[0]
    return {(row["option"], row["task"]): Finding(row["fit"], row["reason"]) for row in rows}


def tell(tasks: GivenTasks, found: dict[tuple[str, str], Finding], run: Run) -> None:
    """A line for each task that is left out or odd, and how many are left."""
    if not tasks.path:
        return
    for option, name in sorted(tasks.names):
        finding = found[option, name]
        if finding.reason:
            run.say(f"  {name}: {'note' if finding.fit else 'left out'}: {finding.reason}")
    fit = len(tasks.fit(found))
    what = "trains on" if tasks.option == "--tasks" else "is measured on up to"
    run.say(f"{tasks.option} {tasks.path}: the run {what} {fit} of {counted(len(tasks), 'task')}")
