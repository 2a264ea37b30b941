"""What exactly ran: a run's folder keeps its command, its code, its machine and its files.

    provenance/starts.jsonl   one object for each start: argv, time, commit, versions, card, ranks
    provenance/code.diff      what differed from that commit; a later start that differs has a file of its own
    provenance/inputs.json    {option: {file: SHA-256}} of the files that options name
    provenance/inputs/        copies of those that are small

A run that is continued must find these files as they were, or its second half would be another experiment.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from nanotriton import config

ROOT = Path(__file__).resolve().parents[2]
# The options that name a file or a folder which a run reads.
PATHS = ("reward", "tasks", "heldout", "data", "prompt", "model")
COPIED = 1 << 20  # bytes: larger files are only hashed
ENDS = 1 << 20  # bytes of both ends of a weight file, which stand for all of it


def environment() -> dict[str, str | int | None]:
    """The machine, the versions and the commit.

    A tree that came without its history names its commit in the environment variable NANOTRITON_COMMIT.
    """
    import torch  # here, as what only compares files needs no torch
    import triton

    return {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": os.environ.get("NANOTRITON_COMMIT") or git("rev-parse", "--short", "HEAD").strip() or None,
    }


def git(*words: str) -> str:
    """What git says of this project; "" where there is no git, or no history."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, errors="replace")
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


# ---- the files that options name


def fingerprints(cfg: Any) -> dict[str, dict[str, str]]:
    """{option: {file: SHA-256}} of every file that an option of PATHS names; a folder has its files by their
    relative names. ConfigError for one that can't be read.
    """
    values = config.flat(cfg)
    found: dict[str, dict[str, str]] = {}
    for option in PATHS:
        if values.get(option):
            files = files_of(option, values[option])
            try:
                found[option] = {name: fingerprint(path) for name, path in files.items()}
            except OSError as error:
                raise config.ConfigError(
                    f"--{option} {error.filename}: cannot read: {config.reason(error)}"
                ) from None
    return found


def files_of(option: str, value: str) -> dict[str, Path]:
    """{name: file} of what an option names: Python files of a folder of tasks, all files of a model's."""
    if option == "model":
        from nanotriton.transformer.weights import find_folder  # it imports torch

        folder = find_folder(value)
        return {f.name: f for f in sorted(folder.iterdir()) if f.is_file() and not f.name.startswith(".")}
    path = Path(value)
    if not path.is_dir():
        return {path.name: path}
    return {str(f.relative_to(path)): f for f in sorted(path.rglob("*.py")) if f.is_file()}


def read_from(folder: Path, cfg: Any) -> list[str]:
    """The options ("--model out/laptop/model") whose files lie in this folder, whatever links lead there."""
    values = config.flat(cfg)
    inside = []
    for option in PATHS:
        files = files_of(option, values[option]) if values.get(option) else {}
        if any(lies_in(file, folder) for file in files.values()):
            inside.append(f"--{option} {values[option]}")
    return inside


def lies_in(file: Path, folder: Path) -> bool:
    """Whether a file, or a link to it, would go with the folder."""
    named = Path(os.path.abspath(file)).is_relative_to(os.path.abspath(folder))
    return named or file.resolve().is_relative_to(folder.resolve())


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file; of weights, which may take a minute to read, that of its size and both ends."""
    with open(path, "rb") as file:
        if path.suffix != ".safetensors":
            return hashlib.file_digest(file, "sha256").hexdigest()
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(f"{size} ".encode() + file.read(ENDS))
        file.seek(max(size - ENDS, 0))
        digest.update(file.read(ENDS))
        return f"ends {digest.hexdigest()}"


def differences(was: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> list[str]:
    """What became of the files of an earlier start: "--reward FILE changed", "--tasks FILE is new"."""
    told = []
    for option in sorted(was.keys() | now.keys()):
        before, after = was.get(option, {}), now.get(option, {})
        for name in sorted(before.keys() | after.keys()):
            if name not in before:
                told.append(f"--{option} {name} is new")
            elif name not in after:
                told.append(f"--{option} {name} is gone")
            elif before[name] != after[name]:
                told.append(f"--{option} {name} changed")
    return told


def check_inputs(folder: Path, cfg: Any, otherwise: str) -> str:
    """ "", or the line that says which files changed since the run in this folder began.

    otherwise: what the user can do instead of putting them back.
    """
    path = folder / "provenance" / "inputs.json"
    try:
        was = json.loads(path.read_text())
    except (OSError, ValueError):
        return f"{path} can't be read, what did the run begin with? Give {otherwise}"
    told = differences(was, fingerprints(cfg))
    if not told:
        return ""
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return (
        f"since the run in {folder} began, {', '.join(told[:3])}{more}: put back what was there "
        f"({folder / 'provenance' / 'inputs'} has small files), or give {otherwise}"
    )


# ---- the record


def keep_inputs(folder: Path, cfg: Any) -> None:
    """Write inputs.json, and copies of the files that are small; a model's are not copied."""
    place = folder / "provenance"
    shutil.rmtree(place / "inputs", ignore_errors=True)  # of a start that ended before anything was done
    place.mkdir(parents=True, exist_ok=True)
    (place / "inputs.json").write_text(json.dumps(fingerprints(cfg), indent=1) + "\n")
    values = config.flat(cfg)
    for option in PATHS:
        if option == "model" or not values.get(option):
            continue
        for name, file in files_of(option, values[option]).items():
            if file.stat().st_size <= COPIED:
                copy = place / "inputs" / option / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def keep_start(folder: Path, ranks: int) -> str:
    """Add this start to starts.jsonl. Returns "", or a line that says that the code is not that of before."""
    place = folder / "provenance"
    path = place / "starts.jsonl"
    starts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    diff = git("diff", "HEAD")
    row = {
        "time": datetime.now().isoformat(timespec="seconds"),
        "argv": sys.argv,
        "ranks": ranks,
        **environment(),
        "diff": keep_diff(place, diff, len(starts) + 1),
        "untracked": git("ls-files", "--others", "--exclude-standard", "*.py").split("\n")[:-1],
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    if starts and (starts[-1]["commit"], starts[-1]["diff"]) != (row["commit"], row["diff"]):
        return f"note: the code changed since the last start ({starts[-1]['commit']}): {place} has both"
    return ""


def keep_diff(place: Path, diff: str, number: int) -> str:
    """The name of the file that holds this difference; "" for none."""
    if not diff:
        return ""
    for file in sorted(place.glob("code*.diff")):
        if file.read_text(encoding="utf-8") == diff:
            return file.name
    name = "code.diff" if number == 1 else f"code-{number}.diff"
    (place / name).write_text(diff, encoding="utf-8")
    return name
