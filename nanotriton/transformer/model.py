"""One transformer for the families Llama, Mistral, Qwen2, Qwen3 and SmolLM3.

    config = ModelConfig("llama", vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4,
                         num_attention_heads=4)
    model = Transformer(config).init_weights(seed=0)
    hidden = model(ids, positions, attention.packed(cu_seqlens, max_seqlen))  # [T, hidden_size], no logits

Parameters have Hugging Face's names. Sequences are packed end to end along one axis of T tokens; there is no
batch axis and no padding. They meet in one place, `attend`, which the caller supplies: packed attention
(attention.py) to train, a KV cache (sampler/kv_cache.py) to sample. Read Transformer.forward first, then
Layer, Attention and MLP. model_config.py has ModelConfig, the shape of a model.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanotriton.kernels.heads import norm_and_rotate
from nanotriton.kernels.layers import rms_norm, swiglu
from nanotriton.transformer.model_config import ModelConfig, ModelError  # noqa: F401, users have both from here

# attend(layer, q [T, H, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, H, D]
# A sampler's (kv_cache.CachedAttention) also has a method `place`, which norms and rotates q and k, and puts
# k and v into its cache.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def rope_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] fp32 and the factor on cos and sin.

    Llama-3's piecewise rule is Meta's (transformers: `_compute_llama3_parameters`); yarn is arXiv 2309.00071,
    NTK-by-parts with the attention temperature in the factor.
    """
    dim, scaling = config.head_dim, config.rope_scaling or {}
    inv = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return inv, 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return inv / factor, 1.0
    length = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = length * inv / (2 * math.pi)  # rotations over the original context
        # 0: long waves, stretched; 1: short waves, untouched
        blend = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - blend) * inv / factor + blend * inv, 1.0
    return yarn(config, inv, length)


