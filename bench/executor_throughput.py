"""How many distinct candidates a second does the executor judge on this machine, and where does the time go?

    python -m bench.executor_throughput --out results/executor_cpu.json
    python -m bench.executor_throughput --device cuda --n 1024 --fresh 8 --out results/executor_h100.json

Synthetic tasks with their own Triton solutions (all must come out `correct`), 16 of each task with their kernels renamed, so that each is
recorded, compiled and judged: element-wise and reductions, tl.dot, and groups of eight equal kernels, as GRPO submits them; on a GPU then the first two with timing, in an executor that has compiled nothing yet; and beside
them, in the same run, a fresh process for each candidate (with its own CUDA context on a GPU). `suite`: the honest kernels of
tests/honest, written as real ones are. Per stage: wall time as the verdicts report it (stages overlap: the sum exceeds the time that passed),
CPU time of each kind of process, and how many of the machine's cores were busy. The floor is what the cores allow if nothing but the children's CPU time (import, record, compile) counted.
"""

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from bench import environment
from bench.journal import write_json
from nanotriton import config
from nanotriton.executor import Executor
from nanotriton.executor.processes import check_card
from nanotriton.tasks.synthetic import generate
from nanotriton.tasks.task import Task
from tests.candidates import read

LEVELS = ("base", "worker", "zygote: forks", "children: import, record, compile")
TICK = os.sysconf("SC_CLK_TCK")
WARM = 2  # candidates a worker that are judged before the clock starts: processes and contexts are there then
EACH = 16  # candidates of a task
DOTS = 0.05  # fewer of the synthetic tasks than this share would be a surprise

Pairs = list[tuple[Task, str]]


@dataclass
class Config:
    device: Literal["cpu", "cuda"] = "cpu"  # where candidates run
    n: Annotated[int, ">= 8"] = 64  # candidates of each set
    fresh: Annotated[int, ">= 0"] = 8  # candidates that get a fresh process each; 0: none
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    timeout: Annotated[float, "> 0"] = 30.0  # seconds for each stage of a candidate
    out: str = ""  # JSON file for the results; empty: print only

    def validate(self) -> None:
        check_card(self.device, timed=True)


def cpu_seconds(executor: Executor) -> Counter:
    """CPU time so far of the executor's processes by kind. What a child runs counts once that has ended."""
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
        if depth(pid) >= 2:  # a compile server has run ptxas
            total[LEVELS[3]] += reaped / TICK
    return total


def cores_seconds() -> Counter:
    """What the machine's cores did so far, in core seconds: busy with anybody's work, idle, or taken by another machine of the same host."""
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(n) / TICK for n in Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return Counter(busy=user + nice + system + irq + softirq, idle=idle + iowait, stolen=steal)


def measure(executor: Executor, pairs: Pairs) -> dict:
    """Judge (task, source) pairs, all submitted at once."""
    cpu, cores, started = cpu_seconds(executor), cores_seconds(), time.perf_counter()
    futures = [executor.submit(task, source) for task, source in pairs]
    verdicts = [future.result() for future in futures]
    seconds = time.perf_counter() - started
    cpu, cores = cpu_seconds(executor) - cpu, cores_seconds() - cores
    stages = Counter()
    for verdict in verdicts:
        stages.update({name: s for name, s in verdict.cost.items() if name != "children_cpu"})
    each = lambda counter: {name: round(1000 * value / len(pairs), 2) for name, value in counter.items()}
    rate = len(pairs) / seconds
    result = {
        "candidates": len(pairs),
        "seconds": round(seconds, 3),
        "per_second": round(rate, 1),
        "statuses": dict(Counter(v.status for v in verdicts)),
    }
    if wrong := [
        f"{task.name}: {v.status} at {v.stage}: {v.message}"
        for (task, _), v in zip(pairs, verdicts, strict=True)
        if not v.correct
    ]:
        result["not_correct"] = wrong
    if floor := cpu[LEVELS[3]] / len(pairs) / len(os.sched_getaffinity(0)):
        result |= {"floor_per_second": round(1 / floor, 1), "of_floor": round(rate * floor, 3)}
    shares = {name: round(s / seconds, 2) for name, s in cores.items()}
    return result | {
        "stage_wall_ms": each(stages),
        "cpu_ms": each(cpu),
        "cpu_ms_total": round(1000 * sum(cpu.values()) / len(pairs), 2),
        "cores": shares,
    }


