"""Sampling speed with random weights and no early stop, beside transformers, in one process. Needs a GPU, but for `laptop`.

    python -m bench.sampling --shapes 0.6b 8b --loads grouped mixed --out results/sampling.json
    python -m bench.sampling --shapes 0.6b --loads small --engines ours generate continuous
    python -m bench.sampling --shapes 0.6b --loads grouped --profile      # what a decode step's time goes to
    OMP_NUM_THREADS=1 python -m bench.sampling --shapes laptop --out results/sampling_cpu.json      # one core, fp32

The limit is what must be read: all weights at every step, each sample's own keys and values, and each prompt's once for its
group, at the bandwidth of a copy. `limit_ungrouped` counts the prompt for every sample, as other engines read it.
"""

import json
import random
import re
import shlex
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from bench import environment
from bench.decode import copy_bandwidth
from nanotriton import config
from nanotriton.model import ModelConfig, Transformer
from nanotriton.sampler import Request, Sampler

QWEN3 = dict(
    model_type="qwen3",
    vocab_size=151936,
    head_dim=128,
    num_key_value_heads=8,
    max_position_embeddings=40960,
    qk_norm=True,
    rope_theta=1e6,
)
SHAPES = {
    "0.6b": dict(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        tie_word_embeddings=True,
    ),
    "8b": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32),
}

STEPS = 20  # decode steps that are profiled at a time
KINDS = {  # of kernels, by their names
    "products": "nvjet|gemm|cutlass|splitK|_linear",
    "attention": "_prefix_kernel|_tail_kernel|_merge_kernel|_write_kernel|flash",
    "layers": "_rms_norm|_rope|_swiglu",
    "sampling": "_block_kernel|_pick_kernel",
}


@dataclass
class Config:
    # Qwen3's two; laptop: 1M parameters, CPU
    shapes: list[Literal["0.6b", "8b", "laptop"]] = field(default_factory=lambda: ["0.6b"])
    # see `requests`
    loads: list[Literal["grouped", "mixed", "small"]] = field(default_factory=lambda: ["grouped"])
    # the last two are transformers'
    engines: list[Literal["ours", "generate", "continuous"]] = field(default_factory=lambda: ["ours"])
    repeats: int = 1  # timed runs after the warm-up; the fastest counts
    profile: bool = False  # what decode steps take, by kernel, instead
    out: str = ""  # a JSON file to write


def requests(shape: str, load: str) -> list[Request]:
    """grouped: 512 in, 512 out, 16 samples of 32 prompts (8b: of 16). mixed: 256 prompts of 100 to 1,024, as many out.
    small: 256 in, 128 out, one sample of 256 prompts (8b: of 64)."""
    rng = random.Random(0)
    prompt = lambda n: [rng.randrange(10_000) for _ in range(n)]
    if load == "mixed":
        return [
            Request(prompt(rng.randint(100, 1024)), max_tokens=rng.randint(100, 1024)) for _ in range(256)
        ]
    count, n, inside, out = {"grouped": (32, 16, 512, 512), "small": (256, 1, 256, 128)}[load]
    if shape == "8b":
        count //= 2 if load == "grouped" else 4
    return [Request(prompt(inside), n=n, max_tokens=out) for _ in range(count)]


def make_model(shape: str) -> Transformer:
    with torch.device("cuda"):
        model = Transformer(ModelConfig(**QWEN3, **SHAPES[shape]), compute_dtype=torch.bfloat16).to(
            torch.bfloat16
        )
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.02) if parameter.ndim == 2 else parameter.data.fill_(1.0)
    return model.requires_grad_(False)


def weight_bytes(model: Transformer) -> int:
    """What a decode step reads of the weights: all but an untied embedding, of which it reads a row a sample."""
    return sum(p.nbytes for p in model.parameters()) - (
        0 if model.config.tie_word_embeddings else model.model.embed_tokens.weight.nbytes
    )