def yarn(config: ModelConfig, inv: Tensor, length: int) -> tuple[Tensor, float]:
    """rope_frequencies() by yarn, from inv [head_dim / 2]. length: tokens of the original context."""
    dim, scaling = config.head_dim, config.rope_scaling
    factor = scaling["factor"]

    def dimension(rotations: float) -> float:
        """The dimension that turns so many times over the original context."""
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    low = dimension(scaling.get("beta_fast") or 32)
    high = dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # 0: short waves, untouched; 1: long waves, stretched
    ramp = (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / max(high - low, 0.001)
    ramp = ramp.clamp(0, 1)
    scale = scaling.get("attention_factor")
    if scale is None:
        mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
        scale = temperature(mscale) / temperature(all_dim) if mscale and all_dim else temperature(1.0)
    return ramp * inv / factor + (1 - ramp) * inv, float(scale)


class Linear(nn.Linear):
    """y = x W^T + b in x's dtype: the master weight is cast here, and its gradient is cast back."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


def side_by_side(*linears: Linear) -> tuple[Tensor, Tensor | None]:
    """One weight [sum of their widths, in] and one bias that hold those of the linears, end to end.

    The linears' own become views of them: their values and names stay.
    """
    merged = []
    for name in ("weight", "bias"):
        parts = [getattr(linear, name) for linear in linears]
        if parts[0] is None:
            merged.append(None)
            continue
        merged.append(torch.cat([p.detach() for p in parts]))
        for part, view in zip(parts, merged[-1].split([len(p) for p in parts])):
            part.data = view
    return tuple(merged)


def project(x: Tensor, merged: tuple[Tensor, Tensor | None] | None, *linears: Linear) -> Sequence[Tensor]:
    """What each linear makes of x [T, in]: [T, its width].

    It is one product for all of them where they are `merged` (by side_by_side) and nothing is differentiated.
    The answers are then parts of its rows.
    """
    if merged is None or torch.is_grad_enabled():
        return [linear(x) for linear in linears]
    return F.linear(x, *merged).split([linear.out_features for linear in linears], -1)


class RMSNorm(nn.Module):
    """The norm of x [..., size]. With a residual: (the norm of x + residual, that sum)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(
        self, x: Tensor, residual: Tensor | None = None, upcoming: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        return rms_norm(x, self.weight, self.eps, residual, upcoming)


class Attention(nn.Module):
    """[T, hidden_size] -> the same: q, k and v, their norm and rotation, `attend`, the output projection."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        width = config.num_attention_heads * self.head_dim
        kv_width = config.num_key_value_heads * self.head_dim
        self.q_proj = Linear(config.hidden_size, width, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.o_proj = Linear(width, config.hidden_size, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm
        self.rotates = not config.no_rope_layers or bool(config.no_rope_layers[layer])
        self.qkv = None  # weight and bias of q, k and v side by side (Transformer.merge_projections)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        projected = project(x, self.qkv, self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (y.view(len(x), -1, self.head_dim) for y in projected)  # [T, H or Hkv, D]
        norms = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps) if self.qk_norm else None
        rotation = (cos, sin) if self.rotates else None
        if hasattr(attend, "place"):
            q, k = attend.place(self.layer, q, k, v, norms, rotation)
        else:
            q, k = norm_and_rotate(q, k, norms, rotation)
        return self.o_proj(attend(self.layer, q, k, v).reshape(x.shape[0], -1))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), [T, hidden_size] -> the same."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.gate_up = None  # weight and bias of gate and up side by side (Transformer.merge_projections)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = project(x, self.gate_up, self.gate_proj, self.up_proj)
        upcoming = self.down_proj.weight if self.gate_up else None  # of a model that is sampled from
        return self.down_proj(swiglu(gate, up, upcoming))


class Layer(nn.Module):
    """Pre-norm block.

    What its MLP adds to the residual stream, the *change*, is handed on: the next layer's first norm adds
    it, in the kernel that norms the sum.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, change: Tensor | None, cos: Tensor, sin: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """(x, change) -> the same after this layer, each [T, hidden_size].

        x is the residual stream without the change. The change is None where there is none to add: before the
        first layer, and after one that is recomputed in the backward (`whole`).
        """
        # The weights that the products after the norms read, to be read ahead; None if the model is trained.
        qkv, gate_up = (merged and merged[0] for merged in (self.self_attn.qkv, self.mlp.gate_up))
        if change is None:
            h = self.input_layernorm(x, upcoming=qkv)
        else:
            h, x = self.input_layernorm(change, x, upcoming=qkv)
        h = self.self_attn(h, cos, sin, attend)
        h, x = self.post_attention_layernorm(h, x, upcoming=gate_up)
        return x, self.mlp(h)

    def whole(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x -> x after this layer, its change added: checkpointing keeps one [T, hidden_size] a layer."""
        x, change = self(x, None, cos, sin, attend)
        return x + change


class Transformer(nn.Module):
    """The decoder.

    Parameters have the dtype that they were loaded in: fp32 masters to train, bf16 to sample.
    `compute_dtype` is what the forward computes in, with norms, RoPE and softmax in fp32 inside.

    The first `checkpoint_layers` layers keep one tensor each and recompute the rest in the backward.
    `keep_logits` tells a head that there is memory to keep its logits for the backward.
    """

    def __init__(self, config: ModelConfig, compute_dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.checkpoint_layers = 0
        self.keep_logits = False
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
                "layers": nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers)),
                "norm": RMSNorm(config.hidden_size, config.rms_norm_eps),
            }
        )
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        # A plain attribute and not a buffer: `.to(bfloat16)`, FSDP and the meta device must leave it fp32 and
        # real.
        self.inv_freq, self.rope_scale = rope_frequencies(config)

    def merge_projections(self) -> None:
        """Lay q, k and v of each layer side by side, and gate and up: two products make them and not five.

        In a step of few tokens a small product takes longer than to read its weight. This is for a model that
        is sampled from and not trained: its parameters become views, which are to be written, never replaced.
        """
        for layer in self.model.layers:
            layer.self_attn.qkv = side_by_side(
                layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj
            )
            layer.mlp.gate_up = side_by_side(layer.mlp.gate_proj, layer.mlp.up_proj)

    @property
    def head_weight(self) -> Tensor:
        """[vocab_size, hidden_size], the parameter itself (tied: the embedding's)."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def rope_tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T] int -> cos, sin, each [T, head_dim / 2] fp32."""
        if self.inv_freq.device != positions.device:
            self.inv_freq = self.inv_freq.to(positions.device)
        angles = positions[:, None].float() * self.inv_freq
        return angles.cos() * self.rope_scale, angles.sin() * self.rope_scale

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Attend,
        head: Callable[[Tensor, Tensor], object] | None = None,
    ):
        """ids [T] and positions [T] int64 -> hidden [T, hidden_size] after the final norm, in compute_dtype.

        With `head`, returns head(hidden, head_weight) instead: the fused loss runs inside this forward
        because that is where FSDP has the root's parameters gathered.
        """
        cos, sin = self.rope_tables(positions)
        x = F.embedding(ids, self.model.embed_tokens.weight).to(self.compute_dtype)
        change = None  # what the layer before adds to x
        checkpointed = self.checkpoint_layers if torch.is_grad_enabled() else 0
        for number, layer in enumerate(self.model.layers):
            if number < checkpointed:
                options = dict(use_reentrant=False, preserve_rng_state=False)
                x = checkpoint(layer.whole, x, cos, sin, attend, **options)
            else:
                x, change = layer(x, change, cos, sin, attend)
        x = self.model.norm(x) if change is None else self.model.norm(change, residual=x)[0]
        return x if head is None else head(x, self.head_weight)

    @torch.no_grad()
    def init_weights(self, seed: int) -> "Transformer":
        """Fill from nothing, the same on every device. Returns self.

        Weights are N(0, 0.02), and of the two projections that write to the residual stream that times
        1 / sqrt(2 layers) (GPT-2). Norms are 1, biases 0.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, param in self.named_parameters():
            if param.ndim == 1:
                param.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            std = 0.02
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2 * self.config.num_hidden_layers)
            param.copy_(torch.empty(param.shape, dtype=torch.float32).normal_(0.0, std, generator=generator))
        return self
