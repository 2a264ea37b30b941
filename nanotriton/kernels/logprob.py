"""Log-probability and entropy of every token, from hidden states, without the logits of the batch in memory.

    z = hidden @ weight.T / temperature       z [T, V], -inf at ids >= valid_vocab
    logp_t = z[t, target_t] - logsumexp(z_t)
    entropy_t = -sum_v p_tv log p_tv          p = softmax(z)

Logits are made for a few rows at a time, in fp32 from the matrix product on, and made again in the
backward: one matrix product forward, three backward. Where all of them fit in one chunk, or are to be kept,
the backward has them already. What it needs of a row beside them is its logsumexp and its entropy:

    dz_tv = g_t (1[v = target_t] - p_tv) - h_t p_tv (log p_tv + entropy_t)      g, h: gradients of logp and entropy

and dz overwrites the logits in place, in hidden's dtype. The backward has all rows and a few columns at a
time, so that each row of the weight's gradient [V, D] is written once, by one product. What is summed over
the chunks, in fp32, is hidden's gradient [T, D], which is smaller. Liger's fused linear cross-entropy
(arXiv 2410.10989) takes rows in both directions.
"""  # noqa: E501

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# in memory at once, of fp32 logits and hidden's gradient. Larger products are faster
CUDA_BYTES = 1_250_000_000
CPU_BYTES = 64_000_000  # a small model's logits fit in one chunk, which is then kept instead of made again
TILE = 256
FORWARD, BACKWARD = (4096, 8), (4096, 8)  # (columns that a row's program has in registers at a time, warps)


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    entropy: bool = True,
    keep_logits: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """hidden [T, D], weight [V, D], targets [T] int64 -> logp [T], entropy [T] (None with entropy=False),
    both fp32.

    Both outputs have gradients to hidden and weight. Matrix products are in hidden's dtype with fp32
    sums (float64 stays float64, for tests); the weight may be an fp32 master of a bf16 hidden: its
    gradient is then fp32, unrounded. valid_vocab: the tokenizer's size where the embedding is padded
    beyond it. A target outside [0, valid_vocab) has logp -inf. Cross-entropy is -logp. keep_logits: save a
    matrix product, and hold 4 T V bytes until the backward.
    """
    if (
        hidden.ndim != 2
        or weight.ndim != 2
        or hidden.shape[1] != weight.shape[1]
        or targets.shape != hidden.shape[:1]
    ):
        shapes = ", ".join(str(list(x.shape)) for x in (hidden, weight, targets))
        raise ValueError(f"token_logprobs needs hidden [T, D], weight [V, D], targets [T], not {shapes}")
    if not temperature > 0:
        raise ValueError(f"temperature must be over 0 to have a distribution, not {temperature}")
    valid = weight.shape[0] if valid_vocab is None else valid_vocab
    if not 0 < valid <= weight.shape[0]:
        raise ValueError(f"valid_vocab must be in 1..{weight.shape[0]}, the rows of the weight, not {valid}")
    keep = keep_logits and torch.is_grad_enabled()
    logp, ent = _TokenLogprobs.apply(
        hidden.contiguous(), weight, targets, float(temperature), valid, entropy, keep
    )
    return logp, ent if entropy else None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, valid, entropy, keep_logits):
        w = _compute_weight(weight, hidden, valid)
        logits = None
        rows = hidden.new_empty((3, len(hidden)), dtype=_wide(hidden))  # logp, entropy, logsumexp
        chunks = _chunks(len(hidden), len(w), _budget(hidden))
        if keep_logits and chunks:
            chunks = [slice(0, len(hidden))]
        buffer = rows.new_empty(max((c.stop - c.start for c in chunks), default=0) * len(w))
        for chunk in chunks:
            logits = _logits(hidden[chunk], w, buffer, temperature)
            if hidden.is_cuda:
                rows_forward(logits, targets[chunk], rows[:, chunk], temperature, valid)
            else:
                rows_forward_torch(logits, targets[chunk], rows[:, chunk], entropy)
        ctx.save_for_backward(hidden, weight, targets, rows)
        ctx.logits = logits if len(chunks) == 1 else None
        ctx.temperature, ctx.valid, ctx.entropy = temperature, valid, entropy
        ctx.set_materialize_grads(False)
        logp, ent = rows[0].clone(), rows[1].clone()  # outputs must not share storage with what is saved
        if not entropy:
            ctx.mark_non_differentiable(ent)
        return logp, ent

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_logp, grad_entropy):
        hidden, weight, targets, rows = ctx.saved_tensors
        kept, ctx.logits = ctx.logits, None  # they are written over: another backward makes them again
        w = _compute_weight(weight, hidden, ctx.valid)
        grads = torch.zeros_like(rows[:2])
        for row, grad in zip(grads, (grad_logp, grad_entropy if ctx.entropy else None)):
            if grad is not None:
                row.copy_(grad)
        to_hidden, to_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden, dtype=rows.dtype) if to_hidden else None
        grad_weight = torch.empty_like(weight) if to_weight else None
        budget = _budget(hidden)
        if hidden.is_cuda and to_hidden:
            budget = max(budget - grad_hidden.nbytes, budget // 4)
        chunks = _chunks(len(w), len(hidden), budget) if kept is None else [slice(0, len(w))]
        buffer = rows.new_empty(max(c.stop - c.start for c in chunks) * len(hidden)) if kept is None else None
        logits = d = None
        for chunk in chunks if len(hidden) else ():
            part, shifted = w[chunk], targets - chunk.start
            logits = _logits(hidden, part, buffer, ctx.temperature) if kept is None else kept
            if hidden.is_cuda:
                valid = min(max(ctx.valid - chunk.start, 0), len(part))
                d = rows_backward(logits, shifted, rows, grads, ctx.temperature, valid, hidden.dtype)
            else:
                d = rows_backward_torch(
                    logits, shifted, rows, grads, ctx.temperature, grad_entropy is not None
                )
                d = d.to(hidden.dtype)
            if to_hidden:
                _product(d, part, grad_hidden, add=True)
            if to_weight:
                _product(d.t(), hidden, grad_weight[chunk])
        del buffer, logits, d  # freed before hidden's gradient is rounded
        if to_weight:
            grad_weight[len(w) if len(hidden) else 0 :] = 0.0  # the padding's rows, which the CPU leaves out
        return grad_hidden.to(hidden.dtype) if to_hidden else None, grad_weight, *[None] * 5


def _compute_weight(weight: Tensor, hidden: Tensor, valid: int) -> Tensor:
    """The weight in hidden's dtype.

    On CUDA whole, since padded sizes suit the matrix units and the kernels mask.
    """
    return (weight if weight.is_cuda else weight[:valid]).to(hidden.dtype)


def _wide(x: Tensor) -> torch.dtype:
    """What sums are in: fp32, or fp64 for what is fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def _budget(hidden: Tensor) -> int:
    return CUDA_BYTES if hidden.is_cuda else CPU_BYTES


def _chunks(n: int, width: int, budget: int) -> list[slice]:
    """0..n cut into equal parts of whole tiles of the matrix product (2,432 rows were slower than
    2,048), each of which fits the budget with `width` fp32 numbers an element."""
    most = max(1, budget // (4 * max(1, width)))
    size = math.ceil(n / math.ceil(n / most)) if n else 1
    if most >= TILE:
        size = min(math.ceil(size / TILE), most // TILE) * TILE
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _logits(h: Tensor, w: Tensor, buffer: Tensor, temperature: float) -> Tensor:
    """h [n, D] @ w.T [D, m] in fp32 -> [n, m] in the buffer. The CUDA kernels divide by the temperature."""
    out = buffer[: len(h) * len(w)].view(len(h), len(w))
    _product(h, w.t(), out)
    return out if h.is_cuda or temperature == 1.0 else out.div_(temperature)


def _product(a: Tensor, b: Tensor, out: Tensor, add: bool = False) -> None:
    """out (+)= a @ b with fp32 sums, rounded once, to out's dtype. cuBLAS takes bf16 in and fp32 out; the CPU
    is asked for fp32."""
    if a.dtype == out.dtype and (a.is_cuda or a.dtype == _wide(a)):
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    elif a.is_cuda and out.dtype == torch.float32:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out) if add else torch.mm(
            a, b, out_dtype=out.dtype, out=out
        )
    else:
        product = torch.mm(a.to(_wide(a)), b.to(_wide(b)))
        out.add_(product) if add else out.copy_(product)


# ---- the rows: torch, then Triton
# ------------------------------------------------------------------------------------
def rows_forward_torch(z: Tensor, targets: Tensor, out: Tensor, entropy: bool) -> None:
    """z [n, V], the temperature inside -> out [3, n]: logp, entropy (if asked for) and logsumexp."""
    top = z.amax(1, keepdim=True)
    x = z - top
    e = x.exp()
    s = e.sum(1)
    log_s = s.log()
    inside = (targets >= 0) & (targets < z.shape[1])
    picked = x.gather(1, targets.clamp(0, z.shape[1] - 1)[:, None])[:, 0]
    out[0] = torch.where(inside, picked - log_s, -torch.inf)
    out[2] = top[:, 0] + log_s
    if entropy:  # logsumexp - E[z], both relative to the row's maximum so that large logits cost no digits
        out[1] = log_s - e.mul_(x).sum(1) / s


def rows_backward_torch(
    z: Tensor, targets: Tensor, rows: Tensor, grads: Tensor, temperature: float, entropy: bool
) -> Tensor:
    """z [n, V], the temperature inside -> dz / temperature [n, V], the gradient of hidden @ weight.T."""
    g, h = grads[0][:, None], grads[1][:, None]
    log_p = z - rows[2][:, None]
    d = log_p.exp()
    d.mul_((log_p + rows[1][:, None]).mul_(-h) - g if entropy else -g)
    inside = (targets >= 0) & (targets < z.shape[1])
    d.scatter_add_(1, targets.clamp(0, z.shape[1] - 1)[:, None], torch.where(inside[:, None], g, 0.0))
    return d.div_(temperature) if temperature != 1.0 else d


def rows_forward(logits: Tensor, targets: Tensor, out: Tensor, temperature: float, valid: int) -> None:
    """The Triton kernel on logits [n, V] fp32 as the matrix product made them; out [3, n] (rows may be
    strided)."""
    n, vocab = logits.shape
    _forward_kernel[(n,)](
        logits,
        targets,
        out,
        logits.stride(0),
        out.stride(0),
        1.0 / temperature,
        valid,
        BLOCK=min(FORWARD[0], triton.next_power_of_2(vocab)),
        num_warps=FORWARD[1],
    )


def rows_backward(
    logits: Tensor,
    targets: Tensor,
    rows: Tensor,
    grads: Tensor,
    temperature: float,
    valid: int,
    dtype: torch.dtype,
) -> Tensor:
    """dz / temperature [n, V] in dtype, written over the logits: its rows are a bf16 view of theirs, twice as
    far apart."""
    n, vocab = logits.shape
    d = logits.view(dtype)[:, :vocab]
    _backward_kernel[(n,)](
        logits,
        targets,
        rows,
        grads,
        d,
        logits.stride(0),
        d.stride(0),
        rows.stride(0),
        grads.stride(0),
        1.0 / temperature,
        vocab,
        valid,
        BLOCK=min(BACKWARD[0], triton.next_power_of_2(vocab)),
        num_warps=BACKWARD[1],
    )
    return d


@triton.jit
def _forward_kernel(
    logits, targets, out, logits_stride, out_stride, inv_temperature, valid, BLOCK: tl.constexpr
):
    """One row in a single pass. Each of BLOCK lanes has its own running maximum m, s = sum(e^(z-m)) and
    t = sum((z-m) e^(z-m)), so that lanes wait for each other once, at the end; one exp an element."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * logits_stride
    lanes = tl.arange(0, BLOCK)
    m = tl.full([BLOCK], -1e30, tl.float32)  # finite: -inf - -inf is NaN
    s = tl.zeros([BLOCK], tl.float32)
    t = tl.zeros([BLOCK], tl.float32)
    for start in range(0, valid, BLOCK):
        inside = start + lanes < valid
        z = tl.load(base + start + lanes, mask=inside, other=-1e30) * inv_temperature
        d = z - m
        e = tl.exp(-tl.abs(d))  # of the smaller of the two; the larger one's is 1
        new = d > 0
        t = tl.where(new, (t - d * s) * e, t + d * e)
        s = tl.where(new, s * e + 1.0, s + e)
        m = tl.where(new, z, m)
    top = tl.max(m, 0)
    shift = m - top
    scale = tl.exp(shift)
    t = tl.sum((t + shift * s) * scale, 0)
    s = tl.sum(s * scale, 0)
    target = tl.load(targets + row)
    has = (target >= 0) & (target < valid)
    picked = tl.load(base + target, mask=has, other=float("-inf")) * inv_temperature
    log_s = tl.log(s)
    tl.store(out + row, picked - top - log_s)
    tl.store(out + out_stride + row, log_s - t / s)
    tl.store(out + 2 * out_stride + row, top + log_s)


@triton.jit
def _backward_kernel(
    logits,
    targets,
    rows,
    grads,
    d,
    logits_stride,
    d_stride,
    rows_stride,
    grads_stride,
    inv_temperature,
    vocab,
    valid,
    BLOCK: tl.constexpr,
):
    """One row, in place: block j of d covers bytes that block j of the logits or an earlier one
    covered. The next block is on its way while one is worked on."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * logits_stride
    lanes = tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    entropy = tl.load(rows + rows_stride + row)
    lse = tl.load(rows + 2 * rows_stride + row)
    g = tl.load(grads + row)
    h = tl.load(grads + grads_stride + row)
    z = tl.load(base + lanes, mask=lanes < valid, other=0.0)
    for start in range(0, vocab, BLOCK):
        cols = start + lanes
        after = tl.load(base + BLOCK + cols, mask=BLOCK + cols < valid, other=0.0)
        log_p = z * inv_temperature - lse
        dz = tl.where(cols == target, g, 0.0) - tl.exp(log_p) * (g + h * (log_p + entropy))
        dz = tl.where(cols < valid, dz * inv_temperature, 0.0)
        tl.debug_barrier()  # all threads have read their part of the block before any writes over it
        tl.store(d + row * d_stride + cols, dz.to(d.dtype.element_ty), mask=cols < vocab)
        z = after
