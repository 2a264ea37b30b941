"""Products of matrices, in the spellings and shapes that people use. See steps.py for what a Step is."""

from nanotriton.collect.steps import ROWS, Step


def _heads() -> list[Step]:
    """Products of a matrix or a sequence with another, and layers that are one."""
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
    return made


def _more() -> list[Step]:
    """Products of tensors of more dimensions, and other spellings."""
    scaled = lambda shape, inner: f"torch.randn({shape}) / {inner} ** 0.5"
    square = (("w", scaled("cols, cols", "cols")),)
    pair = (("w", scaled("batch, channels, width, inner", "width")),)
    made = [
        Step("square_matmul", "matmul", ("square",), text, result=("cols", "cols"), inputs=square)
        for text in ("x @ w", "torch.matmul(x, w)", "torch.mm(x, w)")
    ]
    made += [
        Step(
            "batched_matmul_4d",
            "matmul",
            ("image",),
            text,
            result=("batch", "channels", "height", "inner"),
            inputs=pair,
        )
        for text in ("torch.matmul(x, w)", "x @ w")
    ]
    made += [
        Step(
            "matmul_4d",
            "matmul",
            ("image",),
            text,
            result=("batch", "channels", "height", "inner"),
            inputs=(("w", scaled("width, inner", "width")),),
        )
        for text in ("torch.matmul(x, w)", 'torch.einsum("bchw,wk->bchk", x, w)', "x @ w")
    ]
    made += [
        Step(
            "einsum",
            "matmul",
            ("sequence",),
            'torch.einsum("blf,fk->blk", x, w)',
            result=("batch", "length", "inner"),
            inputs=(("w", scaled("features, inner", "features")),),
        ),
        Step(
            "einsum",
            "matmul",
            ("matrix",),
            'torch.einsum("ij,jk->ik", x, w)',
            result=("rows", "inner"),
            inputs=(("w", scaled("cols, inner", "cols")),),
        ),
        Step(
            "einsum_transposed",
            "matmul",
            ("matrix",),
            'torch.einsum("ij,kj->ik", x, w)',
            result=("rows", "inner"),
            inputs=(("w", scaled("inner, cols", "cols")),),
        ),
        Step(
            "einsum_batched",
            "matmul",
            ("sequence",),
            'torch.einsum("bij,bjk->bik", x, w)',
            result=("batch", "length", "inner"),
            inputs=(("w", scaled("batch, features, inner", "features")),),
        ),
        Step(
            "bmm_transposed_a",
            "matmul",
            ("sequence",),
            "torch.bmm(x.transpose(1, 2), w)",
            result=("batch", "features", "inner"),
            inputs=(("w", scaled("batch, length, inner", "length")),),
        ),
        Step(
            "vector_matrix",
            "matmul",
            ("matrix",),
            "v @ x",
            result=("cols",),
            inputs=(("v", "torch.randn(rows) / rows ** 0.5"),),
        ),
        Step(
            "matrix_vector",
            "matmul",
            ("matrix",),
            "torch.mv(x, v)",
            result=("rows",),
            inputs=(("v", "torch.randn(cols) / cols ** 0.5"),),
        ),
        Step(
            "matrix_vector",
            "matmul",
            ("matrix",),
            "torch.matmul(x, v)",
            result=("rows", "1"),
            inputs=(("v", "torch.randn(cols, 1) / cols ** 0.5"),),
        ),
        Step(
            "triangular_matmul",
            "matmul",
            ("square",),
            "torch.tril(x) @ torch.tril(w)",
            result=("cols", "cols"),
            inputs=square,
        ),
        Step(
            "triangular_matmul",
            "matmul",
            ("square",),
            "torch.triu(torch.matmul(torch.triu(x), torch.triu(w)))",
            result=("cols", "cols"),
            inputs=square,
        ),
        Step(
            "symmetric_matmul",
            "matmul",
            ("square",),
            "torch.matmul((x + x.T) / 2, w)",
            result=("cols", "cols"),
            inputs=square,
        ),
        Step(
            "diagonal_matmul", "matmul", ("matrix",), "x * d[None, :]", inputs=(("d", "torch.randn(cols)"),)
        ),
        Step(
            "diagonal_matmul",
            "matmul",
            ("matrix",),
            "d.unsqueeze(1) * x",
            inputs=(("d", "torch.randn(rows)"),),
        ),
    ]
    return made


HEAD_STEPS = _heads() + _more()
