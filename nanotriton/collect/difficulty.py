"""How hard tasks are for a model: the share of its answers that is right, as each task's `pass_rate`.

    python -m nanotriton.collect.difficulty data/rl.jsonl --model FOLDER_OR_HUB_ID
    python -m nanotriton.collect.difficulty data/rl.jsonl --model FOLDER --k 16 --device cuda
    python -m nanotriton.collect.difficulty data/rl.jsonl --model FOLDER --least 0.1 --most 0.9 --out x.jsonl

--k answers to each task are sampled and judged, and meta gets pass_rate (null where no answer could be
judged), pass_k and pass_model. --least and --most keep the tasks whose rate lies between them: a group of
samples that are all right, or all wrong, teaches GRPO nothing. Without --out the file itself is written anew.
What is known is kept beside it in .rates.jsonl: the same command continues a run that was stopped.

On a CPU a task is asked and judged with its `small` sizes, if it has any.
"""

import nanotriton  # first, because it says what is supported where something is missing  # noqa: F401

# isort: split

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nanotriton import config


@dataclass
class Config:
    file: str = ""  # rows of {name, task, meta}, as in rl.jsonl; as the first word it needs no flag
    model: str = ""  # Hugging Face folder or hub id of the model that answers
    k: Annotated[int, ">= 1"] = 8  # answers to each task
    out: str = ""  # where the rows go; empty: the file itself
    least: Annotated[float, ">= 0", "<= 1"] | None = None  # lowest rate of a task that is kept; none: all
    most: Annotated[float, ">= 0", "<= 1"] | None = None  # highest rate of a task that is kept; none: all
    temperature: Annotated[float, ">= 0"] = 1.0  # of the answers
    max_tokens: Annotated[int, ">= 1"] = 4096  # longest answer
    seed: Annotated[int, ">= 0"] = 0  # of the answers
    batch: Annotated[int, ">= 1"] = 32  # tasks that are sampled together
    device: Literal["cpu", "cuda"] = "cpu"  # of the model, and where its kernels run
    timeout: Annotated[float, "> 0"] = 10.0  # seconds a candidate may take at each stage

    def validate(self) -> None:
        """ConfigError for options that don't go together."""
        if not self.file or not self.model:
            raise config.ConfigError("python -m nanotriton.collect.difficulty TASKS.jsonl --model FOLDER")
        low, high = self.least or 0.0, 1.0 if self.most is None else self.most
        if low > high:
            raise config.ConfigError(f"--least {low} is above --most {high}")
        if (self.least is not None or self.most is not None) and not self.out:
            raise config.ConfigError("--least and --most leave tasks out: --out FILE is needed too")

    def settings(self) -> dict:
        """What a rate depends on."""
        names = ("model", "k", "temperature", "max_tokens", "seed", "device")
        return {name: getattr(self, name) for name in names}


if __name__ == "__main__":
    # before torch is imported, which takes seconds: --help and a mistake are answered at once
    words = sys.argv[1:]
    if words and not words[0].startswith("-"):
        words = ["--file", *words]
    options = config.parse(Config, words)

import torch

from nanotriton.collect.files import Journal, put_rows
from nanotriton.executor import Executor
from nanotriton.rollout import rollout
from nanotriton.run import check_model
from nanotriton.sampler import Sampler
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks.prompt import build_prompt
from nanotriton.tasks.task import Task, read_rows
from nanotriton.tokenizer import Tokenizer
from nanotriton.weights import load_model


def main(cfg: Config) -> None:
    """Write the file with its rates, and say what came out."""
    try:
        rows = read_rows(cfg.file)
    except ValueError as error:
        raise config.ConfigError(str(error)) from None
    check_model(cfg.model)
    tasks = [Task(row.get("name", f"row {i}"), shown(row, cfg.device)) for i, row in enumerate(rows, 1)]
    journal = Journal(Path((cfg.out or cfg.file) + ".rates.jsonl"))
    key_of = lambda task: json.dumps([task.key, cfg.settings()])
    for task, rate in measure(cfg, [task for task in tasks if key_of(task) not in journal.rows]):
        journal.add({"key": key_of(task), "name": task.name, "rate": rate})
    rates = {task.key: journal.rows[key_of(task)]["rate"] for task in tasks}
    for row, task in zip(rows, tasks):
        said = {"pass_rate": rates[task.key], "pass_k": cfg.k, "pass_model": cfg.model}
        row["meta"] = row.get("meta", {}) | said
    kept = [row for row in rows if between(row["meta"]["pass_rate"], cfg.least, cfg.most)]
    put_rows(Path(cfg.out or cfg.file), kept)
    print(summary([row["meta"]["pass_rate"] for row in rows], len(kept)))


def measure(cfg: Config, tasks: Sequence[Task]) -> Iterator[tuple[Task, float | None]]:
    """(task, its pass rate) for each task, a batch at a time. None: no answer could be judged."""
    if not tasks:
        return
    tokenizer = Tokenizer(cfg.model)
    dtype = torch.bfloat16 if cfg.device == "cuda" else torch.float32
    model, _ = load_model(cfg.model, dtype, cfg.device)
    sampler = Sampler(model.requires_grad_(False), valid_vocab=tokenizer.vocab_size)
    longest = sampler.config.max_position_embeddings
    fits = [len(build_prompt(task, tokenizer)) < longest for task in tasks]
    yield from ((task, None) for task, fit in zip(tasks, fits) if not fit)
    asked = [task for task, fit in zip(tasks, fits) if fit]
    with Executor(device=cfg.device, policy="strict", timeout=cfg.timeout, seed=cfg.seed) as executor:
        for start in range(0, len(asked), cfg.batch):
            batch = asked[start : start + cfg.batch]
            # a task's draws are its own, whichever tasks it is sampled with
            seeds = [
                [seed_of(cfg.seed, Stream.PASS_RATE, int(task.key[:8], 16), 0, j) for j in range(cfg.k)]
                for task in batch
            ]
            groups = rollout(
                batch,
                cfg.k,
                sampler,
                executor,
                tokenizer,
                seeds=seeds,
                temperature=cfg.temperature,
                max_tokens=cfg.max_tokens,
                desc="answers",
            )
            for task, episodes in zip(batch, groups):
                right = [e.verdict.correct for e in episodes if e.verdict.scored]
                yield task, sum(right) / len(right) if right else None


def shown(row: dict, device: str) -> str:
    return row.get("small") or row["task"] if device == "cpu" else row["task"]


def between(rate: float | None, least: float | None, most: float | None) -> bool:
    """Whether a rate lies within limits, which may be None. A rate that isn't known lies within no limits."""
    if least is None and most is None:
        return True
    return rate is not None and (least or 0.0) <= rate <= (1.0 if most is None else most)


def summary(rates: list[float | None], kept: int) -> str:
    known = [rate for rate in rates if rate is not None]
    never, always = sum(rate == 0 for rate in known), sum(rate == 1 for rate in known)
    mean = sum(known) / len(known) if known else 0.0
    return (
        f"{len(rates)} tasks: {never} never right, {len(known) - never - always} sometimes, {always} always, "
        f"{len(rates) - len(known)} not judged; mean pass rate {mean:.3f}; {kept} written"
    )


if __name__ == "__main__":
    from nanotriton.model import ModelError

    try:
        main(options)
    except (config.ConfigError, ModelError) as error:
        config.die(error)
