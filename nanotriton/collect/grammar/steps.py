"""What the grammar can ask for beyond element-wise operators: each a line of PyTorch on a tensor of some
kind.

A Step is (name, group, kinds of tensor that it takes, the line's expression, what the constructor makes
for it, the dimensions of the result). Kinds are names of shapes (SHAPES). In texts {last} and {channels}
are the names of the last and of the second dimension's size, and {c} is a constant. A result of None has
the same dimensions; "?" is a dimension whose length has no name.
"""

from dataclasses import dataclass

SHAPES = {
    "vector": ("cols",),
    "square": ("cols", "cols"),
    "matrix": ("rows", "cols"),
    "sequence": ("batch", "length", "features"),
    "signal": ("batch", "channels", "length"),
    "image": ("batch", "channels", "height", "width"),
    "volume": ("batch", "channels", "depth", "height", "width"),
}
ROWS, IMAGES = ("matrix", "sequence"), ("signal", "image", "volume")
SPATIAL = {"signal": 1, "image": 2, "volume": 3}


@dataclass(frozen=True)
class Step:
    name: str
    group: str
    kinds: tuple[str, ...]
    text: str
    init: str = ""  # the line that makes what the text calls `self.layer`
    result: tuple[str, ...] | None = None
    constants: tuple[str, ...] = ()
    # "even": {last} must be even; "positive", "unit": the values' range; "last": nothing may follow
    needs: str = ""
    inputs: tuple[tuple[str, str], ...] = ()  # further inputs of forward: (name, what draws it)


def _rows(name: str, *texts: str, group: str = "row", **more) -> list[Step]:
    """Steps along the last dimension; an `nn.` text is a layer."""
    made = []
    for text in texts:
        layer = text.startswith("nn.")
        made.append(
            Step(
                name,
                group,
                ROWS,
                "self.layer(x)" if layer else text,
                f"self.layer = {text}" if layer else "",
                **more,
            )
        )
    return made


def _reduce(name: str, *texts: str) -> list[Step]:
    return [Step(name, "reduce", ROWS, text, result=("-1",)) for text in texts]


