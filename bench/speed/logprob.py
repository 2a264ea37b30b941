"""The fused logprob head: its time beside that of its matrix products, its memory, and its error.

    python -m bench.speed.logprob --out results/logprob.json

The head is one matrix product forward and three backward: the logits once more, the gradients of hidden
states and weight. Those four are timed whole, with the [T, V] logits in memory, as the least that this work
can take: fp32 logits, a bf16 gradient of the logits, an fp32 gradient of the weight. If the package
liger-kernel is installed, its fused linear cross-entropy runs beside ours. That one does not recompute the
logits (it makes its two backward products in the forward, for a mean loss), and it has no entropy.
"""

import gc
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.results import command, environment, write_json
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
    """{name: median time of the call}. The calls take turns, so that the card is equally warm for all."""
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
    """The most bytes allocated during a call, less those allocated before it and `counted`."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - counted


def errors(hidden: Tensor, weight: Tensor, targets: Tensor, n: int) -> dict[str, float]:
    """The largest differences from float64 over n tokens.

    Those of the hidden states' gradient are relative to its largest entry; half of them is bf16's rounding of
    the result. `logp_error_of_bf16_logits` is what logits in bf16 would have cost.

    hidden [T, D], weight [V, D], targets [T].
    """
    h = hidden[:n].detach().clone().requires_grad_()
    logp, entropy = token_logprobs(h, weight.detach(), targets[:n])
    (grad,) = torch.autograd.grad(logp.sum() + entropy.sum(), h)
    w = weight.detach().double()
    exact = hidden[:n].detach().double()
    log_p = (exact @ w.T).log_softmax(1)  # [n, V]
    p = log_p.exp()
    true_entropy = -(p * log_p).sum(1)  # [n]
    # The gradient of sum(logp + entropy) by the logits: onehot - p - p (log p + entropy).
    grad_logits = -p - p * (log_p + true_entropy[:, None])
    grad_logits[torch.arange(n), targets[:n]] += 1
    true_grad = grad_logits @ w  # [n, D]
    true_logp = log_p.gather(1, targets[:n, None])[:, 0]  # [n]
    bf16 = (hidden[:n].detach() @ weight.detach().T).float().log_softmax(1)
    bf16_logp = bf16.gather(1, targets[:n, None])[:, 0]
    return {
        "logp_error": (logp.double() - true_logp).abs().max().item(),
        "entropy_error": (entropy.double() - true_entropy).abs().max().item(),
        "grad_hidden_error": ((grad.double() - true_grad).abs().max() / true_grad.abs().max()).item(),
        "logp_error_of_bf16_logits": (bf16_logp.double() - true_logp).abs().max().item(),
    }


def products(hidden: Tensor, weight: Tensor) -> None:
    """The four matrix products of the work, each whole."""
    logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=logits)
    # stands for the logits' gradient, in their memory
    grad = logits.view(torch.bfloat16)[:, : weight.shape[0]]
    torch.mm(grad, weight)
    torch.mm(grad.t(), hidden, out_dtype=torch.float32)


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Callable[[], object]:
    """Forward and backward of Liger's fused linear cross-entropy, as a call."""
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)

    def run() -> None:
        hidden.grad = weight.grad = None
        loss(weight, hidden, targets).backward()

    return run


def main(cfg: Config) -> None:
    if not torch.cuda.is_available():
        config.die("bench.speed.logprob needs a GPU")
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
        # As it is asked for fp32 sums, it makes the weight's gradient in fp32 first.
        result["liger_workspace_gb"] = peak_beyond(calls["liger"], grads + 2 * weight.numel()) / 1e9
    hidden.grad = weight.grad = None
    result |= errors(hidden, weight, targets, cfg.checked)
    row = {
        **environment(),
        "command": command("bench.speed.logprob"),
        "tokens": tokens,
        "vocab": vocab,
        "width": width,
    }
    row |= {k: float(f"{v:.5g}") for k, v in result.items()}
    write_json(cfg.out, row)
    for key, value in row.items():
        print(f"{key:26s} {value}")


if __name__ == "__main__":
    main(config.parse(Config))
