"""Training at scale with random weights: SFT's MFU, a GRPO step's time by part, an 8B on one GPU.

    torchrun --nproc-per-node 4 -m -- bench.speed.training --what sft --shape 8b --out results/sft_8b.json
    python -m bench.speed.training --what sft --shape 0.6b
    torchrun --nproc-per-node 4 -m -- bench.speed.training --what grpo --shape 8b --samples 64 --tokens 1024
    python -m bench.speed.training --what one-gpu --shape 8b
    python -m bench.speed.training --what compare --shape 0.6b --replay s.json --out one.json
    torchrun --nproc-per-node 2 -m -- bench.speed.training --what compare --shape 0.6b --replay s.json \\
        --against one.json

What is timed is train_sft.sft_step and train_grpo.grpo_step as they are. A model of random weights samples
noise, so the executor is given other candidates instead (stand_ins.py). `compare` uses the samples that
its first run drew, as two batch shapes round differently in bf16, and one token drawn otherwise changes all
that follow.

MFU (model FLOPs utilisation) counts what the mathematics needs, once, over the card's dense bf16 peak: 6
FLOPs a parameter and token for layers and head (the embedding is a lookup), and 6 * length * heads * head_dim
a layer and token for causal attention. Recomputed activations count as nothing.
"""

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch.distributed.tensor import DTensor

import train_grpo
import train_sft
from bench.results import command, environment, write_json
from bench.speed.sampling import QWEN3, SHAPES
from bench.speed.stand_ins import GROUP, RecordedSampler, StandInExecutor, StandInTokenizer, tasks_and_pairs
from nanotriton import config, grpo
from nanotriton.executor.executor import Executor
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import local
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World
from nanotriton.reward.reward import RewardFunction, reward
from nanotriton.runs.run import make_executor, make_sampler, sync_weights
from nanotriton.sampler.sampler import Sampler
from nanotriton.tasks.task import Task
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.weights import shard_rows
from nanotriton.verdict import Verdict

TINY = dict(
    model_type="qwen3",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    qk_norm=True,
    max_position_embeddings=4096,
)
LLAMA = dict(
    model_type="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    rope_theta=5e5,
    max_position_embeddings=131072,
)
MODELS = {"tiny": TINY, "0.6b": QWEN3 | SHAPES["0.6b"], "8b": QWEN3 | SHAPES["8b"], "llama-8b": LLAMA}
# shape: (sequences a step and GPU, tokens a microbatch)
WORK = {"tiny": (4, 256), "0.6b": (32, 32768), "8b": (16, 4096), "llama-8b": (16, 4096)}
PEAK = {"H100": 989.4e12, "H200": 989.4e12}  # dense bf16 FLOP/s of the SXM cards, NVIDIA's data sheets


@dataclass
class Config:
    # one-gpu: SFT and GRPO with adam8; compare: a step's loss, reward and gradient norm
    what: Literal["sft", "grpo", "one-gpu", "compare"] = "sft"
    shape: Literal["tiny", "0.6b", "8b", "llama-8b"] = "8b"  # Qwen3's, Llama-3.1's, or one for a CPU
    length: Annotated[int, ">= 2"] = 4096  # sft: tokens of a sequence
    sequences: Annotated[int, ">= 0"] = 0  # sft: sequences a step and GPU; 0: 16 for 8B, 32 for 0.6B
    samples: Annotated[int, ">= 8"] = 64  # grpo: samples a step, over all ranks, 8 of each prompt
    tokens: Annotated[int, ">= 1"] = 1024  # grpo: tokens of every sample
    prompt: Annotated[int, ">= 1"] = 512  # grpo: tokens of a prompt
    # tokens of one forward and backward; 0: for sft 4,096 (8B) or 32,768 (0.6B), else 16,384
    micro_tokens: Annotated[int, ">= 0"] = 0
    # recompute activations in the backward; auto: if they don't fit, as in training
    recompute: Literal["auto", "yes", "no"] = "auto"
    reshard: Literal["auto", "yes", "no"] = "auto"  # gather layers again for every pass
    defer: Literal["auto", "yes", "no"] = "auto"  # reduce the gradients of embedding and head once a step
    keep_logits: Literal["auto", "yes", "no"] = "auto"  # of the head, for its backward
    warmup: Annotated[int, ">= 1"] = 2  # steps that are not timed
    steps: Annotated[int, ">= 1"] = 2  # steps that are
    profile: bool = False  # sft: print the kernels of one more step
    replay: str = ""  # compare: a file of samples; written where it is missing, else used
    against: str = ""  # compare: the JSON of another run to set this one beside
    out: str = ""  # a JSON file to write