ROW_STEPS = [
    *_rows("softmax", "torch.softmax(x, dim=-1)", "F.softmax(x, dim=-1)", "nn.Softmax(dim=-1)"),
    *_rows(
        "log_softmax", "F.log_softmax(x, dim=-1)", "nn.LogSoftmax(dim=-1)", "torch.log_softmax(x, dim=-1)"
    ),
    *_rows("softmin", "F.softmin(x, dim=-1)", "nn.Softmin(dim=-1)"),
    *_rows(
        "layer_norm",
        "nn.LayerNorm({last})",
        "F.layer_norm(x, x.shape[-1:])",
        "nn.LayerNorm({last}, elementwise_affine=False)",
    ),
    *_rows(
        "rms_norm",
        "nn.RMSNorm({last}, eps=1e-6)",
        "F.rms_norm(x, x.shape[-1:], eps=1e-5)",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
    ),
    *_rows(
        "normalize",
        "F.normalize(x, dim=-1)",
        "x / x.norm(dim=-1, keepdim=True)",
        "F.normalize(x, p=1.0, dim=-1)",
    ),
    *_rows("centre", "x - x.mean(dim=-1, keepdim=True)", "x - x.amax(dim=-1, keepdim=True)"),
    *_rows("standardise", "(x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)"),
    *_rows(
        "scale_by_max",
        "x / x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-6)",
        "x / (x.abs().sum(dim=-1, keepdim=True) + 1e-6)",
    ),
    *_rows(
        "min_max",
        "(x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1e-5)",
    ),
]
REDUCE_STEPS = [
    *_reduce("sum", "x.sum(dim=-1)", "torch.sum(x, dim=-1)"),
    *_reduce("mean", "x.mean(dim=-1)", "torch.mean(x, dim=-1)"),
    *_reduce("amax", "x.amax(dim=-1)", "torch.max(x, dim=-1)[0]", "x.max(dim=-1).values"),
    *_reduce("amin", "x.amin(dim=-1)", "torch.min(x, dim=-1)[0]"),
    *_reduce("logsumexp", "torch.logsumexp(x, dim=-1)"),
    *_reduce("norm", "x.norm(dim=-1)", "torch.linalg.vector_norm(x, dim=-1)"),
    *_reduce("var", "x.var(dim=-1)", "torch.var(x, dim=-1, unbiased=False)"),
    *_reduce("std", "x.std(dim=-1)"),
    *_reduce("mean_square", "x.pow(2).mean(dim=-1)", "(x * x).mean(dim=-1)"),
    *_reduce("l1_norm", "x.abs().sum(dim=-1)"),
    Step("argmax", "reduce", ROWS, "torch.argmax(x, dim=-1)", result=("-1",), needs="last"),
    Step("argmin", "reduce", ROWS, "torch.argmin(x, dim=-1)", result=("-1",), needs="last"),
    Step(
        "any", "reduce", ROWS, "(x > {c}).any(dim=-1)", result=("-1",), constants=("2.0", "2.5"), needs="last"
    ),
    Step(
        "all",
        "reduce",
        ROWS,
        "(x > -{c}).all(dim=-1)",
        result=("-1",),
        constants=("2.0", "2.5"),
        needs="last",
    ),
    Step(
        "count_above",
        "reduce",
        ROWS,
        "(x > {c}).to(torch.float32).sum(dim=-1)",
        result=("-1",),
        constants=("0.5", "1.0"),
    ),
]
SCAN_STEPS = [
    *_rows("cumsum", "torch.cumsum(x, dim=-1)", "x.cumsum(dim=-1)", group="scan"),
    *_rows("reverse_cumsum", "torch.cumsum(x.flip(-1), dim=-1).flip(-1)", group="scan"),
    *_rows("exclusive_cumsum", "torch.cumsum(x, dim=-1) - x", group="scan"),
    *(
        Step("masked_cumsum", "scan", ROWS, text, inputs=(("mask", mask),))
        for text in ("torch.cumsum(x * mask, dim=-1)", "(x * mask).cumsum(dim=-1)")
        for mask in ("torch.randint(0, 2, x_shape).bool()",)
    ),
    *_rows("cumprod", "torch.cumprod(torch.sigmoid(x) + 0.5, dim=-1)", group="scan"),
    *_rows("logcumsumexp", "torch.logcumsumexp(x, dim=-1)", group="scan"),
    Step("cumsum_rows", "scan", ROWS, "torch.cumsum(x, dim=-2)"),
    Step("reverse_cumsum_rows", "scan", ROWS, "torch.cumsum(x.flip(-2), dim=-2).flip(-2)"),
    Step("cumsum_channels", "scan", IMAGES, "torch.cumsum(x, dim=1)"),
]


def _channel(name: str, text: str, *result: str, kinds: tuple[str, ...] = IMAGES) -> Step:
    """A step along the second dimension of a picture. result: its dimensions, where they are not x's."""
    return Step(name, "channel", kinds, text, result=result or None)


def _norm(name: str, kind: str, layer: str) -> Step:
    return Step(name, "norm", (kind,), "self.layer(x)", f"self.layer = {layer}")


