"""Candidates and baseline times for KernelBench that people already have, read from files."""

import json
from pathlib import Path

from bench.channels import sources
from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks import kernelbench
from nanotriton.tasks.kernelbench import Problem
from nanotriton.tasks.task import Task


def read_samples(path: str, problems: list[Problem]) -> dict[tuple[str, int], dict]:
    """{(problem's name, sample): {"candidate", "completion"}} from files.

    ValueError (one line) for a problem that is not in the levels loaded.
    """
    if Path(path).is_file():
        found = read_rows(path, problems)
    else:
        files = kernelbench.read_samples(path)
        found = {key: {"candidate": source, "completion": None} for key, source in files.items()}
    levels, names = {p.level for p in problems}, {p.name for p in problems}
    for name, _ in found:
        if name not in names and int(name.split("/")[0]) in levels:
            raise ValueError(f"{path}: a candidate for problem {name}, which is not in the data")
    return found


def read_rows(path: str, problems: list[Problem]) -> dict[tuple[str, int], dict]:
    """As read_samples, from JSONL."""
    by_source = {p.task.key: p.name for p in problems}
    by_title = {p.task.name: p.name for p in problems}
    found: dict[tuple[str, int], dict] = {}
    count: dict[str, int] = {}  # samples of a problem so far, which number those that have no number
    for number, row in enumerate(sources.read_jsonl(path), 1):
        if row.get("kind") in ("settings", "model", "verdict"):  # of a journal
            continue
        try:
            name = problem_of(row, by_source, by_title)
            first, equal = numbers_of(row, count.get(name, 0))
            entry = candidate_of(row)
            for s in range(first, first + equal):
                if (name, s) in found:
                    raise ValueError(f"problem {name} has a sample {s} already")
                found[name, s] = entry
        except ValueError as error:
            raise ValueError(f"{path} entry {number}: {error}") from None
        count[name] = count.get(name, 0) + equal
    return found


def problem_of(row: dict, by_source: dict[str, str], by_title: dict[str, str]) -> str:
    """The name of a row's problem, such as 1/23. Raises ValueError.

    by_source: names by the task's key. by_title: names by the task's title.
    """
    if "level" in row and "problem_id" in row:
        name = f"{row['level']}/{row['problem_id']}"
    elif isinstance(row.get("problem"), str) and kernelbench.NAME.fullmatch(row["problem"]):
        name = row["problem"]
    elif isinstance(row.get("task"), str):
        key = Task("", str(row.get("task_source", ""))).key
        name = by_source.get(key) or by_title.get(Path(row["task"]).name)
        if name is None:
            raise ValueError(f"a candidate for task {row['task']}, which is not in the data")
    else:
        expected = "level and problem_id, problem (such as 1/23) or task"
        raise ValueError(f"it names no problem; {expected} are expected")
    if not kernelbench.NAME.fullmatch(name):
        raise ValueError(f"problem {name}: numbers are expected for level and problem_id")
    return name


def numbers_of(row: dict, following: int) -> tuple[int, int]:
    """(the number of a row's first sample, how many equal samples the row stands for). Raises ValueError.

    following: the number that a row without one gets.
    """
    first = row.get("sample", row.get("sample_id", following))
    equal = row.get("count", 1) if "task_source" in row else 1  # train_grpo.py writes equal samples once
    if type(first) is not int or first < 0:
        raise ValueError(f"sample {first!r}: a number is expected")
    if type(equal) is not int or equal < 1:
        raise ValueError(f"count {equal!r}: a number of equal samples is expected")
    return first, equal


def candidate_of(row: dict) -> dict:
    """{"candidate", "completion"} of a row that has at least one of them."""
    completion, candidate = row.get("completion"), row.get("candidate")
    if isinstance(candidate, str):
        return {"candidate": candidate, "completion": completion}
    if isinstance(completion, str):
        return {"candidate": extract_candidate(completion), "completion": completion}
    raise ValueError("it has neither completion nor candidate")


def read_baseline(path: str) -> dict[str, float]:
    """{problem's name: mean in us} of a baseline_time_*.json of KernelBench's results/timing/<card>/.

    Raises ValueError (one line).
    """
    found = {}
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        for level, rows in data.items():
            for file, row in rows.items():
                name = f"{int(level.removeprefix('level'))}/{int(file.split('_')[0])}"
                found[name] = row["mean"] * 1e3  # the file has milliseconds
    except OSError as error:
        raise ValueError(f"--baseline {path}: cannot read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        expected = "{level1: {1_Name.py: {mean: milliseconds}}}"
        raise ValueError(f"--baseline {path}: not KernelBench's format, {expected}") from None
    return found
