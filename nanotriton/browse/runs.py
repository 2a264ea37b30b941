"""A run's folder, read: its settings, metrics and summary, and which runs are seeds of one setting."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanotriton.config import reason

# Settings in which runs of one setting may differ: they name the run, or change nothing that is learned.
NOT_SETTINGS = {"seed", "began", "name", "out", "fresh", "micro_tokens", "save_every", "eval_every"}
NOT_SETTINGS |= {"tensorboard", "wandb"}


class RunError(ValueError):
    """One line that says what is wrong with a run's folder and what is expected there."""


@dataclass
class RunFolder:
    """What a page is told of one run, without its samples."""

    name: str
    folder: Path
    settings: dict[str, Any]
    rows: list[dict]  # of metrics.jsonl; those of the SFT stage first, if it lies in the same folder
    summary: dict[str, Any]
    ran: dict[str, Any]  # command, commit, versions: what its provenance/ says of its last start
    inputs: dict[str, str]  # hashes of the files that options named when it began
    sample_files: list[Path] = field(default_factory=list)

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs at these paths. A folder that is no run itself stands for the runs that lie in it.

    Raises RunError where there is none.
    """
    folders: list[Path] = []
    for path in paths:
        inside = [path] if is_run(path) else sorted(p for p in path.glob("*/") if is_run(p))
        if not inside:
            raise RunError(
                f"{path}: no run is there; a folder with metrics.jsonl, or a folder of such folders, "
                "is expected"
            )
        folders += [p for p in inside if p.resolve() not in {f.resolve() for f in folders}]
    return [read_run(folder, name) for folder, name in zip(folders, names(folders))]


def is_run(folder: Path) -> bool:
    """Whether a run lies in the folder itself: GRPO, SFT, or GRPO that has not got beyond its own SFT.

    `sft` is also what train_sft.py calls a run by default, which lies beside others in a folder of runs.
    """
    if any((folder / name).is_file() for name in ("metrics.jsonl", "samples.jsonl")):
        return True
    others = (inside for inside in folder.glob("*/") if inside.name != "sft")
    return (folder / "sft" / "metrics.jsonl").is_file() and not any(map(is_run, others))


def names(folders: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's, with as many of the folders above as it takes to be unlike."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max((len(p) for p in parts), default=1) + 1):
        found = ["/".join(p[-depth:]) for p in parts]
        if len(set(found)) == len(found):
            return found
    return [str(folder) for folder in folders]


def read_run(folder: Path, name: str) -> RunFolder:
    stages = [folder / "sft", folder]  # train_grpo.py's own SFT has a folder inside the run's
    rows = [row for stage in stages for row in read_rows(stage / "metrics.jsonl")]
    return RunFolder(
        name,
        folder,
        read_object(folder / "config.json") or read_object(folder / "sft" / "config.json"),
        rows,
        read_object(folder / "summary.json"),
        read_last_start(folder / "provenance" / "starts.jsonl"),
        read_inputs(folder / "provenance" / "inputs.json"),
        [stage / "samples.jsonl" for stage in stages if (stage / "samples.jsonl").is_file()],
    )


def read_last_start(path: Path) -> dict[str, Any]:
    """The newest start of a run, with how many there were; {} where none is told."""
    starts = list(read_rows(path))
    if not starts:
        return {}
    said = dict(starts[-1])
    if isinstance(said.get("argv"), list):
        said["argv"] = shlex.join(map(str, said["argv"]))
    return said | {"starts": len(starts)}


def read_inputs(path: Path) -> dict[str, str]:
    """{"--reward my_reward.py": the beginning of its hash} of the files that a run began with."""
    return {
        f"--{option} {name}": str(digest)[:16]
        for option, found in read_object(path).items()
        if isinstance(found, dict)
        for name, digest in found.items()
    }


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except OSError as error:
        raise RunError(f"{path}: cannot read: {reason(error)}") from None
    except ValueError:
        raise RunError(f"{path}: a JSON object is expected") from None
    return found if isinstance(found, dict) else {}


def read_rows(path: Path) -> Iterator[dict]:
    """The rows of a .jsonl file, one after another; none where there is no such file.

    NaN and infinities become None: JSON knows neither. A last line without its end belongs to a run that is
    still writing, and is left out. RunError for any other line that holds no object.
    """
    if not path.is_file():
        return
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield parse_row(line, f"{path}:{number}")
    except OSError as error:
        raise RunError(f"{path}: cannot read: {reason(error)}") from None


def parse_row(line: bytes, place: str) -> dict:
    try:
        row = json.loads(line, parse_constant=lambda _: None)
    except ValueError:
        raise RunError(f"{place}: a JSON object a line is expected") from None
    if not isinstance(row, dict):
        raise RunError(f"{place}: a JSON object a line is expected")
    return row


def curves(rows: Sequence[dict]) -> dict[str, dict[str, list[list]]]:
    """stage -> name of a number -> [steps, values], from rows of metrics.jsonl.

    Numbers in an inner object, such as the seconds, are named `outer.inner`. The counts of verdicts are
    status_mix's.
    """
    found: dict[str, dict[str, list[list]]] = {}
    for row in rows:
        stage = found.setdefault(str(row.get("stage", "")), {})
        for key, value in numbers(row):
            steps, values = stage.setdefault(key, [[], []])
            steps.append(row.get("step", 0))
            values.append(value)
    return found


def numbers(row: dict) -> Iterator[tuple[str, float | None]]:
    """(name, number) of each number in a row of metrics.jsonl."""
    for key, value in row.items():
        if key in ("stage", "step", "statuses"):
            continue
        if isinstance(value, dict):
            for inner, number in value.items():
                if is_number(number):
                    yield f"{key}.{inner}", number
        elif is_number(value):
            yield key, value


def is_number(value: Any) -> bool:
    """None is a number that could not be said."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def status_mix(rows: Sequence[dict]) -> dict[str, dict[str, list]]:
    """stage -> {"steps": [S], "counts": status -> [S]}: how many samples of each step got which verdict."""
    found: dict[str, dict] = {}
    for stage in dict.fromkeys(str(row.get("stage", "")) for row in rows if row.get("statuses")):
        mine = [row for row in rows if row.get("stage") == stage and row.get("statuses")]
        statuses = dict.fromkeys(status for row in mine for status in row["statuses"])
        found[stage] = {
            "steps": [row.get("step", 0) for row in mine],
            "counts": {s: [row["statuses"].get(s, 0) for row in mine] for s in statuses},
        }
    return found


