"""PyTorch's larger operators, spelt as maps and reductions (ir.py).

Each function takes the builder and what the operator was called with, under PyTorch's own parameter names,
and returns the result's node. LOWER maps a canonical name (trace.py) to it.
"""

import torch

from nanotriton.collect.compose.ir import FLOATS, Builder, NamedFloat, Node, Scalar, Unfit, text_of

LOWER = {}


def lowers(*names: str):
    """Register a function for these operators."""

    def register(function):
        LOWER.update(dict.fromkeys(names, function))
        return function

    return register


# ---- operators of elements that need a step before, or the type ----


@lowers("remainder")
def remainder(b: Builder, x: Node, other, op="") -> Node:
    """What is left of a division that rounds down: it has the sign of `other`. From x / other, rounded, the
    digits of a large quotient couldn't be had again.
    """
    if not isinstance(x, Node):
        raise Unfit("the remainder of a number")
    floats = x.dtype in FLOATS or isinstance(other, float) or getattr(other, "dtype", None) in FLOATS
    left = b.map("left", "libdevice.fmod({0}, {1})" if floats else "{0} % {1}", x, other)
    text = "tl.where(({0} != 0) & (({0} < 0) != ({1} < 0)), {0} + {1}, {0})"
    return b.map("remainder", text, left, other)


@lowers("nan_to_num")
def nan_to_num(b: Builder, x: Node, nan=None, posinf=None, neginf=None, op="") -> Node:
    """Infinities become the largest numbers of x's type, where nothing else is asked for."""
    if x.dtype not in FLOATS:
        raise Unfit("nan_to_num of whole numbers")
    largest = NamedFloat(torch.finfo(x.dtype).max, f"torch.finfo({x.dtype}).max")
    above = largest if posinf is None else posinf
    below = largest if neginf is None else -neginf
    x = b.map("finite", 'tl.where({0} == float("inf"), {1}, {0})', x, above)
    x = b.map("finite", 'tl.where({0} == -float("inf"), -{1}, {0})', x, below)
    return b.map("nan_to_num", "tl.where({0} != {0}, {1}, {0})", x, nan or 0.0)


# ---- reductions ----


@lowers("sum", "mean", "prod", "amax", "amin", "any", "all")
def reduction(b: Builder, x: Node, dim=None, keepdim=False, dtype=None, op="sum") -> Node:
    kind = {"amax": "max", "amin": "min"}.get(op, op)
    if isinstance(dim, tuple | list) and not dim:
        dim = None
    return asked(b.reduce(kind, x, dim, keepdim, dtype))


def asked(node: Node) -> Node:
    """A reduction that the module itself asks for, and not one that an operator is made of."""
    node.attrs["asked"] = True
    return node


@lowers("max", "min")
def extreme(b: Builder, x: Node, dim=None, keepdim=False, op="max") -> object:
    """Without dim the largest element; with another tensor the larger of the two; with dim
    (values, indices)."""
    if isinstance(dim, Node | Scalar):
        return b.map(f"{op}imum", f"tl.{op}imum({{0}}, {{1}})", x, dim)
    if dim is None:
        return asked(b.reduce(op, x, None, False))
    return asked(b.reduce(op, x, dim, keepdim)), asked(b.reduce(f"arg{op}", x, dim, keepdim))


@lowers("argmax", "argmin")
def position(b: Builder, x: Node, dim=None, keepdim=False, op="argmax") -> Node:
    return asked(b.reduce(op, x, dim, keepdim))


@lowers("var", "std")
def variance(b: Builder, x: Node, dim=None, unbiased=True, keepdim=False, correction=1, op="var") -> Node:
    centred = b.map("centred", "{0} - {1}", x, b.reduce("mean", x, dim))
    square = b.map("square", "{0} * {0}", centred)
    if unbiased and correction:
        value = b.map("var", "{0} / ({count} - 1)", b.reduce("sum", square, dim, keepdim))
    else:
        value = b.reduce("mean", square, dim, keepdim)
    return b.map("std", "tl.sqrt({0})", value) if op == "std" else value


@lowers("norm", "vector_norm", "linalg_norm")
def norm(b: Builder, x: Node, p="fro", dim=None, keepdim=False, ord=None, op="norm") -> Node:
    p = 2 if p in ("fro", None) and ord is None else (p if ord is None else ord)
    if p == 1:
        return b.reduce("sum", b.map("abs", "tl.abs({0})", x), dim, keepdim)
    if p == float("inf"):
        return b.reduce("max", b.map("abs", "tl.abs({0})", x), dim, keepdim)
    if p != 2:
        raise Unfit(f"a norm of order {p}")
    return b.map("norm", "tl.sqrt({0})", b.reduce("sum", b.map("square", "{0} * {0}", x), dim, keepdim))


