"""AdamW for bf16 parameters that have no fp32 masters: moments in 8 bits, parameters rounded stochastically.

Six bytes a parameter with its gradient, where fp32 masters take sixteen: an 8B model trains on one GPU
of 80 GB, and the sampler can share the parameters. What bf16 loses is had back on average: an update
smaller than half a unit in the last place is rounded up with the probability that makes its expectation
right (rounding to nearest would drop every update at a small learning rate). Blocks of 256 share a
scale, as in 8-bit optimizers via block-wise quantization (arXiv 2110.02861), and codes are powers,
which have small steps where values are small:

    m = scale * sign(c) * (c / 127)^2         int8  c in -127..127
    v = scale * (c / 255)^4                   uint8 c; at least 1 where v > 0, so that no step divides by zero

Codes are rounded stochastically too: 0.95 v + 0.05 g^2 would often round back to the old code and never move.

The memory of an 8B (8.19e9 parameters, Qwen3's) on one GPU of 80 GB, in GB:

    parameters, bf16, the sampler's too    16.4    always; sampling, KV takes 70% of what is free
    moments, 1 + 1 bytes, and scales       16.6    from the first step on
    gradients, bf16                        16.4    from the first backward to the step, which frees them
    activations of 16,384 tokens            7.0    a layer's input each, and one layer's at a time, if all are
                                                   recomputed; a larger GPU keeps 2.2 of each layer that fits
    the head                                5.0    1.25 of logits, its gradient in fp32 and in bf16
                                           61.4    and while sampling 33.0, beside the KV memory

Microbatches add up in bf16: each addition rounds by up to 2^-9, so few large ones are better than many small
ones.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # values that share a scale


class AdamW8bit(torch.optim.Optimizer):
    """Decoupled weight decay (arXiv 1711.05101) with the moments above.

    Parameters: any dtype, contiguous; bf16 is the point.

    One random number a value and step, a function of `seed`, the step and the value's place: the same on
    every run.
    """

    def __init__(
        self,
        params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        seed: int = 0,
    ):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "seed": seed}
        )

    def empty_state(self, p: Tensor) -> dict[str, Tensor]:
        """The state of a parameter before its first step."""
        blocks = triton.cdiv(p.numel(), BLOCK)
        scale = lambda: torch.zeros(blocks, device=p.device)
        code = lambda dtype: torch.zeros(p.numel(), dtype=dtype, device=p.device)
        return {
            "step": torch.zeros(()),
            "m": code(torch.int8),
            "m_scale": scale(),
            "v": code(torch.uint8),
            "v_scale": scale(),
        }

    @torch.no_grad()
    def step(self, closure=None) -> None:
        number = 0
        for group in self.param_groups:
            for p in group["params"]:
                number += 1
                if p.grad is None:
                    continue
                state = self.state[p] = self.state[p] or self.empty_state(p)
                state["step"] += 1
                n = int(state["step"])
                (b1, b2), lr = group["betas"], group["lr"]
                numbers = (lr, b1, b2, group["eps"], group["weight_decay"], 1 / (1 - b1**n), 1 / (1 - b2**n))
                seed = (group["seed"] * 1_000_003 + n) * 10_007 + number
                (_step_cuda if p.is_cuda else _step_torch)(p, p.grad, state, numbers, seed % 2**31)


def _step_torch(
    p: Tensor, g: Tensor, state: dict[str, Tensor], numbers: tuple[float, ...], seed: int
) -> None:
    lr, b1, b2, eps, decay, fix1, fix2 = numbers
    n, blocks = p.numel(), len(state["m_scale"])
    random = torch.rand(3, blocks, BLOCK, generator=torch.Generator().manual_seed(seed))

    def block(x: Tensor) -> Tensor:  # [blocks, BLOCK] fp32, the last one filled up with zeros
        return torch.nn.functional.pad(x.flatten().float(), (0, blocks * BLOCK - n)).view(blocks, BLOCK)

    g = block(g)
    c = block(state["m"]) / 127
    m = b1 * state["m_scale"][:, None] * c * c.abs() + (1 - b1) * g
    v = b2 * state["v_scale"][:, None] * (block(state["v"]) / 255) ** 4 + (1 - b2) * g * g
    new = block(p) * (1 - lr * decay) - lr * (m * fix1) / ((v * fix2).sqrt() + eps)
    p.copy_(_round(new.flatten()[:n], random[0].flatten()[:n], p.dtype).view(p.shape))
    scale = m.abs().amax(1)
    state["m_scale"].copy_(scale)
    code = (127 * (m.abs() / scale.clamp(min=1e-38)[:, None]).sqrt() + random[1]).floor().clamp(max=127)
    state["m"].copy_((code * m.sign()).flatten()[:n])
    scale = v.amax(1)
    state["v_scale"].copy_(scale)
    code = (255 * (v / scale.clamp(min=1e-38)[:, None]).sqrt().sqrt() + random[2]).floor().clamp(max=255)
    state["v"].copy_(torch.where(v > 0, code.clamp(min=1), 0).flatten()[:n])


def _round(x: Tensor, random: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 -> bf16, up or down with the probability that keeps the mean: random low bits are added, then cut
    off."""
    if dtype != torch.bfloat16:
        return x.to(dtype)
    bits = x.contiguous().view(torch.int32) + (random * 65536).int().clamp(max=65535)
    return (bits & -65536).view(torch.float32).to(torch.bfloat16)


