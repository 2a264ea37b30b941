"""Bandwidth of our RMSNorm, RoPE and SwiGLU at 8B shapes, forward and backward, beside torch eager and torch.compile.

    python -m bench.layers --out results/layers.json

All of these move bytes and little else, so each is reported as a share of what a plain copy reaches on the same card.
Bytes are what the operation must move: inputs read once, outputs written once, nothing for recomputation or partial
sums. Every timing replays one CUDA graph of several calls on different buffers, so launches cost nothing and nothing is
found in L2.
"""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch._functorch.config as functorch
import torch.nn.functional as F
from torch import Tensor

from bench import environment
from nanotriton import config
from nanotriton.kernels import layers

COPIES = 3  # buffer sets a timing rotates through
EPS = 1e-6


@dataclass
class Config:
    rows: list[int] = field(default_factory=lambda: [8192, 16384])  # tokens
    out: str = "results/layers.json"  # where the numbers go


def microseconds(calls: list[Callable[[], object]], repeats: int = 20) -> float:
    """Median time of one call. The calls, each on its own buffers, are captured in one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls + calls:  # compiles, and lets lazy allocations happen outside the capture
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


# What a user of torch would write; F.rms_norm is a fused CUDA kernel of its own.
def torch_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def torch_norm_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, EPS), total


def torch_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def rotate(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)

    return rotate(q), rotate(k)


def torch_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def cases(rows: int) -> dict[str, tuple[Callable, Callable, Callable[[], list[Tensor]], int, int]]:
    """name -> (ours, torch's, inputs, bytes forward, bytes backward); inputs that are [rows, ...] bf16 get gradients."""
    hidden, heads, kv_heads, dim = 4096, 32, 8, 128
    one, both, tables = rows * hidden * 2, rows * (heads + kv_heads) * dim * 2, rows * dim * 4

    def norm_weight(n: int) -> Tensor:
        return randn(n, dtype=torch.bfloat16)

    def our_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return layers.rms_norm(x, weight, EPS, residual)

    def our_norm(x: Tensor, weight: Tensor) -> Tensor:
        return layers.rms_norm(x, weight, EPS)

    found = {
        "rms_norm 4096": (
            our_norm,
            torch_norm,
            lambda: [randn(rows, hidden), norm_weight(hidden)],
            2 * one,
            3 * one,
        ),
        "rms_norm 4096 + residual": (
            our_residual,
            torch_norm_residual,
            lambda: [randn(rows, hidden), randn(rows, hidden), norm_weight(hidden)],
            4 * one,
            4 * one,
        ),
        "rms_norm 32 heads x 128": (
            our_norm,
            torch_norm,
            lambda: [randn(rows, heads, dim), norm_weight(dim)],
            2 * one,
            3 * one,
        ),
        "rope 32/8 heads x 128": (
            layers.rope,
            torch_rope,
            lambda: [
                randn(rows, heads, dim),
                randn(rows, kv_heads, dim),
                *randn(2, rows, dim // 2, dtype=torch.float32),
            ],
            2 * both + tables,
            2 * both + tables,
        ),
    }
    for width in (12288, 14336):
        size = rows * width * 2
        found[f"swiglu {width}"] = (
            layers.swiglu,
            torch_swiglu,
            lambda width=width: [randn(rows, width), randn(rows, width)],
            3 * size,
            5 * size,
        )
    return found


def measure(function: Callable, make: Callable[[], list[Tensor]]) -> tuple[float, float]:
    """Microseconds of the forward and of the backward alone."""
    inputs = [make() for _ in range(COPIES)]
    with torch.no_grad():
        forward = microseconds([lambda args=args: function(*args) for args in inputs])
    backward = []
    stream = torch.cuda.Stream()  # autograd runs a backward on its forward's stream
    with torch.cuda.stream(stream):
        for args in inputs:
            leaves = [a.requires_grad_() for a in args if a.dtype == torch.bfloat16]
            outs = function(*args)
            outs = outs if isinstance(outs, tuple) else (outs,)
            grads = [torch.randn_like(o) for o in outs]
            backward.append(lambda o=outs, x=leaves, g=grads: torch.autograd.grad(o, x, g, retain_graph=True))
    torch.cuda.synchronize()
    return forward, microseconds(backward)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy: the faster of a memcpy and of torch's elementwise kernel, 0.5 GiB each."""
    pairs = [(randn(2**28), torch.empty(2**28, device="cuda", dtype=torch.bfloat16)) for _ in range(COPIES)]
    memcpy = microseconds([lambda a=a, b=b: b.copy_(a) for a, b in pairs])
    kernel = microseconds([lambda a=a, b=b: torch.neg(a, out=b) for a, b in pairs])
    return 2**30 / min(memcpy, kernel) * 1e6


def main(cfg: Config) -> None:
    if not torch.cuda.is_available():
        config.die("bench.layers measures a GPU, and torch sees none")
    functorch.donated_buffer = False  # a compiled backward is run many times from one forward
    copy = copy_bandwidth()
    results, shares = [], {}
    print(f"copy: {copy / 1e12:.2f} TB/s\n{'':46}{'ours':>14}{'eager':>14}{'compiled':>14}")
    for rows in cfg.rows:
        for name, (ours, plain, make, *sizes) in cases(rows).items():
            torch.compiler.reset()
            for how, function in {"ours": ours, "eager": plain, "compiled": torch.compile(plain)}.items():
                for way, size, us in zip(
                    ("forward", "backward"), sizes, measure(function, make), strict=True
                ):
                    share = size / us * 1e6 / copy
                    shares[name, rows, way, how] = share
                    results.append(
                        {
                            "kernel": name,
                            "rows": rows,
                            "pass": way,
                            "by": how,
                            "us": round(us, 1),
                            "of_copy": round(share, 3),
                        }
                    )
            for way in ("forward", "backward"):
                cells = (f"{shares[name, rows, way, how]:14.0%}" for how in ("ours", "eager", "compiled"))
                print(f"{rows:6} {name:28} {way:10}" + "".join(cells), flush=True)
    slowest = min((share, key) for key, share in shares.items() if key[-1] == "ours")
    print(f"slowest of ours: {slowest[0]:.1%} of copy, {' '.join(map(str, slowest[1][:3]))}")
    report = {
        "command": shlex.join(["python", "-m", "bench.layers", *sys.argv[1:]]),
        **environment(),
        "dtype": "bfloat16",
        "copy_tb_s": round(copy / 1e12, 3),
        "slowest_of_ours": round(slowest[0], 3),
        "results": results,
    }
    Path(cfg.out).parent.mkdir(parents=True, exist_ok=True)
    Path(cfg.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(config.parse(Config))