def seconds_at_limit(model: Transformer, work: list[Request], bandwidth: float) -> tuple[float, float]:
    """(each prompt read once a group, once a sample): seconds to read what the decode steps of `work` must read."""
    c, weights = model.config, weight_bytes(model)
    token = c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * 2
    steps = max(r.max_tokens for r in work) - 1
    tails = sum(r.n * r.max_tokens * (r.max_tokens - 1) // 2 for r in work) * token
    prompts = [len(r.prompt_ids) * (r.max_tokens - 1) * token for r in work]
    fixed = steps * weights + tails
    return (fixed + sum(prompts)) / bandwidth, (
        fixed + sum(p * r.n for p, r in zip(prompts, work))
    ) / bandwidth


def timed(run) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def ours(model: Transformer, work: list[Request], repeats: int) -> dict:
    sampler = Sampler(model)
    cold = timed(lambda: sampler.generate(work))
    total = min(timed(lambda: sampler.generate(work)) for _ in range(repeats))
    stats = dict(sampler.stats)
    firsts = [Request(r.prompt_ids, n=r.n, max_tokens=1) for r in work]
    alone = [Request(work[0].prompt_ids, max_tokens=m) for m in (1, 129)]
    for request in alone:
        sampler.generate([request])
    one, many = (min(timed(lambda r=r: sampler.generate([r])) for _ in range(3)) for r in alone)
    first = timed(lambda: sampler.generate(firsts))
    return {
        "seconds": total,
        "seconds_cold": cold,
        "first_tokens_s": first,
        "step_ms": (total - first) / stats["decode_steps"] * 1e3,
        "alone_first_token_ms": one * 1e3,
        "alone_token_ms": (many - one) / 128 * 1e3,
        **stats,
    }


def transformers_model(model: Transformer) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = model.config.to_hf(torch.bfloat16)
    with torch.device("cuda"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw), dtype=torch.bfloat16)
    theirs.load_state_dict(model.state_dict(), strict=False)
    return theirs.eval()


def peer(model: Transformer, work: list[Request], engine: str) -> dict:
    """transformers' generate, or its continuous batching, on the same weights and prompts (equal lengths: no padding)."""
    from transformers import GenerationConfig

    theirs = transformers_model(model)
    longest = max(r.max_tokens for r in work)
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=longest,
        min_new_tokens=longest,
        pad_token_id=0,
        eos_token_id=-1,
    )
    prompts = [r.prompt_ids for r in work for _ in range(r.n)]
    if engine == "generate":
        ids = torch.tensor(prompts, device="cuda")
        run = lambda: theirs.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    else:
        run = lambda: theirs.generate_batch(inputs=prompts, generation_config=settings, progress_bar=False)
    cold = timed(run)
    return {"seconds": timed(run), "seconds_cold": cold}


def kind_of(kernel: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel)), "other")


