"""The operations of the synthetic grammar (synthetic.py): each a line of PyTorch and the lines of Triton that
do it.

In a kernel `x` is the value so far, `row`, `col` and `mask` say where it lives, and `cols` is the length of a
row.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """One step x -> x. `{c}` in the texts is the constant."""

    name: str
    torch: str  # the expression that replaces x
    triton: tuple[str, ...]  # the lines that do it in a kernel
    constants: tuple[str, ...] = ()
    operand: str = ""  # a key of OPERANDS
    kind: str = "map"  # "map", "row" (needs the whole row), "reduce" (row -> number), "matmul"


@dataclass(frozen=True)
class Operand:
    """A tensor beside x. Parameters live on the module and are called `self.NAME` on the host."""

    shape: str  # as written in the task
    row_load: str  # how the row kernel reads it
    tile_load: str  # how the tile kernel reads it
    parameter: bool = False


def _map(name, torch_text, triton_text, constants=(), operand=""):
    return Op(name, torch_text, (f"x = {triton_text}",), constants, operand)


_VECTOR = "tl.load({0}_ptr + col, mask=col < cols, other=0)"
_MATRIX = "tl.load({0}_ptr + row * cols + col, mask=mask, other=0)"
OPERANDS = {  # in the order of the signature
    "y": Operand("rows, cols", _MATRIX, _MATRIX),
    "v": Operand("cols", _VECTOR, _VECTOR),
    "c": Operand("rows, 1", "tl.load({0}_ptr + row)", "tl.load({0}_ptr + row, mask=row < rows, other=0)"),
    "scale": Operand("cols", _VECTOR, _VECTOR, parameter=True),
    "bias": Operand("cols", _VECTOR, _VECTOR, parameter=True),
}

_ZERO_TAIL = "x = tl.where(mask, x, 0)"
_LOW_TAIL = 'x = tl.where(mask, x, -float("inf"))'
_CENTRE = (_ZERO_TAIL, "x = x - tl.sum(x, axis=0) / cols")
_RMS = (_ZERO_TAIL, "x = x / tl.sqrt(tl.sum(x * x, axis=0) / cols + 1e-5)")

OPS = (
    # Element-wise. exp, log and sqrt come in forms that are finite and well conditioned for every x.
    _map("relu", "torch.relu(x)", "tl.maximum(x, 0)"),
    _map("abs", "torch.abs(x)", "tl.abs(x)"),
    _map("neg", "-x", "-x"),
    _map("square", "x * x", "x * x"),
    _map("sqrt_square", "torch.sqrt(x * x + 1)", "tl.sqrt(x * x + 1)"),
    _map("log_abs", "torch.log(torch.abs(x) + 1)", "tl.log(tl.abs(x) + 1)"),
    _map("exp_abs", "torch.exp(-torch.abs(x))", "tl.exp(-tl.abs(x))"),
    _map("sin", "torch.sin(x)", "tl.sin(x)"),
    _map("cos", "torch.cos(x)", "tl.cos(x)"),
    _map("sigmoid", "torch.sigmoid(x)", "tl.sigmoid(x)"),
    _map("tanh", "torch.tanh(x)", "2 * tl.sigmoid(2 * x) - 1"),
    _map("silu", "F.silu(x)", "x * tl.sigmoid(x)"),
    _map("gelu", "F.gelu(x)", "0.5 * x * (1 + tl.erf(x / tl.sqrt(2.0)))"),
    _map("elu", "F.elu(x)", "tl.where(x > 0, x, tl.exp(tl.minimum(x, 0)) - 1)"),
    _map("hardswish", "F.hardswish(x)", "x * tl.minimum(tl.maximum(x + 3, 0), 6) / 6"),
    _map("softsign", "F.softsign(x)", "x / (1 + tl.abs(x))"),
    _map("leaky_relu", "F.leaky_relu(x, {c})", "tl.where(x > 0, x, {c} * x)", ("0.1", "0.2", "0.3")),
    _map("clamp", "torch.clamp(x, -{c}, {c})", "tl.minimum(tl.maximum(x, -{c}), {c})", ("0.5", "1", "2")),
    _map("add", "x + {c}", "x + {c}", ("0.5", "1", "2", "3")),
    _map("sub", "x - {c}", "x - {c}", ("0.5", "1", "2", "3")),
    _map("rsub", "{c} - x", "{c} - x", ("1", "2", "3")),
    _map("mul", "x * {c}", "x * {c}", ("0.5", "2", "3", "4")),
    _map("div", "x / {c}", "x / {c}", ("2", "3", "4", "5")),
    _map("at_least", "torch.clamp_min(x, {c})", "tl.maximum(x, {c})", ("0.1", "0.5", "1")),
    _map("at_most", "torch.clamp_max(x, {c})", "tl.minimum(x, {c})", ("0.1", "0.5", "1")),
    # Two operands: same shape, row vector, column vector, parameters.
    _map("add_y", "x + y", "x + y", operand="y"),
    _map("sub_y", "x - y", "x - y", operand="y"),
    _map("mul_y", "x * y", "x * y", operand="y"),
    _map("max_y", "torch.maximum(x, y)", "tl.maximum(x, y)", operand="y"),
    _map("min_y", "torch.minimum(x, y)", "tl.minimum(x, y)", operand="y"),
    _map("gate_y", "x * torch.sigmoid(y)", "x * tl.sigmoid(y)", operand="y"),
    _map("add_v", "x + v", "x + v", operand="v"),
    _map("mul_v", "x * v", "x * v", operand="v"),
    _map("add_c", "x + c", "x + c", operand="c"),
    _map("mul_c", "x * c", "x * c", operand="c"),
    _map("scale", "x * self.scale", "x * scale", operand="scale"),
    _map("bias", "x + self.bias", "x + bias", operand="bias"),
    # Whole rows. Lanes past the end of the row hold anything, so each begins by saying what they count as.
    Op(
        "softmax",
        "torch.softmax(x, dim=-1)",
        (_LOW_TAIL, "x = tl.exp(x - tl.max(x, axis=0))", "x = x / tl.sum(x, axis=0)"),
        kind="row",
    ),
    Op(
        "log_softmax",
        "torch.log_softmax(x, dim=-1)",
        (_LOW_TAIL, "x = x - tl.max(x, axis=0)", "x = x - tl.log(tl.sum(tl.exp(x), axis=0))"),
        kind="row",
    ),
    Op("centre", "x - x.mean(dim=-1, keepdim=True)", _CENTRE, kind="row"),
    Op("rms_norm", "F.rms_norm(x, x.shape[-1:], eps=1e-5)", _RMS, kind="row"),
    Op("layer_norm", "F.layer_norm(x, x.shape[-1:])", _CENTRE + _RMS, kind="row"),
    Op(
        "normalize",
        "F.normalize(x, dim=-1)",
        (_ZERO_TAIL, "x = x / tl.maximum(tl.sqrt(tl.sum(x * x, axis=0)), 1e-12)"),
        kind="row",
    ),
    Op("sum", "x.sum(dim=-1)", (_ZERO_TAIL, "x = tl.sum(x, axis=0)"), kind="reduce"),
    Op("mean", "x.mean(dim=-1)", (_ZERO_TAIL, "x = tl.sum(x, axis=0) / cols"), kind="reduce"),
    Op("norm", "x.norm(dim=-1)", (_ZERO_TAIL, "x = tl.sqrt(tl.sum(x * x, axis=0))"), kind="reduce"),
    Op("max", "x.amax(dim=-1)", (_LOW_TAIL, "x = tl.max(x, axis=0)"), kind="reduce"),
    Op(
        "min",
        "x.amin(dim=-1)",
        ('x = tl.where(mask, x, float("inf"))', "x = tl.min(x, axis=0)"),
        kind="reduce",
    ),
    Op(
        "logsumexp",
        "torch.logsumexp(x, dim=-1)",
        (_LOW_TAIL, "m = tl.max(x, axis=0)", "x = m + tl.log(tl.sum(tl.exp(x - m), axis=0))"),
        kind="reduce",
    ),
    Op("matmul", "x @ w", (), kind="matmul"),
)
