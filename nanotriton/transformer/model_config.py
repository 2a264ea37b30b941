"""The shape of a model: what a Hugging Face config.json says, and what of it is not built here.

    config = ModelConfig.from_hf(json.loads(path.read_text()))   # ModelError names what is not supported
    model = Transformer(config)                                  # model.py

Nothing is ignored in silence: a field that would change what the model computes is built or refused.
"""

import re
from dataclasses import dataclass, field

import torch

# model_type -> the name of its class in transformers. All are Llama with small differences, see from_hf().
MODEL_TYPES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "smollm3": "SmolLM3",
}
# RoPE's types, and the numbers that each one needs
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
        """ModelError for a `rope_scaling` that model.rope_frequencies doesn't know; then give it one form."""
        scaling = self.rope_scaling or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ROPE_KEYS:
            raise ModelError(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_KEYS)}")
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
        """Whether the output projection has a bias: Qwen2's has none beside those of q, k and v."""
        return self.attention_bias and self.model_type != "qwen2"

    @classmethod
    def from_hf(cls, raw: dict, generation_config: dict | None = None) -> "ModelConfig":
        """Read a config.json, of either generation: `rope_scaling` beside `rope_theta`, or `rope_parameters`.

        Anything that would change what the model computes and isn't built here is a ModelError that names it.
        """
        check_family(raw)
        check_supported(raw)
        kind = raw["model_type"]
        scaling = rope_of(raw)
        theta = scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10_000.0
        scaling.pop("partial_rotary_factor", None)
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


def check_family(raw: dict) -> None:
    """ModelError for a config.json of another family, or one that lacks what its family needs."""
    kind = raw.get("model_type")
    counts = ("num_experts", "num_local_experts", "n_routed_experts")
    if "moe" in str(kind).lower() or any(raw.get(key) for key in counts):
        raise ModelError(
            f"mixture-of-experts models are not supported (model_type {kind!r}); "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    if kind is not None and kind not in MODEL_TYPES:
        raise ModelError(f"model_type {kind!r} is not supported; supported: {', '.join(MODEL_TYPES)}")
    # HF's default there is a bare 32
    required = REQUIRED if kind == "llama" else (*REQUIRED, "num_key_value_heads")
    if missing := [key for key in required if raw.get(key) is None]:
        raise ModelError(f"config.json lacks {', '.join(missing)}")


def check_supported(raw: dict) -> None:
    """ModelError for a config.json that asks for what is not built here."""
    kind = raw["model_type"]
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
    for place in (rope_of(raw), raw):
        if place.get("partial_rotary_factor") not in (None, 1):
            raise ModelError("partial_rotary_factor other than 1 is not supported")


def rope_of(raw: dict) -> dict:
    """A copy of what a config.json says of RoPE, under the name of either generation."""
    return dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})


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
