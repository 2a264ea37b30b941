"""One transformer for the families Llama, Mistral, Qwen2, Qwen3 and SmolLM3.

    config = ModelConfig("llama", vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4,
                         num_attention_heads=4)
    model = Transformer(config).init_weights(seed=0)
    hidden = model(ids, positions, attention.packed(cu_seqlens, max_seqlen))  # [T, hidden_size], no logits

Parameters have Hugging Face's names. Sequences are packed end to end along one axis of T tokens; there is no
batch axis and no padding. They meet in one place, `attend`, which the caller supplies: packed attention
(attention.py) to train, a KV cache (kv_cache.py) to sample. Read Transformer.forward first, then Layer,
Attention and MLP. The first half of the file is ModelConfig, which reads a config.json and refuses what is
not built here.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanotriton.kernels.layers import norm_and_rotate, rms_norm, swiglu

# attend(layer, q [T, H, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, H, D]
# A sampler's (kv_cache.CachedAttention) also has a method `place`, which norms and rotates q and k, and puts
# k and v into its cache.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

# model_type -> the name of its class in transformers. All are Llama with small differences, see from_hf().
MODEL_TYPES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "smollm3": "SmolLM3",
}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# the numbers that each type needs
ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
# and those that it may have: llama3's and yarn's original length falls back to max_position_embeddings
ROPE_OPTIONS = {
    "default": (),
    "linear": (),
    "llama3": ("original_max_position_embeddings",),
    "yarn": (
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
# Some models multiply embeddings, residuals, attention or logits by a constant, under names like these.
SCALE_KEY = re.compile(r"multiplier|softcap|scal(e|ing|ar)(_|$)|^scale_")
WIDEST_HEAD = 256  # that flash attention's kernels take
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
REQUIRED = ("model_type", *SIZES, "rms_norm_eps", "max_position_embeddings")


class ModelError(ValueError):
    """A model folder, config, tokenizer or checkpoint that can't be used. The message is one line."""


