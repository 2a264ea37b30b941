"""How many distinct candidates a second does the executor judge on this machine, and where does the time go?

    python -m bench.executor.throughput --out results/executor_cpu.json
    python -m bench.executor.throughput --device cuda --n 1024 --fresh 8 --out results/executor_h100.json

Candidates are synthetic tasks' own Triton solutions, which must all come out `correct`. Each task gives 16 of
them, with their kernels renamed, so that each is recorded, compiled and judged. These sets are measured:

    maps_and_reductions         element-wise operations and reductions
    dots                        matrix products (tl.dot)
    groups_of_8                 eight candidates with equal kernels at a time, each with a draw of its own
    groups_with_a_draw          the same with one draw for all of a step, as GRPO submits them
    suite                       the honest kernels of tests/honest, which are written as real ones are, each
                                with a task that no worker knows; on a GPU four times, as the first wait until
                                a worker has loaded what torch needs for an operator
    timed_..., on a GPU         the first two sets with timing, in an executor that has compiled nothing yet
    fresh_process_each, on a GPU   a process and a CUDA context for each candidate, to compare with

A set's figures are the wall time of each stage, as the verdicts report it (stages overlap, so the sum exceeds
the time that passed), the CPU time of each kind of process, and how many of the machine's cores were busy.
The floor is the rate that the cores would allow if nothing but the CPU time of the children (import, record,
compile) counted.
"""

import contextlib
import dataclasses
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

from bench.results import command, environment, write_json
from nanotriton import config
from nanotriton.executor import Executor
from nanotriton.executor.processes import check_card
from nanotriton.executor.sandbox.linux import stat_fields
from nanotriton.tasks.synthetic import generate
from nanotriton.tasks.task import Task
from tests.candidates import read

LEVELS = ("base", "worker", "zygote: forks", "children: import, record, compile")
TICK = os.sysconf("SC_CLK_TCK")
WARM = 2  # candidates a worker, judged before the clock starts so that processes and contexts are there
EACH = 16  # candidates of a task
DOTS = 0.05  # the share of the synthetic tasks that are matrix products, at the least

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
    """CPU time so far of the executor's processes, by kind.

    The CPU time of a process that a child starts, such as ptxas, counts once that process has ended.
    """
    stats = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            fields = stat_fields(str(folder / "stat"))
            if int(fields[2]) in executor.supervisor.groups:
                stats[int(folder.name)] = fields

    def depth(pid: int) -> int:
        """0 for a base process, 1 for its children, and so on."""
        parent = int(stats[pid][1])
        return 1 + depth(parent) if parent in stats else 0

    # Of /proc/PID/stat, behind the name: fields 11 and 12 are a process's own user and system time, 13 and 14
    # those of its ended children.
    total = Counter()
    for pid, fields in stats.items():
        own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        total[LEVELS[min(depth(pid), 3)]] += own / TICK
        if depth(pid) >= 2:  # a compile server has run ptxas
            total[LEVELS[3]] += ended / TICK
    return total


def cores_seconds() -> Counter:
    """Core seconds so far of the whole machine.

    busy: with anybody's work. stolen: taken by another virtual machine of the same host.
    """
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(n) / TICK for n in Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return Counter(busy=user + nice + system + irq + softirq, idle=idle + iowait, stolen=steal)


def measure(executor: Executor, pairs: Pairs, draw: str | None = None) -> dict:
    """The figures of judging (task, source) pairs, all submitted at once. draw: of Executor.submit."""
    cpu = cpu_seconds(executor)
    cores = cores_seconds()
    started = time.perf_counter()
    futures = [executor.submit(task, source, draw) for task, source in pairs]
    verdicts = [future.result() for future in futures]
    seconds = time.perf_counter() - started
    cpu, cores = cpu_seconds(executor) - cpu, cores_seconds() - cores
    stages = Counter()
    for verdict in verdicts:
        stages.update({name: s for name, s in verdict.cost.items() if name != "children_cpu"})

    def each(counter: Counter) -> dict[str, float]:
        """Milliseconds a candidate."""
        return {name: round(1000 * value / len(pairs), 2) for name, value in counter.items()}

    rate = len(pairs) / seconds
    result = {
        "candidates": len(pairs),
        "seconds": round(seconds, 3),
        "per_second": round(rate, 1),
        "statuses": dict(Counter(v.status for v in verdicts)),
    }
    wrong = [
        f"{task.name}: {v.status} at {v.stage}: {v.message}"
        for (task, _), v in zip(pairs, verdicts, strict=True)
        if not v.correct
    ]
    if wrong:
        result["not_correct"] = wrong
    floor = cpu[LEVELS[3]] / len(pairs) / len(os.sched_getaffinity(0))  # seconds a candidate
    if floor:
        result |= {"floor_per_second": round(1 / floor, 1), "of_floor": round(rate * floor, 3)}
    shares = {name: round(s / seconds, 2) for name, s in cores.items()}
    return result | {
        "stage_wall_ms": each(stages),
        "cpu_ms": each(cpu),
        "cpu_ms_total": round(1000 * sum(cpu.values()) / len(pairs), 2),
        "cores": shares,
    }


