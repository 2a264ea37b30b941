"""How many TritonBench predictions a second does the command judge, and where does the time go?

    python -m bench.channels.tritonbench_throughput --data CLONE --channel G --predictions FILE.jsonl

bench.channels.tritonbench judges them twice, each time in a process of its own: first every gold file runs,
then its kept answer is taken. What counts is the wall time of that process, from its command line to its
table, imports included. `seconds_of` says how long its parts took. `files` says of the files that ran how
long their processes lived and computed, and how many there were at a time; what they did not compute they
waited. On a GPU a small file of our own is run as well, alone and as many at a time as there are workers:
`parts_ms` says what its steps took. `verdicts that changed` between the two runs should be none; exit status
1 if there are.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bench.channels.published import judged, load, rows
from bench.results import command, environment, usual_device, write_json
from nanotriton import config
from nanotriton.executor.script import ScriptExecutor

SLOWEST = 10  # files that are named
# The steps of a file that launches a kernel. It prints their milliseconds.
STEPS = """
import json
import time

taken, since = {}, time.perf_counter()


def step(name):
    global since
    torch.cuda.synchronize()
    taken[name] = 1000 * (time.perf_counter() - since)
    since = time.perf_counter()


import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


x = torch.ones(256, device="cuda")
step("CUDA context")
triton.runtime.driver.active.utils
step("Triton's driver")
double_kernel[(4,)](x, 200, BLOCK=64)
step("first kernel")
double_kernel[(2,)](x, 200, BLOCK=128)
step("another block size")
torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
step("first torch.matmul")
print(json.dumps(taken))
"""


@dataclass
class Config:
    data: str = ""  # a clone of TritonBench
    channel: Literal["G", "T"] = "G"  # as for bench.channels.tritonbench
    predictions: str = ""  # candidates, as for bench.channels.tritonbench
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems; 0: all
    device: Literal["cpu", "cuda"] = ""  # where candidates run; empty: cuda if there is a GPU
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    speed_inputs: Annotated[int, ">= 0"] = 3  # as for bench.channels.tritonbench; 0: nothing is timed
    out: str = ""  # JSON file for the figures; empty: print only

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()

    def validate(self) -> None:
        if not self.data or not self.predictions:
            raise config.ConfigError("give --data and --predictions")


def evaluate(cfg: Config, out: Path, golds: Path) -> float:
    """Run the TritonBench command -> wall seconds."""
    arguments = ["--data", cfg.data, "--channel", cfg.channel, "--predictions", cfg.predictions]
    arguments += ["--device", cfg.device, "--speed-inputs", cfg.speed_inputs, "--golds", golds, "--out", out]
    if cfg.limit:
        arguments += ["--limit", cfg.limit]
    if cfg.workers:
        arguments += ["--workers", cfg.workers]
    words = [sys.executable, "-m", "bench.channels.tritonbench", *map(str, arguments)]
    start = time.perf_counter()
    if code := subprocess.run(words, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(code)  # that process has said why
    return time.perf_counter() - start


def figures(results: dict, journal: Path, seconds: float) -> dict:
    """What is told of one run. journal: the file beside its results."""
    verdicts = [row["verdicts"]["tensors"] for row in results["samples"]]
    parts = results["seconds_of"]
    judging = parts["judging"]
    start = seconds - sum(parts.values())
    return {
        "seconds": round(seconds, 2),
        "per_second": round(len(verdicts) / seconds, 2),
        "judged_per_second": round(len(verdicts) / judging, 2),
        "seconds_of": {"start and report": round(start, 3)} | parts,
        "golds_kept": results["golds_kept"],
        "files": files_that_ran(journal, judging),
        "statuses": dict(Counter(v["status"] for v in verdicts).most_common()),
    }


def files_that_ran(journal: Path, judging: float) -> dict:
    """How long the processes of gold files and candidates lived and computed. judging: wall seconds."""
    found: dict[str, list[tuple[float, float, str]]] = {"gold": [], "verdict": []}
    for text in journal.read_text().splitlines():
        line = json.loads(text)
        cost = line.get("verdict", {}).get("cost", {})
        if line["kind"] in found and not line.get("kept") and "children_cpu" in cost:
            lived = cost.get("run", 0.0) if "record" not in cost else cost["record"]
            name = f"{line['problem']}/{line['sample']}, {line['kind']}: {line['verdict']['status']}"
            found[line["kind"]].append((lived, cost["children_cpu"], name))
    every = sorted(found["gold"] + found["verdict"], reverse=True)
    lived, computed = sum(f[0] for f in every), sum(f[1] for f in every)
    return {
        "gold files": len(found["gold"]),
        "candidates": len(found["verdict"]),
        "lived_s": round(lived, 1),
        "computed_s": round(computed, 1),
        "median_lived_s": round(statistics.median(f[0] for f in every), 2) if every else None,
        "at_a_time": round(lived / judging, 1),
        "cores_busy": round(computed / judging, 1),
        "slowest_s": {name: round(seconds, 1) for seconds, _, name in every[:SLOWEST]},
    }


def parts(cfg: Config) -> dict:
    """{"alone", "at once"}: milliseconds of the steps of a small file, by the median of those at once."""
    with ScriptExecutor(cfg.device, cfg.workers) as executor:
        crowd = [f"{STEPS}# {i}\n" for i in range(3 * executor.workers)]
        executor.run("x = 1\n").result()  # the executor has started
        start = time.perf_counter()
        alone = steps(executor, [STEPS])
        middle = time.perf_counter()
        at_once = steps(executor, crowd)
        end = time.perf_counter()
    return {
        "alone": alone | {"wall": round(1000 * (middle - start), 1)},
        "at once": at_once | {"files": len(crowd), "files a second": round(len(crowd) / (end - middle), 2)},
    }


def steps(executor: ScriptExecutor, texts: list[str]) -> dict:
    """The median milliseconds of each step of these files, which run at once; {"error"} if one fails."""
    found: dict[str, list[float]] = {}
    for text, future in [(text, executor.run(text)) for text in texts]:
        verdict = future.result()
        if not verdict.correct:
            return {"error": f"{verdict.status}: {verdict.message}"}
        lived = 1000 * verdict.cost["run"]
        taken = json.loads(executor.printed(text))
        for name, value in (taken | {"fork, answer and exit": lived - sum(taken.values())}).items():
            found.setdefault(name, []).append(value)
    return {name: round(statistics.median(values), 1) for name, values in found.items()}


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    names = ("every gold file runs", "gold answers kept")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs, told = [], {}
        for number, what in enumerate(names):
            out = folder / f"run{number}.json"
            seconds = evaluate(cfg, out, folder / "golds")
            runs.append(load(str(out)))
            told[what] = figures(runs[-1], out.with_suffix(".journal.jsonl"), seconds)
    pairs = zip(*map(rows, runs), strict=True)
    changed = [[judged(a), judged(b)] for a, b in pairs if judged(a) != judged(b)]
    found = {
        "command": command("bench.channels.tritonbench_throughput"),
        "environment": environment(),
        "candidates": len(runs[0]["samples"]),
        **told,
        "verdicts that changed": changed,
        "parts_ms": parts(cfg) if cfg.device == "cuda" else None,
    }
    print(json.dumps(found, indent=1))
    if cfg.out:
        write_json(cfg.out, found)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