@dataclass
class ModelConfig:
    """The shape of a model. Fields are named as in Hugging Face's config.json.

    ModelError if it can't be built.
    """

    model_type: str = "llama"
    vocab_size: int = 512
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None  # None: as many as attention heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict | None = None  # {"rope_type": "linear" | "llama3" | "yarn", ...}
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v, and outside Qwen2 on the output projection too
    qk_norm: bool = False  # Qwen3: an RMSNorm on every head of q and k
    # SmolLM3: 0 for each layer whose q and k aren't rotated, 1 for the others; empty: all are rotated
    no_rope_layers: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation_config: dict = field(default_factory=dict)  # generation_config.json, kept to be written back
    dtype: torch.dtype | None = field(default=None, compare=False)  # of the folder that it was read from

    def __post_init__(self):
        if self.model_type not in MODEL_TYPES:
            raise ModelError(
                f"model_type {self.model_type!r} is not supported; supported: {', '.join(MODEL_TYPES)}"
            )
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        for name in (*SIZES, "num_key_value_heads", "max_position_embeddings"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ModelError(f"{name} must be a positive integer, not {value!r}")
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        if type(self.head_dim) is not int or self.head_dim not in range(2, WIDEST_HEAD + 1, 2):
            raise ModelError(
                f"head_dim must be an even number from 2 to {WIDEST_HEAD}, not {self.head_dim!r}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        self.eos_token_ids = tuple(self.eos_token_ids)
        if self.no_rope_layers and len(self.no_rope_layers) != self.num_hidden_layers:
            raise ModelError(
                f"no_rope_layers has {len(self.no_rope_layers)} layers of {self.num_hidden_layers}"
            )
        self._check_rope()

    def _check_rope(self):
        scaling = self.rope_scaling or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ROPE_TYPES:
            raise ModelError(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
        if missing := [key for key in ROPE_KEYS[kind] if not isinstance(scaling.get(key), int | float)]:
            raise ModelError(f"rope type {kind} needs a number for {', '.join(missing)}")
        known = (*ROPE_KEYS[kind], *ROPE_OPTIONS[kind])
        if unknown := sorted(scaling.keys() - {"rope_type", "type", *known}):
            supported = ", ".join(known) or "none"
            raise ModelError(
                f"rope type {kind} with {', '.join(unknown)} is not supported; supported: {supported}"
            )
        self.rope_scaling = {**scaling, "rope_type": kind} if kind != "default" else None

    @property
    def output_bias(self) -> bool:
        return self.attention_bias and self.model_type != "qwen2"

    @classmethod
    def from_hf(cls, raw: dict, generation_config: dict | None = None) -> "ModelConfig":
        """Read a config.json, of either generation: `rope_scaling` beside `rope_theta`, or `rope_parameters`.

        Anything that would change what the model computes and isn't built here is a ModelError that names it.
        """
        kind = raw.get("model_type")
        if "moe" in str(kind).lower() or any(
            raw.get(k) for k in ("num_experts", "num_local_experts", "n_routed_experts")
        ):
            raise ModelError(
                f"mixture-of-experts models are not supported (model_type {kind!r}); supported: {', '.join(MODEL_TYPES)}"  # noqa: E501
            )
        if kind is not None and kind not in MODEL_TYPES:
            raise ModelError(f"model_type {kind!r} is not supported; supported: {', '.join(MODEL_TYPES)}")
        # HF's default there is a bare 32
        required = REQUIRED if kind == "llama" else (*REQUIRED, "num_key_value_heads")
        if missing := [key for key in required if raw.get(key) is None]:
            raise ModelError(f"config.json lacks {', '.join(missing)}")
        # transformers' default for Mistral is a window of 4,096; a null says that there is none
        window = raw.get("sliding_window", 4096 if kind == "mistral" else None)
        used = raw.get("use_sliding_window", kind in ("llama", "mistral"))
        if (window is not None and used) or "sliding_attention" in (raw.get("layer_types") or ()):
            raise ModelError("sliding-window attention is not supported; only full causal attention is")
        for key, value in raw.items():
            if SCALE_KEY.search(key) and key != "rope_scaling" and value not in (None, False, 1):
                raise ModelError(f"{key} {str(value)[:60]} is not supported: nothing is scaled here")
        for key, only in (("hidden_act", "silu"), ("mlp_bias", False), ("quantization_config", None)):
            if raw.get(key, only) != only:
                raise ModelError(f"{key} {str(raw[key])[:60]!r} is not supported; only {only!r} is")
        scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
        theta = scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10_000.0
        if scaling.pop("partial_rotary_factor", None) not in (None, 1) or raw.get(
            "partial_rotary_factor"
        ) not in (None, 1):
            raise ModelError("partial_rotary_factor other than 1 is not supported")
        generation = generation_config or {}
        eos = dict.fromkeys(as_ids(raw.get("eos_token_id")) + as_ids(generation.get("eos_token_id")))
        return cls(
            **{key: raw[key] for key in REQUIRED},
            num_key_value_heads=raw.get("num_key_value_heads"),
            head_dim=raw.get("head_dim") or (128 if kind == "qwen3" else None),
            rope_theta=float(theta),
            rope_scaling=scaling,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", kind == "smollm3")),
            attention_bias=kind == "qwen2" or bool(raw.get("attention_bias", False)),
            qk_norm=kind == "qwen3",
            no_rope_layers=rotated_layers(raw) if kind == "smollm3" else (),
            dtype=getattr(torch, str(raw.get("dtype") or raw.get("torch_dtype")), None),
            bos_token_id=raw.get("bos_token_id"),
            pad_token_id=raw.get("pad_token_id"),
            eos_token_ids=tuple(eos),
            generation_config=generation,
        )

    def to_hf(self, dtype: torch.dtype) -> dict:
        """The config.json that transformers and vLLM read back as this model."""
        names = (
            *REQUIRED,
            "num_key_value_heads",
            "head_dim",
            "rope_theta",
            "rope_scaling",
            "tie_word_embeddings",
        )
        architecture = f"{MODEL_TYPES[self.model_type]}ForCausalLM"
        out = {"architectures": [architecture], **{name: getattr(self, name) for name in names}}
        out |= {"hidden_act": "silu", "torch_dtype": str(dtype).removeprefix("torch.")}
        out |= {"bos_token_id": self.bos_token_id, "pad_token_id": self.pad_token_id}
        out["eos_token_id"] = (
            list(self.eos_token_ids) if len(self.eos_token_ids) != 1 else self.eos_token_ids[0]
        )
        if self.model_type != "qwen2":
            out["attention_bias"] = self.attention_bias
        out["no_rope_layers"] = list(self.no_rope_layers)
        out = {key: value for key, value in out.items() if value not in (None, [])}
        if self.model_type == "mistral":
            out["sliding_window"] = None  # said in full, since transformers' default is a window
        return out


def rotated_layers(raw: dict) -> tuple[int, ...]:
    """SmolLM3's no_rope_layers: 1 for each layer with RoPE, 0 for each without, by default every fourth."""
    if raw.get("no_rope_layers"):
        return tuple(raw["no_rope_layers"])
    interval = raw.get("no_rope_layer_interval") or 4
    return tuple(int((layer + 1) % interval != 0) for layer in range(raw["num_hidden_layers"]))


def as_ids(value: int | list[int] | None) -> list[int]:
    """The end ids of a config: absent, one id or a list of ids. as_ids(None) == [], as_ids(2) == [2].

    ModelError for anything else.
    """
    if value is None:
        return []
    ids = value if isinstance(value, list | tuple) else [value]
    if not all(type(i) is int for i in ids):
        raise ModelError(f"eos_token_id is {value!r}; an id or a list of ids is expected")
    return list(ids)


def rope_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] fp32 and the factor on cos and sin.

    Llama-3's piecewise rule is Meta's (transformers: `_compute_llama3_parameters`); yarn is arXiv 2309.00071,
    NTK-by-parts with the attention temperature in the factor.
    """
    dim, base, scaling = config.head_dim, config.rope_theta, config.rope_scaling or {}
    inv = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
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

    # the dimension that turns so many times over the original context
    def dimension(rotations: float) -> float:
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    low, high = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / max(high - low, 0.001)).clamp(
        0, 1
    )
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
    """[T, hidden_size] -> the same, through q, k and v, their norm and rotation, `attend`, and the output
    projection."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        width, kv_width = (
            config.num_attention_heads * self.head_dim,
            config.num_key_value_heads * self.head_dim,
        )
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
        q, k, v = (
            y.view(len(x), -1, self.head_dim)
            for y in project(x, self.qkv, self.q_proj, self.k_proj, self.v_proj)
        )
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
    """

    def __init__(self, config: ModelConfig, compute_dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.checkpoint_layers = 0
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