def _of_pictures(kind: str, d: int) -> list[Step]:
    """Norms and poolings of pictures of this kind, which have d dimensions beside batch and channels."""
    dims = {1: "2", 2: "(2, 3)", 3: "(2, 3, 4)"}[d]
    ones = {1: "1", 2: "(1, 1)", 3: "(1, 1, 1)"}[d]
    pool, only = "global_avg_pool", dict(kinds=(kind,))
    layer = f"nn.AdaptiveAvgPool{d}d({ones})"
    return [
        _norm("batch_norm", kind, f"nn.BatchNorm{d}d({{channels}})"),
        _norm("batch_norm", kind, f"nn.BatchNorm{d}d({{channels}}, track_running_stats=False)"),
        _norm("instance_norm", kind, f"nn.InstanceNorm{d}d({{channels}}, affine=True)"),
        _norm("instance_norm", kind, f"nn.InstanceNorm{d}d({{channels}})"),
        _channel(pool, f"x.mean(dim={dims})", "0", "1", **only),
        _channel(pool, f"F.adaptive_avg_pool{d}d(x, 1)", "pooled", **only),
        _channel(pool, f"F.adaptive_avg_pool{d}d(x, {ones})", "pooled", **only),
        Step(pool, "channel", (kind,), "self.pooled(x)", f"self.pooled = {layer}", result=("pooled",)),
        _channel(pool, f"torch.mean(x, dim={dims}, keepdim=True)", "pooled", **only),
        _channel("global_max_pool", f"torch.amax(x, dim={dims})", "0", "1", **only),
        _channel("global_sum", f"torch.sum(x, dim={dims}, keepdim=True)", "pooled", **only),
    ]


CHANNEL_STEPS = [
    _channel("channel_softmax", "torch.softmax(x, dim=1)"),
    _channel("channel_log_softmax", "F.log_softmax(x, dim=1)"),
    _channel("channel_normalize", "F.normalize(x, dim=1)"),
    _channel("channel_centre", "x - x.mean(dim=1, keepdim=True)"),
    _channel("channel_rms_norm", "x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5)"),
    _channel("channel_sum", "x.sum(dim=1, keepdim=True)", "0", "1", "*"),
    _channel("channel_mean", "x.mean(dim=1)", "0", "*"),
    _channel("channel_max", "torch.amax(x, dim=1)", "0", "*"),
    _channel("channel_min", "torch.min(x, dim=1, keepdim=True)[0]", "0", "1", "*"),
    _channel("channel_logsumexp", "torch.logsumexp(x, dim=1, keepdim=True)", "0", "1", "*"),
    _channel("row_sum", "x.sum(dim=-2)", "?", kinds=ROWS),
    _channel("row_max", "x.amax(dim=-2)", "?", kinds=ROWS),
    _channel("row_mean", "x.mean(dim=-2, keepdim=True)", "?", kinds=ROWS),
    _channel("column_softmax", "torch.softmax(x, dim=-2)", kinds=ROWS),
    Step(
        "group_norm",
        "norm",
        IMAGES,
        "self.layer(x)",
        "self.layer = nn.GroupNorm({c}, {channels})",
        constants=("2", "4"),
    ),
    *(step for kind, d in SPATIAL.items() for step in _of_pictures(kind, d)),
]