def profile(model: Transformer, work: list[Request], bandwidth: float) -> list[dict]:
    """What STEPS decode steps take, early, in the middle and late: milliseconds a step by kind of kernel, and by kernel, beside what must be read."""
    sampler = Sampler(model)
    sampler.generate(work)  # captures the graphs
    at = [int(share * sampler.stats["decode_steps"]) for share in (0.1, 0.5, 0.9)]
    decode, seen, rows, open_ = sampler._decode, 0, [], None

    def watched(s, slots):
        nonlocal seen, open_
        if seen in at:
            prompts = np.unique(s.line[slots], return_index=True)[1]
            kv = (
                (int(s.count[slots].sum() + s.prompt_len[slots][prompts].sum()))
                * sampler.kv.page_bytes
                // sampler.page_size
            )
            torch.cuda.synchronize()
            trace = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            trace.start()
            open_ = trace, time.perf_counter(), len(slots), kv
        if open_ and seen - STEPS in at:
            torch.cuda.synchronize()
            trace, start, batch, kv = open_
            wall, open_ = 1e3 * (time.perf_counter() - start) / STEPS, None
            trace.stop()
            times = {
                e.key: e.self_device_time_total / 1e3 / STEPS
                for e in trace.key_averages()
                if e.self_device_time_total
            }
            kinds = Counter()
            for name, ms in times.items():
                kinds[kind_of(name)] += ms
            rows.append(
                {
                    "step": seen - STEPS,
                    "samples": batch,
                    "wall_ms": wall,
                    "kernels_ms": sum(times.values()),
                    **{f"{k}_ms": v for k, v in kinds.items()},
                    "weights_limit_ms": 1e3 * weight_bytes(model) / bandwidth,
                    "kv_limit_ms": 1e3 * kv / bandwidth,
                    "largest": {
                        k[:60]: round(v, 3) for k, v in sorted(times.items(), key=lambda x: -x[1])[:12]
                    },
                }
            )
        seen += 1
        return decode(s, slots)

    sampler._decode = watched
    sampler.generate(work)
    return [{k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def laptop(repeats: int) -> dict:
    """The laptop run's shape on the CPU: 32 prompts of 40 to 60 tokens, 8 samples of 60 to 100. CPU time: cores are shared."""
    shape = dict(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4
    )
    sampler, rng = (
        Sampler(Transformer(ModelConfig(**shape)).init_weights(0).requires_grad_(False)),
        random.Random(0),
    )
    work = [
        Request(
            [rng.randrange(512) for _ in range(rng.randint(40, 60))], n=8, max_tokens=rng.randint(60, 100)
        )
        for _ in range(32)
    ]
    tokens, best = sum(r.n * r.max_tokens for r in work), float("inf")
    for _ in range(repeats + 1):
        start = time.process_time()
        sampler.generate(work)
        best = min(best, time.process_time() - start)
    return {
        "shape": "laptop",
        "tokens": tokens,
        "cpu_seconds": round(best, 3),
        "tokens_per_cpu_second": round(tokens / best),
        **sampler.stats,
    }


def main(cfg: Config) -> None:
    if cfg.shapes == ["laptop"]:
        report = (
            environment()
            | {"command": "python -m bench.sampling --shapes laptop", "threads": torch.get_num_threads()}
            | laptop(cfg.repeats)
        )
        print(report)
        if cfg.out:
            Path(cfg.out).write_text(json.dumps(report, indent=1) + "\n")
        return
    if not torch.cuda.is_available():
        config.die("bench.sampling needs a GPU for every shape but laptop, which goes alone")
    bandwidth, rows = copy_bandwidth(), []
    for shape in cfg.shapes:
        model = make_model(shape)
        for load in cfg.loads:
            work = requests(shape, load)
            tokens = sum(r.n * r.max_tokens for r in work)
            limit, ungrouped = seconds_at_limit(model, work, bandwidth)
            if cfg.profile:
                rows += [{"shape": shape, "load": load} | row for row in profile(model, work, bandwidth)]
                print(*rows[-3:], sep="\n", flush=True)
                torch.cuda.empty_cache()
                continue
            for engine in cfg.engines:
                row = {"shape": shape, "load": load, "engine": engine, "tokens": tokens}
                row |= ours(model, work, cfg.repeats) if engine == "ours" else peer(model, work, engine)
                row |= {
                    "tokens_s": tokens / row["seconds"],
                    "limit_tokens_s": tokens / limit,
                    "limit_ungrouped_tokens_s": tokens / ungrouped,
                }
                row["of_limit"] = limit / row["seconds"]
                row = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
                rows.append(row)
                print(row, flush=True)
                torch.cuda.empty_cache()
        del model
    if cfg.out:
        report = environment() | {
            "command": "python -m bench.sampling " + shlex.join(sys.argv[1:]),
            "copy_gb_s": round(bandwidth / 1e9),
            "rows": rows,
        }
        Path(cfg.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(config.parse(Config))
