"""Sampling speed with random weights and no early stop, beside transformers, in one process.

    python -m bench.speed.sampling --shapes 0.6b 8b --loads grouped mixed --out results/sampling.json
    python -m bench.speed.sampling --shapes 0.6b --loads small --engines ours generate continuous
    python -m bench.speed.sampling --shapes 0.6b --loads grouped --profile
    OMP_NUM_THREADS=1 python -m bench.speed.sampling --shapes laptop --out results/sampling_cpu.json

The last line is for one core of a CPU, in fp32; all others need a GPU. --profile tells what a decode step's
time goes to.

The limit is the time that it takes to read what must be read at the bandwidth of a copy: all weights at every
step, each sample's own keys and values, and each prompt's once for its group. `limit_ungrouped` counts the
prompt for every sample, as other engines read it.
"""

import gc
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from bench.results import command, environment, write_json
from bench.speed.decode import copy_bandwidth
from nanotriton import config
from nanotriton.sampler.sampler import Request, Sampler
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig

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
LAPTOP = dict(
    vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4
)
STEPS = 20  # decode steps that are profiled at a time
AT = (0.1, 0.5, 0.9)  # where in the generation they begin, as shares of its steps
# kind of kernel: what matches its name
KINDS = {
    "products": "nvjet|gemm|cutlass|splitK|_linear",
    "attention": "_prefix_kernel|_tail_kernel|_merge_kernel|flash",
    "layers": "_rms_norm|_place_kernel|_swiglu",
    "sampling": "_block_kernel|_pick_kernel",
}


@dataclass
class Config:
    # 0.6b, 8b: Qwen3's; laptop: 1M parameters, on the CPU
    shapes: list[Literal["0.6b", "8b", "laptop"]] = field(default_factory=lambda: ["0.6b"])
    # grouped: many samples of a prompt; mixed: lengths differ; small: short and many
    loads: list[Literal["grouped", "mixed", "small"]] = field(default_factory=lambda: ["grouped"])
    # generate, continuous: transformers' own, the second with continuous batching
    engines: list[Literal["ours", "generate", "continuous"]] = field(default_factory=lambda: ["ours"])
    repeats: int = 1  # timed runs after the warm-up; the fastest counts
    profile: bool = False  # print what decode steps take, by kernel, instead of the speed
    out: str = ""  # a JSON file to write


def requests(shape: str, load: str) -> list[Request]:
    """The requests of a load.

    grouped: 512 tokens in, 512 out, 16 samples of 32 prompts (8b: of 16 prompts).
    mixed: 256 prompts of 100 to 1,024 tokens, and answers as long.
    small: 256 tokens in, 128 out, one sample of 256 prompts (8b: of 64 prompts).
    """
    rng = random.Random(0)

    def prompt(n: int) -> list[int]:
        return [rng.randrange(10_000) for _ in range(n)]

    if load == "mixed":
        return [
            Request(prompt(rng.randint(100, 1024)), max_tokens=rng.randint(100, 1024)) for _ in range(256)
        ]
    count, n, inside, out = {"grouped": (32, 16, 512, 512), "small": (256, 1, 256, 128)}[load]
    if shape == "8b":
        count //= 2 if load == "grouped" else 4
    return [Request(prompt(inside), n=n, max_tokens=out) for _ in range(count)]


def make_model(shape: str) -> Transformer:
    """A model of random bf16 weights on the GPU."""
    with torch.device("cuda"):
        model = Transformer(ModelConfig(**QWEN3, **SHAPES[shape]), compute_dtype=torch.bfloat16).to(
            torch.bfloat16
        )
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.02) if parameter.ndim == 2 else parameter.data.fill_(1.0)
    return model.requires_grad_(False)


def weight_bytes(model: Transformer) -> int:
    """What a decode step reads of the weights: all but an untied embedding, of which it reads single rows."""
    whole = sum(p.nbytes for p in model.parameters())
    return whole if model.config.tie_word_embeddings else whole - model.model.embed_tokens.weight.nbytes


