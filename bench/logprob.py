"""The fused logprob head: time beside its matrix products, memory, and error against float64.

    python -m bench.logprob --out results/logprob.json

It is one matrix product forward and three backward (logits once more, the gradients of hidden states and weight). They
are timed whole, [T, V] logits in memory, as the least that this work can take: fp32 logits, bf16 gradient of the logits,
fp32 gradient of the weight. With the package liger-kernel installed, its fused linear cross-entropy runs beside ours; that
one has no recomputation (two backward products, made in the forward for a mean loss) and no entropy.
"""

import gc
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench import environment
from nanotriton import config
from nanotriton.kernels.logprob import token_logprobs


@dataclass
class Config:
    tokens: int = 16384  # T
    vocab: int = 151936  # V
    width: int = 4096  # D, the hidden size
    checked: int = 512  # tokens whose values are compared with float64
    repeats: int = 5  # timings of each; the median is reported
    out: str = "results/logprob.json"  # where the numbers go


def milliseconds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of each call. They take turns, so that all of them see the card as warm as the others do."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):  # the first turn compiles
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn:
                times[name].append(start.elapsed_time(end))
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def peak_beyond(call: Callable[[], object], counted: int) -> float:
    """Bytes allocated at the highest point of a call, less what is there before it and `counted`."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - counted


def errors(hidden: Tensor, weight: Tensor, targets: Tensor, n: int) -> dict[str, float]:
    """Largest differences from float64 over n tokens: of values, and of the gradient of the hidden states relative to its
    largest entry (half of which is bf16's rounding of the result)."""
    h = hidden[:n].detach().clone().requires_grad_()
    logp, entropy = token_logprobs(h, weight.detach(), targets[:n])
    (grad,) = torch.autograd.grad(logp.sum() + entropy.sum(), h)
    w = weight.detach().double()
    exact = hidden[:n].detach().double()
    log_p = (exact @ w.T).log_softmax(1)
    p = log_p.exp()
    ent = -(p * log_p).sum(1)
    dz = -p - p * (log_p + ent[:, None])
    dz[torch.arange(n), targets[:n]] += 1
    truth = dz @ w
    # what bf16 logits would have cost
    bf16 = (hidden[:n].detach() @ weight.detach().T).float().log_softmax(1)
    picked = log_p.gather(1, targets[:n, None])[:, 0]
    return {
        "logp_error": (logp.double() - picked).abs().max().item(),
        "entropy_error": (entropy.double() - ent).abs().max().item(),
        "grad_hidden_error": ((grad.double() - truth).abs().max() / truth.abs().max()).item(),
        "logp_error_of_bf16_logits": (bf16.gather(1, targets[:n, None])[:, 0].double() - picked)
        .abs()
        .max()
        .item(),
    }


def products(hidden: Tensor, weight: Tensor) -> None:
    """The four matrix products of the work, whole."""
    logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=logits)
    d = logits.view(torch.bfloat16)[:, : weight.shape[0]]
    torch.mm(d, weight)
    torch.mm(d.t(), hidden, out_dtype=torch.float32)


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Callable[[], object]:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)

    def run() -> None:
        hidden.grad = weight.grad = None
        loss(weight, hidden, targets).backward()

    return run


def main(cfg: Config) -> None:
    if not torch.cuda.is_available():
        raise config.ConfigError("this benchmark needs a GPU")
    torch.manual_seed(0)
    tokens, vocab, width = cfg.tokens, cfg.vocab, cfg.width
    hidden = torch.randn(tokens, width, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(vocab, width, device="cuda") * 0.05).bfloat16().requires_grad_()
    targets = torch.randint(0, vocab, (tokens,), device="cuda")

    def forward(entropy: bool = True) -> tuple[Tensor, Tensor | None]:
        return token_logprobs(hidden, weight, targets, entropy=entropy)

    def both(entropy: bool = True) -> None:
        hidden.grad = weight.grad = None
        logp, ent = forward(entropy)
        loss = -logp.mean() if ent is None else -logp.mean() - 0.01 * ent.mean()
        loss.backward()

    def forward_only() -> None:
        with torch.no_grad():
            forward()

    calls = {
        "products": lambda: products(hidden.detach(), weight.detach()),
        "ours": both,
        "ours_without_entropy": lambda: both(False),
        "forward": forward_only,
    }
    if importlib.util.find_spec("liger_kernel"):
        calls["liger"] = liger(hidden, weight, targets)
    result = {f"{name}_ms": ms for name, ms in milliseconds(calls, cfg.repeats).items()}
    result["over_products"] = result["ours_ms"] / result["products_ms"]
    flops = 2 * tokens * vocab * width
    result["tflops"] = 4 * flops / result["ours_ms"] / 1e9

    hidden.grad = weight.grad = None
    grads = hidden.nbytes + weight.nbytes
    result["workspace_gb"] = peak_beyond(both, grads) / 1e9
    if "liger" in calls:
        hidden.grad = weight.grad = None
        # asked for fp32 sums, it has the weight's gradient in fp32 first
        result["liger_workspace_gb"] = peak_beyond(calls["liger"], grads + 2 * weight.numel()) / 1e9
    hidden.grad = weight.grad = None
    result |= errors(hidden, weight, targets, cfg.checked)
    row = {
        **environment(),
        "command": "python -m bench.logprob " + shlex.join(sys.argv[1:]),
        "tokens": tokens,
        "vocab": vocab,
        "width": width,
    }
    row |= {k: float(f"{v:.5g}") for k, v in result.items()}
    with open(cfg.out, "w") as f:
        f.write(json.dumps(row, indent=1) + "\n")
    for key, value in row.items():
        print(f"{key:26s} {value}")


if __name__ == "__main__":
    try:
        main(config.parse(Config))
    except config.ConfigError as error:
        config.die(error)
