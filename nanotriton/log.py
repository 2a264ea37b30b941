"""The trace of a run: the console's lines, metrics.jsonl, samples.jsonl, curves.png, summary.json.

Every row of metrics.jsonl has `stage`, `step` and its numbers; wall-clock times are apart, under `seconds`,
so that the rest is the same to the byte when a seed is run twice. Positions in both files are part of a
checkpoint: resuming cuts the files back to it, so a killed run leaves no row twice.
"""

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nanotriton.trackers import Trackers

FILES = ("metrics.jsonl", "samples.jsonl")
EVERY = 20.0  # seconds between two lines of progress in a log file
LINE_EVERY = 1.0  # seconds between the console's lines of two steps, at least
PLOT_EVERY = 30.0  # seconds between two drawings of curves.png, at least
PLOT_SHARE = 0.02  # of a run's time that goes into drawing, at most


def bar(items: Iterable | None = None, **kw: Any) -> tqdm:
    """Progress, of the first rank.

    On a terminal it is a bar that leaves nothing behind, in a log file a line every EVERY seconds.
    """
    kw |= {"leave": False, "disable": os.environ.get("RANK", "0") != "0"}
    if sys.stderr.isatty():
        return tqdm(items, dynamic_ncols=True, **kw)
    return tqdm(
        items,
        file=Lines(),
        position=0,
        mininterval=EVERY,
        miniters=1,
        delay=EVERY,
        bar_format="{desc}: {n_fmt} of {total_fmt} in {elapsed}",
        **kw,
    )


class Lines:
    """A file for tqdm that gives each of its updates a line, instead of redrawing one."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        pass


def show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if value and not 1e-3 <= abs(value) < 1e4 else f"{value:.3f}"
    return str(value)


def show_times(seconds: dict[str, float]) -> str:
    """The parts that a step's time went into, but for those under a hundredth of it.

    >>> show_times({"sample": 12.34, "wait": 0.03, "logprobs": 1.0}), show_times({"train": 0.0412})
    ('sample 12.3s logprobs 1.0s', 'train 0.04s')
    """
    least = sum(seconds.values()) / 100
    return " ".join(
        f"{k} {v:.1f}s" if v >= 0.1 else f"{k} {v:.1g}s" for k, v in seconds.items() if v >= least
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(0, "task"), counted(1, "task"), counted(2, "task")
    ('0 tasks', '1 task', '2 tasks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Seconds as a person says them, rounded up to the next unit but one.

    >>> duration(44.2), duration(600), duration(3 * 3600 + 5 * 60), duration(100000)
    ('45s', '10m', '3h05m', '1d04h')
    """
    seconds = math.ceil(seconds)
    minutes = math.ceil(seconds / 60)
    hours = math.ceil(minutes / 60)
    if seconds < 60:
        return f"{seconds}s"
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def took(seconds: float) -> str:
    """Seconds that are over, to the second; to the minute from an hour on.

    >>> took(44.6), took(460), took(3 * 3600 + 5 * 60 + 9)
    ('45s', '7m40s', '3h05m')
    """
    minutes, seconds = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{seconds}s"
    return f"{minutes}m{seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class Log:
    """The trace of one run. The main rank writes it; on other ranks the same methods do nothing."""

    def __init__(self, folder: str | Path, main: bool = True):
        self.folder, self.main = Path(folder), main
        self.trackers = Trackers()  # runs/run.py has those that were asked for
        self.next_plot = time.monotonic() + PLOT_EVERY
        self.next_line = 0.0
        if main:
            self.folder.mkdir(parents=True, exist_ok=True)

    def say(self, *words: Any) -> None:
        if self.main:
            tqdm.write(" ".join(map(str, words)), file=sys.stdout)
            sys.stdout.flush()

    def position(self) -> dict[str, int]:
        """Sizes of the files in bytes, to be kept in a checkpoint."""
        return {
            name: (self.folder / name).stat().st_size if (self.folder / name).exists() else 0
            for name in FILES
        }

    def rewind(self, position: dict[str, int], step: int = 0) -> dict:
        """Cut the files back to their sizes at the checkpoint of this step.

        The measurement that was made right after it is kept. Returns that measurement's row of metrics.jsonl;
        {} if there is none, or if it had not ended.
        """
        if not self.main:
            return {}
        keep = {name: position.get(name, 0) for name in FILES}
        rows = self.lines("metrics.jsonl", keep["metrics.jsonl"])
        first = json.loads(rows[0]) if rows else {"stage": "", "step": -1}
        measured = first["step"] == step and "/" in first["stage"]  # training steps have no / in their stage
        if measured:
            keep["metrics.jsonl"] += len(rows[0])
            keep["samples.jsonl"] += self.measured_bytes(keep["samples.jsonl"], step)
        for name, size in self.position().items():
            if size > keep[name]:
                os.truncate(self.folder / name, keep[name])
        return first if measured else {}

    def measured_bytes(self, start: int, step: int) -> int:
        """Bytes of the held-out samples of this step that follow byte `start` of samples.jsonl."""
        size = 0
        for line in self.lines("samples.jsonl", start):
            row = json.loads(line)
            if row["step"] != step or row["split"] == "train":
                break
            size += len(line)
        return size

    def lines(self, name: str, start: int) -> list[bytes]:
        """The whole lines from byte `start` on."""
        if not (self.folder / name).exists():
            return []
        with open(self.folder / name, "rb") as f:
            f.seek(start)
            return [line for line in f if line.endswith(b"\n")]

    def append(self, name: str, rows: Iterable[dict]) -> None:
        """Add rows to a .jsonl file of the run."""
        if self.main:
            with open(self.folder / name, "a", encoding="utf-8") as f:
                f.write("".join(json.dumps(row) + "\n" for row in rows))

    def step(
        self,
        stage: str,
        step: int,
        of: int,
        seconds: dict[str, float],
        show_keys: Iterable[str],
        note: str = "",
        **numbers: Any,
    ) -> None:
        """One step: every number to metrics.jsonl; the note and `show_keys` to the console.

        Steps that take less than LINE_EVERY don't have a line each there.
        """
        times = {k: round(v, 4) for k, v in seconds.items()}
        row = {"stage": stage, "step": step, **numbers, "seconds": times}
        self.append("metrics.jsonl", [row])
        self.trackers.step(row)
        if self.has_line(stage, step == of):
            shown = [f"{k} {show(numbers[k])}" for k in show_keys if numbers.get(k) is not None]
            words = [f"{stage} {step:>4}/{of}", note, *shown, show_times(seconds)]
            self.say("  ".join(filter(None, words)))
        if time.monotonic() >= self.next_plot:
            self.plot()

    def has_line(self, stage: str, last: bool) -> bool:
        """Whether the console has a line of this step.

        It has one of a measurement, of the last step, and else of the first step after LINE_EVERY.
        """
        if "/" in stage:
            return True
        now = time.monotonic()
        if now < self.next_line and not last:
            return False
        self.next_line = now + LINE_EVERY
        return True

    def samples(self, rows: Iterable[dict]) -> None:
        """Append rows to samples.jsonl (Episode.row says what is in one).

        Equal ones, of a small model two in three, become one with their number as `count`.
        """
        found: dict[str, dict] = {}
        for row in rows:
            found.setdefault(json.dumps(row), row | {"count": 0})["count"] += 1
        self.append("samples.jsonl", found.values())
        self.trackers.samples(list(found.values()))

    def read(self, name: str = "metrics.jsonl") -> list[dict]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def summary(self, **numbers: Any) -> None:
        """Update summary.json (written whole, then renamed)."""
        if not self.main:
            return
        path = self.folder / "summary.json"
        data = json.loads(path.read_text()) if path.exists() else {}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(data | numbers, indent=2) + "\n")
        temporary.replace(path)

    def plot(self) -> None:
        """Redraw curves.png from metrics.jsonl (and the SFT stage's, when it lies in the same folder)."""
        if not self.main:
            return
        began = time.monotonic()
        sft = Log(self.folder / "sft").read() if (self.folder / "sft").is_dir() else []
        draw(sft + self.read(), self.folder / "curves.png")
        ended = time.monotonic()
        self.next_plot = ended + max(PLOT_EVERY, (ended - began) / PLOT_SHARE)