def seconds_at_limit(model: Transformer, work: list[Request], bandwidth: float) -> tuple[float, float]:
    """Seconds to read what the decode steps of `work` must read: (each prompt once a group, once a sample).

    bandwidth: in bytes a second.
    """
    c = model.config
    # bytes of a token's keys and values
    token = c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * 2
    steps = max(r.max_tokens for r in work) - 1
    tails = sum(r.n * r.max_tokens * (r.max_tokens - 1) // 2 for r in work) * token
    prompts = [len(r.prompt_ids) * (r.max_tokens - 1) * token for r in work]
    every_prompt = sum(p * r.n for p, r in zip(prompts, work, strict=True))
    fixed = steps * weight_bytes(model) + tails
    return (fixed + sum(prompts)) / bandwidth, (fixed + every_prompt) / bandwidth


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call, the GPU's work included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def ours(model: Transformer, work: list[Request], repeats: int) -> dict:
    """The figures of our sampler: of all of `work`, of the first tokens alone, and of one request alone."""
    firsts = [Request(r.prompt_ids, n=r.n, max_tokens=1) for r in work]
    short = Request(work[0].prompt_ids, max_tokens=1)
    long = Request(work[0].prompt_ids, max_tokens=129)
    with Sampler(model) as sampler:  # the next engine or shape wants the memory
        cold = timed(lambda: sampler.generate(work))
        total = min(timed(lambda: sampler.generate(work)) for _ in range(repeats))
        stats = dict(sampler.stats)
        sampler.generate([short])
        sampler.generate([long])
        one = min(timed(lambda: sampler.generate([short])) for _ in range(3))
        many = min(timed(lambda: sampler.generate([long])) for _ in range(3))
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
    """transformers' model with the same weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = model.config.to_hf(torch.bfloat16)
    with torch.device("cuda"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw), dtype=torch.bfloat16)
    theirs.load_state_dict(model.state_dict(), strict=False)
    return theirs.eval()


def peer(model: Transformer, work: list[Request], engine: str) -> dict:
    """transformers' generate or its continuous batching, on the same weights and prompts.

    Prompts must be of one length, so that nothing is padded.
    """
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

    def run() -> None:
        if engine == "generate":
            ids = torch.tensor(prompts, device="cuda")
            theirs.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        else:
            theirs.generate_batch(inputs=prompts, generation_config=settings, progress_bar=False)

    cold = timed(run)
    return {"seconds": timed(run), "seconds_cold": cold}


# ---- where a decode step's time goes ----


def kernel_kind(name: str) -> str:
    """One of KINDS, or "other"."""
    return next((kind for kind, names in KINDS.items() if re.search(names, name)), "other")


class Profiler:
    """Stands in for a sampler's decode step, and traces STEPS of them from each of the given steps on."""

    def __init__(self, sampler: Sampler, begins: list[int], weights_ms: float, bandwidth: float):
        self.sampler, self.begins, self.step = sampler, begins, sampler._decode
        self.weights_ms, self.bandwidth = weights_ms, bandwidth
        self.seen = 0  # decode steps so far
        self.trace: torch.profiler.profile | None = None
        self.rows: list[dict] = []

    def __call__(self, state, slots):
        if self.seen in self.begins:
            self.begin(state, slots)
        if self.trace and self.seen - STEPS in self.begins:
            self.rows.append(self.end())
        self.seen += 1
        return self.step(state, slots)

    def begin(self, state, slots) -> None:
        # a group's prompt is read once, so it is counted once
        prompts = np.unique(state.line[slots], return_index=True)[1]
        tokens = int(state.count[slots].sum() + state.prompt_len[slots][prompts].sum())
        self.kv_bytes = tokens * self.sampler.kv.page_bytes // self.sampler.page_size
        self.samples = len(slots)
        torch.cuda.synchronize()
        self.trace = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self.trace.start()
        self.start = time.perf_counter()

    def end(self) -> dict:
        """Milliseconds a step, by kind of kernel and by kernel, beside the time to read what must be read."""
        torch.cuda.synchronize()
        wall = 1e3 * (time.perf_counter() - self.start) / STEPS
        self.trace.stop()
        times = {}
        for event in self.trace.key_averages():
            if event.self_device_time_total:
                times[event.key] = event.self_device_time_total / 1e3 / STEPS
        self.trace = None
        kinds = Counter()
        for name, ms in times.items():
            kinds[kernel_kind(name)] += ms
        largest = sorted(times.items(), key=lambda item: -item[1])[:12]
        return {
            "step": self.seen - STEPS,
            "samples": self.samples,
            "wall_ms": wall,
            "kernels_ms": sum(times.values()),
            **{f"{kind}_ms": ms for kind, ms in kinds.items()},
            "weights_limit_ms": self.weights_ms,
            "kv_limit_ms": 1e3 * self.kv_bytes / self.bandwidth,
            "largest": {name[:60]: round(ms, 3) for name, ms in largest},
        }


def profile(model: Transformer, work: list[Request], bandwidth: float) -> list[dict]:
    """What STEPS decode steps take, early, in the middle and late: a row for each."""
    with Sampler(model) as sampler:
        sampler.generate(work)  # captures the graphs
        begins = [int(share * sampler.stats["decode_steps"]) for share in AT]
        profiler = Profiler(sampler, begins, 1e3 * weight_bytes(model) / bandwidth, bandwidth)
        sampler._decode = profiler
        sampler.generate(work)
    return [rounded(row, "{:.3f}") for row in profiler.rows]


def rounded(row: dict, style: str) -> dict:
    """The row with its floats rounded as the format string says."""
    return {k: float(style.format(v)) if isinstance(v, float) else v for k, v in row.items()}


# ---- all loads ----


def laptop(repeats: int) -> dict:
    """The laptop run's shape on the CPU: 32 prompts of 40 to 60 tokens, 8 samples of 60 to 100 tokens.

    CPU time counts, as a laptop's cores are shared.
    """
    model = Transformer(ModelConfig(**LAPTOP)).init_weights(0).requires_grad_(False)
    sampler, rng = Sampler(model), random.Random(0)
    work = []
    for _ in range(32):
        prompt = [rng.randrange(LAPTOP["vocab_size"]) for _ in range(rng.randint(40, 60))]
        work.append(Request(prompt, n=8, max_tokens=rng.randint(60, 100)))
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


def speed(cfg: Config, model: Transformer, work: list[Request], engine: str, bandwidth: float) -> dict:
    """The figures of one engine, beside the limits."""
    tokens = sum(r.n * r.max_tokens for r in work)
    limit, ungrouped = seconds_at_limit(model, work, bandwidth)
    row = {"tokens": tokens}
    row |= ours(model, work, cfg.repeats) if engine == "ours" else peer(model, work, engine)
    row |= {
        "tokens_s": tokens / row["seconds"],
        "limit_tokens_s": tokens / limit,
        "limit_ungrouped_tokens_s": tokens / ungrouped,
        "of_limit": limit / row["seconds"],
    }
    return rounded(row, "{:.4g}")


def on_gpu(cfg: Config) -> dict:
    """All shapes, loads and engines; rows are printed as they come."""
    bandwidth, rows = copy_bandwidth(), []
    for shape in cfg.shapes:
        model = make_model(shape)
        for load in cfg.loads:
            work, about = requests(shape, load), {"shape": shape, "load": load}
            if cfg.profile:
                found = [about | row for row in profile(model, work, bandwidth)]
                rows += found
                print(*found, sep="\n", flush=True)
                torch.cuda.empty_cache()
                continue
            for engine in cfg.engines:
                row = about | {"engine": engine} | speed(cfg, model, work, engine, bandwidth)
                rows.append(row)
                print(row, flush=True)
                gc.collect()  # transformers' objects refer to each other
                torch.cuda.empty_cache()
        del model
    return {"copy_gb_s": round(bandwidth / 1e9), "rows": rows}


def main(cfg: Config) -> None:
    about = environment() | {"command": command("bench.speed.sampling")}
    if cfg.shapes == ["laptop"]:
        report = about | {"threads": torch.get_num_threads()} | laptop(cfg.repeats)
        print(report)
    elif torch.cuda.is_available() and "laptop" not in cfg.shapes:
        report = about | on_gpu(cfg)
    else:
        config.die("bench.speed.sampling needs a GPU for every shape but laptop, which goes alone")
    if cfg.out:
        write_json(cfg.out, report)


if __name__ == "__main__":
    main(config.parse(Config))
