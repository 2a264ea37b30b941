"""Do a folder of tasks tell right from wrong? What KernelBench's check lets pass, and what ours does.

    python -m bench.weak_tasks --tasks KernelBench/level1 KernelBench/level2 --device cuda --out results/weak_tasks.json
    python -m bench.weak_tasks --tasks KernelBench/level1 --shrink 32 256 2048 0 --seconds 15    # on a CPU: as large as is quick enough

For each task: is it found weak, or no question, by the self-tests alone (they know no names)? Does the reference pass against itself on
every trial? Which answers that compute nothing (zeros, ones, their mean, an input), or only half of it (the reference on the first half of
every input, taken twice), pass all our trials, and which pass KernelBench's allclose on its own draws?
"""

import ast
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import environment
from bench.journal import write_json
from nanotriton import config, log
from nanotriton.executor.common import probe
from nanotriton.executor.judge.compare import kernelbench_allclose
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.judge.trial import judge_trial
from nanotriton.executor.judge.worker import ALLOCATOR
from nanotriton.plan.trees import leaves, mapped, tensors
from nanotriton.tasks.task import Task, load_tasks
from nanotriton.verdict import Fault

QUICK = 6  # a larger size is tried where one took less than this share of the limit


@dataclass
class Config:
    tasks: list[str] = field(default_factory=list)  # folders or files of tasks
    device: Literal["cpu", "cuda"] = "cpu"  # where references run
    # cap module-level integers of the tasks at this; 0: leave them; several: from small to large
    shrink: list[int] = field(default_factory=lambda: [0])
    # for each task, which then has a process of its own (CPU only); 0: no limit
    seconds: Annotated[float, ">= 0"] = 0.0
    memory_gib: Annotated[float, "> 0"] = 8.0  # for each task, where it has a process of its own
    out: str = ""  # JSON file for the results; empty: print only

    def validate(self) -> None:
        if self.seconds and self.device != "cpu":
            raise config.ConfigError("--seconds: only on a CPU can a task have a process of its own")


def shrunk(task: Task, cap: int) -> Task:
    """The task with every integer of its module-level assignments capped: another task, quick enough for a CPU. 0: as it is."""
    if not cap:
        return task
    tree = ast.parse(task.source)
    for node in (
        n for statement in tree.body if isinstance(statement, ast.Assign) for n in ast.walk(statement)
    ):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = min(node.value, cap)
    return Task(task.name, ast.unparse(tree))


def mean_answer(reference: Reference) -> float:
    """The mean of the answer to one draw: what a constant would be set to."""
    own = reference.run(reference.inputs("plain", 1), 1)
    return next((t.double().mean().item() for t in tensors(own) if not t.is_complex()), 0.0)


HALF = "half of every input"


def halved(x):
    """The first half along the first dimension, taken twice: of the same shape, and as good a sample of random numbers."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.dim() or len(x) < 2:
        return x
    n = len(x) // 2
    return torch.cat([x[:n], x[:n], x[2 * n :]])


def fakes(reference: Reference, inputs: list, seed: int, mean: float) -> dict[str, Callable]:
    """Answers that compute nothing, or half, by name: functions of the right one."""
    found: dict[str, Callable] = {
        "zeros": lambda own: mapped(own, torch.zeros_like),
        "ones": lambda own: mapped(own, torch.ones_like),
        "mean": lambda own: mapped(own, lambda t: torch.full_like(t, mean)),
        HALF: lambda own: reference.run(mapped([halved(x) for x in inputs], torch.clone), seed),
    }
    return found | {
        f"input {i}": lambda own, x=x: x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)
    }


def passing(reference: Reference, name: str, mean: float) -> bool:
    """Whether a fake passes every trial."""
    for trial in reference.trials(b"bench", name):
        try:
            judge_trial(
                reference,
                trial,
                lambda inputs, seed: (
                    fakes(reference, inputs, seed, mean)[name](
                        reference.run(mapped(inputs, torch.clone), seed)
                    ),
                    {},
                ),
            )
        except Fault:
            return False
    return True


def examine(task: Task, device: str) -> dict:
    row = {
        "task": task.name,
        "status": "ok",
        "message": "",
        "reference": "",
        "pass_ours": [],
        "pass_kernelbench": [],
    }
    try:
        return row | look(Reference(task, device))
    except Fault as fault:
        return row | {"status": fault.status, "message": fault.message}
    except torch.OutOfMemoryError:
        return row | {"status": "memory_limit", "message": "the GPU's memory"}
    finally:
        if device == "cuda":
            gc.collect()  # cycles hold tensors of gigabytes, and are few: the collector would come late
            torch.cuda.empty_cache()


def look(reference: Reference) -> dict:
    """Does the reference pass, and which fakes do?"""
    row: dict = {"pass_ours": [], "pass_kernelbench": []}
    try:
        for trial in reference.trials(b"bench", "reference"):
            judge_trial(
                reference, trial, lambda inputs, seed: (reference.run(mapped(inputs, torch.clone), seed), {})
            )
        row["reference"] = "passes"
    except Fault as fault:
        row["reference"] = f"{fault.status}: {fault.message}"
    mean = mean_answer(reference)
    row["pass_ours"] = [
        name
        for name in fakes(reference, reference.inputs("plain", 42), 42, mean)
        if passing(reference, name, mean)
    ]
    inputs = reference.inputs("plain", 42)
    own = reference.run(mapped(inputs, torch.clone), 42)
    for name, make in fakes(reference, inputs, 42, mean).items():
        fake = make(own)
        same_tree = [w for w, _ in leaves(fake)] == [w for w, _ in leaves(own)]
        if same_tree and kernelbench_allclose(fake, own):
            row["pass_kernelbench"].append(name)
    return row


def examine_apart(task: Task, cfg: Config) -> dict:
    """`examine` in a process of its own, under the limits."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            limit = int(cfg.memory_gib * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            os.write(write, json.dumps(examine(task, cfg.device)).encode())  # fits into a pipe
        except BaseException as error:
            print(f"{task.name}: {error}", file=sys.stderr)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        done = select.select([file], [], [], cfg.seconds)[0]
        if not done:
            os.kill(pid, signal.SIGKILL)
        data = file.read()
    os.waitpid(pid, 0)
    if data:
        return json.loads(data)
    status, message = (
        ("memory_limit", f"more than {cfg.memory_gib:g} GiB")
        if done
        else ("timeout", f"more than {cfg.seconds:g} s")
    )
    return {
        "task": task.name,
        "status": status,
        "message": message,
        "reference": "",
        "pass_ours": [],
        "pass_kernelbench": [],
    }


