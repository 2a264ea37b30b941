"""Products of matrices, in the spellings and shapes that people use. See steps.py for what a Step is.

The order of the table counts: a seed draws from it.
"""

from nanotriton.collect.grammar.steps import ROWS, SHAPES, Step


def _scaled(shape: str, summed: str) -> str:
    """What draws a factor: divided by the root of the length that the product sums over, so that the product
    is about as large as x.
    """
    return f"torch.randn({shape}) / {summed} ** 0.5"


def _shaped(name: str, kind: str, text: str, result: tuple[str, ...] | None, **inputs: str) -> Step:
    """A product with a result of these dimensions; None: those of x. inputs: what draws its other factors."""
    return Step(name, "matmul", (kind,), text, result=result, inputs=tuple(inputs.items()))


def _product(name: str, kind: str, text: str, **inputs: str) -> Step:
    """A product that sums over x's last dimension, and has `inner` in its place."""
    return _shaped(name, kind, text, (*SHAPES[kind][:-1], "inner"), **inputs)


def _square(name: str, text: str) -> Step:
    """A product of two square matrices."""
    return _shaped(name, "square", text, ("cols", "cols"), w=_scaled("cols, cols", "cols"))


def _linear(name: str, layer: str) -> Step:
    """A layer that is a product."""
    return Step(name, "matmul", ROWS, "self.fc(x)", f"self.fc = {layer}", result=("*", "hidden"))


WEIGHT = _scaled("cols, inner", "cols")
TRANSPOSED = _scaled("inner, cols", "cols")
IN_BATCHES = _scaled("batch, features, inner", "features")
OF_PICTURES = _scaled("batch, channels, width, inner", "width")

HEAD_STEPS = [
    _product("matmul", "matrix", "x @ w", w=WEIGHT),
    _product("matmul", "matrix", "torch.matmul(x, w)", w=WEIGHT),
    _product("mm", "matrix", "torch.mm(x, w)", w=WEIGHT),
    _product("matmul_transposed_b", "matrix", "x @ w.T", w=TRANSPOSED),
    _shaped("matmul_transposed_a", "matrix", "x.T @ w", ("cols", "inner"), w=_scaled("rows, inner", "rows")),
    _shaped(
        "matmul_transposed_both", "matrix", "x.T @ w.T", ("cols", "inner"), w=_scaled("inner, rows", "rows")
    ),
    _shaped("gram", "matrix", "x @ x.T", ("rows", "rows")),
    _linear("linear", "nn.Linear({last}, hidden)"),
    _linear("linear_without_bias", "nn.Linear({last}, hidden, bias=False)"),
    _product("functional_linear", "matrix", "F.linear(x, w)", w=TRANSPOSED),
    _product("bmm", "sequence", "torch.bmm(x, w)", w=IN_BATCHES),
    _product(
        "bmm_transposed",
        "sequence",
        "x @ w.transpose(1, 2)",
        w=_scaled("batch, inner, features", "features"),
    ),
    _product(
        "matmul_sequence",
        "sequence",
        "torch.matmul(x, w)",
        w=_scaled("features, inner", "features"),
    ),
    _product("addmm", "matrix", "torch.addmm(b, x, w)", b="torch.randn(inner)", w=WEIGHT),
    _product(
        "addmm_scaled",
        "matrix",
        "torch.addmm(b, x, w, beta=0.5, alpha=2.0)",
        b="torch.randn(rows, inner)",
        w=WEIGHT,
    ),
    _product("lower_triangle", "matrix", "torch.tril(x @ w)", w=WEIGHT),
    _product("upper_triangle", "matrix", "torch.triu(x @ w)", w=WEIGHT),
    _shaped("diagonal_matmul", "matrix", "torch.diag(d) @ x", None, d="torch.randn(rows)"),
    _shaped("matrix_vector", "matrix", "x @ v", ("rows",), v="torch.randn(cols)"),
    _shaped(
        "outer",
        "matrix",
        "x * (a[:, None] * b[None, :])",
        None,
        a="torch.randn(rows)",
        b="torch.randn(cols)",
    ),
    _square("square_matmul", "x @ w"),
    _square("square_matmul", "torch.matmul(x, w)"),
    _square("square_matmul", "torch.mm(x, w)"),
    _product("batched_matmul_4d", "image", "torch.matmul(x, w)", w=OF_PICTURES),
    _product("batched_matmul_4d", "image", "x @ w", w=OF_PICTURES),
    _product("matmul_4d", "image", "torch.matmul(x, w)", w=_scaled("width, inner", "width")),
    _product(
        "matmul_4d",
        "image",
        'torch.einsum("bchw,wk->bchk", x, w)',
        w=_scaled("width, inner", "width"),
    ),
    _product("matmul_4d", "image", "x @ w", w=_scaled("width, inner", "width")),
    _product(
        "einsum",
        "sequence",
        'torch.einsum("blf,fk->blk", x, w)',
        w=_scaled("features, inner", "features"),
    ),
    _product("einsum", "matrix", 'torch.einsum("ij,jk->ik", x, w)', w=WEIGHT),
    _product("einsum_transposed", "matrix", 'torch.einsum("ij,kj->ik", x, w)', w=TRANSPOSED),
    _product("einsum_batched", "sequence", 'torch.einsum("bij,bjk->bik", x, w)', w=IN_BATCHES),
    _shaped(
        "bmm_transposed_a",
        "sequence",
        "torch.bmm(x.transpose(1, 2), w)",
        ("batch", "features", "inner"),
        w=_scaled("batch, length, inner", "length"),
    ),
    _shaped("vector_matrix", "matrix", "v @ x", ("cols",), v=_scaled("rows", "rows")),
    _shaped("matrix_vector", "matrix", "torch.mv(x, v)", ("rows",), v=_scaled("cols", "cols")),
    _shaped("matrix_vector", "matrix", "torch.matmul(x, v)", ("rows", "1"), v=_scaled("cols, 1", "cols")),
    _square("triangular_matmul", "torch.tril(x) @ torch.tril(w)"),
    _square("triangular_matmul", "torch.triu(torch.matmul(torch.triu(x), torch.triu(w)))"),
    _square("symmetric_matmul", "torch.matmul((x + x.T) / 2, w)"),
    _shaped("diagonal_matmul", "matrix", "x * d[None, :]", None, d="torch.randn(cols)"),
    _shaped("diagonal_matmul", "matrix", "d.unsqueeze(1) * x", None, d="torch.randn(rows)"),
]