_INDEX = lambda size, shape: f"torch.randint(0, {size}, ({shape}))"
GATHER_STEPS = [
    Step("transpose", "layout", ("matrix",), "x.T.contiguous()", result=("cols", "rows")),
    Step(
        "permute",
        "layout",
        ("sequence",),
        "x.permute(0, 2, 1).contiguous()",
        result=("batch", "features", "length"),
    ),
    Step(
        "permute",
        "layout",
        ("image",),
        "x.permute(0, 2, 3, 1).contiguous()",
        result=("batch", "height", "width", "channels"),
    ),
    Step("flip", "layout", ROWS, "x.flip(-1)"),
    Step("flip_rows", "layout", ROWS, "torch.flip(x, [-2])"),
    Step("roll", "layout", ROWS, "torch.roll(x, {c}, -1)", constants=("1", "3", "5")),
    Step("roll_rows", "layout", ROWS, "torch.roll(x, shifts={c}, dims=0)", constants=("1", "2")),
    Step(
        "repeat_interleave",
        "layout",
        ROWS,
        "x.repeat_interleave({c}, dim=-1)",
        result=("?",),
        constants=("2", "3"),
    ),
    Step("slice", "layout", ROWS, "x[..., {c}:]", result=("?",), constants=("1", "4", "8")),
    Step("slice_step", "layout", ROWS, "x[..., ::{c}]", result=("?",), constants=("2", "3")),
    Step(
        "cat",
        "layout",
        ("matrix",),
        "torch.cat([x, y], dim=-1)",
        result=("?",),
        inputs=(("y", "torch.randn(rows, inner)"),),
    ),
    Step(
        "cat_rows",
        "layout",
        ("matrix",),
        "torch.cat((x, y), dim=0)",
        result=("?",),
        inputs=(("y", "torch.randn(inner, cols)"),),
    ),
    Step("pad", "layout", ROWS, "F.pad(x, (1, 2))", result=("?",)),
    Step(
        "pad_value", "layout", ROWS, "F.pad(x, (2, 1), value={c})", result=("?",), constants=("1.0", "-1.0")
    ),
    Step("pad_image", "layout", ("image",), "F.pad(x, (1, 1, 1, 1))", result=("batch", "channels", "?", "?")),
    Step(
        "reflect_pad",
        "layout",
        ("image",),
        'F.pad(x, (2, 1, 1, 2), mode="reflect")',
        result=("batch", "channels", "?", "?"),
    ),
    Step(
        "replicate_pad",
        "layout",
        ("image",),
        'F.pad(x, (1, 2, 2, 1), mode="replicate")',
        result=("batch", "channels", "?", "?"),
    ),
    Step("pixel_shuffle", "layout", ("image",), "F.pixel_shuffle(x, 2)", result=("?",)),
    Step("pixel_unshuffle", "layout", ("image",), "F.pixel_unshuffle(x, 2)", result=("?",), needs="even"),
    Step("channel_shuffle", "layout", ("image",), "F.channel_shuffle(x, 4)"),
    Step(
        "upsample_nearest",
        "layout",
        ("image",),
        'F.interpolate(x, scale_factor=2, mode="nearest")',
        result=("batch", "channels", "?", "?"),
    ),
    Step(
        "upsample_nearest",
        "layout",
        ("signal",),
        "F.interpolate(x, scale_factor=2)",
        result=("batch", "channels", "?"),
    ),
    Step(
        "embedding",
        "layout",
        ("matrix",),
        "F.embedding(index, x)",
        result=("?",),
        inputs=(("index", _INDEX("rows", "batch, length")),),
    ),
    Step(
        "index_select",
        "layout",
        ("matrix",),
        "torch.index_select(x, 0, index)",
        result=("?",),
        inputs=(("index", _INDEX("rows", "length,")),),
    ),
    Step(
        "index_select_cols",
        "layout",
        ("matrix",),
        "torch.index_select(x, 1, index)",
        result=("?",),
        inputs=(("index", _INDEX("cols", "length,")),),
    ),
    Step(
        "gather",
        "layout",
        ("matrix",),
        "torch.gather(x, 1, index)",
        result=("?",),
        inputs=(("index", _INDEX("cols", "rows, length")),),
    ),
    Step("glu", "layout", ROWS, "F.glu(x, dim=-1)", result=("?",), needs="even"),
    Step(
        "swiglu",
        "layout",
        ROWS,
        "F.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]",
        result=("?",),
        needs="even",
    ),
    Step(
        "geglu",
        "layout",
        ROWS,
        "F.gelu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1]",
        result=("?",),
        needs="even",
    ),
]
SORT_STEPS = [
    Step("sort", "sort", ROWS, "torch.sort(x, dim=-1)[0]"),
    Step("sort_descending", "sort", ROWS, "torch.sort(x, dim=-1, descending=True).values"),
    Step("argsort", "sort", ROWS, "torch.argsort(x, dim=-1)", needs="last"),
    Step("topk", "sort", ROWS, "torch.topk(x, {c}, dim=-1)[0]", result=("?",), constants=("4", "8")),
    Step(
        "topk_indices",
        "sort",
        ROWS,
        "torch.topk(x, {c}, dim=-1).indices",
        result=("?",),
        constants=("4", "8"),
        needs="last",
    ),
    Step("kthvalue", "sort", ROWS, "torch.kthvalue(x, {c}, dim=-1)[0]", result=("-1",), constants=("3", "5")),
    Step("median", "sort", ROWS, "torch.median(x, dim=-1)[0]", result=("-1",)),
]
