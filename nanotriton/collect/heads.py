"""What the grammar's modules may begin with: products of matrices, convolutions, poolings. See steps.py for
what a Step is.
"""

from nanotriton.collect.steps import ROWS, SPATIAL, Step


def _heads() -> list[Step]:
    """What a module may begin with: products, convolutions, poolings."""
    two, out = ("w", "torch.randn(cols, inner) / cols ** 0.5"), ("rows", "inner")
    made = [
        Step("matmul", "matmul", ("matrix",), "x @ w", result=out, inputs=(two,)),
        Step("matmul", "matmul", ("matrix",), "torch.matmul(x, w)", result=out, inputs=(two,)),
        Step("mm", "matmul", ("matrix",), "torch.mm(x, w)", result=out, inputs=(two,)),
        Step(
            "matmul_transposed_b",
            "matmul",
            ("matrix",),
            "x @ w.T",
            result=out,
            inputs=(("w", "torch.randn(inner, cols) / cols ** 0.5"),),
        ),
        Step(
            "matmul_transposed_a",
            "matmul",
            ("matrix",),
            "x.T @ w",
            result=("cols", "inner"),
            inputs=(("w", "torch.randn(rows, inner) / rows ** 0.5"),),
        ),
        Step(
            "matmul_transposed_both",
            "matmul",
            ("matrix",),
            "x.T @ w.T",
            result=("cols", "inner"),
            inputs=(("w", "torch.randn(inner, rows) / rows ** 0.5"),),
        ),
        Step("gram", "matmul", ("matrix",), "x @ x.T", result=("rows", "rows")),
        Step(
            "linear",
            "matmul",
            ROWS,
            "self.fc(x)",
            "self.fc = nn.Linear({last}, hidden)",
            result=("*", "hidden"),
        ),
        Step(
            "linear_without_bias",
            "matmul",
            ROWS,
            "self.fc(x)",
            "self.fc = nn.Linear({last}, hidden, bias=False)",
            result=("*", "hidden"),
        ),
        Step(
            "functional_linear",
            "matmul",
            ("matrix",),
            "F.linear(x, w)",
            result=out,
            inputs=(("w", "torch.randn(inner, cols) / cols ** 0.5"),),
        ),
        Step(
            "bmm",
            "matmul",
            ("sequence",),
            "torch.bmm(x, w)",
            result=("batch", "length", "inner"),
            inputs=(("w", "torch.randn(batch, features, inner) / features ** 0.5"),),
        ),
        Step(
            "bmm_transposed",
            "matmul",
            ("sequence",),
            "x @ w.transpose(1, 2)",
            result=("batch", "length", "inner"),
            inputs=(("w", "torch.randn(batch, inner, features) / features ** 0.5"),),
        ),
        Step(
            "matmul_sequence",
            "matmul",
            ("sequence",),
            "torch.matmul(x, w)",
            result=("batch", "length", "inner"),
            inputs=(("w", "torch.randn(features, inner) / features ** 0.5"),),
        ),
        Step(
            "addmm",
            "matmul",
            ("matrix",),
            "torch.addmm(b, x, w)",
            result=out,
            inputs=(("b", "torch.randn(inner)"), two),
        ),
        Step(
            "addmm_scaled",
            "matmul",
            ("matrix",),
            "torch.addmm(b, x, w, beta=0.5, alpha=2.0)",
            result=out,
            inputs=(("b", "torch.randn(rows, inner)"), two),
        ),
        Step("lower_triangle", "matmul", ("matrix",), "torch.tril(x @ w)", result=out, inputs=(two,)),
        Step("upper_triangle", "matmul", ("matrix",), "torch.triu(x @ w)", result=out, inputs=(two,)),
        Step(
            "diagonal_matmul",
            "matmul",
            ("matrix",),
            "torch.diag(d) @ x",
            inputs=(("d", "torch.randn(rows)"),),
        ),
        Step(
            "matrix_vector",
            "matmul",
            ("matrix",),
            "x @ v",
            result=("rows",),
            inputs=(("v", "torch.randn(cols)"),),
        ),
        Step(
            "outer",
            "matmul",
            ("matrix",),
            "x * (a[:, None] * b[None, :])",
            inputs=(("a", "torch.randn(rows)"), ("b", "torch.randn(cols)")),
        ),
    ]
    for kind, d in SPATIAL.items():
        made += _convolutions(kind, d)
    return made


