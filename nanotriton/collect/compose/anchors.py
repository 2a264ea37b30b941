"""PyTorch's operators that are the heart of a kernel of their own, or that only change a shape: how each
becomes a node of the graph.

The emitters in emit/ write the kernels; `attrs` is what they need to know.
"""

import torch

from nanotriton.collect.compose.ir import Builder, NamedFloat, Node, Unfit, per_dimension
from nanotriton.collect.compose.layouts import permute
from nanotriton.collect.compose.lower import lowers, softmax

WANTS_MODULE = ("conv", "conv_transpose")


# ---- products ----


@lowers("matmul", "mm", "bmm", "mv", "dot", "inner_product")
def matmul(b: Builder, x: Node, other: Node, op="") -> Node:
    """[..., M, K] @ [..., K, N]. A vector makes it a sum of products, which is no matter for tl.dot."""
    if other.rank == 1:
        return b.reduce("sum", b.map("product", "{0} * {1}", x, other), -1, False)
    if x.op == "diag":
        return b.map(
            "scaled_rows",
            "{0} * {1}",
            b.view(x.args[0], (x.shape[0], 1), "{0}.unsqueeze(1)", alias=True),
            other,
        )
    if x.rank == 1:
        if other.rank > 2:
            raise Unfit("a vector times a batch")
        upright = b.view(x, (x.shape[0], 1), "{0}.unsqueeze(1)", alias=True)
        return b.reduce("sum", b.map("product", "{0} * {1}", upright, other), 0, False)
    x, trans_a = without_transposition(x)
    other, trans_b = without_transposition(other)
    m, k = x.shape[-2:][:: -1 if trans_a else 1]
    n = other.shape[-2 if trans_b else -1]
    if k != other.shape[-1 if trans_b else -2]:
        raise Unfit("a product of matrices that don't fit")
    batch = x.shape[:-2]
    if other.rank > 2 and tuple(other.shape[:-2]) != tuple(batch):
        raise Unfit("a product with broadcast batches")
    if trans_a and other.rank == 2 and x.rank > 2:
        raise Unfit("a transposed batch times one matrix")
    return b.anchor("matmul", [x, other], (*batch, m, n), trans_a=trans_a, trans_b=trans_b)


def without_transposition(x: Node) -> tuple[Node, bool]:
    """What a matrix is the transposition of, if it is one: the kernel then reads it the other way round."""
    if x.op == "permute":
        order = x.attrs["order"]
        if order == [*range(x.rank - 2), x.rank - 1, x.rank - 2]:
            return x.args[0], True
    return x, False


@lowers("einsum")
def einsum(b: Builder, equation: str, *operands, op="") -> Node:
    """Those of two tensors that are a product of matrices: one index is summed over, which both have; the
    result has the first one's other indices, and at its end the second one's.
    """
    x, other = operands[0] if isinstance(operands[0], tuple | list) else operands
    inputs, _, result = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    summed = [i for i in first if i in second and i not in result]
    batch = first[:-2] if second[:-2] else ""
    if len(summed) != 1 or second[:-2] != batch:
        raise Unfit(f"the einsum {equation}")
    k = summed[0]
    rows, cols = first.replace(k, ""), second[len(batch) :].replace(k, "")
    if result != rows + cols or len(cols) != 1 or k not in first[-2:]:
        raise Unfit(f"the einsum {equation}")
    flipped = lambda t: permute(b, t, -2, -1, op="transpose")
    x = x if first[-1] == k else flipped(x)
    return matmul(b, x, other if second[-2] == k else flipped(other))


@lowers("linear")
def linear(b: Builder, x: Node, weight: Node, bias: Node | None = None, op="") -> Node:
    y = b.anchor("matmul", [x, weight], (*x.shape[:-1], weight.shape[0]), trans_a=False, trans_b=True)
    y.said = "linear"
    return y if bias is None else b.map("bias", "{0} + {1}", y, bias)


@lowers("addmm")
def addmm(b: Builder, x: Node, mat1: Node, mat2: Node, beta=1, alpha=1, op="") -> Node:
    y = matmul(b, mat1, mat2)
    y = y if alpha == 1 else b.map("scaled", "{0} * {1}", y, alpha)
    x = x if beta == 1 else b.map("scaled", "{0} * {1}", x, beta)
    return b.map("add", "{0} + {1}", y, x)


@lowers("baddbmm")
def baddbmm(b: Builder, x: Node, mat1: Node, mat2: Node, beta=1, alpha=1, op="") -> Node:
    return addmm(b, x, mat1, mat2, beta, alpha)


@lowers("diag")
def diag(b: Builder, x: Node, op="") -> Node:
    """A diagonal matrix; only its product with another matrix has a kernel, in which it is a vector."""
    if x.rank != 1:
        raise Unfit("the diagonal of a matrix")
    return b.anchor("diag", [x], (*x.shape, *x.shape))


