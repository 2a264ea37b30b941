"""A set of pairs as a list of what makes it: small enough to commit, and the set can be made of it again
without verifying anything.

A line names a pair's job, and the sha256 of its module, of the text that is shown, and of the solution.
Rebuilding makes each job again; a text with another hash than the one that was verified isn't written.
Modules that people wrote come from --modules again. A teacher doesn't answer twice the same, so the line of
a distilled pair has the solution itself.
"""

import json
from collections import Counter
from collections.abc import Iterable

import torch

from nanotriton import log
from nanotriton.collect.files import folder_for, put_rows
from nanotriton.collect.fingerprint import digest
from nanotriton.collect.make import make, pool
from nanotriton.collect.pairs import pair
from nanotriton.collect.sources import modules
from nanotriton.config import reason
from nanotriton.executor.processes import cores
from nanotriton.rows import read_lines
from nanotriton.tasks.task import Task

NEEDED = ("key", "route", "source", "solution")


def line(row: dict) -> dict:
    """A row of the journal as a line of the manifest."""
    found = {
        "key": row["key"],
        "route": row["meta"]["route"],
        "origin": row["meta"].get("origin", ""),
        "source": digest(row["source"]),
        "solution": digest(row["solution"]),
    }
    if "draw" in row["meta"]:
        found["draw"] = row["meta"]["draw"]
    else:
        found["module"] = row["module"]
    if found["route"] == "compile":
        found["torch"] = torch.__version__  # whose Inductor wrote it
    if found["route"] == "distil":
        found["text"] = row["solution"]
    return found


def rebuild(cfg) -> None:
    """Write sft.jsonl for cfg.manifest, and missing.jsonl if a pair can't be made as it was; then ValueError
    (one line) is raised too.
    """
    lines = read(cfg.manifest)
    known = find_modules(lines, log.bar(modules(cfg.modules), desc="modules"))
    folder = folder_for(cfg.out)
    jobs = [job(entry, known) for entry in lines]
    missing = [
        entry | {"why": "its module is in none of --modules"} for entry, j in zip(lines, jobs) if not j
    ]
    entries = [entry for entry, j in zip(lines, jobs) if j]
    rows, changed = [], []
    with pool(cfg.workers or cores()) as makers:
        made = makers.map(make, [j for j in jobs if j], chunksize=8)
        for entry, row in zip(entries, log.bar(made, total=len(entries), desc="pairs")):
            if digest(row["small"]) == entry["source"]:
                row["source"] = row["small"]  # a teacher was shown the sizes that were judged
            if digest(row["source"]) == entry["source"] and digest(row["solution"]) == entry["solution"]:
                rows.append(pair(row, cfg.reasoning))
            else:
                changed.append(entry | {"why": difference(entry, row)})
    put_rows(folder / "sft.jsonl", rows)
    put_rows(folder / "missing.jsonl", missing + changed)
    if missing or changed:
        raise ValueError(complaint(cfg.manifest, len(rows), missing, changed))
    print(f"{folder / 'sft.jsonl'}: {log.counted(len(rows), 'pair')}, all that {cfg.manifest} lists")


def find_modules(lines: list[dict], tasks: Iterable[Task]) -> dict[tuple[str, bool], Task]:
    """(sha256 of a module, whether it brings a solution) -> the module, of those that the lines name. The
    search ends with the last of them: a package has many more, and to try one takes a second.
    """
    wanted = {(entry["module"], entry["route"] == "given") for entry in lines if "module" in entry}
    found: dict[tuple[str, bool], Task] = {}
    for task in tasks if wanted else ():
        module = task.meta.get("module") or digest(task.source)
        solved = task.solution is not None
        found[module, solved] = task
        wanted.discard((module, solved))
        if not wanted:
            break
    return found


def job(entry: dict, known: dict[tuple[str, bool], Task]) -> dict | None:
    """The job that makes a pair again; None if its module is not there."""
    if "draw" in entry:
        return {"key": entry["key"], "route": entry["route"], "seed": entry["draw"]}
    bare, solved = (known.get((entry.get("module"), with_solution)) for with_solution in (False, True))
    task = solved if entry["route"] == "given" else bare or solved
    if task is None:
        return None
    meta = task.meta | {"route": entry["route"]}
    solution = entry.get("text") or (task.solution if task is solved else None)
    return {
        "key": entry["key"],
        "route": entry["route"],
        "task": {"name": task.name, "source": task.source, "solution": solution, "meta": meta},
    }


def difference(entry: dict, row: dict) -> str:
    if not row["solution"]:
        return row["message"] or "no solution came out"
    if entry.get("torch", torch.__version__) != torch.__version__:
        return f"its text was written by torch {entry['torch']}, and this is {torch.__version__}"
    return "another text came out than the one that was verified"


def complaint(manifest: str, written: int, missing: list[dict], changed: list[dict]) -> str:
    """One line about what is not there and why."""
    parts = []
    if missing:
        origins = Counter(entry.get("origin") or "an unnamed source" for entry in missing)
        told = ", ".join(f"{n} of {name}" for name, n in origins.most_common())
        modules = log.counted(len(missing), "module")
        parts.append(f"none of --modules has {modules} ({told}), such as {missing[0]['key']}")
    if changed:
        pairs, example = log.counted(len(changed), "pair"), changed[0]
        parts.append(f"{pairs} came out otherwise than verified, such as {example['key']}: {example['why']}")
    return f"{manifest}: {'; '.join(parts)}; sft.jsonl has the other {written}, missing.jsonl names these"


def read(path: str) -> list[dict]:
    """The lines of a manifest. Raises ValueError (one line) for a file that is none."""
    try:
        lines = [json.loads(text) for text in read_lines(path) if text]
    except (OSError, ValueError) as error:
        raise ValueError(f"--from {path}: cannot read: {reason(error)}") from None
    for number, entry in enumerate(lines, 1):
        if not isinstance(entry, dict) or any(name not in entry for name in NEEDED):
            raise ValueError(f"--from {path}, line {number}: an object with {', '.join(NEEDED)} is expected")
    return lines
