"""Modules that the grammar asks for whole: attention, optimizer steps, quantisation, rotary embeddings. The
losses are in loss_modules.py.

Each is (name, group, inputs, lines of forward; the last is what it returns). Inputs are (name, what draws
it), in the grammar's size names.
"""

import random
from dataclasses import dataclass

from nanotriton.collect.grammar.draft import Draft


@dataclass(frozen=True)
class Whole:
    name: str
    group: str
    inputs: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    init: tuple[str, ...] = ()  # lines of the constructor
    halves: bool = False  # whether half precision makes sense


_M = "torch.randn(rows, cols)"


_Q, _KV = "torch.randn(batch, heads, length, width)", "torch.randn(batch, heads, keys, width)"
ATTENTION = [
    Whole(
        "attention",
        "attention",
        (("q", _Q), ("k", _KV), ("v", _KV)),
        ("F.scaled_dot_product_attention(q, k, v)",),
        halves=True,
    ),
    Whole(
        "causal_attention",
        "attention",
        (("q", _Q), ("k", _Q), ("v", _Q)),
        ("F.scaled_dot_product_attention(q, k, v, is_causal=True)",),
        halves=True,
    ),
    Whole(
        "scaled_attention",
        "attention",
        (("q", _Q), ("k", _KV), ("v", _KV)),
        ("F.scaled_dot_product_attention(q, k, v, scale=0.125)",),
    ),
    Whole(
        "grouped_query_attention",
        "attention",
        (
            ("q", "torch.randn(batch, heads, length, width)"),
            ("k", "torch.randn(batch, kv_heads, keys, width)"),
            ("v", "torch.randn(batch, kv_heads, keys, width)"),
        ),
        ("F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",),
    ),
    Whole(
        "attention_by_hand",
        "attention",
        (
            ("q", "torch.randn(batch, length, width)"),
            ("k", "torch.randn(batch, keys, width)"),
            ("v", "torch.randn(batch, keys, width)"),
        ),
        ("scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5", "torch.softmax(scores, dim=-1) @ v"),
    ),
    Whole(
        "attention_scores",
        "attention",
        (("q", "torch.randn(batch, length, width)"), ("k", "torch.randn(batch, keys, width)")),
        ("torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1)",),
    ),
    Whole(
        "linear_attention",
        "attention",
        (
            ("q", "torch.randn(batch, length, width)"),
            ("k", "torch.randn(batch, keys, width)"),
            ("v", "torch.randn(batch, keys, width)"),
        ),
        ("state = F.elu(k).transpose(1, 2) @ v", "(F.elu(q) + 1) @ state / k.shape[1]"),
    ),
]
_P, _G = ("p", _M), ("g", _M)
_MO, _V = ("m", _M), ("v", "torch.rand(rows, cols)")


def _step(name: str, inputs: tuple, *lines: str) -> Whole:
    return Whole(name, "optimizer", inputs, lines)


