"""Modules that are one operator: what KernelBench calls level 1. Each category names its operators; an
operator has several spellings, and its shapes, dimensions and hyperparameters are drawn.
"""

import random

from nanotriton.collect.compose.operators import OPS
from nanotriton.collect.grammar.chain import MAPS, Chain
from nanotriton.collect.grammar.draft import Draft
from nanotriton.collect.grammar.heads import HEAD_STEPS
from nanotriton.collect.grammar.loss_modules import LOSSES
from nanotriton.collect.grammar.steps import IMAGES, ROWS, SCAN_STEPS, SHAPES, SPATIAL, Step
from nanotriton.collect.grammar.whole import ATTENTION, whole
from nanotriton.collect.grammar.windows import convolution, pooling

ACTIVATIONS = [
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "celu",
    "selu",
    "gelu",
    "sigmoid",
    "tanh",
    "silu",
    "mish",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardshrink",
    "softshrink",
    "tanhshrink",
    "softsign",
    "softplus",
    "logsigmoid",
    "threshold",
    "clamp",
    "square",
    "sqrt",
    "exp",
]
BY_HAND = {  # activations that people write out
    "gelu_by_hand": (
        "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))",
        "0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)))",
        'F.gelu(x, approximate="tanh")',
        'nn.GELU(approximate="tanh")',
        "x * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951))",
    ),
    "swish_by_hand": ("x * torch.sigmoid(x)", "torch.sigmoid(x) * x"),
    "quick_gelu": ("x * torch.sigmoid(1.702 * x)",),
    "relu_squared": ("torch.relu(x) ** 2", "F.relu(x).square()", "torch.square(torch.relu(x))"),
    "hardswish_by_hand": ("x * F.relu6(x + 3) / 6", "x * torch.clamp((x + 3) / 6, 0, 1)"),
    "softplus_by_hand": ("torch.log1p(torch.exp(-torch.abs(x))) + torch.relu(x)",),
    "mish_by_hand": ("x * torch.tanh(F.softplus(x))",),
}
CATEGORIES = {
    "activation": 16,
    "elementwise": 11,
    "matmul": 14,
    "conv": 9,
    "conv_transpose": 8,
    "pool": 5,
    "norm": 9,
    "softmax": 4,
    "reduce": 8,
    "scan": 5,
    "loss": 8,
    "attention": 3,
}
POOLS = (("max", 1), ("max", 2), ("max", 3), ("avg", 1), ("avg", 2), ("avg", 3))


def single(rng: random.Random) -> Draft:
    """One operator and nothing else. Raises Misfit."""
    category = rng.choices(list(CATEGORIES), list(CATEGORIES.values()))[0]
    made = DRAWS[category](rng)
    draft = made if isinstance(made, Draft) else made.finish()
    draft.family = f"single_{category}"
    return draft


def any_shape(rng: random.Random) -> str:
    """Of an element-wise operator's input: one to five dimensions, mostly two."""
    return rng.choices(("vector", "matrix", "sequence", "image", "volume"), (8, 45, 22, 18, 7))[0]


def activation(rng: random.Random) -> Chain:
    made = Chain(rng, "", any_shape(rng))
    name = rng.choice([*ACTIVATIONS, *BY_HAND])
    if name in BY_HAND:
        text = rng.choice(BY_HAND[name])
        if text.startswith("nn."):
            made.draft.init.append(f"self.act = {text}")
            text = "self.act(x)"
        made.say(name, text)
    else:
        made.map(OPS[name])
        if OPS[name].domain == "positive":
            made.draft.inputs["x"] = made.draft.inputs["x"].replace("randn", "rand") + " + 0.1"
    return halved(made)


def elementwise(rng: random.Random) -> Chain:
    made = Chain(rng, "", any_shape(rng))
    op = rng.choice([op for op in MAPS if op.name not in ACTIVATIONS])
    made.map(op)
    if op.domain == "positive":
        made.draft.inputs["x"] = made.draft.inputs["x"].replace("randn", "rand") + " + 0.1"
    return halved(made)


def halved(made: Chain) -> Chain:
    """Sometimes all inputs are half precision, where nothing has parameters."""
    if not made.draft.init and made.rng.random() < 0.12:
        made.draft.dtype = made.rng.choice(("float16", "bfloat16"))
    return made


