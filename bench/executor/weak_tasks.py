"""Can the tasks of a folder tell right from wrong? What do KernelBench's check and ours let pass?

    python -m bench.executor.weak_tasks --tasks KernelBench/level1 --device cuda --out results/weak_tasks.json
    python -m bench.executor.weak_tasks --tasks KernelBench/level1 --shrink 32 256 2048 0 --seconds 15

The second line is for a CPU: each task is examined as large as is quick enough there. For each task three
things are asked. Do the judge's self-tests, which know no names, find it weak, or no question at all? Does
the reference pass against itself on every trial? Which fakes pass all our trials, and which pass
KernelBench's allclose on its own draws? A fake is an answer that computes nothing (zeros, ones, their mean,
an input), or half: the reference on the first half of every input, taken twice.
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
from typing import Annotated, Literal

import torch

from bench.results import command, environment, write_json
from nanotriton import config, log
from nanotriton.executor.common import probe
from nanotriton.executor.judge.comparison.compare import kernelbench_allclose
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.start import ALLOCATOR
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.plan.trees import leaves, mapped, tensors
from nanotriton.tasks.task import Task, find_tasks
from nanotriton.verdict import Fault

QUICK = 6  # a larger size is tried if one took less than the limit divided by this
HALF = "half of every input"


@dataclass
class Config:
    tasks: list[str] = field(default_factory=list)  # folders or files of tasks
    device: Literal["cpu", "cuda"] = "cpu"  # where references run
    # cap module-level integers of the tasks at this (0: leave them); several, from small to large: try each
    shrink: list[int] = field(default_factory=lambda: [0])
    # for each task, which then has a process of its own (on a CPU only); 0: no limit
    seconds: Annotated[float, ">= 0"] = 0.0
    memory_gib: Annotated[float, "> 0"] = 8.0  # for each task, where it has a process of its own
    out: str = ""  # JSON file for the results; empty: print only

    def validate(self) -> None:
        if self.seconds and self.device != "cpu":
            raise config.ConfigError("--seconds: only on a CPU can a task have a process of its own")


def shrunk(task: Task, cap: int) -> Task:
    """Another task, quick enough for a CPU: every integer of the module-level assignments is at most `cap`.

    A cap of 0 leaves the task as it is.
    """
    if not cap:
        return task
    tree = ast.parse(task.source)
    for statement in tree.body:
        for node in ast.walk(statement) if isinstance(statement, ast.Assign) else ():
            if isinstance(node, ast.Constant) and type(node.value) is int:
                node.value = min(node.value, cap)
    return Task(task.name, ast.unparse(tree))


def mean_answer(reference: Reference) -> float:
    """The mean of the answer to one draw, which is the best constant to answer with."""
    own = reference.run(reference.inputs.draw("plain", 1), 1)
    return next((t.double().mean().item() for t in tensors(own) if not t.is_complex()), 0.0)


def halved(x):
    """The first half along the first dimension, taken twice: as good a sample of random numbers.

    What has no two rows of floating-point numbers is returned as it is.
    """
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.dim() or len(x) < 2:
        return x
    n = len(x) // 2
    return torch.cat([x[:n], x[:n], x[2 * n :]])


def fakes(reference: Reference, inputs: list, seed: int, mean: float) -> dict[str, Callable]:
    """{a fake's name: a function from the right answer to the fake one}."""
    found: dict[str, Callable] = {
        "zeros": lambda own: mapped(own, torch.zeros_like),
        "ones": lambda own: mapped(own, torch.ones_like),
        "mean": lambda own: mapped(own, lambda t: torch.full_like(t, mean)),
        HALF: lambda own: reference.run(mapped([halved(x) for x in inputs], torch.clone), seed),
    }
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            found[f"input {i}"] = lambda own, x=x: x
    return found


def passing(reference: Reference, name: str, mean: float) -> bool:
    """Whether a fake passes every trial."""

    def fake(inputs: list, seed: int) -> tuple:
        own = reference.run(mapped(inputs, torch.clone), seed)
        return fakes(reference, inputs, seed, mean)[name](own), {}

    try:
        for trial in reference.trials(b"bench", name):
            judge_trial(reference, trial, fake)
    except Fault:
        return False
    return True


EMPTY = {"status": "ok", "message": "", "reference": "", "pass_ours": [], "pass_kernelbench": []}


def examine(task: Task, device: str) -> dict:
    """The row of one task, of EMPTY's form."""
    row = {"task": task.name, **EMPTY}
    try:
        return row | look(Reference(task, device))
    except Fault as fault:
        return row | {"status": fault.status, "message": fault.message}
    except torch.OutOfMemoryError:
        return row | {"status": "memory_limit", "message": "the GPU's memory"}
    finally:
        if device == "cuda":
            # Cycles of references hold gigabytes of tensors. They are few, so the collector would come late.
            gc.collect()
            torch.cuda.empty_cache()


def look(reference: Reference) -> dict:
    """Does the reference pass, and which fakes do?"""

    def itself(inputs: list, seed: int) -> tuple:
        return reference.run(mapped(inputs, torch.clone), seed), {}

    found = "passes"
    try:
        for trial in reference.trials(b"bench", "reference"):
            judge_trial(reference, trial, itself)
    except Fault as fault:
        found = f"{fault.status}: {fault.message}"
    mean = mean_answer(reference)
    names = fakes(reference, reference.inputs.draw("plain", 42), 42, mean)
    ours = [name for name in names if passing(reference, name, mean)]
    return {"reference": found, "pass_ours": ours, "pass_kernelbench": passing_kernelbench(reference, mean)}


def passing_kernelbench(reference: Reference, mean: float) -> list[str]:
    """The fakes that pass KernelBench's allclose on one of its own draws."""
    inputs = reference.inputs.draw("plain", 42)
    own = reference.run(mapped(inputs, torch.clone), 42)
    found = []
    for name, make in fakes(reference, inputs, 42, mean).items():
        fake = make(own)
        same_tree = [path for path, _ in leaves(fake)] == [path for path, _ in leaves(own)]
        if same_tree and kernelbench_allclose(fake, own):
            found.append(name)
    return found


def examine_apart(task: Task, cfg: Config) -> dict:
    """`examine` in a process of its own, under the limits."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            limit = int(cfg.memory_gib * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            os.write(write, json.dumps(examine(task, cfg.device)).encode())  # a row fits into a pipe
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
    row = {"task": task.name, **EMPTY}
    if done:  # it died without a word, as it does where there is no memory
        return row | {"status": "memory_limit", "message": f"more than {cfg.memory_gib:g} GiB"}
    return row | {"status": "timeout", "message": f"more than {cfg.seconds:g} s"}


def largest(task: Task, cfg: Config) -> dict:
    """The row of the task at the largest size that it can be examined at.

    A larger size is tried if the one before was quick.
    """
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


def worth_telling(row: dict) -> bool:
    fine = row["status"] == "ok" and row["reference"] == "passes"
    return not fine or bool(row["pass_ours"] or row["pass_kernelbench"])


def main() -> None:
    cfg = config.parse(Config)
    try:
        found = [find_tasks(path) for path in cfg.tasks]
    except ValueError as error:
        config.die(error)
    tasks = [task for some, _ in found for task in some]
    for name, reason in (item for _, others in found for item in others.items()):
        print(f"{name}: {reason}", file=sys.stderr)
    if cfg.device == "cuda":
        os.environ.update(ALLOCATOR | os.environ)  # a user's own setting stays
    examine(Task(**probe.TASK), cfg.device)  # so that what is imported late is not imported in every process
    rows, start = [], time.perf_counter()
    for task in log.bar(tasks, desc="tasks"):
        begun = time.perf_counter()
        with torch.no_grad():
            if cfg.seconds:
                row = largest(task, cfg)
            else:
                cap = cfg.shrink[-1]
                row = examine(shrunk(task, cap), cfg.device) | {"shrink": cap}
        rows.append(row | {"seconds": round(time.perf_counter() - begun, 1)})
        if worth_telling(row):
            print(
                f"{row['task']}: {row['status']} {row['message'][:120]} reference {row['reference'] or '-'}; "
                f"pass ours {row['pass_ours']}, KernelBench's {row['pass_kernelbench']}",
                flush=True,
            )
        if cfg.out:
            write(cfg, rows, time.perf_counter() - start)
    print(counts(rows, time.perf_counter() - start))


def counts(rows: list[dict], seconds: float) -> dict[str, int | float]:
    """How many tasks of each kind. seconds: since the start."""
    asked = [r for r in rows if r["status"] == "ok"]
    weak = sum(r["status"] == "weak_task" for r in rows)
    left_out = sum(r["status"] in ("memory_limit", "timeout") for r in rows)
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
    """Write what is known so far; called after every task."""
    results = {
        "command": command("bench.executor.weak_tasks"),
        "environment": environment(),
        "note": "a task with shrink > 0 is a smaller one than the benchmark's: its sizes are capped at that",
        "shrink": cfg.shrink,
        "seconds": cfg.seconds,
        "memory_gib": cfg.memory_gib if cfg.seconds else None,
        "counts": counts(rows, seconds),
        "tasks": rows,
    }
    write_json(cfg.out, results)


if __name__ == "__main__":
    main()
