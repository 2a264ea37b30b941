"""Modules of a product or a convolution and what follows it: what KernelBench calls level 2."""

import random

from nanotriton.collect.compose.operators import OPS
from nanotriton.collect.grammar.chain import Chain
from nanotriton.collect.grammar.draft import Draft, Formula, Misfit
from nanotriton.collect.grammar.steps import CHANNEL_STEPS, IMAGES, REDUCE_STEPS, ROW_STEPS, SPATIAL, Step
from nanotriton.collect.grammar.windows import convolution, pooling

# What stands after a layer, and how often.
FOLLOWING = {
    "relu": 6, "leaky_relu": 4, "sigmoid": 5, "tanh": 5, "gelu": 6, "silu": 4, "mish": 5, "hardswish": 5,
    "hardtanh": 4, "hardsigmoid": 2, "elu": 3, "selu": 2, "softplus": 3, "relu6": 2, "celu": 1, "softsign": 1,
    "logsigmoid": 1, "clamp": 5, "clamp_min": 2, "clamp_max": 2, "abs": 1, "neg": 1, "square": 2, "exp": 1,
    "add": 8, "sub": 6, "mul": 9, "div": 5, "maximum": 1, "minimum": 1,
}  # fmt: skip
HEADS = {
    "linear": 10, "linear_without_bias": 8, "matmul": 9, "conv1d": 5, "conv2d": 14, "conv3d": 12,
    "conv_transpose1d": 5, "conv_transpose2d": 11, "conv_transpose3d": 11,
}  # fmt: skip


def fused(rng: random.Random, steps: tuple[int, int] = (1, 4)) -> Draft:
    """A layer and one to four operators after it. steps: how many at least and at most. Raises Misfit."""
    head = rng.choices(list(HEADS), list(HEADS.values()))[0]
    made = convolved(rng, head) if head.startswith("conv") else product(rng, head)
    count = rng.choices(range(steps[0], steps[1] + 1), [3, 4, 3, 2, 1, 1][: steps[1] - steps[0] + 1])[0]
    others = 0  # steps that are no maps
    for i in range(count):
        if made.ended or not made.dims:
            break
        if others < 2 and rng.random() < (0.35 if i else 0.25) and other(made):
            others += 1
        else:
            follow(made)
    draft = made.finish()
    draft.family = f"fused_{head}"
    return draft


def product(rng: random.Random, way: str) -> Chain:
    """A linear layer, sometimes written out."""
    kind = rng.choices(("matrix", "sequence"), (85, 15))[0]
    made = Chain(rng, "", kind)
    last = made.dims[-1]
    if way == "matmul":
        made.draft.init.append(f"self.weight = nn.Parameter(torch.randn(hidden, {last}))")
        made.say(
            "matmul",
            rng.choice(("torch.matmul(x, self.weight.T)", "x @ self.weight.t()", "F.linear(x, self.weight)")),
        )
    else:
        bias = ", bias=False" if way == "linear_without_bias" else ""
        made.draft.init.append(f"self.fc = nn.Linear({last}, hidden{bias})")
        made.say(way, "self.fc(x)")
    made.dims = [*made.dims[:-1], "hidden"]
    return made


def convolved(rng: random.Random, head: str) -> Chain:
    d = int(head[-2])
    made = Chain(rng, "", IMAGES[d - 1])
    convolution(made, d, "transpose" in head, single=False)
    return made


def follow(made: Chain) -> None:
    """An element-wise operator: an activation, a number, a parameter, what the layer gave once more."""
    rng = made.rng
    name = rng.choices(list(FOLLOWING), list(FOLLOWING.values()))[0]
    if name in ("add", "mul", "sub") and rng.random() < 0.35 and made.dims[-1] not in ("1",):
        with_parameter(made, name)
    elif name in ("add", "mul") and rng.random() < 0.15:
        operand, _ = made.parameter("weight_scalar", f"torch.tensor({rng.choice(('1.0', '0.5', '2.0'))})")
        made.say(f"{name}_scalar", f"x {'+' if name == 'add' else '*'} {operand}")
    elif name == "add" and rng.random() < 0.3:
        residual(made)
    elif name == "silu" and rng.random() < 0.5:
        made.say("silu", rng.choice(("torch.sigmoid(x) * x", "x * torch.sigmoid(x)")))
    else:
        made.map(OPS[name])


def with_parameter(made: Chain, name: str) -> None:
    """A bias or a scale of the module's own, one number for each channel."""
    rng = made.rng
    known = made.dims[1] if made.kind in IMAGES and len(made.dims) > 2 else made.dims[-1]
    if known in ("?", "1"):
        raise Misfit
    ones = ", 1" * (len(made.dims) - 2) if made.kind in IMAGES else ""
    attribute = rng.choice(
        {"mul": ("scale", "multiplier", "gamma"), "add": ("bias", "add_value")}.get(name, ("offset",))
    )
    shape = f"{known}{ones}"
    named = f"{attribute}_shape"
    if rng.random() < 0.5 and named not in made.draft.fixed:
        made.draft.fixed[named] = Formula(f"({shape}{'' if ones else ','})")
        shape = named
    operand, suffix = made.parameter(attribute, f"torch.randn({shape})")
    made.say(name + suffix, f"x {dict(add='+', mul='*', sub='-')[name]} {operand}")