def matmul(rng: random.Random) -> Chain:
    step = by_name(rng, [s for s in HEAD_STEPS if s.group == "matmul"])
    made = Chain(rng, "", rng.choice(step.kinds))
    made.step(step)
    return made


def by_name(rng: random.Random, steps: list[Step]) -> Step:
    """A name first, so that an operator with many spellings is no more common."""
    name = rng.choice(sorted({s.name for s in steps}))
    return rng.choice([s for s in steps if s.name == name])


def conv(rng: random.Random, transposed: bool = False) -> Chain:
    kind = rng.choices(IMAGES, (30, 40, 30))[0]
    made = Chain(rng, "", kind)
    convolution(made, SPATIAL[kind], transposed, single=True)
    return made


def pool(rng: random.Random) -> Chain:
    way, d = rng.choice(POOLS)
    made = Chain(rng, "", IMAGES[d - 1])
    pooling(made, d, way)
    return made


def on(rng: random.Random, kinds: tuple[str, ...], name: str, texts: tuple[str, ...], result=None) -> Chain:
    """One step, in one of its spellings; an `nn.` text is a layer."""
    made = Chain(rng, "", rng.choice(kinds))
    text = rng.choice(texts)
    layer = text.startswith("nn.")
    d = max(len(made.dims) - 2, 1)
    text = text.replace("{d}", str(d))
    called, made_by = ("self.layer(x)", f"self.layer = {text}") if layer else (text, "")
    made.step(Step(name, "single", (made.kind,), called, made_by, result=result))
    return made


NORMS = {
    "batch_norm": (IMAGES, ("nn.BatchNorm{d}d({channels})",)),
    "batch_norm_1d": (("matrix",), ("nn.BatchNorm1d({last})",)),
    "batch_norm_without_statistics": (IMAGES, ("nn.BatchNorm{d}d({channels}, track_running_stats=False)",)),
    "instance_norm": (
        IMAGES,
        (
            "nn.InstanceNorm{d}d({channels})",
            "nn.InstanceNorm{d}d({channels}, affine=True)",
            "F.instance_norm(x)",
        ),
    ),
    "group_norm": (
        IMAGES,
        (
            "nn.GroupNorm(4, {channels})",
            "nn.GroupNorm(2, {channels})",
            "nn.GroupNorm(num_groups=4, num_channels={channels})",
            "F.group_norm(x, 2)",
        ),
    ),
    "layer_norm": (
        (*ROWS, "image"),
        (
            "nn.LayerNorm({last})",
            "nn.LayerNorm({last}, eps=1e-6)",
            "F.layer_norm(x, x.shape[-1:])",
            "nn.LayerNorm({last}, elementwise_affine=False)",
        ),
    ),
    "layer_norm_of_several": (
        ("image", "signal"),
        ("F.layer_norm(x, x.shape[1:])", "F.layer_norm(x, x.shape[-2:])"),
    ),
    "rms_norm": (
        ROWS,
        (
            "nn.RMSNorm({last}, eps=1e-6)",
            "F.rms_norm(x, x.shape[-1:], eps=1e-5)",
            "x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)",
            "x / torch.sqrt(torch.mean(x ** 2, dim=-1, keepdim=True) + 1e-5)",
        ),
    ),
    "channel_rms_norm": (
        IMAGES,
        (
            "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
            "x * torch.rsqrt(x.pow(2).mean(dim=1, keepdim=True) + 1e-6)",
        ),
    ),
    "l1_normalise": (
        (*ROWS, "signal"),
        (
            "x / torch.sum(torch.abs(x), dim=1, keepdim=True)",
            "x / torch.mean(torch.abs(x), dim=1, keepdim=True)",
            "F.normalize(x, p=1.0, dim=-1)",
            "x / x.abs().sum(dim=-1, keepdim=True)",
        ),
    ),
    "l2_normalise": (
        (*ROWS, "signal"),
        (
            "x / torch.norm(x, p=2, dim=1, keepdim=True)",
            "x / x.norm(dim=-1, keepdim=True)",
            "F.normalize(x, dim=-1)",
            "F.normalize(x, p=2.0, dim=1)",
            "x / torch.linalg.vector_norm(x, dim=1, keepdim=True)",
        ),
    ),
    "frobenius_normalise": (
        ("matrix", "sequence", "image"),
        (
            'x / torch.norm(x, p="fro")',
            "x / torch.norm(x)",
            "x / x.norm()",
            "x / torch.sqrt(torch.sum(x * x))",
        ),
    ),
}
SOFTMAXES = {
    "softmax": (
        "torch.softmax(x, dim=-1)", "F.softmax(x, dim=1)", "nn.Softmax(dim=-1)", "x.softmax(dim=-1)",
        "torch.softmax(x, dim=1)", "nn.Softmax(dim=1)",
    ),
    "log_softmax": (
        "F.log_softmax(x, dim=-1)", "nn.LogSoftmax(dim=1)", "torch.log_softmax(x, dim=1)",
        "x.log_softmax(dim=-1)", "nn.LogSoftmax(dim=-1)",
    ),
    "softmin": ("F.softmin(x, dim=-1)", "nn.Softmin(dim=1)"),
    "softmax_by_hand": (
        "torch.exp(x - x.amax(dim=-1, keepdim=True)) / torch.exp(x - x.amax(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)",  # noqa: E501
    ),
    "logsumexp": ("torch.logsumexp(x, dim=1)", "torch.logsumexp(x, dim=-1, keepdim=True)"),
}  # fmt: skip
REDUCTIONS = {
    "sum": ("torch.sum(x, dim={n})", "x.sum(dim={n}, keepdim=True)", "torch.sum(x, dim={n}, keepdim=True)"),
    "mean": ("torch.mean(x, dim={n})", "x.mean(dim={n}, keepdim=True)", "x.mean(dim={n})"),
    "max": ("torch.max(x, dim={n})[0]", "torch.amax(x, dim={n})", "x.max(dim={n}, keepdim=True).values"),
    "min": ("torch.min(x, dim={n})[0]", "torch.amin(x, dim={n}, keepdim=True)", "x.min(dim={n}).values"),
    "prod": ("torch.prod(x, dim={n})", "x.prod(dim={n})"),
    "argmax": ("torch.argmax(x, dim={n})", "x.argmax(dim={n})"),
    "argmin": ("torch.argmin(x, dim={n})", "x.argmin(dim={n})"),
    "var": ("torch.var(x, dim={n})", "x.var(dim={n}, unbiased=False)"),
    "std": ("torch.std(x, dim={n})", "x.std(dim={n}, keepdim=True)"),
    "norm": ("torch.norm(x, dim={n})", "torch.linalg.vector_norm(x, dim={n})"),
    "mean_square": ("(x * x).mean(dim={n})", "x.pow(2).mean(dim={n}, keepdim=True)"),
    "any": ("(x > 2.0).any(dim={n})",),
    "all": ("(x > -2.0).all(dim={n})",),
}


