"""Does the executor's clock repeat, and can it be cheated?

    python -m bench.executor.timing --out results/timing_h100.json
    python -m bench.executor.timing --device cpu --runs 2         # everything but the clock, at small sizes

Repeats: each kernel of timing_kernels.py is judged and timed --runs times, over several executors. Each time
it has another name, so it is recorded, compiled and loaded anew. The coefficient of variation must stay under
2% for every kernel that takes more than 20 us.

Empty: a kernel without a body, launched by Triton under the same stopwatch, and a kernel on 64 numbers, timed
by the executor, must both take less than 20 us.

Cheats: candidates that would gain something from a naive stopwatch, each beside its honest sibling. None may
be correct and faster.

Exit status: 0 if all of that holds; 1 if not; 2 for a mistake of the user's.
"""

import json
import re
import statistics
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from bench.executor.timing_kernels import TimedKernel, cheating, empty, kernels, sibling, tiny
from bench.results import command, environment, usual_device, write_json
from nanotriton import config, log
from nanotriton.executor import Executor, Verdict
from nanotriton.executor.processes import check_card

LOUD = 20.0  # microseconds: a kernel that takes longer must be timed repeatably
WANTED_CV = 0.02  # the largest coefficient of variation (standard deviation over mean) of such a kernel
# A cheat that is faster than its sibling by a smaller share has gained nothing: the clock has noise, and a
# tensor's place in memory matters.
FASTER = 0.05
OF_EACH = 5  # runs of a cheat, and of its sibling


@dataclass
class Config:
    # where candidates run, empty: cuda if there is a GPU; on a CPU nothing is timed
    device: Literal["cpu", "cuda"] = ""
    runs: Annotated[int, ">= 2"] = 20  # times that each kernel is judged and timed
    executors: Annotated[int, ">= 1"] = 4  # fresh executors, one after another, that share the runs
    timeout: Annotated[float, "> 0"] = 30.0  # seconds for each stage of a candidate
    out: str = ""  # JSON file for the results; empty: print only

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()

    def validate(self) -> None:
        check_card(self.device, timed=True)


