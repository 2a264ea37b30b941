"""Where else a run is told: TensorBoard (--tensorboard) and Weights & Biases (--wandb PROJECT).

Neither is needed, and neither is imported unless it is asked for. The files of the run's folder stay the
record: a tracker that fails is dropped with a warning, and the run goes on.
"""

import atexit
import hashlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from nanotriton.config import ConfigError

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}  # option: the package that it needs
COLUMNS = ("step", "task", "status", "message", "reward", "advantage", "tokens", "count", "completion")
SHOWN = 16  # samples of each step that TensorBoard is given: it keeps few texts anyway


class Tracker(Protocol):
    def step(self, stage: str, step: int, numbers: dict[str, float]) -> None:
        """The numbers of one step, by their names."""

    def samples(self, split: str, step: int, rows: Sequence[dict]) -> None:
        """The samples of one step: rows of samples.jsonl."""


class TensorBoard:
    """Events in the run's folder, for `tensorboard --logdir out`."""

    def __init__(self, folder: Path):
        self.folder, self.writer = folder / "tensorboard", None

    def open(self, step: int) -> Any:
        """The writer. A run that continues takes back the steps that it had written beyond this one."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(self.folder, purge_step=step)
            atexit.register(self.writer.close)
        return self.writer

    def step(self, stage: str, step: int, numbers: dict[str, float]) -> None:
        writer = self.open(step)
        for name, value in numbers.items():
            writer.add_scalar(f"{stage}/{name}", value, step)

    def samples(self, split: str, step: int, rows: Sequence[dict]) -> None:
        told = [as_text(dict(zip(COLUMNS, cells(row)))) for row in rows[:SHOWN]]
        self.open(step).add_text(f"samples/{split}", "\n\n".join(told), step)


class WandB:
    """A run of a project at Weights & Biases, with its settings and a table of completions for each step."""

    def __init__(self, folder: Path, project: str, settings: dict[str, Any]):
        self.folder, self.project, self.settings, self.run = folder, project, settings, None
        self.axes: set[str] = set()  # names whose steps are an axis of their own

    def open(self) -> Any:
        """The run there. One that continues is the same one, told by its folder and by when it began."""
        if self.run is None:
            import wandb

            where = f"{self.folder.resolve()} {self.settings.get('began')}"
            self.run = wandb.init(
                project=self.project,
                name=self.folder.name,
                id=hashlib.sha256(where.encode()).hexdigest()[:16],
                resume="allow",
                dir=self.folder,
                config=self.settings,
            )
        return self.run

    def step(self, stage: str, step: int, numbers: dict[str, float]) -> None:
        self.log(stage, step, {f"{stage}/{name}": value for name, value in numbers.items()})

    def samples(self, split: str, step: int, rows: Sequence[dict]) -> None:
        import wandb

        name = f"samples/{split}"
        self.log(name, step, {name: wandb.Table(columns=list(COLUMNS), data=[cells(row) for row in rows])})

    def log(self, name: str, step: int, values: dict[str, Any]) -> None:
        """Values over an axis of their own: steps of SFT, of GRPO and of measurements don't run together."""
        run = self.open()
        if name not in self.axes:
            run.define_metric(f"{name}/*", step_metric=f"{name}/step")
            self.axes.add(name)
        run.log(values | {f"{name}/step": step})


class Trackers:
    """All trackers of a run. The main rank has them, the others have none."""

    def __init__(self, found: Sequence[Tracker] = (), say: Callable[[str], None] = print):
        self.found, self.say = list(found), say

    def step(self, row: dict) -> None:
        """A row of metrics.jsonl."""
        numbers = dict(flat({k: v for k, v in row.items() if k not in ("stage", "step")}))
        self.tell(lambda tracker: tracker.step(row["stage"], row["step"], numbers))

    def samples(self, rows: Sequence[dict]) -> None:
        """Rows of samples.jsonl, of one step."""
        for split in dict.fromkeys(row["split"] for row in rows) if self.found else ():
            mine = [row for row in rows if row["split"] == split]
            self.tell(lambda tracker, mine=mine, split=split: tracker.samples(split, mine[0]["step"], mine))

    def tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self.found):
            try:
                what(tracker)
            except Exception as error:  # a network, a disk, an account: none of it is worth the run
                self.found.remove(tracker)
                reason = str(error).strip().split("\n")[0]
                self.say(
                    f"warning: {type(tracker).__name__} is told no more: {type(error).__name__}: {reason}"
                )


def check_packages(settings: dict[str, Any]) -> None:
    """ConfigError if a tracker is asked for whose package is not installed."""
    for option, package in PACKAGES.items():
        if settings.get(option) and find_spec(package) is None:
            raise ConfigError(f"--{option}: the package {package} is not installed: pip install {package}")


def open_trackers(folder: Path, settings: dict[str, Any], say: Callable[[str], None]) -> Trackers:
    """The trackers that the settings of a run ask for. They start when they are first told something."""
    found: list[Tracker] = []
    if settings.get("tensorboard"):
        found.append(TensorBoard(folder))
    if settings.get("wandb"):
        found.append(WandB(folder, settings["wandb"], settings))
    return Trackers(found, say)


def flat(values: dict, before: str = "") -> list[tuple[str, float]]:
    """The numbers of a row, with those of inner objects as outer/inner.

    >>> flat({"reward": 0.5, "statuses": {"correct": 3}, "kl": None})
    [('reward', 0.5), ('statuses/correct', 3)]
    """
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += flat(value, f"{before}{name}/")
        elif isinstance(value, int | float):
            found.append((before + name, value))
    return found


def cells(row: dict) -> list[Any]:
    """A row of samples.jsonl as a row of the table of completions."""
    verdict = row["verdict"]
    values = row | {"status": verdict["status"], "message": verdict.get("message", "")}
    return [values.get(column) for column in COLUMNS]


def as_text(values: dict[str, Any]) -> str:
    """One sample in Markdown. The completion is indented, so that nothing in it is taken for Markdown."""
    head = ", ".join(f"{name} {values[name]}" for name in ("task", "status", "reward", "advantage", "count"))
    body = "\n".join(f"    {line}" for line in values["completion"].splitlines())
    return f"**{head}** {values['message']}\n\n{body}"