@lowers("logsumexp")
def logsumexp(b: Builder, x: Node, dim, keepdim=False, op="") -> Node:
    top = b.reduce("max", x, dim)
    # infinity minus itself is no number; without the shift, exp makes 0 or infinity of it
    shift = b.map("shift", 'tl.where(tl.abs({0}) == float("inf"), 0.0, {0})', top)
    total = b.reduce("sum", b.map("exp", "tl.exp({0} - {1})", x, shift), dim)
    result = b.map("logsumexp", "{0} + tl.log({1})", shift, total)
    return result if keepdim else squeezed(b, result, dim)


def squeezed(b: Builder, x: Node, dims) -> Node:
    """Without its dimensions `dims`, which have length 1."""
    dims = sorted(d % x.rank for d in (dims if isinstance(dims, tuple | list) else [dims]))
    shape = [n for i, n in enumerate(x.shape) if i not in dims]
    text = "{0}" + "".join(f".squeeze({d})" for d in reversed(dims))
    return b.view(x, shape, text, alias=True)


@lowers("var_mean", "std_mean")
def moments(b: Builder, x: Node, dim=None, keepdim=False, correction=1, op="var_mean") -> tuple:
    return variance(b, x, dim, keepdim=keepdim, correction=correction, op=op[:3]), b.reduce(
        "mean", x, dim, keepdim
    )


# ---- along a row ----


@lowers("softmax", "softmin")
def softmax(b: Builder, x: Node, dim=-1, dtype=None, op="softmax") -> Node:
    if op == "softmin":
        x = b.map("neg", "-{0}", x)
    e = b.map("exp", "tl.exp({0} - {1})", x, b.reduce("max", x, dim))
    return b.map(op, "{0} / {1}", e, b.reduce("sum", e, dim))


@lowers("log_softmax")
def log_softmax(b: Builder, x: Node, dim=-1, dtype=None, op="") -> Node:
    shifted = b.map("shifted", "{0} - {1}", x, b.reduce("max", x, dim))
    total = b.reduce("sum", b.map("exp", "tl.exp({0})", shifted), dim)
    return b.map("log_softmax", "{0} - tl.log({1})", shifted, total)


@lowers("normalize")
def normalize(b: Builder, x: Node, p=2.0, dim=1, eps=1e-12, op="") -> Node:
    return b.map("normalize", "{0} / tl.maximum({1}, {2})", x, norm(b, x, p, dim, True), eps)


@lowers("layer_norm")
def layer_norm(b: Builder, x: Node, normalized_shape, weight=None, bias=None, eps=1e-5, op="") -> Node:
    dims = tuple(range(x.rank - len(normalized_shape), x.rank))
    return standardised(b, x, dims, weight, bias, eps, "layer_norm")[0]


@lowers("rms_norm")
def rms_norm(b: Builder, x: Node, normalized_shape, weight=None, eps=None, op="") -> Node:
    dims = tuple(range(x.rank - len(normalized_shape), x.rank))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    mean_square = b.reduce("mean", b.map("square", "{0} * {0}", x), dims, name="mean_square")
    y = b.map("rms_norm", "{0} * tl.rsqrt({1} + {2})", x, mean_square, eps)
    return y if weight is None else b.map("scaled", "{0} * {1}", y, weight)


def standardised(b: Builder, x: Node, dims, weight, bias, eps, name: str) -> tuple[Node, Node, Node]:
    """(x - mean) / sqrt(variance + eps) over `dims`, then the affine map, if there is one; with the mean and
    the variance.
    """
    mean = b.reduce("mean", x, dims)
    centred = b.map("centred", "{0} - {1}", x, mean)
    variance = b.reduce("mean", b.map("square", "{0} * {0}", centred), dims, name="variance")
    y = b.map(name, "{0} * tl.rsqrt({1} + {2})", centred, variance, eps)
    return affine(b, y, weight, bias), mean, variance


