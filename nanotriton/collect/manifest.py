"""A set of pairs as a list of what makes it: small enough to commit, and the set can be made of it again
without verifying anything.

A line names a pair's job, and the hashes of its module and of its solution. Rebuilding makes each job
again; a text with another hash than the one that was verified isn't written, and ends the run with an
error.
"""

import hashlib
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from nanotriton import log
from nanotriton.collect import report
from nanotriton.collect.make import make
from nanotriton.collect.sources import modules


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def line(row: dict) -> dict:
    """A row of the journal as a line of the manifest."""
    return {
        "key": row["key"],
        "route": row["meta"]["route"],
        "origin": row["meta"].get("origin", ""),
        "source": digest(row["source"]),
        "solution": digest(row["solution"]),
    }


def rebuild(cfg) -> None:
    """Write sft.jsonl for cfg.manifest. Raises ValueError (one line) if something can't be made as it was."""
    from nanotriton.collect.pairs import pair

    lines = read(cfg.manifest)
    known = {digest(t.source): t for t in modules(cfg.modules)}
    jobs = [job(entry, known) for entry in lines]
    if missing := [e["key"] for e, j in zip(lines, jobs) if j is None]:
        raise ValueError(
            f"{cfg.manifest}: {len(missing)} modules are in none of --modules, such as {missing[0]}"
        )
    folder = Path(cfg.out)
    folder.mkdir(parents=True, exist_ok=True)
    rows, changed = [], []
    with ProcessPoolExecutor(
        cfg.workers or len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    ) as pool:
        for entry, row in zip(
            lines, log.bar(pool.map(make, jobs, chunksize=8), total=len(jobs), desc="pairs")
        ):
            same = digest(row["source"]) == entry["source"] and digest(row["solution"]) == entry["solution"]
            rows.append(pair(row, cfg.reasoning)) if same else changed.append(entry["key"])
    report.put(folder / "sft.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    if changed:
        raise ValueError(
            f"{len(changed)} of {len(lines)} pairs came out otherwise than they were verified, such as {changed[0]}; the other {len(rows)} are written"  # noqa: E501
        )


def job(entry: dict, known: dict) -> dict | None:
    """The job that makes a pair again; None if its module is not there."""
    if entry["origin"] == "grammar":
        _, seed, number = entry["key"].rsplit("-", 2)
        return {"key": entry["key"], "route": entry["route"], "seed": f"{seed} {number}"}
    task = known.get(entry["source"])
    if task is None:
        return None
    return {
        "key": entry["key"],
        "route": entry["route"],
        "task": {"name": task.name, "source": task.source, "solution": task.solution, "meta": task.meta},
    }


def read(path: str) -> list[dict]:
    try:
        return [json.loads(text) for text in Path(path).read_text(encoding="utf-8").splitlines() if text]
    except (OSError, ValueError) as error:
        raise ValueError(f"--from {path}: cannot read: {error}") from None
