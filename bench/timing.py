"""Does the executor's clock repeat, and can it be cheated?

    python -m bench.timing --out results/timing_h100.json
    python -m bench.timing --device cpu --runs 2         # a rehearsal: everything but the clock, at small sizes

Repeats: each kernel of timing_kernels.py is judged and timed --runs times, every time under another name (so it is recorded, compiled and
loaded anew), over several executors. Wanted: a coefficient of variation under 2% wherever it takes more than 20 us. Empty: a kernel
without a body, by the same stopwatch, and a kernel on 64 numbers, through the executor: under 20 us. Cheats: candidates that gain something
from a naive stopwatch, each beside its honest sibling: none may be correct and faster.

Exit status: 0 if all of that holds, 1 if not, 2 for a mistake of the user's.
"""

import json
import re
import statistics
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import environment
from bench.timing_kernels import Kernel, cheating, empty, kernels, sibling, tiny
from nanotriton import config, log
from nanotriton.executor import Executor, Verdict
from nanotriton.executor.processes import check_card

# microseconds from which on the clock must repeat; the standard deviation over the mean that is
# wanted
LOUD, WANTED_CV = 20.0, 0.02
# a cheat that is faster than its sibling by less than this has gained nothing: the clock's own
# noise and placement in memory
FASTER = 0.05
OF_EACH = 5  # runs of a cheat, and of its sibling


@dataclass
class Config:
    # on a CPU nothing is timed
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    runs: Annotated[int, ">= 2"] = 20  # times that each kernel is judged and timed
    executors: Annotated[int, ">= 1"] = 4  # fresh executors, one after another, that share the runs
    timeout: Annotated[float, "> 0"] = 30.0  # seconds for each stage of a candidate
    out: str = ""  # JSON file for the results; empty: print only

    def validate(self) -> None:
        check_card(self.device, timed=True)


class Renamed:
    """Sources with a kernel name of their own each."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, source: str) -> str:
        self.count += 1
        return re.sub(r"\bkernel\b", f"kernel_{self.count}", source)


def judge(
    cfg: Config, wanted: list[tuple[str, Kernel]], renamed: Renamed, seed: int, policy: str = "strict"
) -> list[tuple[str, Verdict]]:
    """One executor, from its start to its end: (name, verdict) of every (name, kernel)."""
    with Executor(cfg.device, "replay", policy=policy, timeout=cfg.timeout, time=True, seed=seed) as executor:
        futures: list[tuple[str, Future[Verdict]]] = [
            (name, executor.submit(k.task, renamed(k.source))) for name, k in wanted
        ]
        return [(name, future.result()) for name, future in futures]


def spread(times: list[float]) -> dict:
    if len(times) < 2:
        return {"runs": len(times)}
    mean = statistics.mean(times)
    found = {
        "mean_us": mean,
        "cv": statistics.stdev(times) / mean,
        "min_us": min(times),
        "max_us": max(times),
    }
    return {"runs": len(times)} | {k: round(v, 4) for k, v in found.items()}


def repeats(cfg: Config, renamed: Renamed) -> list[dict]:
    known = {k.name: k for k in [*kernels(cfg.device), tiny(cfg.device)]}
    found: dict[str, list[Verdict]] = {name: [] for name in known}
    for number in log.bar(range(cfg.executors), desc="executors"):
        share = cfg.runs * (number + 1) // cfg.executors - cfg.runs * number // cfg.executors
        for name, verdict in judge(cfg, list(known.items()) * share, renamed, number):
            found[name].append(verdict)
    rows = []
    for name, verdicts in found.items():
        times = [v.time_us for v in verdicts if v.time_us is not None]
        row = {"kernel": name, **spread(times), "times_us": [round(t, 3) for t in times]}
        # one a worker: it is timed once a task
        references = {round(v.reference_us, 3) for v in verdicts if v.reference_us is not None}
        row["reference"] = spread(sorted(references))
        rows.append(row | {"failures": [f"{v.status}: {v.message[:200]}" for v in verdicts if not v.correct]})
    return rows


def cheats(cfg: Config, renamed: Renamed, policy: str) -> list[dict]:
    """Every cheat beside its sibling, in one executor and in turns. Without rules (policy none) it is the clock alone that must hold."""
    pairs = list(cheating(cfg.device).items())
    wanted = [
        (n, k) for _ in range(OF_EACH) for pair in pairs for n, k in (("honest", sibling(cfg.device)), pair)
    ]
    found: dict[str, list[Verdict]] = {}
    for name, verdict in judge(cfg, wanted, renamed, cfg.executors, policy):
        found.setdefault(name, []).append(verdict)
    median = lambda verdicts: (
        statistics.median(times)
        if (times := [v.time_us for v in verdicts if v.correct and v.time_us])
        else None
    )
    honest, rows = median(found["honest"]), []
    for name, verdicts in found.items():
        mine = median(verdicts)
        row = {
            "candidate": name,
            "policy": policy,
            "statuses": sorted({v.status for v in verdicts}),
            "time_us": mine,
            "honest_us": honest,
        }
        if not all(v.correct for v in verdicts):
            row["message"] = next(v.message for v in verdicts if not v.correct)[:300]
        if name != "honest":
            row["gains"] = mine is not None and honest is not None and mine < honest * (1 - FASTER)
        rows.append(row)
    return rows


def empty_us(cfg: Config) -> float | None:
    """A kernel without a body, launched by Triton itself in this process, under the executor's stopwatch."""
    if cfg.device == "cpu":
        return None
    from nanotriton.executor.gpu.timing import Stopwatch, Work

    x = torch.zeros(1, device="cuda")
    return round(Stopwatch().time([Work(lambda: empty[(1,)](x), lambda i: None)])[0].us, 3)


def main(argv: list[str] | None = None) -> int:
    cfg, renamed = config.parse(Config, argv), Renamed()
    alone = empty_us(cfg)
    rows, tricks = (
        repeats(cfg, renamed),
        [row for policy in ("strict", "none") for row in cheats(cfg, renamed, policy)],
    )
    honest = [r for r in tricks if r["candidate"] == "honest"]
    checks = {
        "honest kernels correct": not any(r["failures"] for r in rows)
        and all(r["statuses"] == ["correct"] for r in honest),
        "cheats gain nothing": not any(r.get("gains") for r in tricks),
    }
    if cfg.device == "cuda":
        loud = [r for r in rows if r.get("mean_us", 0) > LOUD]
        smallest = next(r for r in rows if r["kernel"] == "tiny")
        checks["all timed"] = all(r["runs"] == cfg.runs for r in rows) and all(r["time_us"] for r in honest)
        checks["repeats above 20 us"] = bool(loud) and all(r["cv"] < WANTED_CV for r in loud)
        checks["empty under 20 us"] = alone < LOUD and smallest.get("mean_us", LOUD) < LOUD
    results = {
        "command": " ".join(["python -m bench.timing", *sys.argv[1:]]),
        "environment": environment() | {"device": cfg.device},
        "executors": cfg.executors,
        "empty_us": alone,
        "repeats": rows,
        "cheats": tricks,
        "checks": checks,
        "passed": all(checks.values()),
    }
    if cfg.out:
        Path(cfg.out).parent.mkdir(parents=True, exist_ok=True)
        Path(cfg.out).write_text(json.dumps(results, indent=1) + "\n")
    for row in rows:
        print(json.dumps({k: v for k, v in row.items() if k != "times_us"}))
    for row in tricks:
        print(json.dumps(row))
    print(json.dumps({"empty_us": alone, "checks": checks}))
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