# ---- the model ----


@torch.no_grad()
def randomize(model: Transformer, seed: int = 0) -> Transformer:
    """Fill the model: N(0, 0.02) in matrices, 1 in norms, 0 in biases.

    A tensor is made whole on the device, and each rank keeps its rows. So any number of ranks has the same
    model, and none ever holds all of it.
    """
    for number, (name, p) in enumerate(model.named_parameters()):
        mine, rows = local(p), (0, p.shape[0])
        if p.ndim == 1:
            mine.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        generator = torch.Generator(mine.device).manual_seed(seed * 100_003 + number)
        whole = torch.empty(p.shape, dtype=torch.float32, device=mine.device).normal_(
            0.0, 0.02, generator=generator
        )
        if isinstance(p, DTensor):
            rows = shard_rows(p.shape[0], p.device_mesh.get_local_rank(), p.device_mesh.size())
        mine.copy_(whole[slice(*rows)])
    return model


def make_model(cfg: Config, world: World, optimizer: str, tokens: int, copies: int) -> Transformer:
    """The model as distributed.load makes it, with random values.

    tokens: of a microbatch. copies: how many the sampler holds beside it.
    """
    shape = ModelConfig(**MODELS[cfg.shape])
    auto = distributed.memory_plan(shape, world, optimizer, tokens, copies)
    given = (cfg.reshard, cfg.recompute, cfg.defer, cfg.keep_logits)
    yes = (True, shape.num_hidden_layers, True, True)
    ways = [{"auto": a, "yes": y, "no": type(y)()}[g] for a, y, g in zip(auto, yes, given, strict=True)]
    dtype = torch.bfloat16 if optimizer == "adam8" else torch.float32
    return randomize(distributed.empty(shape, world, dtype, *ways))


# ---- what is measured ----


def flops_per_token(shape: ModelConfig, length: int) -> float:
    """FLOPs of forward and backward for one token in a sequence of `length`, counted as for MFU."""
    heads = shape.num_attention_heads * shape.head_dim
    kv = shape.num_key_value_heads * shape.head_dim
    layer = shape.hidden_size * (2 * heads + 2 * kv + 3 * shape.intermediate_size)  # parameters
    parameters = shape.num_hidden_layers * layer + shape.vocab_size * shape.hidden_size
    return 6 * parameters + 6 * length * heads * shape.num_hidden_layers


def memory(world: World, sampler: Sampler | None = None) -> dict[str, float]:
    """Gigabytes on the fullest rank; nothing on a CPU.

    peak_gb, peak_reserved_gb: torch's since the last `reset`. kv_gb: the KV cache, which torch does not
    manage. gpu_in_use_gb: everything on the GPU, now.
    """
    if world.device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    kv = sampler.kv.page_bytes * (sampler.kv.pages + 1) if sampler else 0
    values = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), kv, total - free]
    peaks = world.all_max(torch.tensor(values, dtype=torch.float64)).tolist()
    return dict(zip(("peak_gb", "peak_reserved_gb", "kv_gb", "gpu_in_use_gb"), (x / 1e9 for x in peaks)))


def reset(world: World) -> None:
    """Wait for all ranks and forget torch's peaks."""
    world.barrier()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def sft(cfg: Config, world: World, model: Transformer, optimizer, micro_tokens: int) -> dict[str, Any]:
    """Steps of train_sft.sft_step on random sequences; every token but the first of a sequence is learned."""
    shape, each = model.config, cfg.sequences or WORK[cfg.shape][0]
    length = min(cfg.length, 64) if cfg.shape == "tiny" else cfg.length
    options = train_sft.Config(micro_tokens=micro_tokens)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(shape.vocab_size, (each * world.world_size, length), generator=generator).tolist()
    batch = [(row[:1], row[1:]) for row in rows]
    tokenizer = StandInTokenizer(shape.vocab_size, 1)

    def step() -> tuple[float, float]:
        """(loss, gradient norm). It ends by reading the loss, which waits for the GPU."""
        return train_sft.sft_step(batch, model, optimizer, options, world, tokenizer)

    for _ in range(cfg.warmup):
        step()
    reset(world)
    start = time.perf_counter()
    for _ in range(cfg.steps):
        loss, norm = step()
    peaks = memory(world)
    world.barrier()
    seconds = (time.perf_counter() - start) / cfg.steps
    speed, peak = each * length / seconds, peak_flops(world)
    if cfg.profile:
        print_profile(step, world)
    return {
        "length": length,
        "sequences_per_gpu": each,
        "micro_tokens": micro_tokens,
        "recompute": model.checkpoint_layers,
        "reshard": getattr(model, "reshard_every_pass", None),
        "defer": getattr(model, "defer_root", None),
        "keep_logits": model.keep_logits,
        "seconds_a_step": seconds,
        "tokens_s_per_gpu": speed,
        "mfu": speed * flops_per_token(shape, length) / peak if peak else None,
        "loss": loss,
        "norm": norm,
        **peaks,
    }


