"""A soak: honest candidates among hostile ones, while the executor's own processes are killed.

    python -m bench.executor.soak --device cpu --candidates 300 --kill --out results/soak_cpu.json
    python -m bench.executor.soak --device cuda --candidates 2000 --kill --out results/soak_cuda.json

Does every candidate get its own verdict? Half of the candidates are synthetic tasks' own solutions, right or
with another value stored. The rest are attacks that soak_candidates.py makes of them: 5% of each kind, and 1%
kernels that never end. No rules are applied by default: they would refuse most attacks before these run.

Three things are checked. Every status is one that the candidate's kind may have. No stage and no sandboxed
child goes on for more than 2 s beyond its limit, without the time in which others had the cores.
soak_watch.py looks at that from outside, in /proc and in the workers' beacons. Afterwards no process, file,
shared memory or GPU memory is left. Exit status: 0 if all of it holds, 1 if not, 2 for a mistake of a user.
"""

import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

from bench.executor import soak_watch
from bench.executor.soak_candidates import Candidate, mix
from bench.results import command, environment, write_json
from nanotriton import config, log
from nanotriton.executor import Executor, Verdict
from nanotriton.executor.processes import check_card
from nanotriton.executor.sandbox import sandbox
from nanotriton.rules.policy import POLICIES

OVER = 2.0  # seconds that anything may take beyond its limit


@dataclass
class Config:
    device: Literal["cpu", "cuda"] = "cpu"  # where candidates run
    candidates: Annotated[int, ">= 20"] = 2000  # how many
    kill: bool = False  # kill -9 the executor's processes at random moments meanwhile
    # seconds between two kills, on average: a child that takes its whole limit must survive one in nine tries
    kill_every: Annotated[float, "> 0"] = 8.0
    policy: str = "none"  # whose rules apply; with none every attack is really run
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    timeout: Annotated[float, "> 0"] = 10.0  # seconds for each stage of a candidate
    # for each process: little, so that a memory bomb hits this limit before the one on time
    memory_gib: Annotated[float, "> 0"] = 0.5
    # seconds for all of it: a candidate that has no verdict by then is counted as such
    patience: Annotated[float, "> 0"] = 3600.0
    seed: int = 0  # of the mix, and of the moments of the kills
    out: str = ""  # JSON file for the results; empty: print only

    def validate(self) -> None:
        if self.policy not in POLICIES:
            raise config.ConfigError(f"--policy {self.policy}: not one of {', '.join(POLICIES)}")
        if missing := sandbox.support():
            raise config.ConfigError(f"{missing}: fork bombs would be real ones here")
        check_card(self.device)


def judge(cfg: Config, executor: Executor, candidates: list[Candidate]) -> list[Verdict | None]:
    """A verdict for each candidate; None where there was none in time."""
    end = time.monotonic() + cfg.patience
    futures = [executor.submit(c.task, c.source) for c in candidates]
    found: list[Verdict | None] = []
    for future in log.bar(futures, desc="soak"):
        try:
            found.append(future.result(max(0.0, end - time.monotonic())))
        except TimeoutError:
            found.append(None)
    return found


def table(candidates: list[Candidate], verdicts: list[Verdict | None]) -> tuple[dict, list[dict]]:
    """({kind: counts}, a row for each verdict that the candidate's kind may not have)."""
    kinds: dict[str, dict] = {}
    wrong = []
    for candidate, verdict in zip(candidates, verdicts, strict=True):
        status = verdict.status if verdict else "no verdict"
        empty = {
            "candidates": 0,
            "accepted": sorted(candidate.accepted),
            "statuses": Counter(),
            "messages": {},
        }
        row = kinds.setdefault(candidate.kind, empty)
        row["candidates"] += 1
        row["statuses"][status] += 1
        row["messages"].setdefault(status, verdict.message[:200] if verdict else "")  # of the first one
        if status not in candidate.accepted:
            about = {"stage": verdict.stage, "message": verdict.message[:300]} if verdict else {}
            wrong.append({"kind": candidate.kind, "candidate": candidate.name, "status": status, **about})
    return dict(sorted(kinds.items())), wrong