def candidates(tasks: list[Task], n: int) -> Pairs:
    """n distinct candidates: the tasks' solutions, with kernels renamed so that the compiler knows none."""
    found = []
    for i in range(n):
        task, variant = tasks[i % len(tasks)], i // len(tasks)
        found.append((task, re.sub(r"\bkernel\b", f"kernel_{variant}", task.solution)))
    return found


def honest(number: int) -> Pairs:
    """The kernels of tests/honest. With another number each has another name, and its task another text."""
    found = []
    for case in read("honest"):
        # A first line that is a comment tells the tests what to expect of a kernel; it is no part of it.
        source = re.sub(r"^# .*\n", "", case.source)
        for kernel in re.findall(r"^@triton\.jit[^\n]*\ndef (\w+)", source, re.MULTILINE):
            source = re.sub(rf"(?<![\w.]){kernel}\b", f"{kernel}_{number}", source)
        found.append((dataclasses.replace(case.task, source=f"{case.task.source}\n# {number}\n"), source))
    return found


def tasks_of(cfg: Config, dot: bool, n: int, seed: int) -> list[Task]:
    """n synthetic tasks with a matrix product, or n without."""
    size = "cpu" if cfg.device == "cpu" else "gpu"
    count = int(n / DOTS) if dot else 2 * n  # to draw at a time
    found: list[Task] = []
    while len(found) < n:
        drawn = generate("sft", count, seed, size=size)
        found += [task for task in drawn if (task.meta["ops"][0] == "matmul") == dot]
        seed += 1
    return found[:n]


def started(
    cfg: Config, mode: str | None = None, policy: str = "strict", timed: bool = False
) -> tuple[Executor, float]:
    """(an executor that has begun to work, the seconds that its start took)."""
    begun = time.perf_counter()
    executor = Executor(cfg.device, mode, cfg.workers, policy, cfg.timeout, timed, seed=0)
    others = tasks_of(cfg, False, WARM * executor.workers, seed=1000)
    for future in [executor.submit(task, task.solution) for task in others]:
        future.result()
    return executor, round(time.perf_counter() - begun, 2)


def run(cfg: Config) -> Iterator[tuple[str, Any]]:
    """(name, figures) of each set, as it is measured."""
    count = -(-cfg.n // EACH)  # tasks
    plain = candidates(tasks_of(cfg, False, count, seed=1), cfg.n)
    dots = candidates(tasks_of(cfg, True, count, seed=1), cfg.n)
    groups = [(task, f"{source}\n# {i}\n") for task, source in plain[: cfg.n // 8] for i in range(8)]
    suite = [pair for number in range(4 if cfg.device == "cuda" else 1) for pair in honest(number)]
    sets = {"maps_and_reductions": plain, "dots": dots, "groups_of_8": groups, "suite": suite}
    executor, seconds = started(cfg)
    with executor:
        yield "workers", executor.workers
        yield "start_seconds", seconds
        for name, pairs in sets.items():
            yield name, measure(executor, pairs)
        yield "groups_with_a_draw", measure(executor, groups, "a step")
    if cfg.device == "cuda":
        executor, _ = started(cfg, timed=True)
        with executor:
            yield "timed_maps_and_reductions", measure(executor, plain)
            yield "timed_dots", measure(executor, dots)
    if cfg.fresh and cfg.device == "cuda":
        executor, _ = started(cfg, "process", "none")
        with executor:
            yield "fresh_process_each", measure(executor, (plain[: cfg.fresh] + dots[: cfg.fresh])[::2])


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    load = round(os.getloadavg()[0], 2)
    results = {
        "command": command("bench.executor.throughput"),
        "environment": environment() | {"device": cfg.device},
        "load": load,
    }
    for name, value in run(cfg):
        results[name] = value
        print(f"{name}: {json.dumps(value, indent=2)}", flush=True)
        if cfg.out:
            write_json(cfg.out, results)
    sets = [v for v in results.values() if isinstance(v, dict) and "statuses" in v]
    return 0 if all(set(s["statuses"]) <= {"correct", "unsupported"} for s in sets) else 1


if __name__ == "__main__":
    sys.exit(main())