def smooth(values: list[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average, corrected for its start. It skips NaN: nothing was judged."""
    out, mean, scale = [], 0.0, 0.0
    for v in values:
        if not math.isnan(v):
            mean = weight * mean + (1 - weight) * v
            scale = weight * scale + (1 - weight)
        out.append(mean / scale if scale else math.nan)
    return out


def ratio(part: float, whole: float) -> float:
    """part / whole. NaN where the whole is nothing: 0 would be a score, and nobody gave one."""
    return part / whole if whole else math.nan


def draw(rows: list[dict], path: Path) -> None:
    """Six panels: SFT loss, reward, held-out success, length, entropy, status mix."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), layout="constrained")
    panels = iter(axes.flat)

    def curve(title: str, stages: str, keys: dict[str, str], dots: bool = False, log: bool = False) -> None:
        axis = next(panels)
        for i, (key, label) in enumerate(keys.items()):
            points = [
                (r["step"], r[key]) for r in rows if r["stage"] in stages.split() and r.get(key) is not None
            ]
            if not points:
                continue
            x, y = map(list, zip(*points))
            if dots:
                axis.plot(x, y, "o-", ms=3, color=f"C{i}", label=label)
            else:
                axis.plot(x, y, alpha=0.25, color=f"C{i}")
                axis.plot(x, smooth(y), color=f"C{i}", label=label)
        axis.set(title=title, xlabel=f"{stages.split('/')[0]} step")
        if log:
            axis.set_yscale("log")
        if axis.lines:
            axis.legend(frameon=False)
        axis.grid(alpha=0.2)

    curve("SFT loss (nats a token)", "sft", {"loss": "train"}, log=True)
    curve("GRPO reward", "grpo", {"reward": "mean reward"})
    curve(
        "held-out success (test, dev between)",
        "grpo/test grpo/eval",
        {"success": "temperature 1", "greedy": "greedy"},
        dots=True,
    )
    curve("completion length (tokens)", "grpo", {"length": "mean"})
    curve("token entropy (nats)", "grpo", {"entropy": "policy"})
    draw_verdicts(next(panels), [r for r in rows if r["stage"] == "grpo" and "statuses" in r])
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(path)
    plt.close(figure)


def draw_verdicts(axis: Any, steps: list[dict]) -> None:
    """The shares of the seven most frequent statuses over the training steps, stacked."""
    total: Counter[str] = Counter()
    for row in steps:
        total.update(row["statuses"])
    names = [name for name, _ in total.most_common(7)]
    shares = []
    for name in names:
        shares.append(
            smooth([row["statuses"].get(name, 0) / max(sum(row["statuses"].values()), 1) for row in steps])
        )
    if names:
        axis.stackplot([row["step"] for row in steps], shares, labels=names)
        axis.legend(loc="lower left", fontsize=7)
    axis.set(title="verdicts", xlabel="grpo step", ylim=(0, 1))