def too_long(cfg: Config, seen: soak_watch.Watcher, verdicts: list[Verdict | None]) -> tuple[dict, bool]:
    """(the longest that was seen of everything that has a limit, whether all kept to theirs).

    `verdict_cost_s`, the longest cost of each stage, is reported and not checked: a candidate may pass
    through a stage twice (two recordings, several trials), so the sum may exceed a limit that was kept each
    time.
    """
    stages: Counter = Counter()
    for verdict in filter(None, verdicts):
        for name, seconds in verdict.cost.items():
            stages[name] = max(stages[name], round(seconds, 3))
    longest = {
        "child_s": round(seen.child, 3),
        "child_limit_s": cfg.timeout,
        "cuda_process_s": round(seen.cuda_child, 3),
        "cuda_process_limit_s": cfg.timeout + soak_watch.STARTUP,
        "beyond_its_limit_s": round(seen.overdue, 3),
        "overdue_stage": seen.overdue_stage,
    }
    kept = (
        seen.child <= cfg.timeout + OVER
        and seen.cuda_child <= cfg.timeout + soak_watch.STARTUP + OVER
        and seen.overdue <= OVER
    )
    return longest | {"verdict_cost_s": dict(stages)}, kept


def soak(cfg: Config, candidates: list[Candidate], folder: str) -> dict:
    """Judge the candidates in an executor whose files lie in `folder`.

    -> {"verdicts", "seconds", "workers", "watcher", "kills"}. When this returns the executor has gone.
    """
    own, tempfile.tempdir = tempfile.tempdir, folder  # where the executor makes its own folder
    start, rng = time.perf_counter(), random.Random(cfg.seed)
    stop = threading.Event()
    try:
        with Executor(
            cfg.device,
            None,
            cfg.workers,
            cfg.policy,
            cfg.timeout,
            memory_gib=cfg.memory_gib,
            seed=cfg.seed,
        ) as executor:
            watcher = soak_watch.Watcher(executor, stop)
            killer = soak_watch.Killer(executor, stop, rng, cfg.kill_every) if cfg.kill else None
            verdicts = judge(cfg, executor, candidates)
            seconds = time.perf_counter() - start
            stop.set()
            for thread in filter(None, (watcher, killer)):
                thread.join()
    finally:
        stop.set()
        tempfile.tempdir = own
    return {
        "verdicts": verdicts,
        "seconds": seconds,
        "workers": executor.workers,
        "watcher": watcher,
        "kills": dict(killer.kills) if killer else {},
    }


def run(cfg: Config) -> dict:
    """The whole benchmark -> its results."""
    candidates = mix(cfg.candidates, cfg.seed, cfg.device, cfg.policy)
    before = soak_watch.Machine(cfg.device)
    with tempfile.TemporaryDirectory(prefix="nanotriton-soak-") as folder:
        seen = soak(cfg, candidates, folder)
        watcher, seconds = seen["watcher"], seen["seconds"]
        left = before.left(watcher.groups, folder)
    kinds, wrong = table(candidates, seen["verdicts"])
    longest, kept = too_long(cfg, watcher, seen["verdicts"])
    checks = {"right verdicts": not wrong, "limits kept": kept, "nothing left": not any(left.values())}
    return {
        "command": command("bench.executor.soak"),
        "environment": environment() | {"device": cfg.device, "load": round(os.getloadavg()[0], 1)},
        "settings": {
            "policy": cfg.policy,
            "workers": seen["workers"],
            "timeout_s": cfg.timeout,
            "memory_gib": cfg.memory_gib,
            "seed": cfg.seed,
        },
        "candidates": len(candidates),
        "seconds": round(seconds, 1),
        "per_second": round(len(candidates) / seconds, 2),
        "kills": seen["kills"],
        "kinds": kinds,
        "longest": longest,
        "left": left,
        "wrong_verdicts": wrong,
        "checks": checks,
        "passed": all(checks.values()),
    }


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    results = run(cfg)
    if cfg.out:
        write_json(cfg.out, results)
    for name, row in results["kinds"].items():
        print(f"{name:20} {row['candidates']:5}  {dict(row['statuses'])}")
    for row in results["wrong_verdicts"]:
        print("wrong:", json.dumps(row))
    print(json.dumps({k: results[k] for k in ("seconds", "kills", "longest", "left", "checks")}))
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
