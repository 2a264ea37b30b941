"""How far are the sampler's recorded logprobs from the trainer's, and what do corrections leave?

    python -m bench.speed.mismatch --model SmolLM2-135M-Instruct --dtype bf16 --out results/mismatch.json

Tokens of a real model are drawn by the sampler (one token at a time, from a paged cache) and scored by the
trainer (packed, with the fused head) with the same weights, so that in exact arithmetic nothing would be
left. The true importance weight of a token is r = exp(trainer - sampler), and that of a sequence is the
product of its tokens'. A loss that multiplies by w leaves log(r / w) uncorrected.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench.results import environment, write_json
from nanotriton import config
from nanotriton.grpo import mismatch
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.sampler.sampler import Request, Sampler
from nanotriton.tasks.prompt import build_prompt
from nanotriton.tasks.synthetic import generate
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model_config import ModelError
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import load_model

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
def sample_and_score(cfg: Config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(trainer's logprobs [N], sampler's logprobs [N], number of each token's sequence [N])."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[cfg.dtype]
    try:
        tokenizer = Tokenizer(cfg.model)
        model, _ = load_model(cfg.model, dtype, device)
    except ModelError as error:
        config.die(error)
    prompts = [build_prompt(task, tokenizer) for task in generate("rl", cfg.prompts, seed=0)]
    requests = [Request(p, n=cfg.n, max_tokens=cfg.max_tokens, stop_ids=tokenizer.eos_ids) for p in prompts]
    with Sampler(model, valid_vocab=tokenizer.vocab_size) as sampler:
        groups = sampler.generate(requests)
    pairs = [(prompt, sample) for prompt, group in zip(prompts, groups, strict=True) for sample in group]
    trainer, sampler, sequence = [], [], []
    for number, (prompt, sample) in enumerate(pairs):
        ids = torch.tensor(prompt + sample.ids, device=device)
        attend = packed(torch.tensor([0, len(ids)], dtype=torch.int32, device=device), len(ids))
        hidden = model(ids, torch.arange(len(ids), device=device), attend)[len(prompt) - 1 : -1]
        targets = ids[len(prompt) :]
        logp, _ = token_logprobs(hidden, model.head_weight, targets, valid_vocab=tokenizer.vocab_size)
        trainer.append(logp.cpu())
        sampler.append(torch.tensor(sample.logprobs))
        sequence.append(torch.full((len(sample.ids),), number))
    return torch.cat(trainer), torch.cat(sampler), torch.cat(sequence)


def left_by(
    mode: str, trainer: torch.Tensor, sampler: torch.Tensor, sequence: torch.Tensor, cfg: Config
) -> dict[str, float]:
    """How much of the gap one correction leaves, in nats, and the share of tokens that it keeps."""
    gap = trainer - sampler  # [N], log r of each token
    mask = torch.ones_like(sequence)
    old, weight = mismatch(trainer, sampler, mask, sequence, mode, high=cfg.high, low=cfg.low)
    if weight is None:  # the loss's ratio is exp(logp - old): with the sampler's logprobs as old, r is in it
        weight = (trainer - old).exp()
    true = gap
    if mode.startswith("sequence"):
        sums = torch.zeros(int(sequence.max()) + 1).index_add_(0, sequence, gap)
        true = sums[sequence]
    kept = weight > 0
    left = (true - weight.log())[kept].abs()
    return {"mean": left.mean().item(), "max": left.max().item(), "kept": kept.float().mean().item()}


def main(cfg: Config) -> None:
    trainer, sampler, sequence = sample_and_score(cfg)
    gap = trainer - sampler
    # the model's name is enough: its path is this machine's
    options = f"--model {Path(cfg.model).name} --dtype {cfg.dtype} --prompts {cfg.prompts} --n {cfg.n}"
    bounds = f"--max-tokens {cfg.max_tokens} --high {cfg.high} --low {cfg.low}"
    report = environment() | {
        "command": f"python -m bench.speed.mismatch {options} {bounds}",
        "tokens": len(gap),
        "mean_gap": gap.abs().mean().item(),
        "max_gap": gap.abs().max().item(),
        "mean_ratio": gap.exp().mean().item(),
        "left": {mode: left_by(mode, trainer, sampler, sequence, cfg) for mode in MODES},
    }
    print(json.dumps(report, indent=1))
    if cfg.out:
        write_json(cfg.out, report)


if __name__ == "__main__":
    main(config.parse(Config))
