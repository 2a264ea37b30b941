"""How far the sampler's recorded logprobs are from the trainer's on a real model, and what each correction leaves of it.

    python -m bench.mismatch --model SmolLM2-135M-Instruct --dtype bf16 --out results/mismatch.json

Tokens are drawn by the sampler (one token at a time, paged cache) and scored by the trainer (packed, fused head) with the
same weights, so that in exact arithmetic nothing would be left. The true importance weight of a token is
r = exp(trainer - sampler), of a sequence the product; a loss that multiplies by w leaves log(r / w) uncorrected.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import environment
from nanotriton import config
from nanotriton.attention import packed
from nanotriton.grpo import mismatch
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.model import ModelError
from nanotriton.sampler import Request, Sampler
from nanotriton.tasks.prompt import build_prompt
from nanotriton.tasks.synthetic import generate
from nanotriton.tokenizer import Tokenizer
from nanotriton.weights import load_model

MODES = ("none", "bypass", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


@dataclass
class Config:
    model: str = ""  # a Hugging Face folder or hub id
    dtype: Literal["fp32", "bf16"] = "bf16"  # of weights and computation
    prompts: Annotated[int, "> 0"] = 8  # synthetic tasks
    n: Annotated[int, "> 0"] = 4  # samples of each
    max_tokens: Annotated[int, "> 0"] = 64  # of a sample
    high: Annotated[float, "> 1"] = 2.0  # upper bound of the corrections
    low: Annotated[float, ">= 0"] = 0.5  # lower bound of the corrections
    out: str = ""  # a JSON file to write


@torch.no_grad()
def main(cfg: Config) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[cfg.dtype]
    try:
        tokenizer = Tokenizer(cfg.model)
        model, _ = load_model(cfg.model, dtype, device)
    except ModelError as error:
        config.die(error)
    prompts = [build_prompt(task, tokenizer) for task in generate("rl", cfg.prompts, seed=0)]
    requests = [Request(p, n=cfg.n, max_tokens=cfg.max_tokens, stop_ids=tokenizer.eos_ids) for p in prompts]
    groups = Sampler(model, valid_vocab=tokenizer.vocab_size).generate(requests)
    trainer, rollout, owner = [], [], []
    for prompt, sample in ((p, s) for p, group in zip(prompts, groups) for s in group):
        ids = torch.tensor(prompt + sample.ids, device=device)
        attend = packed(torch.tensor([0, len(ids)], dtype=torch.int32, device=device), len(ids))
        hidden = model(ids, torch.arange(len(ids), device=device), attend)[len(prompt) - 1 : -1]
        trainer.append(
            token_logprobs(hidden, model.head_weight, ids[len(prompt) :], valid_vocab=tokenizer.vocab_size)[
                0
            ].cpu()
        )
        rollout.append(torch.tensor(sample.logprobs))
        owner.append(torch.full((len(sample.ids),), len(owner)))
    trainer, rollout, owner = (torch.cat(x) for x in (trainer, rollout, owner))
    gap = trainer - rollout
    report = environment() | {
        "command": f"python -m bench.mismatch --model {Path(cfg.model).name} --dtype {cfg.dtype} --prompts {cfg.prompts} --n {cfg.n} "
        f"--max-tokens {cfg.max_tokens} --high {cfg.high} --low {cfg.low}",
        "tokens": len(gap),
        "mean_gap": gap.abs().mean().item(),
        "max_gap": gap.abs().max().item(),
        "mean_ratio": gap.exp().mean().item(),
        "left": {},
    }
    for mode in MODES:
        old, weight = mismatch(
            trainer, rollout, torch.ones_like(owner), owner, mode, high=cfg.high, low=cfg.low
        )
        if weight is None:  # the loss's ratio is exp(logp - old): with the sampler's old, r is in it
            weight = (trainer - old).exp()
        true = (
            torch.zeros(int(owner.max()) + 1).index_add_(0, owner, gap)[owner]
            if mode.startswith("sequence")
            else gap
        )
        kept = weight > 0
        left = (true - weight.log())[kept].abs()
        report["left"][mode] = {
            "mean": left.mean().item(),
            "max": left.max().item(),
            "kept": kept.float().mean().item(),
        }
    print(json.dumps(report, indent=1))
    if cfg.out:
        Path(cfg.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(config.parse(Config))
