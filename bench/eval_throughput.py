"""How many given candidates a second does bench.kernelbench evaluate, from its command line to its table, and how much of that is the executor?

    python -m bench.eval_throughput --device cuda --out results/eval_throughput.json                # 1,000 made up here
    python -m bench.eval_throughput --device cuda --data CLONE --levels 1 2 --samples samples.jsonl --out results/FILE.json

Without --samples: 100 synthetic problems of full size, ten distinct candidates each, of which seven are right (variants of the problem's solution), one
is the solution of another problem, one is torch and one is no Python. One run, strict, timed on a GPU, in a process of its own; what is
counted is that process's wall time, imports and plots included.
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

import torch

from bench import environment
from bench.journal import write_json
from nanotriton import config
from nanotriton.tasks.synthetic import generate


@dataclass
class Config:
    data: str = ""  # problems, as for bench.kernelbench; empty: synthetic ones
    levels: list[int] = field(default_factory=lambda: [1])  # which levels
    samples: str = ""  # candidates, as for bench.kernelbench
    n: Annotated[int, ">= 10"] = 1000  # synthetic candidates
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"  # where candidates run
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: one less than cores
    out: str = ""  # JSON file for the figures; empty: print only

    def validate(self) -> None:
        if bool(self.data) != bool(self.samples):
            raise config.ConfigError("give both --data and --samples, or neither")


def make(folder: Path, n: int, size: str) -> tuple[Path, Path]:
    """(problems, samples) of n synthetic candidates, ten a problem."""
    tasks = generate("sft", n // 10, 1, size=size)
    (folder / "level1").mkdir()
    with open(folder / "samples.jsonl", "w") as file:
        for i, task in enumerate(tasks, 1):
            (folder / "level1" / f"{i}_Synthetic.py").write_text(task.source)
            candidates = [f"{task.solution}\n# {j}\n" for j in range(7)]
            candidates += [
                tasks[i % len(tasks)].solution,
                task.source.replace("class Model(", "class ModelNew(").replace(
                    "super(Model", "super(ModelNew"
                ),
                f"def broken_{i}(:\n",
            ]
            for candidate in candidates:
                file.write(json.dumps({"level": 1, "problem_id": i, "candidate": candidate}) + "\n")
    return folder, folder / "samples.jsonl"


def main() -> None:
    cfg = config.parse(Config)
    with tempfile.TemporaryDirectory() as name:
        data, samples = (
            (cfg.data, cfg.samples)
            if cfg.data
            else make(Path(name), cfg.n, "gpu" if cfg.device == "cuda" else "cpu")
        )
        out = Path(name, "run.json")
        levels = [str(level) for level in cfg.levels]
        command = [
            sys.executable,
            "-m",
            "bench.kernelbench",
            "--data",
            str(data),
            "--levels",
            *levels,
            "--samples",
            str(samples),
        ]
        command += [
            "--policy",
            "strict",
            "--device",
            cfg.device,
            "--out",
            str(out),
            *(["--workers", str(cfg.workers)] if cfg.workers else []),
        ]
        start = time.perf_counter()
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        seconds = time.perf_counter() - start
        if code == 2:
            raise SystemExit(2)  # it has said why
        results = json.loads(out.read_text())
    verdicts = [row["verdicts"]["strict"] for row in results["samples"] if row["verdicts"]]
    stages: Counter = Counter()
    for verdict in verdicts:
        stages.update(verdict["cost"])
    judging = results["seconds_of"]["judging"]
    found = {
        "command": " ".join(["python -m bench.eval_throughput", *sys.argv[1:]]),
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
        write_json(Path(cfg.out), found)


if __name__ == "__main__":
    main()
