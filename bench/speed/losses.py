"""Is every loss sound with every correction of the mismatch between sampler and trainer, on a real model?

    python -m bench.speed.losses --model SmolLM2-135M-Instruct --out results/losses.json

Each pair takes two GRPO steps from the same weights: samples, rewards, an update, the new weights to the
sampler, and all of that again. The reward is a sample's length, so that every group has spread whatever the
model can do, and nothing is executed. A pair is sound if everything is finite and hardly a token is clipped
before the first update: the policy is then still the sampler's, but for the rounding of their arithmetic.
"""

import itertools
import json
import math
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

import torch

import train_grpo
from bench.results import environment, write_json
from nanotriton import config, grpo
from nanotriton.options import LossOptions, TraceOptions
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World
from nanotriton.reward.reward import RewardFunction
from nanotriton.runs.run import Run, sync_weights
from nanotriton.tasks.prompt import DEFAULT
from nanotriton.tasks.sets import task_sets
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

LOSSES = get_args(get_type_hints(train_grpo.Config)["loss"])
MISMATCHES = get_args(get_type_hints(LossOptions)["mismatch"])
STEPS = 2


@dataclass
class Config:
    model: str = ""  # a Hugging Face folder or hub id
    prompts: Annotated[int, "> 0"] = 8  # synthetic tasks a step
    group: Annotated[int, "> 1"] = 8  # samples of each
    max_tokens: Annotated[int, "> 0"] = 64  # of a sample
    lr: Annotated[float, "> 0"] = 1e-6
    kl: Annotated[float, ">= 0"] = 1e-2  # weight of the KL term, which every pair has
    out: str = ""  # also write the rows as JSON here


class NoJudge:
    """In place of the executor: every candidate is wrong, and nothing is run."""

    time = False

    def expect(self, tasks) -> None:
        pass

    def submit(self, task: Task, source: str, draw: str | None = None) -> Future:
        verdict: Future = Future()
        verdict.set_result(Verdict("wrong_value"))
        return verdict


def by_length(verdict: Verdict, completion: str, task: Task) -> float:
    """A reward that differs within a group, between 0 and 1."""
    return (len(completion) % 17) / 16


def pair(trainer: train_grpo.Trainer, start: dict[str, torch.Tensor], loss: str, mismatch: str) -> dict:
    """Two steps with this loss and this correction, from the weights `start`."""
    trainer.cfg.loss = loss
    trainer.cfg.losses.mismatch = mismatch
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(start[name])
    trainer.optimizer.state.clear()
    sync_weights(trainer.sampler, trainer.model, trainer.world)

    done = [train_grpo.grpo_step(step, trainer) for step in range(STEPS)]
    first = grpo.summarize(done[0].updates[0].stats)
    numbers = [value for step in done for update in step.updates for value in (update.loss, update.norm)]
    finite = all(map(math.isfinite, numbers))
    finite &= all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    return {
        "loss": loss,
        "mismatch": mismatch,
        "finite": finite,
        "clipped_before_first_update": first["clip_fraction"],
        "mismatch_kl": first["mismatch_kl"],
        "norm_first": done[0].updates[0].norm,
        "norm_last": done[-1].updates[-1].norm,
    }


def measure(cfg: Config, world: World) -> list[dict]:
    """A row for each pair, which is also printed."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        grpo_config = train_grpo.Config(
            name="losses",
            out=scratch,
            model=cfg.model,
            steps=STEPS,
            prompts=cfg.prompts,
            group=cfg.group,
            max_tokens=cfg.max_tokens,
            lr=cfg.lr,
            losses=LossOptions(kl=cfg.kl),
            trace=TraceOptions(eval_tasks=0),
        )
        tasks, _, test = task_sets(grpo_config)
        run = Run(grpo_config, world, "grpo")
        trainer = train_grpo.make_trainer(
            grpo_config, run, cfg.model, tasks, test, RewardFunction(by_length), DEFAULT
        )
        trainer.executor = NoJudge()
        start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        for loss, mismatch in itertools.product(LOSSES, MISMATCHES):
            row = pair(trainer, start, loss, mismatch)
            rows.append(row)
            print(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}))
    return rows


def main(cfg: Config, world: World) -> None:
    rows = measure(cfg, world)
    sound = [row for row in rows if row["finite"] and row["clipped_before_first_update"] < 0.01]
    print(f"{len(sound)} of {len(rows)} pairs are finite and have under 1% clipped before the first update")
    if cfg.out:
        write_json(cfg.out, environment() | {"model": cfg.model, "rows": rows})


if __name__ == "__main__":
    program(main, config.parse(Config))