def _convolutions(kind: str, d: int) -> list[Step]:
    """Convolutions and transposed ones of d dimensions."""
    dims = ("batch", "out_channels", *["?"] * d)
    same = ("batch", "channels", *["?"] * d)
    of = lambda name, text, result=dims: Step(
        name, "conv", (kind,), "self.conv(x)", f"self.conv = nn.{text}", result=result
    )
    made = [
        of(f"conv{d}d", f"Conv{d}d(channels, out_channels, kernel_size)"),
        of(f"conv{d}d_padded", f"Conv{d}d(channels, out_channels, kernel_size, padding=padding)"),
        of(
            f"conv{d}d_strided",
            f"Conv{d}d(channels, out_channels, kernel_size, stride=stride, padding=padding)",
        ),
        of(
            f"conv{d}d_dilated",
            f"Conv{d}d(channels, out_channels, kernel_size, dilation=dilation, padding=padding)",
        ),
        of(f"conv{d}d_without_bias", f"Conv{d}d(channels, out_channels, kernel_size, bias=False)"),
        of(f"conv{d}d_pointwise", f"Conv{d}d(channels, out_channels, 1)"),
        of(
            f"conv{d}d_depthwise",
            f"Conv{d}d(channels, channels, kernel_size, padding=padding, groups=channels)",
            same,
        ),
        of(f"conv{d}d_grouped", f"Conv{d}d(channels, out_channels, kernel_size, groups=groups)"),
        of(f"conv_transpose{d}d", f"ConvTranspose{d}d(channels, out_channels, kernel_size)"),
        of(
            f"conv_transpose{d}d_strided",
            f"ConvTranspose{d}d(channels, out_channels, kernel_size, stride=stride, padding=padding)",
        ),
        of(
            f"conv_transpose{d}d_output_padding",
            f"ConvTranspose{d}d(channels, out_channels, kernel_size, stride=stride, output_padding=1)",
        ),
        of(
            f"conv_transpose{d}d_grouped",
            f"ConvTranspose{d}d(channels, out_channels, kernel_size, stride=stride, groups=groups)",
        ),
    ]
    if d == 2:
        made.append(
            of("conv2d_asymmetric", "Conv2d(channels, out_channels, (kernel_size, 1), padding=(padding, 0))")
        )
    return made


def _pools() -> list[Step]:
    made = []
    for kind, d in SPATIAL.items():
        dims = ("batch", "channels", *["?"] * d)
        for way in ("max", "avg"):
            made += [
                Step(
                    f"{way}_pool{d}d",
                    "pool",
                    (kind,),
                    f"F.{way}_pool{d}d(x, {{c}})",
                    result=dims,
                    constants=("2", "3"),
                ),
                Step(
                    f"{way}_pool{d}d",
                    "pool",
                    (kind,),
                    "self.pool(x)",
                    f"self.pool = nn.{way.title()}Pool{d}d(kernel_size, stride=stride, padding=padding)",
                    result=dims,
                ),
                Step(
                    f"{way}_pool{d}d",
                    "pool",
                    (kind,),
                    "self.pool(x)",
                    f"self.pool = nn.{way.title()}Pool{d}d({{c}})",
                    result=dims,
                    constants=("2", "3"),
                ),
            ]
        made.append(
            Step(
                f"max_pool{d}d_dilated",
                "pool",
                (kind,),
                f"F.max_pool{d}d(x, 3, stride=1, padding=1, dilation=2)",
                result=dims,
            )
        )
        made.append(
            Step(
                f"avg_pool{d}d_exclude",
                "pool",
                (kind,),
                f"F.avg_pool{d}d(x, 3, stride=2, padding=1, count_include_pad=False)",
                result=dims,
            )
        )
    return made


HEAD_STEPS, POOL_STEPS = _heads(), _pools()