def affine(b: Builder, y: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None and bias is not None:
        return b.map("affine", "{0} * {1} + {2}", y, weight, bias)
    return y if weight is None else b.map("scaled", "{0} * {1}", y, weight)


def per_channel(b: Builder, weight: Node | None, rank: int) -> Node | None:
    """A vector with one element a channel, in a shape that broadcasts over [batch, channel, ...]."""
    if weight is None or rank == 2:
        return weight
    ones = ", ".join(["1"] * (rank - 2))
    return b.view(weight, [weight.shape[0]] + [1] * (rank - 2), f"{{0}}.view(-1, {ones})", alias=True)


@lowers("batch_norm")
def batch_norm(
    b: Builder,
    x: Node,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
    op="",
) -> Node:
    weight, bias = per_channel(b, weight, x.rank), per_channel(b, bias, x.rank)
    if training:
        if running_mean is not None and momentum is None:
            raise Unfit("a batch norm whose running statistics are plain means")
        dims = tuple(i for i in range(x.rank) if i != 1)
        y, average, variance = standardised(b, x, dims, weight, bias, eps, "batch_norm")
        if running_mean is not None:
            update_running(b, x.rank, average, variance, running_mean, running_var, momentum)
        return y
    mean = per_channel(b, running_mean, x.rank)
    var = per_channel(b, running_var, x.rank)
    y = b.map("batch_norm", "({0} - {1}) * tl.rsqrt({2} + {3})", x, mean, var, eps)
    return affine(b, y, weight, bias)


def update_running(b: Builder, rank: int, mean, variance, running_mean, running_var, momentum) -> None:
    """What training changes in a batch norm: a step towards this batch's mean and unbiased variance."""
    text = "{0} + {2} * ({1} - {0})"
    step = b.map("running", text, per_channel(b, running_mean, rank), mean, momentum)
    b.effect(step, running_mean)
    unbiased = b.map("unbiased", "{0} * {count} / ({count} - 1)", variance)
    step = b.map("running", text, per_channel(b, running_var, rank), unbiased, momentum)
    b.effect(step, running_var)


@lowers("instance_norm")
def instance_norm(
    b: Builder,
    x: Node,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
    op="",
) -> Node:
    weight, bias = per_channel(b, weight, x.rank), per_channel(b, bias, x.rank)
    return standardised(b, x, tuple(range(2, x.rank)), weight, bias, eps, "instance_norm")[0]


@lowers("group_norm")
def group_norm(b: Builder, x: Node, num_groups, weight=None, bias=None, eps=1e-5, op="") -> Node:
    """A view with a dimension for the groups makes the rest a norm over trailing dimensions."""
    channels, groups = x.shape[1], int(num_groups)
    shape = (x.shape[0], groups, channels // groups, *x.shape[2:])
    said = text_of(num_groups)
    rest = [f"{{0}}.shape[{i}]" for i in range(2, x.rank)]
    grouped = b.view(
        x,
        shape,
        f"{{0}}.unflatten(1, ({said}, -1))",
        dims=["{0}.shape[0]", said, f"{{0}}.shape[1] // {said}", *rest],
    )
    ones = [1] * (x.rank - 2)

    def split(vector: Node | None) -> Node | None:
        """An element a channel, with a dimension for the groups too."""
        if vector is None:
            return None
        text = f"{{0}}.view({said}, -1{', 1' * len(ones)})"
        return b.view(vector, [groups, channels // groups, *ones], text)

    dims = tuple(range(2, len(shape)))
    y, _, _ = standardised(b, grouped, dims, split(weight), split(bias), eps, "group_norm")
    return b.view(y, x.shape, "{0}.flatten(1, 2)")


@lowers("glu")
def glu(b: Builder, x: Node, dim=-1, op="") -> Node:
    first, second = halves(b, x, dim)
    return b.map("glu", "{0} * tl.sigmoid({1})", first, second)


def halves(b: Builder, x: Node, dim: int) -> list[Node]:
    """Both halves of a tensor along a dimension, as gathers."""
    size = x.shape[dim] // 2
    shape = list(x.shape)
    shape[dim] = size
    return [b.anchor("narrow", [x], shape, dim=dim % x.rank, part=i, parts=2) for i in range(2)]


@lowers("cosine_similarity")
def cosine_similarity(b: Builder, x1: Node, x2: Node, dim=1, eps=1e-8, op="") -> Node:
    dot = b.reduce("sum", b.map("product", "{0} * {1}", x1, x2), dim, False)
    lengths = [norm(b, x, 2, dim, False) for x in (x1, x2)]
    return b.map(
        "cosine_similarity", "{0} / (tl.maximum({1}, {3}) * tl.maximum({2}, {3}))", dot, *lengths, eps
    )


@lowers("pairwise_distance")
def pairwise_distance(b: Builder, x1: Node, x2: Node, p=2.0, eps=1e-6, keepdim=False, op="") -> Node:
    return norm(b, b.map("difference", "{0} - {1} + {2}", x1, x2, eps), p, -1, keepdim)