def _step_cuda(p: Tensor, g: Tensor, state: dict[str, Tensor], numbers: tuple[float, ...], seed: int) -> None:
    _step_kernel[(len(state["m_scale"]),)](
        p,
        g.contiguous(),
        state["m"],
        state["m_scale"],
        state["v"],
        state["v_scale"],
        p.numel(),
        *numbers,
        seed,
        BLOCK=BLOCK,
        num_warps=2,
    )


@triton.jit
def _step_kernel(
    p_ptr,
    g_ptr,
    m_ptr,
    m_scale,
    v_ptr,
    v_scale,
    n,
    lr,
    b1,
    b2,
    eps,
    decay,
    fix1,
    fix2,
    seed,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    r0, r1, r2, _ = tl.randint4x(seed, at.to(tl.int32))
    g = tl.load(g_ptr + at, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(m_ptr + at, mask=inside, other=0).to(tl.float32) / 127
    m = b1 * tl.load(m_scale + block) * c * tl.abs(c) + (1 - b1) * g
    c = tl.load(v_ptr + at, mask=inside, other=0).to(tl.float32) / 255
    c = c * c
    v = b2 * tl.load(v_scale + block) * c * c + (1 - b2) * g * g
    p = tl.load(p_ptr + at, mask=inside, other=0.0).to(tl.float32)
    p = p * (1 - lr * decay) - lr * (m * fix1) / (tl.sqrt(v * fix2) + eps)
    if p_ptr.dtype.element_ty == tl.bfloat16:
        bits = p.to(tl.int32, bitcast=True) + (r0 & 0xFFFF).to(tl.int32)
        p = (bits & -65536).to(tl.float32, bitcast=True)
    tl.store(p_ptr + at, p.to(p_ptr.dtype.element_ty), mask=inside)

    scale = tl.max(tl.abs(m), 0)
    tl.store(m_scale + block, scale)
    code = tl.floor(
        127 * tl.sqrt(tl.abs(m) / tl.maximum(scale, 1e-38)) + (r1 & 0xFFFFFF).to(tl.float32) / 16777216
    )
    tl.store(m_ptr + at, (tl.where(m < 0, -1.0, 1.0) * tl.minimum(code, 127)).to(tl.int8), mask=inside)
    scale = tl.max(v, 0)
    tl.store(v_scale + block, scale)
    code = tl.floor(
        255 * tl.sqrt(tl.sqrt(v / tl.maximum(scale, 1e-38))) + (r2 & 0xFFFFFF).to(tl.float32) / 16777216
    )
    code = tl.where(v > 0, tl.minimum(tl.maximum(code, 1), 255), 0)
    tl.store(v_ptr + at, code.to(tl.uint8), mask=inside)