def largest(task: Task, cfg: Config) -> dict:
    """The task at the largest of the sizes that it can be examined at: a larger one is tried where the one before was quick."""
    row: dict = {}
    for cap in cfg.shrink:
        start = time.perf_counter()
        tried = examine_apart(shrunk(task, cap), cfg) | {"shrink": cap}
        if row and tried["status"] in ("memory_limit", "timeout"):
            break
        row = tried
        if time.perf_counter() - start > cfg.seconds / QUICK:
            break
    return row


def main() -> None:
    cfg = config.parse(Config)
    try:
        tasks = [task for path in cfg.tasks for task in load_tasks(path)]
    except ValueError as error:
        config.die(error)
    if cfg.device == "cuda":
        os.environ.update(ALLOCATOR | os.environ)  # a user's own setting stays
    examine(Task(**probe.TASK), cfg.device)  # what is imported late: once, and not in every process
    rows, start = [], time.perf_counter()
    for task in log.bar(tasks, desc="tasks"):
        begun = time.perf_counter()
        with torch.no_grad():
            rows.append(
                largest(task, cfg)
                if cfg.seconds
                else examine(shrunk(task, cfg.shrink[-1]), cfg.device) | {"shrink": cfg.shrink[-1]}
            )
        row = rows[-1]
        row["seconds"] = round(time.perf_counter() - begun, 1)
        if (
            row["status"] != "ok"
            or row["pass_ours"]
            or row["pass_kernelbench"]
            or row["reference"] != "passes"
        ):
            print(
                f"{row['task']}: {row['status']} {row['message'][:120]} reference {row['reference'] or '-'}; "
                f"pass ours {row['pass_ours']}, KernelBench's {row['pass_kernelbench']}",
                flush=True,
            )
        if cfg.out:
            write(cfg, rows, time.perf_counter() - start)
    print(counts(rows, time.perf_counter() - start))


def counts(rows: list[dict], seconds: float) -> dict[str, int | float]:
    asked = [r for r in rows if r["status"] == "ok"]
    weak, left_out = (
        sum(r["status"] in statuses for r in rows)
        for statuses in (("weak_task",), ("memory_limit", "timeout"))
    )
    return {
        "tasks": len(rows),
        "weak": weak,
        "no question": len(rows) - len(asked) - weak - left_out,
        "left out": left_out,
        "reference passes": sum(r["reference"] == "passes" for r in asked),
        "a fake passes ours": sum(bool(r["pass_ours"]) for r in asked),
        "a fake passes KernelBench's": sum(bool(r["pass_kernelbench"]) for r in asked),
        "seconds": round(seconds, 1),
    }


def write(cfg: Config, rows: list[dict], seconds: float) -> None:
    """What is known so far, after every task."""
    note = "a task with shrink > 0 is a smaller one than the benchmark's: its sizes are capped at that"
    limits = {
        "note": note,
        "shrink": cfg.shrink,
        "seconds": cfg.seconds,
        "memory_gib": cfg.memory_gib if cfg.seconds else None,
    }
    write_json(
        Path(cfg.out),
        {"environment": environment(), **limits, "counts": counts(rows, seconds), "tasks": rows},
    )


if __name__ == "__main__":
    main()
