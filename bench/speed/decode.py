"""How fast does the decode attention kernel read the cache, beside a copy of memory? Needs a GPU.

    python -m bench.speed.decode --out results/decode.json

A context of L tokens is a prompt of L / 2 and a tail of L / 2. The samples of a group share a prompt; in
groups of 1 every row has a prompt of its own. Bytes are the keys and values that must be read at least once,
the queries and the outputs. The fraction is of what a device-to-device copy moves in the same time. The error
is against attention in fp32 on the same values.
"""

from dataclasses import dataclass, field

import torch
import triton

from bench.results import command, environment, write_json
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
    """Random bf16 (q [rows, heads, dim], keys and values [pages, kv_heads, page, dim], batch).

    Pages are in random order.
    """

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def index(n: int) -> torch.Tensor:
        return torch.arange(n, device="cuda", dtype=torch.int32)

    def half_length(n: int) -> torch.Tensor:
        return torch.full((n,), length // 2, device="cuda", dtype=torch.int32)

    pages, groups = length // 2 // cfg.page, rows // group
    total = (rows + groups) * pages
    order = torch.randperm(total, device="cuda", dtype=torch.int32).view(rows + groups, pages)
    per_tile = min(group, 64 * cfg.kv_heads // cfg.heads)
    tiles = rows // per_tile
    batch = DecodeBatch(
        index(rows),
        half_length(rows),
        order[:rows],
        index(tiles) // (group // per_tile),
        half_length(tiles),
        index(rows).view(tiles, per_tile),
        order[rows:],
    )
    k, v = (randn(total, cfg.kv_heads, cfg.page, cfg.dim) for _ in range(2))
    return randn(rows, cfg.heads, cfg.dim), k, v, batch


def microseconds(run) -> float:
    """The median time of a call in a replayed CUDA graph: launches cost what they cost in the sampler."""
    return triton.testing.do_bench_cudagraph(run, rep=20, return_mode="median") * 1000


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy of 2 GiB."""
    x = torch.empty(2**30, dtype=torch.int16, device="cuda").random_()
    y = torch.empty_like(x)
    return 2 * x.nbytes / triton.testing.do_bench(lambda: y.copy_(x), return_mode="median") * 1000


def error(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: DecodeBatch) -> float:
    """The norm of the difference to attention in fp32 on the same bf16 values, over the norm of that."""
    exact = decode_attention_torch(q.float(), k, v, DecodeBatch(*list(vars(batch).values())[:7]))
    return float((decode_attention(q, k, v, batch).float() - exact).norm() / exact.norm())


def measure(cfg: Config, rows: int, length: int, group: int, copy: float) -> dict:
    """The figures of one shape. copy: of copy_bandwidth."""
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


# what --sweep tries, by its name in kernels/decode.py
SWEPT = {
    "_options": [dict(num_warps=w, num_stages=s) for w in (2, 4, 8) for s in (2, 3, 4, 5)],
    "PROGRAMS": [264, 528, 1056, 2112],
    "PREFIX_PROGRAMS": [132, 264, 528],
}


def sweep(cfg: Config, copy: float) -> None:
    """Print what other options of the kernels give on four shapes.

    The best goes into kernels/decode.py by hand.
    """
    shapes = ((512, 1024, 16), (512, 1024, 1), (64, 4096, 1), (64, 512, 1))  # rows, length, group
    cases = [make(cfg, *shape) for shape in shapes]
    for name, choices in SWEPT.items():
        kept = getattr(decode, name)
        for choice in choices:
            always = lambda *_, choice=choice: choice
            setattr(decode, name, always if callable(kept) else choice)
            times = []
            for q, k, v, batch in cases:
                batch.cache.clear()
                time = microseconds(lambda q=q, k=k, v=v, batch=batch: decode_attention(q, k, v, batch))
                times.append(f"{time:7.1f} us {(k.nbytes + v.nbytes) / time * 1e6 / copy:5.2f}")
            print(name, choice, " | ".join(times), flush=True)
        setattr(decode, name, kept)


def main(cfg: Config) -> None:
    if not torch.cuda.is_available():
        config.die("bench.speed.decode needs a GPU")
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
            "command": command("bench.speed.decode"),
            "shape": shape,
            "copy_gb_s": round(copy / 1e9),
            "rows": rows,
        }
        write_json(cfg.out, report)
    lowest = min(r["of_copy"] for r in rows)
    largest = max(r.get("error", 0) for r in rows)
    print("lowest fraction of copy:", lowest, " largest error:", largest)


if __name__ == "__main__":
    main(config.parse(Config))