def peak_flops(world: World) -> float | None:
    """The card's dense bf16 FLOP/s; None where it isn't known."""
    if world.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((flops for card, flops in PEAK.items() if card in name), None)


def print_profile(step: Callable[[], object], world: World) -> None:
    """Print the kernels of one step."""
    with torch.profiler.profile() as trace:
        step()
    if world.is_main:
        events = trace.key_averages()
        print(events.table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=70))


def grpo_parts(
    cfg: Config, world: World, model: Transformer, optimizer, executor: Executor, shared: bool, **options
) -> train_grpo.Trainer:
    """What train_grpo.main would hand to its cfg.warmup + cfg.steps steps.

    shared: the sampler reads the trained parameters themselves. options: further options of
    train_grpo.Config.
    """
    steps, prompts = cfg.warmup + cfg.steps, cfg.samples // GROUP
    tasks, pairs = tasks_and_pairs(steps, prompts, "gpu" if world.device.type == "cuda" else "cpu")
    settings = dict(
        prompts=prompts,
        group=GROUP,
        steps=steps,
        epochs=1,
        updates=1,
        lr=1e-6,
        max_tokens=cfg.tokens,
        micro_tokens=cfg.micro_tokens or 16384,
    )
    tokenizer = StandInTokenizer(model.config.vocab_size, cfg.prompt)
    sampler = make_sampler(
        model.config, world, tokenizer, model if shared else None, distributed.moments_to_come(optimizer)
    )
    sync_weights(sampler, model, world)

    def paid(verdict: Verdict, completion: str, task: Task) -> float | None:
        return reward(verdict)

    return train_grpo.Trainer(
        config.make(train_grpo.Config, **settings | options),
        world,
        tasks,
        RewardFunction(paid),
        tokenizer,
        model,
        None,
        optimizer,
        sampler,
        StandInExecutor(executor, pairs),
    )


def grpo_steps(cfg: Config, parts: train_grpo.Trainer) -> dict[str, Any]:
    """Seconds by part of train_grpo.grpo_step, means over steps and ranks.

    Warm-up steps, which compile, capture graphs and make the optimizer's moments, sample fewer tokens. All
    samples end at the same token, so nothing of the reward hides behind sampling: this is the worst case.
    """
    world, whole = parts.world, parts.cfg
    seconds: dict[str, float] = {}
    statuses: Counter = Counter()
    for step in range(cfg.warmup + cfg.steps):
        timed = step >= cfg.warmup
        parts.cfg = whole if timed else dataclasses.replace(whole, max_tokens=min(whole.max_tokens, 128))
        if step == cfg.warmup:
            reset(world)
        done = train_grpo.grpo_step(step, parts)
        if timed:
            statuses.update(e.verdict.status for e in done.episodes)
            for name, s in done.clock.seconds.items():
                seconds[name] = seconds.get(name, 0.0) + s / cfg.steps
    means = world.all_sum(torch.tensor(list(seconds.values()))) / world.world_size
    seconds = dict(zip(seconds, means.tolist(), strict=True))
    total = sum(seconds.values())
    stats = [part for update in done.updates for part in update.stats]
    policy = grpo.summarize(stats, world.all_sum, world.all_max)
    return {
        "samples": cfg.samples,
        "tokens": cfg.tokens,
        "prompt": cfg.prompt,
        "micro_tokens": whole.micro_tokens,
        "recompute": parts.model.checkpoint_layers,
        "reshard": getattr(parts.model, "reshard_every_pass", None),
        "defer": getattr(parts.model, "defer_root", None),
        "keep_logits": parts.model.keep_logits,
        **{f"{name}_s": s for name, s in seconds.items()},
        "step_s": total,
        "reward_share": seconds["reward"] / total,
        "sampled_tokens_s": cfg.samples * cfg.tokens / seconds["sample"],
        "norm": done.updates[-1].norm,
        "ratio": policy["ratio"],
        "ratio_max": policy["ratio_max"],
        "statuses_of_rank_0": dict(statuses),
        **memory(world, parts.sampler),
    }