OPTIMIZERS = [
    _step("sgd", (_P, _G), "p - {lr} * g"),
    _step("sgd_weight_decay", (_P, _G), "p - {lr} * (g + {wd} * p)"),
    _step("sgd_momentum", (_P, _G, _MO), "m = 0.9 * m + g", "p - {lr} * m, m"),
    _step("sgd_nesterov", (_P, _G, _MO), "m = 0.9 * m + g", "p - {lr} * (g + 0.9 * m), m"),
    _step(
        "adam",
        (_P, _G, _MO, _V),
        "m = {b1} * m + (1 - {b1}) * g",
        "v = 0.999 * v + 0.001 * g * g",
        "p - {lr} * m / (torch.sqrt(v) + 1e-8), m, v",
    ),
    _step(
        "adamw",
        (_P, _G, _MO, _V),
        "m = torch.lerp(m, g, 0.1)",
        "v = 0.95 * v + 0.05 * g * g",
        "p * (1 - {lr} * {wd}) - {lr} * m / (v.sqrt() + 1e-8), m, v",
    ),
    _step("rmsprop", (_P, _G, _V), "v = 0.99 * v + 0.01 * g * g", "p - {lr} * g / (torch.sqrt(v) + 1e-8), v"),
    _step("adagrad", (_P, _G, _V), "v = v + g * g", "p - {lr} * g / (torch.sqrt(v) + 1e-10), v"),
    _step(
        "lion",
        (_P, _G, _MO),
        "update = torch.sign(0.9 * m + 0.1 * g)",
        "p - {lr} * update, 0.99 * m + 0.01 * g",
    ),
    _step(
        "adadelta",
        (_P, _G, _V, ("u", "torch.rand(rows, cols)")),
        "v = 0.9 * v + 0.1 * g * g",
        "d = torch.sqrt(u + 1e-6) / torch.sqrt(v + 1e-6) * g",
        "p - d, v, 0.9 * u + 0.1 * d * d",
    ),
    _step("ema", (_P, _G), "torch.lerp(p, g, {lr})"),
    _step("clip_by_value", (_P, _G), "p - {lr} * torch.clamp(g, -1.0, 1.0)"),
    _step("clip_by_norm", (_P, _G), "p - {lr} * g / torch.clamp(g.norm(dim=-1, keepdim=True), min=1.0)"),
]
_S = ("scale", "torch.rand(rows, 1) * 0.1 + 0.01")
QUANTISATION = [
    Whole(
        "quantise_per_row",
        "quantise",
        (("x", _M),),
        ("scale = x.abs().amax(dim=-1, keepdim=True) / 127", "torch.round(x / scale).to(torch.int8), scale"),
    ),
    Whole(
        "quantise_given_scale",
        "quantise",
        (("x", _M), _S),
        ("torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)",),
    ),
    Whole(
        "quantise_asymmetric",
        "quantise",
        (("x", _M), _S),
        ("torch.clamp(torch.round(x / scale) + 128, 0, 255).to(torch.uint8)",),
    ),
    Whole(
        "dequantise",
        "quantise",
        (("q", "torch.randint(-128, 128, (rows, cols), dtype=torch.int8)"), _S),
        ("q.to(torch.float32) * scale",),
    ),
    Whole(
        "dequantise_bias",
        "quantise",
        (
            ("q", "torch.randint(-128, 128, (rows, cols), dtype=torch.int8)"),
            _S,
            ("bias", "torch.randn(cols)"),
        ),
        ("q.to(torch.float32) * scale + bias",),
    ),
    Whole(
        "fake_quantise",
        "quantise",
        (("x", _M), _S),
        ("torch.clamp(torch.round(x / scale), -128, 127) * scale",),
    ),
    Whole(
        "fake_quantise_per_row",
        "quantise",
        (("x", _M),),
        ("scale = x.abs().amax(dim=-1, keepdim=True) / 7", "torch.round(x / scale) * scale"),
    ),
    Whole(
        "requantise",
        "quantise",
        (
            ("q", "torch.randint(-20000, 20000, (rows, cols), dtype=torch.int32)"),
            ("scale", "torch.rand(cols) * 0.01"),
        ),
        ("torch.clamp(torch.round(q.to(torch.float32) * scale), -128, 127).to(torch.int8)",),
    ),
    Whole(
        "binarise",
        "quantise",
        (("x", _M),),
        ("torch.where(x > 0, 1.0, -1.0) * x.abs().mean(dim=-1, keepdim=True)",),
    ),
    Whole(
        "ternarise",
        "quantise",
        (("x", _M),),
        (
            "limit = 0.7 * x.abs().mean(dim=-1, keepdim=True)",
            "torch.where(x.abs() > limit, torch.sign(x), 0.0)",
        ),
    ),
]
_TWO = (("x", _M), ("y", _M))
MIXTURES = [
    Whole(
        "rotary",
        "mixture",
        (("x", _M), ("y", _M), ("cos", "torch.rand(rows, cols)"), ("sin", "torch.rand(rows, cols)")),
        ("x * cos - y * sin, x * sin + y * cos",),
    ),
    Whole("gated_residual", "mixture", (*_TWO, ("gate", _M)), ("x + torch.sigmoid(gate) * (y - x)",)),
    Whole("swiglu_pair", "mixture", _TWO, ("F.silu(x) * y",)),
    Whole("geglu_pair", "mixture", _TWO, ("F.gelu(x) * y",)),
    Whole("reglu_pair", "mixture", _TWO, ("torch.relu(x) * y",)),
    Whole("add_layer_norm", "mixture", _TWO, ("F.layer_norm(x + y, x.shape[-1:])",)),
    Whole("add_rms_norm", "mixture", _TWO, ("h = x + y", "F.rms_norm(h, h.shape[-1:], eps=1e-6), h")),
    Whole("bias_gelu", "mixture", (("x", _M), ("bias", "torch.randn(cols)")), ("F.gelu(x + bias)",)),
    Whole(
        "masked_softmax",
        "mixture",
        (("x", _M), ("mask", "torch.rand(rows, cols) > 0.3")),
        ("torch.softmax(x.masked_fill(mask, -1e4), dim=-1)",),
    ),
    Whole(
        "temperature_softmax",
        "mixture",
        (("x", _M), ("t", "torch.rand(rows, 1) + 0.5")),
        ("torch.softmax(x / t, dim=-1)",),
    ),
    Whole(
        "entropy",
        "mixture",
        (("x", _M),),
        ("p = torch.softmax(x, dim=-1)", "-(p * torch.log_softmax(x, dim=-1)).sum(dim=-1)"),
    ),
    Whole(
        "attention_pooling",
        "mixture",
        (("x", _M), ("w", "torch.randn(rows, cols)")),
        ("(torch.softmax(w, dim=-1) * x).sum(dim=-1)",),
    ),
    Whole("lerp_tensors", "mixture", (*_TWO, ("t", "torch.rand(rows, 1)")), ("x * (1 - t) + y * t",)),
    Whole("squared_distance", "mixture", _TWO, ("((x - y) ** 2).sum(dim=-1)",)),
    Whole("weighted_sum", "mixture", (("x", _M), ("w", "torch.rand(cols)")), ("(x * w).sum(dim=-1)",)),
    Whole("relu_squared_mean", "mixture", (("x", _M),), ("torch.relu(x).pow(2).mean(dim=-1, keepdim=True)",)),
]
WHOLES = ATTENTION + OPTIMIZERS + QUANTISATION + MIXTURES


