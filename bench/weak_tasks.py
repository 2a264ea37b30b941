"""Do a folder of tasks tell right from wrong? What KernelBench's check lets pass, and what ours does.

    python -m bench.weak_tasks --tasks KernelBench/level1 KernelBench/level2 --device cuda --out results/weak_tasks.json
    python -m bench.weak_tasks --tasks KernelBench/level1 --shrink 8       # every size capped: a rehearsal on a CPU

For each task: is it found weak, or no question, by the self-tests alone (they know no names)? Does the reference pass against itself on
every trial? Which answers that compute nothing (zeros, ones, their mean, an input) pass all our trials, and which pass KernelBench's
allclose on its own draws?
"""

import ast
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import environment
from nanotriton import config, log
from nanotriton.executor.compare import Fault, kernelbench_allclose, leaves
from nanotriton.executor.draws import mapped
from nanotriton.executor.judge import Reference, judge_trial
from nanotriton.tasks.task import Task, load_tasks


@dataclass
class Config:
    tasks: list[str] = field(default_factory=list)  # folders or files of tasks
    device: Literal["cpu", "cuda"] = "cpu"  # where references run
    shrink: Annotated[int, ">= 0"] = 0  # cap module-level integers of the tasks at this; 0: leave them
    out: str = ""  # JSON file for the results; empty: print only


def shrunk(task: Task, cap: int) -> Task:
    """The task with every integer of its module-level assignments capped: another task, quick enough for a CPU."""
    tree = ast.parse(task.source)
    for node in (n for statement in tree.body if isinstance(statement, ast.Assign) for n in ast.walk(statement)):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = min(node.value, cap)
    return Task(task.name, ast.unparse(tree))


def mean_answer(reference: Reference) -> float:
    """The mean of the answer to one draw: what a constant would be set to."""
    own = reference.answer(reference.inputs("plain", 1), 1).own
    return next((t.double().mean().item() for _, t in leaves(own) if isinstance(t, torch.Tensor) and not t.is_complex()), 0.0)


def fakes(inputs: list, own, mean: float) -> dict:
    """Answers that compute nothing, by name."""
    found = {"zeros": mapped(own, torch.zeros_like), "ones": mapped(own, torch.ones_like), "mean": mapped(own, lambda t: torch.full_like(t, mean))}
    return found | {f"input {i}": x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}


def passing(reference: Reference, name: str, mean: float) -> bool:
    """Whether a fake passes every trial."""
    for trial in reference.trials(b"bench", name):
        try:
            judge_trial(reference, trial, lambda inputs, seed: (fakes(inputs, reference.answer(inputs, seed).own, mean)[name], {}))
        except Fault:
            return False
    return True


def examine(task: Task, device: str) -> dict:
    row = {"task": task.name, "status": "ok", "message": "", "reference": "", "pass_ours": [], "pass_kernelbench": []}
    try:
        reference = Reference(task, device)
    except Fault as fault:
        return row | {"status": fault.status, "message": fault.message}
    try:
        for trial in reference.trials(b"bench", "reference"):
            judge_trial(reference, trial, lambda inputs, seed: (reference.answer(inputs, seed).own, {}))
        row["reference"] = "passes"
    except Fault as fault:
        row["reference"] = f"{fault.status}: {fault.message}"
    inputs, mean = reference.inputs("plain", 42), mean_answer(reference)
    own = reference.answer(inputs, 42).own
    for name, fake in fakes(inputs, own, mean).items():
        if passing(reference, name, mean):
            row["pass_ours"].append(name)
        same_tree = [w for w, _ in leaves(fake)] == [w for w, _ in leaves(own)]
        if same_tree and kernelbench_allclose(fake, own):
            row["pass_kernelbench"].append(name)
    return row


def main() -> None:
    cfg = config.parse(Config)
    try:
        tasks = [task for path in cfg.tasks for task in load_tasks(path)]
    except ValueError as error:
        config.die(error)
    rows, start = [], time.perf_counter()
    for task in log.bar(tasks, desc="tasks"):
        with torch.no_grad():
            rows.append(examine(shrunk(task, cfg.shrink) if cfg.shrink else task, cfg.device))
        row = rows[-1]
        if row["status"] != "ok" or row["pass_ours"] or row["pass_kernelbench"] or row["reference"] != "passes":
            print(f"{row['task']}: {row['status']} {row['message'][:120]} reference {row['reference'] or '-'}; "
                  f"pass ours {row['pass_ours']}, KernelBench's {row['pass_kernelbench']}", flush=True)  # fmt: skip
    asked = [r for r in rows if r["status"] == "ok"]
    counts = {
        "tasks": len(rows), "weak": sum(r["status"] == "weak_task" for r in rows), "no question": len(rows) - len(asked) - sum(r["status"] == "weak_task" for r in rows),
        "reference passes": sum(r["reference"] == "passes" for r in asked), "a fake passes ours": sum(bool(r["pass_ours"]) for r in asked),
        "a fake passes KernelBench's": sum(bool(r["pass_kernelbench"]) for r in asked), "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    print(counts)
    if cfg.out:
        Path(cfg.out).write_text(json.dumps({"environment": environment(), "shrink": cfg.shrink, "counts": counts, "tasks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