@lowers("triu", "tril")
def triangle(b: Builder, x: Node, diagonal=0, op="triu") -> Node:
    """Needs the place of each element in its matrix: {row} and {col} stand for it."""
    if diagonal:
        sign = ">=" if op == "triu" else "<="
        return b.map(op, f"tl.where({{col}} - {{row}} {sign} {{1}}, {{0}}, 0.0)", x, diagonal)
    return b.map(op, f"tl.where({{row}} {'<=' if op == 'triu' else '>='} {{col}}, {{0}}, 0.0)", x)


# ---- convolution ----


def batched(x: Node, dims: int) -> None:
    """Raises Unfit for what has no batch before its channels and `dims` dimensions. Torch takes that too."""
    if x.rank != dims + 2:
        raise Unfit(f"an input of {x.rank} dimensions, without a batch, of a layer over {dims}")


@lowers("conv", "conv1d", "conv2d", "conv3d")
def conv(
    b: Builder,
    x: Node,
    weight: Node,
    bias=None,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    op="",
    module=None,
    path="",
) -> Node:
    batched(x, weight.rank - 2)
    rank = x.rank - 2
    sizes = weight.shape[2:]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        padding = tuple(int(d) * (k - 1) // 2 for d, k in zip(per_dimension(dilation, rank), sizes))
        if any(k % 2 == 0 for k in sizes):
            raise Unfit("padding='same' of an even kernel")
    if getattr(module, "padding_mode", "zeros") != "zeros":
        raise Unfit("a convolution with padding that isn't zeros")
    stride, padding, dilation = (per_dimension(v, rank) for v in (stride, padding, dilation))
    out = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], sizes, stride, padding, dilation)
    ]
    y = b.anchor(
        "conv",
        [x, weight],
        (x.shape[0], weight.shape[0], *out),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=False,
    )
    return _with_bias(b, y, bias)


@lowers("conv_transpose", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    b: Builder,
    x: Node,
    weight: Node,
    bias=None,
    stride=1,
    padding=0,
    output_padding=0,
    groups=1,
    dilation=1,
    op="",
    module=None,
    path="",
) -> Node:
    rank = x.rank - 2
    stride, padding, dilation, extra = (
        per_dimension(v, rank) for v in (stride, padding, dilation, output_padding)
    )
    out = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, k, s, p, d, e in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, extra)
    ]
    y = b.anchor(
        "conv",
        [x, weight],
        (x.shape[0], weight.shape[1] * int(groups), *out),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=True,
        output_padding=extra,
    )
    y.said = "conv_transpose"
    return _with_bias(b, y, bias)


def _with_bias(b: Builder, y: Node, bias: Node | None) -> Node:
    if bias is None:
        return y
    ones = ", 1" * (y.rank - 2)
    return b.map(
        "bias",
        "{0} + {1}",
        y,
        b.view(bias, (bias.shape[0], *[1] * (y.rank - 2)), f"{{0}}.view(-1{ones})", alias=True),
    )


# ---- pooling ----


@lowers(*(f"{kind}_pool{d}d" for kind in ("max", "avg", "lp") for d in (1, 2, 3)))
def pool(
    b: Builder,
    x: Node,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
    return_indices=False,
    norm_type=None,
    op="",
) -> Node:
    batched(x, int(op[-2]))
    # F.avg_pool takes ceil_mode where F.max_pool takes dilation
    if op.startswith("avg") and isinstance(dilation, bool):
        dilation, ceil_mode, count_include_pad = (
            1,
            dilation,
            ceil_mode if isinstance(ceil_mode, bool) else True,
        )
    if ceil_mode or divisor_override or return_indices or op.startswith("lp"):
        raise Unfit("a pooling with ceil_mode, an own divisor or indices")
    rank = x.rank - 2
    kernel, padding, dilation = (per_dimension(v, rank) for v in (kernel_size, padding, dilation))
    stride = per_dimension(kernel_size if stride in (None, ()) else stride, rank)
    out = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation)
    ]
    node = b.anchor(
        "pool",
        [x],
        (*x.shape[:2], *out),
        kind=op[:3],
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        include_pad=count_include_pad,
    )
    node.said, node.name = f"{op[:3]}_pool", b.fresh(f"{op[:3]}_pool")
    return node


