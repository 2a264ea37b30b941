"""PyTorch's losses, spelt as maps and reductions (ir.py); see lower.py."""

from nanotriton.collect.compose.ir import FLOATS, Builder, Node, Unfit
from nanotriton.collect.compose.lower import log_softmax, lowers, pairwise_distance

PIECES = {  # a loss by element, as a map of (input, target)
    "mse_loss": "({0} - {1}) * ({0} - {1})",
    "l1_loss": "tl.abs({0} - {1})",
    "binary_cross_entropy": "-({1} * tl.maximum(tl.log({0}), -100) + (1 - {1}) * tl.maximum(libdevice.log1p(-{0}), -100))",  # noqa: E501
    "binary_cross_entropy_with_logits": "tl.where({0} > 0, (1 - {1}) * {0}, -{1} * {0}) + libdevice.log1p(tl.exp(-tl.abs({0})))",  # noqa: E501
    "soft_margin_loss": "tl.maximum(-{1} * {0}, 0) + libdevice.log1p(tl.exp(-tl.abs({0} * {1})))",
}


def reduced(b: Builder, x: Node, reduction: str) -> Node:
    return x if reduction == "none" else b.reduce(reduction, x, None, False)


@lowers(*PIECES)
def loss(b: Builder, input: Node, target: Node, reduction="mean", op="") -> Node:
    return reduced(b, b.map(op, PIECES[op], input, target), reduction)


@lowers("smooth_l1_loss")
def smooth_l1(b: Builder, input: Node, target: Node, reduction="mean", beta=1.0, op="") -> Node:
    d = b.map("difference", "tl.abs({0} - {1})", input, target)
    return reduced(
        b,
        b.map("smooth_l1", "tl.where({0} < {1}, 0.5 * {0} * {0} / {1}, {0} - 0.5 * {1})", d, beta),
        reduction,
    )


@lowers("huber_loss")
def huber(b: Builder, input: Node, target: Node, reduction="mean", delta=1.0, op="") -> Node:
    d = b.map("difference", "tl.abs({0} - {1})", input, target)
    return reduced(
        b,
        b.map("huber", "tl.where({0} < {1}, 0.5 * {0} * {0}, {1} * ({0} - 0.5 * {1}))", d, delta),
        reduction,
    )


@lowers("kl_div")
def kl_div(b: Builder, input: Node, target: Node, reduction="mean", log_target=False, op="") -> Node:
    if log_target:
        x = b.map("kl_div", "tl.exp({1}) * ({1} - {0})", input, target)
    else:
        x = b.map("kl_div", "tl.where({1} > 0, {1} * (tl.log({1}) - {0}), 0.0)", input, target)
    if reduction == "batchmean":
        total = b.reduce("sum", x, tuple(range(1, x.rank)), False)
        return b.reduce("mean", total, None, False)
    return reduced(b, x, reduction)


@lowers("poisson_nll_loss")
def poisson(
    b: Builder, input: Node, target: Node, log_input=True, full=False, reduction="mean", eps=1e-8, op=""
) -> Node:
    if full:
        raise Unfit("a Poisson loss with Stirling's term")
    text = "tl.exp({0}) - {1} * {0}" if log_input else "{0} - {1} * tl.log({0} + {2})"
    return reduced(b, b.map("poisson_nll", text, input, target, *([] if log_input else [eps])), reduction)


@lowers("gaussian_nll_loss")
def gaussian(
    b: Builder, input: Node, target: Node, var: Node, full=False, eps=1e-6, reduction="mean", op=""
) -> Node:
    if full:
        raise Unfit("a Gaussian loss with its constant")
    v = b.map("var", "tl.maximum({0}, {1})", var, eps)
    return reduced(
        b,
        b.map("gaussian_nll", "0.5 * (tl.log({2}) + ({0} - {1}) * ({0} - {1}) / {2})", input, target, v),
        reduction,
    )


@lowers("hinge_embedding_loss")
def hinge(b: Builder, input: Node, target: Node, margin=1.0, reduction="mean", op="") -> Node:
    return reduced(
        b,
        b.map(
            "hinge",
            "tl.where({1} != -1, {0}, 0.0) + tl.where({1} != 1, tl.maximum({2} - {0}, 0), 0.0)",
            input,
            target,
            margin,
        ),
        reduction,
    )


@lowers("margin_ranking_loss")
def ranking(
    b: Builder, input1: Node, input2: Node, target: Node, margin=0.0, reduction="mean", op=""
) -> Node:
    return reduced(
        b,
        b.map("margin_ranking", "tl.maximum(-{2} * ({0} - {1}) + {3}, 0)", input1, input2, target, margin),
        reduction,
    )


@lowers("triplet_margin_loss")
def triplet(
    b: Builder,
    anchor: Node,
    positive: Node,
    negative: Node,
    margin=1.0,
    p=2.0,
    eps=1e-6,
    swap=False,
    reduction="mean",
    op="",
) -> Node:
    if swap:
        raise Unfit("a triplet loss with swapped distances")
    near = pairwise_distance(b, anchor, positive, p, eps)
    far = pairwise_distance(b, anchor, negative, p, eps)
    return reduced(b, b.map("triplet_margin", "tl.maximum({0} - {1} + {2}, 0)", near, far, margin), reduction)


@lowers("cosine_embedding_loss")
def cosine_embedding(
    b: Builder, input1: Node, input2: Node, target: Node, margin=0.0, reduction="mean", op=""
) -> Node:
    dot = b.reduce("sum", b.map("product", "{0} * {1}", input1, input2), 1, False)
    squares = [b.reduce("sum", b.map("square", "{0} * {0}", x), 1, False) for x in (input1, input2)]
    # no cosine_similarity: the eps is added to the squares here, and no bound of the norms
    cos = b.map("cosine", "{0} / tl.sqrt(({1} + {3}) * ({2} + {3}))", dot, *squares, 1e-12)
    return reduced(
        b,
        b.map(
            "cosine_embedding",
            "tl.where({1} == 1, 1 - {0}, 0.0) + tl.where({1} == -1, tl.maximum({0} - {2}, 0), 0.0)",
            cos,
            target,
            margin,
        ),
        reduction,
    )


@lowers("cross_entropy", "nll_loss")
def cross_entropy(
    b: Builder,
    input: Node,
    target: Node,
    weight=None,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    op="",
) -> Node:
    if (
        target.dtype in FLOATS
        or input.rank != 2
        or weight is not None
        or label_smoothing
        or ignore_index != -100
    ):
        raise Unfit("a cross entropy with weights, soft targets or more than two dimensions")
    logp = log_softmax(b, input, 1) if op == "cross_entropy" else input
    chosen = b.map("chosen", "tl.where({col} == {1}, -{0}, 0.0)", logp, column(b, target))
    return reduced(b, b.reduce("sum", chosen, 1, False), reduction)


def column(b: Builder, target: Node) -> Node:
    """[rows] as [rows, 1]."""
    return b.view(target, (*target.shape, 1), "{0}.unsqueeze(-1)", alias=True)
