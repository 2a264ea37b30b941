"""How many distinct candidates a second does the executor judge on this machine, and where does the time go?

    python -m bench.executor_throughput [--n 64] [--workers N] [--device cpu] [--out results/FILE.json]

Distinct synthetic tasks with their own Triton solutions (all must come out `correct`), then the same number again as groups of eight
variants of a task, as GRPO submits them. Per stage: wall time as the verdicts report it (stages overlap: the sum exceeds the time that
passed), and CPU time of each kind of process.
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections import Counter
from pathlib import Path

from nanotriton.executor import Executor
from nanotriton.tasks.synthetic import generate

LEVELS = ("base", "worker", "zygote: forks", "children: import, record")
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(executor: Executor) -> Counter:
    """CPU time so far of the executor's processes by kind; children count once they have ended."""
    stats = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) in executor._groups:
            stats[int(folder.name)] = fields
    depth = lambda pid: 1 + depth(int(stats[pid][1])) if int(stats[pid][1]) in stats else 0
    total = Counter()
    for pid, fields in stats.items():
        own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        total[LEVELS[min(depth(pid), 3)]] += own / TICK
        if depth(pid) == 2:
            total[LEVELS[3]] += reaped / TICK
    return total


def measure(executor: Executor, pairs: list) -> dict:
    """Judge (task, source) pairs, all submitted at once."""
    cpu, started = cpu_seconds(executor), time.perf_counter()
    futures = [executor.submit(task, source) for task, source in pairs]
    verdicts = [future.result() for future in futures]
    seconds = time.perf_counter() - started
    cpu = cpu_seconds(executor) - cpu
    stages = Counter()
    for verdict in verdicts:
        stages.update(verdict.cost)
    per_candidate = lambda counter: {name: round(1000 * value / len(pairs), 2) for name, value in counter.items()}
    statuses = dict(Counter(v.status for v in verdicts))
    result = {"candidates": len(pairs), "seconds": round(seconds, 3), "per_second": round(len(pairs) / seconds, 1), "statuses": statuses}
    return result | {"stage_wall_ms": per_candidate(stages), "cpu_ms": per_candidate(cpu), "cpu_ms_total": round(1000 * sum(cpu.values()) / len(pairs), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--n", type=int, default=64, help="candidates")
    parser.add_argument("--workers", type=int, help="judging processes (default: the executor's)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    tasks = generate("sft", options.n, 1, size="cpu" if options.device == "cpu" else "gpu")
    started = time.perf_counter()
    with Executor(options.device, workers=options.workers, seed=0) as executor:
        executor.submit(tasks[0], "not Python").result()
        result = {
            "machine": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0],
            "device": options.device, "workers": executor.workers, "start_seconds": round(time.perf_counter() - started, 2),
            "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip(),
            "command": f"python -m bench.executor_throughput --n {options.n}",
            "distinct_tasks": measure(executor, [(t, t.solution) for t in tasks]),
            "groups_of_8": measure(executor, [(t, f"{t.solution}\n# {i}\n") for t in tasks[: max(1, options.n // 8)] for i in range(8)]),
        }  # fmt: skip
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