def group_runs(runs: Sequence[RunFolder]) -> list[list[int]]:
    """Indices of the runs of each setting: those that differ in nothing but their seed.

    A run without settings is a group of its own.
    """
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        key = json.dumps(setting(run), sort_keys=True) if run.settings else f"run {number}"
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def setting(run: RunFolder) -> dict[str, Any]:
    """What was learned under: the options, and the contents of the files that they name."""
    return {key: value for key, value in run.settings.items() if key not in NOT_SETTINGS} | run.inputs


def group_names(runs: Sequence[RunFolder], groups: Sequence[Sequence[int]]) -> list[str]:
    """A name for each setting: what the names of its runs begin with, and where that is not enough, what it
    differs in from the others.
    """
    shared = [common_name([runs[i].name for i in group]) for group in groups]
    told = [f"{name} ({difference(runs, groups, k)})" for k, name in enumerate(shared)]
    return [name if name and shared.count(name) == 1 else longer for name, longer in zip(shared, told)]


def common_name(found: Sequence[str]) -> str:
    """The beginning that these names share, without a "seed", "s" or "_" at its end, where seeds follow."""
    if len(found) == 1:
        return found[0]
    shortest = min(found, key=len)
    length = next((i for i, c in enumerate(shortest) if any(n[i] != c for n in found)), len(shortest))
    start = shortest[:length].rstrip("0123456789-_./ ")
    for word in ("seed", "s"):
        cut = start.removesuffix(word)
        if cut != start and cut.rstrip("-_./ ") != cut:
            start = cut
            break
    return start.rstrip("-_./ ")


def difference(runs: Sequence[RunFolder], groups: Sequence[Sequence[int]], k: int) -> str:
    """The settings of group k that are not the same in all groups: "loss=grpo lr=0.0001"."""
    settings = [setting(runs[group[0]]) for group in groups]
    keys = dict.fromkeys(key for found in settings for key in found)
    unlike = [key for key in keys if len({json.dumps(found.get(key)) for found in settings}) > 1]
    said = [f"{key}={settings[k].get(key)}" for key in unlike]
    return " ".join(said) or ", ".join(runs[i].name for i in groups[k])
