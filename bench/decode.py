"""How fast the decode attention kernel reads the cache, beside a copy of memory; its error; what grouping saves. Needs a GPU.

    python -m bench.decode --out results/decode.json

A context of L tokens is a prompt of L / 2 and a tail of L / 2. Ungrouped, every row has a prompt of its own. Bytes are the
keys and values that must be read at least once, queries and outputs; the fraction is of what a device-to-device copy moves.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton

from bench import environment
from nanotriton import config
from nanotriton.kernels import decode
from nanotriton.kernels.decode import DecodeBatch, decode_attention, decode_attention_torch


@dataclass
class Config:
    batches: list[int] = field(default_factory=lambda: [64, 128, 256, 512])  # rows
    lengths: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096])  # tokens of context
    groups: list[int] = field(default_factory=lambda: [1, 16])  # samples of a prompt
    heads: int = 32  # query heads
    kv_heads: int = 8  # key and value heads
    dim: int = 128  # of a head: 64 or 128
    page: int = 64  # tokens of a page
    sweep: bool = False  # try other warps and stages too, and print what they give
    out: str = ""  # a JSON file to write


def make(
    cfg: Config, rows: int, length: int, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, DecodeBatch]:
    """Random bf16 q and caches; pages in random order."""
    pages, groups = length // 2 // cfg.page, rows // group
    total = (rows + groups) * pages
    order = torch.randperm(total, device="cuda", dtype=torch.int32).view(rows + groups, pages)
    new = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    index = lambda n: torch.arange(n, device="cuda", dtype=torch.int32)
    per_tile = min(group, 64 * cfg.kv_heads // cfg.heads)
    full = lambda n: torch.full((n,), length // 2, device="cuda", dtype=torch.int32)
    tiles = rows // per_tile
    batch = DecodeBatch(
        index(rows),
        full(rows),
        order[:rows],
        index(tiles) // (group // per_tile),
        full(tiles),
        index(rows).view(tiles, per_tile),
        order[rows:],
    )
    cache = [new(total, cfg.kv_heads, cfg.page, cfg.dim) for _ in range(2)]
    return new(rows, cfg.heads, cfg.dim), *cache, batch


def microseconds(run) -> float:
    """Median over CUDA graph replays of ten calls, so that launches cost what they cost in the sampler."""
    return triton.testing.do_bench_cudagraph(run, rep=20, return_mode="median") * 1000


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy of 2 GiB."""
    x = torch.empty(2**30, dtype=torch.int16, device="cuda").random_()
    y = torch.empty_like(x)
    return 2 * x.nbytes / triton.testing.do_bench(lambda: y.copy_(x), return_mode="median") * 1000


def error(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: DecodeBatch) -> float:
    """Relative to attention in fp32 on the same bf16 values, on a few rows' worth of heads."""
    exact = decode_attention_torch(q.float(), k, v, DecodeBatch(*list(vars(batch).values())[:7]))
    return float((decode_attention(q, k, v, batch).float() - exact).norm() / exact.norm())


def measure(cfg: Config, rows: int, length: int, group: int, copy: float) -> dict:
    q, k, v, batch = make(cfg, rows, length, group)
    needed = k.nbytes + v.nbytes + 2 * q.nbytes
    time = microseconds(lambda: decode_attention(q, k, v, batch))
    row = {
        "batch": rows,
        "length": length,
        "group": group,
        "us": round(time, 1),
        "bytes": needed,
        "gb_s": round(needed / time / 1e3),
        "of_copy": round(needed / time * 1e6 / copy, 3),
    }
    if rows * length <= 2**18:  # the twin's fp32 copies of more would not fit
        row["error"] = round(error(q, k, v, batch), 5)
    return row


def sweep(cfg: Config, copy: float) -> None:
    """Options of both kernels, on four shapes; the best goes into kernels/decode.py by hand."""
    cases = [
        make(cfg, rows, length, group)
        for rows, length, group in ((512, 1024, 16), (512, 1024, 1), (64, 4096, 1), (64, 512, 1))
    ]
    for name in ("TAIL_OPTIONS", "PREFIX_OPTIONS", "PROGRAMS"):
        kept = getattr(decode, name)
        choices = (
            [dict(num_warps=w, num_stages=s) for w in (2, 4, 8) for s in (2, 3, 4, 5)]
            if name != "PROGRAMS"
            else [264, 528, 1056, 2112]
        )
        for choice in choices:
            setattr(decode, name, choice)
            times = []
            for q, k, v, batch in cases:
                batch.cache.clear()
                time = microseconds(lambda q=q, k=k, v=v, batch=batch: decode_attention(q, k, v, batch))
                times.append(f"{time:7.1f} us {(k.nbytes + v.nbytes) / time * 1e6 / copy:5.2f}")
            print(name, choice, " | ".join(times), flush=True)
        setattr(decode, name, kept)


def main(cfg: Config) -> None:
    if not torch.cuda.is_available():
        config.die("bench.decode needs a GPU")
    torch.manual_seed(0)
    copy = copy_bandwidth()
    print(f"copy {copy / 1e12:.2f} TB/s", flush=True)
    if cfg.sweep:
        return sweep(cfg, copy)
    rows = []
    for length in cfg.lengths:
        for batch in cfg.batches:
            rows += [measure(cfg, batch, length, group, copy) for group in cfg.groups]
            print(rows[-len(cfg.groups) :], flush=True)
    if cfg.out:
        shape = {name: getattr(cfg, name) for name in ("heads", "kv_heads", "dim", "page")}
        report = environment() | {
            "command": "python -m bench.decode",
            "shape": shape,
            "copy_gb_s": round(copy / 1e9),
            "rows": rows,
        }
        Path(cfg.out).write_text(json.dumps(report, indent=1) + "\n")
    print(
        "lowest fraction of copy:",
        min(r["of_copy"] for r in rows),
        " largest error:",
        max(r.get("error", 0) for r in rows),
    )


if __name__ == "__main__":
    main(config.parse(Config))
