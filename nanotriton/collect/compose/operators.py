"""The element-wise operators: what each is called in PyTorch, and the Triton expression that computes it.

A row is (name, parameters, Triton, PyTorch spellings, constants, domain). Parameters stand in both texts
under their own names; those with a default are numbers. The spellings are what the grammar writes;
trace.py recognises any spelling by the name (`torch.relu`, `F.relu`, `x.relu()`, `nn.ReLU`). Spellings are
separated by semicolons; `{c}` in one is one of the constants.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Op:
    """An element-wise operator."""

    name: str
    parameters: str
    triton: str
    spellings: tuple[str, ...] = ()  # none: the grammar doesn't draw it alone
    constants: tuple[str, ...] = ()
    # of x: "real", "positive", "unit" (-1 to 1), "int", "bool" (a comparison: the result is bool)
    domain: str = "real"

    @property
    def arity(self) -> int:
        """How many tensors it takes at least."""
        return self.parameters.count(",") + 1 - self.parameters.count("=")


def _op(name, parameters, triton, spellings="", constants="", domain="real"):
    return Op(
        name,
        parameters,
        triton,
        tuple(filter(None, map(str.strip, spellings.split(";")))),
        tuple(constants.split()),
        domain,
    )


_SIGMOID = "tl.sigmoid(x)"
_SOFTPLUS = "tl.maximum(x, 0) + libdevice.log1p(tl.exp(-beta * tl.abs(x))) / beta"
# lerp goes from the end that is nearer, as PyTorch does: a small one isn't lost in the rounding of the other.
_FROM_START = "x + weight * (end - x)"
_FROM_END = "end - (1 - weight) * (end - x)"
_ROWS = (
    # Activations.
    _op("relu", "x", "tl.maximum(x, 0)", "torch.relu(x); F.relu(x); nn.ReLU()"),
    _op("relu6", "x", "tl.minimum(tl.maximum(x, 0), 6)", "F.relu6(x); nn.ReLU6()"),
    _op(
        "leaky_relu",
        "x, negative_slope=0.01",
        "tl.where(x > 0, x, negative_slope * x)",
        "F.leaky_relu(x, {c}); nn.LeakyReLU({c})",
        "0.1 0.2 0.05 0.3",
    ),
    _op(
        "elu",
        "x, alpha=1.0",
        "tl.where(x > 0, x, alpha * libdevice.expm1(x))",
        "F.elu(x); nn.ELU({c}); F.elu(x, {c})",
        "0.5 1.5 0.8",
    ),
    _op(
        "celu",
        "x, alpha=1.0",
        "tl.where(x > 0, x, alpha * libdevice.expm1(x / alpha))",
        "F.celu(x, {c}); nn.CELU({c})",
        "0.5 1.5 2.0",
    ),
    _op(
        "selu",
        "x",
        "1.0507009873554805 * tl.where(x > 0, x, 1.6732632423543772 * libdevice.expm1(x))",
        "F.selu(x); torch.selu(x); nn.SELU()",
    ),
    _op(
        "gelu",
        "x, approximate='none'",
        "0.5 * x * (1 + tl.erf(x * 0.7071067811865476))",
        "F.gelu(x); nn.GELU()",
    ),
    _op("sigmoid", "x", _SIGMOID, "torch.sigmoid(x); x.sigmoid(); nn.Sigmoid()"),
    _op("tanh", "x", "libdevice.tanh(x)", "torch.tanh(x); x.tanh(); nn.Tanh()"),
    _op("silu", "x", "x * tl.sigmoid(x)", "F.silu(x); nn.SiLU()"),
    _op(
        "mish",
        "x",
        "x * libdevice.tanh(tl.maximum(x, 0) + libdevice.log1p(tl.exp(-tl.abs(x))))",
        "F.mish(x); nn.Mish()",
    ),
    _op("hardsigmoid", "x", "tl.minimum(tl.maximum(x + 3, 0), 6) / 6", "F.hardsigmoid(x); nn.Hardsigmoid()"),
    _op("hardswish", "x", "x * tl.minimum(tl.maximum(x + 3, 0), 6) / 6", "F.hardswish(x); nn.Hardswish()"),
    _op(
        "hardtanh",
        "x, min_val=-1.0, max_val=1.0",
        "tl.minimum(tl.maximum(x, min_val), max_val)",
        "F.hardtanh(x); nn.Hardtanh(-{c}, {c}); F.hardtanh(x, min_val=-{c}, max_val={c})",
        "0.5 1.5 2.0",
    ),
    _op(
        "hardshrink",
        "x, lambd=0.5",
        "tl.where(tl.abs(x) > lambd, x, 0.0)",
        "F.hardshrink(x, {c}); nn.Hardshrink({c})",
        "0.25 0.5 0.75",
    ),
    _op(
        "softshrink",
        "x, lambd=0.5",
        "x - tl.minimum(tl.maximum(x, -lambd), lambd)",
        "F.softshrink(x, {c}); nn.Softshrink({c})",
        "0.25 0.5 0.75",
    ),
    _op("tanhshrink", "x", "x - libdevice.tanh(x)", "F.tanhshrink(x); nn.Tanhshrink()"),
    _op("softsign", "x", "x / (1 + tl.abs(x))", "F.softsign(x); nn.Softsign()"),
    _op(
        "softplus",
        "x, beta=1.0, threshold=20.0",
        _SOFTPLUS,
        "F.softplus(x); F.softplus(x, beta={c}); nn.Softplus(beta={c})",
        "0.5 2.0",
    ),
    _op(
        "logsigmoid",
        "x",
        "tl.minimum(x, 0) - libdevice.log1p(tl.exp(-tl.abs(x)))",
        "F.logsigmoid(x); nn.LogSigmoid()",
    ),
    _op(
        "threshold",
        "x, threshold, value",
        "tl.where(x > threshold, x, value)",
        "F.threshold(x, {c}, 0.0); nn.Threshold({c}, 0.0)",
        "0.1 0.25 0.5",
    ),
    # Functions of one number.
    _op("abs", "x", "tl.abs(x)", "torch.abs(x); x.abs()"),
    _op("neg", "x", "-x", "-x; torch.neg(x)"),
    _op("square", "x", "x * x", "torch.square(x); x * x; x ** 2"),
    _op("sqrt", "x", "tl.sqrt(x)", "torch.sqrt(x); x.sqrt()", domain="positive"),
    _op("rsqrt", "x", "tl.rsqrt(x)", "torch.rsqrt(x)", domain="positive"),
    _op("reciprocal", "x", "1 / x", "torch.reciprocal(x); 1 / x", domain="positive"),
    _op("exp", "x", "tl.exp(x)", "torch.exp(-torch.abs(x)); torch.exp(-x * x)"),
    _op("exp2", "x", "tl.exp2(x)", "torch.exp2(-torch.abs(x))"),
    _op("expm1", "x", "libdevice.expm1(x)", "torch.expm1(-torch.abs(x))"),
    _op("log", "x", "tl.log(x)", "torch.log(x); x.log()", domain="positive"),
    _op("log2", "x", "tl.log2(x)", "torch.log2(x)", domain="positive"),
    _op("log1p", "x", "libdevice.log1p(x)", "torch.log1p(torch.abs(x)); torch.log1p(x * x)"),
    _op("sin", "x", "tl.sin(x)", "torch.sin(x); x.sin()"),
    _op("cos", "x", "tl.cos(x)", "torch.cos(x); x.cos()"),
    _op(
        "sinc",
        "x",
        "tl.where(x == 0, 1.0, tl.sin(3.141592653589793 * x) / (3.141592653589793 * x))",
        "torch.sinc(x)",
    ),
    _op("atan", "x", "libdevice.atan(x)", "torch.atan(x)"),
    _op("asin", "x", "libdevice.asin(x)", "torch.asin(torch.tanh(x) * {c})", "0.5 0.9"),
    _op("acos", "x", "libdevice.acos(x)", "torch.acos(torch.tanh(x) * {c})", "0.5 0.9"),
    _op("asinh", "x", "libdevice.asinh(x)", "torch.asinh(x)"),
    _op("acosh", "x", "libdevice.acosh(x)", "torch.acosh(torch.abs(x) + {c})", "1.5 2.0"),
    _op("atanh", "x", "libdevice.atanh(x)", "torch.atanh(torch.tanh(x) * {c})", "0.5 0.9"),
    _op("sinh", "x", "libdevice.sinh(x)", "torch.sinh(torch.tanh(x))"),
    _op("cosh", "x", "libdevice.cosh(x)", "torch.cosh(torch.tanh(x))"),
    _op("tan", "x", "libdevice.tan(x)", "torch.tan(torch.tanh(x))"),
    _op("erf", "x", "tl.erf(x)", "torch.erf(x); torch.special.erf(x)"),
    _op("erfc", "x", "libdevice.erfc(x)", "torch.erfc(x)"),
    _op("floor", "x", "tl.floor(x)", "torch.floor(x * {c})", "4 8 16"),
    _op("ceil", "x", "tl.ceil(x)", "torch.ceil(x * {c})", "4 8 16"),
    _op("trunc", "x", "libdevice.trunc(x)", "torch.trunc(x * {c})", "4 8 16"),
    _op("round", "x", "libdevice.rint(x)", "torch.round(x * {c})", "4 8 16"),
    _op("frac", "x", "x - libdevice.trunc(x)", "torch.frac(x * {c})", "2 3"),
    _op("sign", "x", "tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))", "torch.sign(x)"),
    _op(
        "clamp",
        "x, min=None, max=None",
        "tl.minimum(tl.maximum(x, min), max)",
        "torch.clamp(x, -{c}, {c}); x.clamp(min=-{c}, max={c}); torch.clamp(x, min={c}); torch.clamp(x, max={c})",  # noqa: E501
        "0.5 1.0 2.0",
    ),
    _op(
        "clamp_min",
        "x, min",
        "tl.maximum(x, min)",
        "torch.clamp_min(x, {c}); x.clamp_min({c}); torch.max(x, torch.tensor({c}, device=x.device))",
        "0.1 0.5 1.0",
    ),
    _op(
        "clamp_max",
        "x, max",
        "tl.minimum(x, max)",
        "torch.clamp_max(x, {c}); x.clamp_max({c}); torch.min(x, torch.tensor({c}, device=x.device))",
        "0.1 0.5 1.0",
    ),
    _op(
        "pow",
        "x, exponent",
        "libdevice.pow(x, exponent)",
        "torch.pow(torch.abs(x) + 0.1, {c})",
        "1.5 2.5 0.5",
    ),
    _op("logit", "x", "tl.log(x / (1 - x))", "torch.logit(torch.sigmoid(x))"),
    # Two and three arguments.
    _op("add", "x, other", "x + other", "x + {c}; x + y; torch.add(x, y)", "0.5 1.0 2.0 3.0"),
    _op("sub", "x, other", "x - other", "x - {c}; x - y; {c} - x", "0.5 1.0 2.0 3.0"),
    _op("mul", "x, other", "x * other", "x * {c}; x * y; torch.mul(x, y)", "0.5 2.0 3.0 0.25"),
    _op("div", "x, other", "x / other", "x / {c}; x / (torch.abs(y) + 1)", "2.0 3.0 4.0 5.0"),
    _op("maximum", "x, other", "tl.maximum(x, other)", "torch.maximum(x, y)"),
    _op("minimum", "x, other", "tl.minimum(x, other)", "torch.minimum(x, y)"),
    _op("fmod", "x, other", "libdevice.fmod(x, other)", "torch.fmod(x, {c})", "1.5 2.5"),
    _op("atan2", "x, other", "libdevice.atan2(x, other)", "torch.atan2(x, y)"),
    _op("hypot", "x, other", "libdevice.hypot(x, other)", "torch.hypot(x, y)"),
    _op("copysign", "x, other", "libdevice.copysign(x, other)", "torch.copysign(x, y)"),
    _op(
        "logaddexp",
        "x, other",
        # infinity minus itself is no number: two equal ones are no distance apart
        "tl.maximum(x, other) + libdevice.log1p(tl.exp(-tl.where(x == other, 0.0, tl.abs(x - other))))",
        "torch.logaddexp(x, y)",
    ),
    _op(
        "lerp",
        "x, end, weight",
        f"tl.where(tl.abs(weight) < 0.5, {_FROM_START}, {_FROM_END})",
        "torch.lerp(x, y, {c})",
        "0.25 0.5 0.75",
    ),
    _op(
        "addcmul",
        "x, tensor1, tensor2, value=1",
        "x + value * tensor1 * tensor2",
        "torch.addcmul(x, x, y, value={c})",
        "0.5 2.0",
    ),
    _op(
        "addcdiv",
        "x, tensor1, tensor2, value=1",
        "x + value * tensor1 / tensor2",
        "torch.addcdiv(x, y, torch.abs(y) + 1, value={c})",
        "0.5 2.0",
    ),
    _op(
        "where",
        "condition, x, other",
        "tl.where(condition, x, other)",
        "torch.where(x > {c}, x, y); torch.where(x > y, x, {c} * y); torch.where(y > 0, x, {c} * x)",
        "0.1 0.25 0.5",
    ),
    _op(
        "masked_fill",
        "x, mask, value",
        "tl.where(mask, value, x)",
        "x.masked_fill(x < y, {c}); x.masked_fill(y < 0, {c})",
        "0.0 0.5 -1.0",
    ),
    # Truth values.
    _op("gt", "x, other", "x > other", domain="bool"),
    _op("lt", "x, other", "x < other", domain="bool"),
    _op("ge", "x, other", "x >= other", domain="bool"),
    _op("le", "x, other", "x <= other", domain="bool"),
    _op("eq", "x, other", "x == other", domain="bool"),
    _op("ne", "x, other", "x != other", domain="bool"),
    _op("isnan", "x", "x != x", domain="bool"),
    _op("logical_and", "x, other", "(x != 0) & (other != 0)", domain="bool"),
    _op("logical_or", "x, other", "(x != 0) | (other != 0)", domain="bool"),
    _op("logical_not", "x", "x == 0", domain="bool"),
    # Whole numbers.
    _op("bitwise_and", "x, other", "x & other", "x & {c}; torch.bitwise_and(x, y)", "7 15 255", "int"),
    _op("bitwise_or", "x, other", "x | other", "x | {c}; torch.bitwise_or(x, y)", "1 8 64", "int"),
    _op("bitwise_xor", "x, other", "x ^ other", "x ^ {c}; torch.bitwise_xor(x, y)", "5 21 85", "int"),
    _op("bitwise_not", "x", "~x", "~x; torch.bitwise_not(x)", domain="int"),
    _op("lshift", "x, other", "x << other", "x << {c}", "1 2 3", "int"),
    _op("rshift", "x, other", "x >> other", "x >> {c}", "1 2 3", "int"),
)


OPS = {op.name: op for op in _ROWS}
ALIASES = {
    "truediv": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
    "swish": "silu",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_sinc": "sinc",
    "special_logit": "logit",
    "log_sigmoid": "logsigmoid",
    "fix": "trunc",
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    "clip": "clamp",
    "greater": "gt",
    "less": "lt",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "mod": "remainder",
    "max_elementwise": "maximum",
    "special_expit": "sigmoid",
    "arctan2": "atan2",
    "iadd": "add",
    "imul": "mul",
    "isub": "sub",
    "itruediv": "div",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "leakyrelu": "leaky_relu",
    "hard_sigmoid": "hardsigmoid",
}


@cache
def signature(parameters: str) -> inspect.Signature:
    """A row's parameters as Python's own signature object."""
    scope: dict[str, Callable] = {}
    exec(f"def f({parameters}): pass", scope)  # the text is one of this file's
    return inspect.signature(scope["f"])


def substituted(text: str, values: dict[str, str]) -> str:
    """`text` with each parameter's name replaced; names after a dot are functions and stay."""
    pattern = r"(?<![\w.])(" + "|".join(map(re.escape, values)) + r")\b"
    return re.sub(pattern, lambda m: values[m[1]], text)


