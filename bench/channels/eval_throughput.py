"""How many candidates a second does the KernelBench command evaluate, and what share is the executor's?

    python -m bench.channels.eval_throughput --device cuda --out results/eval_throughput.json
    python -m bench.channels.eval_throughput --device cuda --data CLONE --levels 1 2 --samples samples.jsonl

Without --samples, 1,000 candidates are made up: 100 synthetic problems of full size with ten distinct
candidates each. Of the ten, seven are right (variants of the problem's solution), one is the solution of
another problem, one is torch and one is no Python. bench.channels.kernelbench judges them under policy
strict, and times them on a GPU, in a process of its own. What counts is the wall time of that process, from
its command line to its table, imports included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from bench.results import command, environment, usual_device, write_json
from nanotriton import config
from nanotriton.tasks.synthetic import generate
from nanotriton.tasks.task import Task


@dataclass
class Config:
    data: str = ""  # problems, as for bench.channels.kernelbench; empty: synthetic ones
    levels: list[int] = field(default_factory=lambda: [1])  # which levels
    samples: str = ""  # candidates, as for bench.channels.kernelbench
    n: Annotated[int, ">= 10"] = 1000  # synthetic candidates
    device: Literal["cpu", "cuda"] = ""  # where candidates run; empty: cuda if there is a GPU
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    out: str = ""  # JSON file for the figures; empty: print only

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()

    def validate(self) -> None:
        if bool(self.data) != bool(self.samples):
            raise config.ConfigError("give both --data and --samples, or neither")


def make(folder: Path, n: int, size: str) -> tuple[Path, Path]:
    """Write n synthetic candidates into `folder`, ten a problem -> (problems, samples)."""
    tasks = generate("sft", n // 10, 1, size=size)
    samples = folder / "samples.jsonl"
    (folder / "level1").mkdir()
    with open(samples, "w") as file:
        for i, task in enumerate(tasks, 1):
            (folder / "level1" / f"{i}_Synthetic.py").write_text(task.source)
            for candidate in candidates(i, task, other=tasks[i % len(tasks)]):
                file.write(json.dumps({"level": 1, "problem_id": i, "candidate": candidate}) + "\n")
    return folder, samples


def candidates(number: int, task: Task, other: Task) -> list[str]:
    """The ten candidates of one problem, as the docstring above says."""
    right = [f"{task.solution}\n# {variant}\n" for variant in range(7)]
    in_torch = task.source.replace("class Model(", "class ModelNew(").replace("super(Model", "super(ModelNew")
    return [*right, other.solution, in_torch, f"def broken_{number}(:\n"]


def evaluate(cfg: Config, folder: Path) -> tuple[dict, float, int]:
    """Run the KernelBench command -> (its results, wall seconds, exit status)."""
    if cfg.data:
        data, samples = cfg.data, cfg.samples
    else:
        data, samples = make(folder, cfg.n, "gpu" if cfg.device == "cuda" else "cpu")
    out = folder / "run.json"
    arguments = ["--data", data, "--levels", *cfg.levels, "--samples", samples, "--policy", "strict"]
    arguments += ["--device", cfg.device, "--out", out]
    if cfg.workers:
        arguments += ["--workers", cfg.workers]
    words = [sys.executable, "-m", "bench.channels.kernelbench", *map(str, arguments)]
    start = time.perf_counter()
    code = subprocess.run(words, stdout=subprocess.DEVNULL).returncode
    seconds = time.perf_counter() - start
    if code == 2:
        raise SystemExit(2)  # that process has said why
    return json.loads(out.read_text()), seconds, code


def main() -> None:
    cfg = config.parse(Config)
    with tempfile.TemporaryDirectory() as name:
        results, seconds, code = evaluate(cfg, Path(name))
    verdicts = [row["verdicts"]["strict"] for row in results["samples"] if row["verdicts"]]
    stages: Counter = Counter()
    for verdict in verdicts:
        stages.update(verdict["cost"])
    judging = results["seconds_of"]["judging"]
    found = {
        "command": command("bench.channels.eval_throughput"),
        "environment": environment() | {"load": os.getloadavg()[0]},
        "exit_status": code,
        "candidates": len(verdicts),
        "seconds": round(seconds, 2),
        "per_second": round(len(verdicts) / seconds, 2),
        "judging_seconds": judging,
        "judging_share": round(judging / seconds, 3),
        "judged_per_second": round(len(verdicts) / judging, 2),
        "timed": sum(v["time_us"] is not None for v in verdicts),
        "statuses": dict(Counter(v["status"] for v in verdicts).most_common()),
        "stage_wall_ms": {k: round(1000 * v / len(verdicts), 2) for k, v in stages.most_common()},
    }
    print(json.dumps(found, indent=1))
    if cfg.out:
        write_json(cfg.out, found)


if __name__ == "__main__":
    main()