def compare(cfg: Config, world: World) -> dict[str, Any]:
    """What must not depend on the number of ranks, of one GRPO step with two optimizer steps.

    In the second of the two the ratio is no longer 1.
    """
    cfg = dataclasses.replace(cfg, warmup=1, steps=1)
    model = make_model(cfg, world, "adamw", cfg.micro_tokens or 16384, copies=1)
    optimizer = distributed.adamw(model, 1e-5)
    with make_executor(world, 0) as executor:
        parts = grpo_parts(
            cfg, world, model, optimizer, executor, False, updates=2, lr=1e-5, mismatch="token_truncate"
        )
        if cfg.replay:
            parts.sampler = RecordedSampler(parts.sampler, Path(cfg.replay), world)
        done = train_grpo.grpo_step(0, parts)
    sums = [
        sum(e.reward or 0.0 for e in done.episodes),
        sum(e.verdict.scored for e in done.episodes),
    ]
    total, scored = world.all_sum(torch.tensor(sums, dtype=torch.float64)).tolist()
    row = {
        "replayed": bool(cfg.replay) and parts.sampler.known is not None,
        "loss": sum(update.loss for update in done.updates) / len(done.updates),
        "reward": total / max(scored, 1.0),
    }
    row |= {f"norm_{k + 1}": update.norm for k, update in enumerate(done.updates)}
    if cfg.against:
        other = json.loads(Path(cfg.against).read_text())
        row |= {f"other_{k}": other[k] for k in ("ranks", "loss", "reward", "norm_1", "norm_2")}
        for name in ("loss", "reward"):
            row[f"{name}_difference"] = abs(row[name] - other[name])
        for name in ("norm_1", "norm_2"):
            row[f"{name}_relative_difference"] = abs(row[name] / other[name] - 1)
    return row


def one_gpu(cfg: Config, world: World) -> dict[str, Any]:
    """SFT steps, then GRPO steps of the same model, with adam8 and a sampler that shares its parameters."""
    distributed.check_optimizer("adam8", world)
    micro = cfg.micro_tokens or 16384
    model = make_model(cfg, world, "adam8", micro, copies=0)
    optimizer = distributed.adamw(model, 1e-6)
    cfg = dataclasses.replace(cfg, warmup=1, steps=1, sequences=cfg.sequences or 4)
    row = {f"sft_{k}": v for k, v in sft(cfg, world, model, optimizer, micro).items()}
    with make_executor(world, 0) as executor:
        parts = grpo_parts(cfg, world, model, optimizer, executor, True)
        pairs = zip(parts.sampler.model.parameters(), model.parameters(), strict=True)
        same = all(a is b for a, b in pairs)
        row |= {f"grpo_{k}": v for k, v in grpo_steps(cfg, parts).items()}
    return row | {"sampler_shares_parameters": same}


def measure(cfg: Config, world: World) -> dict[str, Any]:
    """What --what asks for."""
    if cfg.what == "compare":
        return compare(cfg, world)
    if cfg.what == "one-gpu":
        return one_gpu(cfg, world)
    if cfg.what == "sft":
        micro = cfg.micro_tokens or WORK[cfg.shape][1]
        model = make_model(cfg, world, "adamw", micro, copies=0)
        return sft(cfg, world, model, distributed.adamw(model, 1e-6), micro)
    model = make_model(cfg, world, "adamw", cfg.micro_tokens or 16384, copies=1)
    optimizer = distributed.adamw(model, 1e-6)
    with make_executor(world, 0) as executor:
        return grpo_steps(cfg, grpo_parts(cfg, world, model, optimizer, executor, False))


def main(cfg: Config, world: World) -> dict[str, Any]:
    if cfg.samples % GROUP:
        raise config.ConfigError(f"--samples {cfg.samples}: a multiple of {GROUP}")
    started = time.perf_counter()
    found = measure(cfg, world)
    row = {
        **environment(),
        "command": command("bench.speed.training"),
        "what": cfg.what,
        "shape": cfg.shape,
        "ranks": world.world_size,
        **{k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in found.items()},
        "benchmark_s": round(time.perf_counter() - started, 1),
    }
    if world.is_main:
        if cfg.out:
            write_json(cfg.out, row)
        for key, value in row.items():
            print(f"{key:32s} {value}")
    return row


if __name__ == "__main__":
    program(main, config.parse(Config))