def expression(op: Op, bound: dict[str, object]) -> tuple[str, list]:
    """(text with {0}, {1}, ..., what stands there) of an operator with its parameters bound to nodes and
    numbers.
    """
    triton = op.triton
    if op.name == "gelu" and bound["approximate"] == "tanh":
        triton = "x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))"
    if op.name == "softplus":
        if bound["beta"] == 1 and written(bound["beta"]):
            triton = "tl.maximum(x, 0) + libdevice.log1p(tl.exp(-tl.abs(x)))"
        if bound["threshold"] != 20:  # beyond 20 the threshold changes less than the last digit
            triton = f"tl.where(beta * x > threshold, x, {triton})"
    if op.name == "elu" and bound["alpha"] == 1 and written(bound["alpha"]):
        triton = "tl.where(x > 0, x, libdevice.expm1(x))"
    if op.name == "clamp":
        triton = {(False, True): "tl.maximum(x, min)", (True, False): "tl.minimum(x, max)"}.get(
            (bound["min"] is None, bound["max"] is None), triton
        )
    if op.name == "pow":
        exponent = bound["exponent"]
        triton = POWERS.get(exponent, triton) if written(exponent) else triton
    if op.name == "lerp" and written(bound["weight"]):
        triton = _FROM_START if abs(bound["weight"]) < 0.5 else _FROM_END
    used = [p for p in bound if re.search(rf"(?<![\w.]){p}\b", triton)]
    return substituted(triton, {p: f"{{{i}}}" for i, p in enumerate(used)}), [bound[p] for p in used]


def written(value: object) -> bool:
    """Whether a parameter is a number of the module's text itself, which no other call can change."""
    return not hasattr(value, "op") and not hasattr(value, "text")


POWERS = {
    2: "x * x",
    3: "x * x * x",
    0.5: "tl.sqrt(x)",
    -1: "1 / x",
    -0.5: "tl.rsqrt(x)",
    4: "x * x * x * x",
    1: "x",
}


def result_type(op: Op, node_type: torch.dtype) -> torch.dtype | None:
    """The dtype of the result, where it isn't that of the arguments."""
    if op.domain == "bool":
        return torch.bool
    makes_float = {"div", "reciprocal", "sqrt", "rsqrt", "exp", "log", "sigmoid", "tanh", "sin", "cos", "erf"}
    return torch.float32 if op.name in makes_float and not node_type.is_floating_point else None
