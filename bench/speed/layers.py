"""Bandwidth of our RMSNorm, RoPE and SwiGLU at 8B shapes, forward and backward, beside torch's.

    python -m bench.speed.layers --out results/layers.json

All of these move bytes and do little else, so each is reported as a share of what a plain copy reaches on the
same card. Bytes are what the operation must move: inputs read once, outputs written once, nothing for
recomputation or partial sums. Each timing replays one CUDA graph of several calls on different buffers, so
that launches cost nothing and nothing is found in the L2 cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch._functorch.config as functorch
import torch.nn.functional as F
from torch import Tensor

from bench.results import command, environment, write_json
from nanotriton import config
from nanotriton.kernels import layers
from nanotriton.kernels.heads import norm_and_rotate

COPIES = 3  # buffer sets a timing rotates through
EPS = 1e-6


@dataclass
class Config:
    rows: list[int] = field(default_factory=lambda: [8192, 16384])  # tokens
    out: str = "results/layers.json"  # where the numbers go


def microseconds(calls: list[Callable[[], object]], repeats: int = 20) -> float:
    """The median time of one call. The calls, each on its own buffers, are captured in one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls + calls:  # what is compiled or allocated late must be so before the capture
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


# What a user of torch would write. F.rms_norm is a fused CUDA kernel of torch's own.
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


def torch_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor, k_weight: Tensor):
    return torch_rope(torch_norm(q, q_weight), torch_norm(k, k_weight), cos, sin)


def torch_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


@dataclass
class Case:
    """One operation at one shape. Inputs in bf16 get gradients."""

    ours: Callable
    torch: Callable
    inputs: Callable[[], list[Tensor]]  # fresh ones
    forward_bytes: int
    backward_bytes: int


def our_norm(x: Tensor, weight: Tensor) -> Tensor:
    return layers.rms_norm(x, weight, EPS)


def our_norm_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return layers.rms_norm(x, weight, EPS, residual)


def our_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return norm_and_rotate(q, k, None, (cos, sin))


def our_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor, k_weight: Tensor):
    return norm_and_rotate(q, k, (q_weight, k_weight, EPS), (cos, sin))


def cases(rows: int) -> dict[str, Case]:
    """The operations by name. rows: tokens."""
    found = norm_cases(rows)
    heads, kv_heads, dim = 32, 8, 128

    def rope_inputs() -> list[Tensor]:
        cos, sin = randn(2, rows, dim // 2, dtype=torch.float32)
        return [randn(rows, heads, dim), randn(rows, kv_heads, dim), cos, sin]

    moved = 2 * rows * (heads + kv_heads) * dim * 2 + rows * dim * 4  # queries, keys; cos, sin
    found["rope 32/8 heads x 128"] = Case(our_rope, torch_rope, rope_inputs, moved, moved)
    found["norms and rope 32/8 heads x 128"] = Case(
        our_heads, torch_heads, lambda: [*rope_inputs(), *randn(2, dim)], moved, moved + moved // 2
    )
    for width in (12288, 14336):
        size = rows * width * 2

        def swiglu_inputs(width: int = width) -> list[Tensor]:
            return [randn(rows, width), randn(rows, width)]

        case = Case(layers.swiglu, torch_swiglu, swiglu_inputs, 3 * size, 5 * size)
        found[f"swiglu {width}"] = case
    return found


def norm_cases(rows: int) -> dict[str, Case]:
    hidden, heads, dim = 4096, 32, 128
    one = rows * hidden * 2  # bytes of the hidden states

    def hidden_inputs() -> list[Tensor]:
        return [randn(rows, hidden), randn(hidden)]

    def residual_inputs() -> list[Tensor]:
        return [randn(rows, hidden), randn(rows, hidden), randn(hidden)]

    def head_inputs() -> list[Tensor]:
        return [randn(rows, heads, dim), randn(dim)]

    return {
        "rms_norm 4096": Case(our_norm, torch_norm, hidden_inputs, 2 * one, 3 * one),
        "rms_norm 4096 + residual": Case(
            our_norm_residual, torch_norm_residual, residual_inputs, 4 * one, 4 * one
        ),
        "rms_norm 32 heads x 128": Case(our_norm, torch_norm, head_inputs, 2 * one, 3 * one),
    }


def measure(function: Callable, make: Callable[[], list[Tensor]]) -> tuple[float, float]:
    """(microseconds of the forward, microseconds of the backward alone). make: gives fresh inputs."""
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
    """Bytes a second, read and written, of a copy of 0.5 GiB: by memcpy or by torch's elementwise kernel.

    The faster of the two counts.
    """
    pairs = [(randn(2**28), torch.empty(2**28, device="cuda", dtype=torch.bfloat16)) for _ in range(COPIES)]
    memcpy = microseconds([lambda a=a, b=b: b.copy_(a) for a, b in pairs])
    kernel = microseconds([lambda a=a, b=b: torch.neg(a, out=b) for a, b in pairs])
    return 2**30 / min(memcpy, kernel) * 1e6


def compare(name: str, rows: int, case: Case, copy: float) -> list[dict]:
    """The rows of one case, by us, by torch and by torch compiled. They are printed too."""
    torch.compiler.reset()
    found = []
    shares: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    for how, function in {
        "ours": case.ours,
        "eager": case.torch,
        "compiled": torch.compile(case.torch),
    }.items():
        forward, backward = measure(function, case.inputs)
        for way, size, us in (
            ("forward", case.forward_bytes, forward),
            ("backward", case.backward_bytes, backward),
        ):
            share = size / us * 1e6 / copy
            shares[way][how] = share
            row = {"kernel": name, "rows": rows, "pass": way, "by": how}
            found.append(row | {"us": round(us, 1), "of_copy": round(share, 3)})
    for way, by in shares.items():
        cells = "".join(f"{by[how]:14.0%}" for how in ("ours", "eager", "compiled"))
        print(f"{rows:6} {name:28} {way:10}{cells}", flush=True)
    return found


def main(cfg: Config) -> None:
    if not torch.cuda.is_available():
        config.die("bench.speed.layers measures a GPU, and torch sees none")
    functorch.donated_buffer = False  # a compiled backward is run many times from one forward
    copy = copy_bandwidth()
    print(f"copy: {copy / 1e12:.2f} TB/s\n{'':46}{'ours':>14}{'eager':>14}{'compiled':>14}")
    results = []
    for rows in cfg.rows:
        for name, case in cases(rows).items():
            results += compare(name, rows, case, copy)
    slowest = min((row for row in results if row["by"] == "ours"), key=lambda row: row["of_copy"])
    where = f"{slowest['kernel']} {slowest['rows']} {slowest['pass']}"
    print(f"slowest of ours: {slowest['of_copy']:.1%} of copy, {where}")
    report = {
        "command": command("bench.speed.layers"),
        **environment(),
        "dtype": "bfloat16",
        "copy_tb_s": round(copy / 1e12, 3),
        "slowest_of_ours": slowest["of_copy"],
        "results": results,
    }
    write_json(cfg.out, report)


if __name__ == "__main__":
    main(config.parse(Config))