def residual(made: Chain) -> None:
    """What was there before an operator is added after it."""
    line = made.draft.lines[-1]
    made.draft.lines[-1:] = [line, made.rng.choice(("residual = x", "residual = x.clone().detach()"))]
    if any(other.startswith("residual =") for other in made.draft.lines[:-1]):
        raise Misfit
    name = made.rng.choice(("sigmoid", "tanh", "relu", "gelu", "mul"))
    made.map(OPS[name])
    made.say("add_residual", made.rng.choice(("x + residual", "residual + x")))


def other(made: Chain) -> bool:
    """A norm, a pooling, a reduction or a softmax; False where none fits."""
    rng = made.rng
    picture = made.kind in IMAGES and len(made.dims) == SPATIAL[made.kind] + 2 and "1" not in made.dims
    if picture:
        of_picture(made, SPATIAL[made.kind])
        return True
    if made.kind in IMAGES and made.dims[2:] == ["1"] * SPATIAL[made.kind] and made.dims[1] != "1":
        table = [s for s in CHANNEL_STEPS if s.name in OF_POOLED and made.kind in s.kinds]
        by_weight(rng, made, table)
        return True
    if made.kind in IMAGES or len(made.dims) < 2 or made.dims[-1] in ("?", "1"):
        return False
    if made.kind == "matrix" and rng.random() < 0.25:
        features_pooled(made)
        return True
    table = [s for s in (*ROW_STEPS, *REDUCE_STEPS, *FEATURES) if made.kind in s.kinds and s.needs != "last"]
    by_weight(rng, made, table)
    return True


def features_pooled(made: Chain) -> None:
    """A pooling of neighbouring features, which need a dimension of channels for it."""
    rng, size = made.rng, made.rng.choice((2, 4))
    way = rng.choice(("max", "avg"))
    made.draft.multiples[made.dims[-1]] = 8
    layer = f"nn.{way.title()}Pool1d({rng.choice(('', 'kernel_size='))}{size})"
    if any("self.pool " in line for line in made.draft.init):
        raise Misfit
    made.draft.init.append(f"self.pool = {layer}")
    made.say(f"{way}_pool1d_of_features", "self.pool(x.unsqueeze(1)).squeeze(1)")
    made.dims = [made.dims[0], "?"]


def by_weight(rng: random.Random, made: Chain, table: list[Step]) -> None:
    names = sorted({s.name for s in table})
    name = rng.choices(names, [LIKELY.get(n, 1) for n in names])[0]
    made.step(rng.choice([s for s in table if s.name == name]))


LIKELY = {
    "softmax": 5,
    "logsumexp": 5,
    "sum": 4,
    "mean": 4,
    "amax": 4,
    "amin": 2,
    "layer_norm": 4,
    "rms_norm": 2,
}
LIKELY |= {"feature_group_norm": 6, "feature_batch_norm": 6, "log_softmax": 2, "keep_sum": 4, "keep_max": 4}
LIKELY |= {
    "group_norm": 8,
    "batch_norm": 5,
    "instance_norm": 5,
    "global_avg_pool": 5,
    "max_pool": 7,
    "avg_pool": 6,
}
LIKELY |= {
    "channel_min": 4,
    "channel_max": 3,
    "channel_logsumexp": 4,
    "channel_softmax": 4,
    "channel_mean": 3,
}
FEATURES = [
    Step(
        "feature_group_norm",
        "norm",
        ("matrix",),
        "self.norm(x)",
        "self.norm = nn.GroupNorm({c}, {last})",
        constants=("4", "8"),
    ),
    Step("feature_batch_norm", "norm", ("matrix",), "self.norm(x)", "self.norm = nn.BatchNorm1d({last})"),
    Step("keep_sum", "reduce", ("matrix",), "torch.sum(x, dim=1, keepdim=True)", result=("0", "1", "*")),
    Step("keep_mean", "reduce", ("matrix",), "torch.mean(x, dim=1, keepdim=True)", result=("0", "1", "*")),
    Step("keep_max", "reduce", ("matrix",), "torch.max(x, dim=1, keepdim=True)[0]", result=("0", "1", "*")),
    Step(
        "keep_logsumexp",
        "reduce",
        ("matrix",),
        "torch.logsumexp(x, dim=1, keepdim=True)",
        result=("0", "1", "*"),
    ),
]


OF_POOLED = ("channel_softmax", "channel_logsumexp", "channel_sum", "channel_mean", "channel_max")


def of_picture(made: Chain, d: int) -> None:
    rng = made.rng
    table = [s for s in CHANNEL_STEPS if made.kind in s.kinds]
    names = sorted({s.name for s in table} | {"max_pool", "avg_pool"})
    name = rng.choices(names, [LIKELY.get(n, 1) for n in names])[0]
    if name.endswith("_pool") and name[:4] in ("max_", "avg_"):
        pooling(made, d, name[:3])
    else:
        made.step(rng.choice([s for s in table if s.name == name]))