@lowers(*(f"adaptive_{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)))
def adaptive_pool(b: Builder, x: Node, output_size, op="") -> Node:
    """To one value it is a reduction; to a divisor of the input's size, a pooling of blocks."""
    batched(x, int(op[-2]))
    size = per_dimension(output_size, x.rank - 2)
    kind = "mean" if "avg" in op else "max"
    if all(n == 1 for n in size):
        return b.reduce(kind, x, tuple(range(2, x.rank)), True)
    raise Unfit("an adaptive pooling to more than one value")


# ---- along a dimension ----


@lowers("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
def scan(b: Builder, x: Node, dim, dtype=None, op="") -> Node:
    if op in ("cummax", "cummin"):
        raise Unfit("indices of a running maximum")
    dtype = torch.int64 if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) else x.dtype
    reverse = False
    if x.op == "flip" and x.attrs["dims"] == (dim % x.rank,):
        x, reverse = x.args[0], True
    node = b.anchor("scan", [x], x.shape, dtype, kind=op, dim=dim % x.rank, reverse=reverse)
    node.said, node.name = op, b.fresh(op)
    return node


@lowers("flip")
def flip(b: Builder, x: Node, *dims, op="") -> Node:
    dims = dims[0] if isinstance(dims[0], tuple | list) else dims
    dims = tuple(sorted(int(d) % x.rank for d in dims))
    if x.op == "scan" and x.attrs["reverse"] and dims == (x.attrs["dim"],):
        # Flipped, scanned and flipped again: a scan from the end, which is how the scan's kernel goes already
        return x
    return b.anchor("flip", [x], x.shape, dims=dims)


@lowers("sort", "argsort", "topk", "kthvalue", "median")
def by_rank(b: Builder, x: Node, *args, op="sort", **kwargs) -> object:
    """The last dimension by rank. sort and topk return (values, indices); which of equal values comes first
    is the first one's place.
    """
    names = {
        "sort": ("dim", "descending"),
        "argsort": ("dim", "descending"),
        "topk": ("k", "dim", "largest", "sorted"),
        "kthvalue": ("k", "dim", "keepdim"),
        "median": ("dim", "keepdim"),
    }[op]
    given = dict(zip(names, args)) | kwargs
    if given.get("dim", -1) % x.rank != x.rank - 1 or not given.get("largest", True):
        raise Unfit(f"{op} along another dimension, or of the smallest")
    descending = op == "topk" or bool(given.get("descending", False))
    keep = given.get("k") if op == "topk" else None
    if op in ("kthvalue", "median"):
        if op == "median" and "dim" not in given:
            raise Unfit("the median of everything")
        k = given["k"] if op == "kthvalue" else None
        return (b.anchor("rank", [x], x.shape[:-1], x.dtype, what="pick", k=k, descending=False),) * 2
    shape = x.shape if keep is None else (*x.shape[:-1], int(keep))
    make = lambda what, dtype: b.anchor("rank", [x], shape, dtype, what=what, k=keep, descending=descending)
    if op == "argsort":
        return make("indices", torch.int64)
    return make("values", x.dtype), make("indices", torch.int64)


# ---- attention ----


WIDEST = 128  # elements of a head that one program holds; wider heads have their scores stored


def attention_by_steps(b: Builder, q: Node, k: Node, v: Node, is_causal, scale) -> Node:
    """Scores, softmax, weighted sum: three kernels, whatever the width of a head."""
    if q.shape[1] != k.shape[1] or is_causal:
        raise Unfit("attention of wide heads that is causal or grouped")
    scores = matmul(b, q, permute(b, k, -2, -1, op="transpose"))
    scores.dtype = torch.float32
    scale = NamedFloat(q.shape[-1] ** -0.5, f"@{q.name}@.shape[3] ** -0.5") if scale is None else scale
    weights = softmax(b, b.map("scaled", "{0} * {1}", scores, scale), -1)
    weights.dtype = v.dtype
    return matmul(b, weights, v)


@lowers("scaled_dot_product_attention")
def attention(
    b: Builder,
    q: Node,
    k: Node,
    v: Node,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    op="",
) -> Node:
    if attn_mask is not None or dropout_p or q.rank != 4 or q.shape[-1] != v.shape[-1]:
        raise Unfit("attention with a mask, dropout or other than four dimensions")
    if q.shape[-1] > WIDEST:
        return attention_by_steps(b, q, k, v, is_causal, scale)
    node = b.anchor(
        "attention",
        [q, k, v],
        (*q.shape[:-1], v.shape[-1]),
        causal=bool(is_causal),
        scale=scale,
        grouped=q.shape[1] != k.shape[1],
    )
    node.said = "attention"
    return node


@lowers("prelu")
def prelu(b: Builder, x: Node, weight: Node, op="") -> Node:
    if weight.shape[0] != 1 and x.rank > 2:
        weight = b.view(
            weight,
            (weight.shape[0], *[1] * (x.rank - 2)),
            "{0}.view(-1" + ", 1" * (x.rank - 2) + ")",
            alias=True,
        )
    return b.map("prelu", "tl.where({0} > 0, {0}, {1} * {0})", x, weight)


@lowers("softplus_inverse", "dropout", "alpha_dropout")
def random_or_unknown(b: Builder, *args, op="", **kwargs) -> Node:
    raise Unfit(f"{op}: its answer is random")