class Renamed:
    """Gives each source that it is called with a kernel name of its own."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, source: str) -> str:
        self.count += 1
        return re.sub(r"\bkernel\b", f"kernel_{self.count}", source)


def judge(
    cfg: Config, wanted: list[tuple[str, TimedKernel]], renamed: Renamed, seed: int, policy: str = "strict"
) -> list[tuple[str, Verdict]]:
    """One executor from its start to its end: the (name, verdict) of every (name, kernel)."""
    with Executor(cfg.device, "replay", policy=policy, timeout=cfg.timeout, time=True, seed=seed) as executor:
        futures: list[tuple[str, Future[Verdict]]] = [
            (name, executor.submit(k.task, renamed(k.source))) for name, k in wanted
        ]
        return [(name, future.result()) for name, future in futures]


def spread(times: list[float]) -> dict:
    """Mean, coefficient of variation and extremes of some times in us, where there are at least two."""
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
    """A row for each honest kernel."""
    known = {k.name: k for k in [*kernels(cfg.device), tiny()]}
    found: dict[str, list[Verdict]] = {name: [] for name in known}
    for number in log.bar(range(cfg.executors), desc="executors"):
        share = cfg.runs * (number + 1) // cfg.executors - cfg.runs * number // cfg.executors
        for name, verdict in judge(cfg, list(known.items()) * share, renamed, number):
            found[name].append(verdict)
    rows = []
    for name, verdicts in found.items():
        times = [v.time_us for v in verdicts if v.time_us is not None]
        # The reference is timed once a task and worker, so equal times are one measurement.
        references = {round(v.reference_us, 3) for v in verdicts if v.reference_us is not None}
        row = {"kernel": name, **spread(times), "times_us": [round(t, 3) for t in times]}
        row["reference"] = spread(sorted(references))
        row["failures"] = [f"{v.status}: {v.message[:200]}" for v in verdicts if not v.correct]
        rows.append(row)
    return rows


def median_us(verdicts: list[Verdict]) -> float | None:
    """Of the correct and timed verdicts; None if there is none."""
    times = [v.time_us for v in verdicts if v.correct and v.time_us]
    return statistics.median(times) if times else None


def cheats(cfg: Config, renamed: Renamed, policy: str) -> list[dict]:
    """A row for each cheat, and for its honest sibling, which runs in turns with it in one executor.

    Under policy none no rule refuses a cheat, and the clock alone must hold.
    """
    wanted = []
    for _ in range(OF_EACH):
        for pair in cheating(cfg.device).items():
            wanted += [("honest", sibling(cfg.device)), pair]
    found: dict[str, list[Verdict]] = {}
    for name, verdict in judge(cfg, wanted, renamed, cfg.executors, policy):
        found.setdefault(name, []).append(verdict)
    honest, rows = median_us(found["honest"]), []
    for name, verdicts in found.items():
        mine = median_us(verdicts)
        row = {
            "candidate": name,
            "policy": policy,
            "statuses": sorted({v.status for v in verdicts}),
            "time_us": mine,
            "honest_us": honest,
        }
        wrong = [v.message for v in verdicts if not v.correct]
        if wrong:
            row["message"] = wrong[0][:300]
        if name != "honest":
            row["gains"] = mine is not None and honest is not None and mine < honest * (1 - FASTER)
        rows.append(row)
    return rows


def empty_us(cfg: Config) -> float | None:
    """Microseconds of a kernel without a body; None on a CPU.

    Triton launches it in this process, under the executor's stopwatch.
    """
    if cfg.device == "cpu":
        return None
    from nanotriton.executor.gpu.timing import Stopwatch, Work

    x = torch.zeros(1, device="cuda")
    return round(Stopwatch().time([Work(lambda: empty[(1,)](x), lambda i: None)])[0].us, 3)


def check(cfg: Config, rows: list[dict], tricks: list[dict], alone: float | None) -> dict[str, bool]:
    """What must hold. rows: of `repeats`; tricks: of `cheats`; alone: of `empty_us`."""
    honest = [r for r in tricks if r["candidate"] == "honest"]
    right = not any(r["failures"] for r in rows) and all(r["statuses"] == ["correct"] for r in honest)
    checks = {
        "honest kernels correct": right,
        "cheats gain nothing": not any(r.get("gains") for r in tricks),
    }
    if cfg.device == "cuda":
        loud = [r for r in rows if r.get("mean_us", 0) > LOUD]
        smallest = next(r for r in rows if r["kernel"] == "tiny")
        checks["all timed"] = all(r["runs"] == cfg.runs for r in rows) and all(r["time_us"] for r in honest)
        checks["repeats above 20 us"] = bool(loud) and all(r["cv"] < WANTED_CV for r in loud)
        checks["empty under 20 us"] = alone < LOUD and smallest.get("mean_us", LOUD) < LOUD
    return checks


def main(argv: list[str] | None = None) -> int:
    cfg, renamed = config.parse(Config, argv), Renamed()
    alone = empty_us(cfg)
    rows = repeats(cfg, renamed)
    tricks = cheats(cfg, renamed, "strict") + cheats(cfg, renamed, "none")
    checks = check(cfg, rows, tricks, alone)
    results = {
        "command": command("bench.executor.timing"),
        "environment": environment() | {"device": cfg.device},
        "executors": cfg.executors,
        "empty_us": alone,
        "repeats": rows,
        "cheats": tricks,
        "checks": checks,
        "passed": all(checks.values()),
    }
    if cfg.out:
        write_json(cfg.out, results)
    for row in rows:
        print(json.dumps({k: v for k, v in row.items() if k != "times_us"}))
    for row in tricks:
        print(json.dumps(row))
    print(json.dumps({"empty_us": alone, "checks": checks}))
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