def candidates(tasks: list[Task], n: int) -> Pairs:
    """n distinct ones: the tasks' solutions, with their kernels renamed so that each is another program to the compiler."""
    renamed = lambda source, i: re.sub(r"\bkernel\b", f"kernel_{i}", source)
    return [
        (tasks[i % len(tasks)], renamed(tasks[i % len(tasks)].solution, i // len(tasks))) for i in range(n)
    ]


def tasks_of(cfg: Config, dot: bool, n: int, seed: int) -> list[Task]:
    """n synthetic tasks with a matmul, or n without."""
    found: list[Task] = []
    while len(found) < n:
        drawn = generate(
            "sft", int(n / DOTS) if dot else 2 * n, seed, size="cpu" if cfg.device == "cpu" else "gpu"
        )
        found, seed = found + [t for t in drawn if (t.meta["ops"][0] == "matmul") == dot], seed + 1
    return found[:n]


def started(
    cfg: Config, mode: str | None = None, policy: str = "strict", timed: bool = False
) -> tuple[Executor, float]:
    """An executor that has begun to work, and the seconds that took."""
    begun = time.perf_counter()
    executor = Executor(cfg.device, mode, cfg.workers, policy, cfg.timeout, timed, seed=0)
    others = tasks_of(cfg, False, WARM * executor.workers, seed=1000)
    for future in [executor.submit(task, task.solution) for task in others]:
        future.result()
    return executor, round(time.perf_counter() - begun, 2)


def run(cfg: Config) -> Iterator[tuple[str, Any]]:
    """What is found, by name, as it is found."""
    plain, dots = (candidates(tasks_of(cfg, dot, -(-cfg.n // EACH), 1), cfg.n) for dot in (False, True))
    groups = [(task, f"{source}\n# {i}\n") for task, source in plain[: cfg.n // 8] for i in range(8)]
    suite = [(case.task, re.sub(r"^# .*\n", "", case.source)) for case in read("honest")]
    executor, seconds = started(cfg)
    with executor:
        yield from {"workers": executor.workers, "start_seconds": seconds}.items()
        for name, pairs in {
            "maps_and_reductions": plain,
            "dots": dots,
            "groups_of_8": groups,
            "suite": suite,
        }.items():
            yield name, measure(executor, pairs)
    if cfg.device == "cuda":
        with started(cfg, timed=True)[0] as executor:
            yield "timed_maps_and_reductions", measure(executor, plain)
            yield "timed_dots", measure(executor, dots)
    if cfg.fresh and cfg.device == "cuda":
        with started(cfg, "process", "none")[0] as executor:
            yield "fresh_process_each", measure(executor, (plain[: cfg.fresh] + dots[: cfg.fresh])[::2])


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    load = round(os.getloadavg()[0], 2)
    results = {
        "command": " ".join(["python -m bench.executor_throughput", *sys.argv[1:]]),
        "environment": environment() | {"device": cfg.device},
        "load": load,
    }
    for name, value in run(cfg):
        results[name] = value
        print(f"{name}: {json.dumps(value, indent=2)}", flush=True)
        if cfg.out:
            write_json(Path(cfg.out), results)
    sets = [v for v in results.values() if isinstance(v, dict) and "statuses" in v]
    return 0 if all(set(s["statuses"]) <= {"correct", "unsupported"} for s in sets) else 1


if __name__ == "__main__":
    sys.exit(main())