def norm(rng: random.Random) -> Chain:
    name = rng.choice(list(NORMS))
    return on(rng, NORMS[name][0], name, NORMS[name][1])


def softmax(rng: random.Random) -> Chain:
    name = rng.choices(list(SOFTMAXES), (10, 8, 3, 2, 3))[0]
    return on(rng, (*ROWS, "matrix", "signal"), name, SOFTMAXES[name])


def reduction(rng: random.Random) -> Chain:
    name = rng.choices(list(REDUCTIONS), (4, 4, 3, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1))[0]
    kind = rng.choices(("matrix", "sequence", "image"), (40, 40, 20))[0]
    dim = rng.choice([d for d in range(len(SHAPES[kind])) if d or kind != "image"])
    made = on(rng, (kind,), name, tuple(t.replace("{n}", str(dim)) for t in REDUCTIONS[name]), ("?",))
    if name == "prod":
        made.draft.inputs["x"] = made.draft.inputs["x"].replace("randn", "rand") + " + 0.5"
    return made


def scan(rng: random.Random) -> Chain:
    step = by_name(rng, SCAN_STEPS)
    made = Chain(rng, "", rng.choice(step.kinds))
    made.step(step)
    return made


DRAWS = {
    "activation": activation,
    "elementwise": elementwise,
    "matmul": matmul,
    "conv": conv,
    "conv_transpose": lambda rng: conv(rng, True),
    "pool": pool,
    "norm": norm,
    "softmax": softmax,
    "reduce": reduction,
    "scan": scan,
    "loss": lambda rng: whole(rng, LOSSES),
    "attention": lambda rng: whole(rng, ATTENTION),
}