USUAL = (  # losses that are asked for more often than the others
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "kl_div", "bce_with_logits",
    "hinge_loss", "cosine_distance", "cosine_similarity", "triplet_margin",
)  # fmt: skip


def whole(rng: random.Random, table: list[Whole]) -> Draft:
    """One of a table's modules, by name first, with its numbers drawn."""
    names = sorted({w.name for w in table})
    name = rng.choices(names, [4 if n in USUAL else 1 for n in names])[0]
    chosen = rng.choice([w for w in table if w.name == name])
    group = chosen.group
    values = {
        "lr": rng.choice(("0.01", "0.001", "0.1", "0.05")),
        "wd": rng.choice(("0.1", "0.01", "0.05")),
        "b1": rng.choice(("0.9", "0.95", "0.8")),
    }
    lines = list(chosen.lines)
    for key, value in values.items():
        lines = [line.replace(f"{{{key}}}", value) for line in lines]
    lines[-1] = f"return {lines[-1]}"
    draft = Draft(group, [chosen.name], dict(chosen.inputs), list(chosen.init), lines)
    shape = rng.choice(("rows, cols", "rows, cols", "batch, length, features"))
    if (
        group in ("optimizer", "mixture")
        and "rows," not in str([d for _, d in chosen.inputs if "rows, cols" not in d])
        and shape != "rows, cols"
    ):
        draft.inputs = {
            n: d.replace("rows, cols", shape).replace("(cols)", "(features)") for n, d in draft.inputs.items()
        }
    if chosen.halves and rng.random() < 0.3:
        draft.dtype = rng.choice(("float16", "bfloat16"))
    return draft
