"""Each element-wise operator's formula, in float32, against PyTorch in float64: over numbers from 1e-44 to
3e38 of both signs, and infinities, it may lose no digits that PyTorch's own float32 keeps.

Nothing is compiled: a module of the one operator is traced, and its graph's text is computed with torch.
"""

import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from nanotriton.collect.compose.compose import compose, graph_of
from nanotriton.collect.compose.ir import Graph
from nanotriton.collect.compose.losses import PIECES
from nanotriton.collect.compose.operators import OPS
from nanotriton.executor import Executor
from nanotriton.tasks.task import Task

# What an operator is called with besides tensors. The others get as many tensors as they take.
CALLS = {
    "leaky_relu": ["F.leaky_relu(x, 0.1)"],
    "elu": ["F.elu(x)", "F.elu(x, 0.5)"],
    "celu": ["F.celu(x)", "F.celu(x, 0.5)"],
    "gelu": ["F.gelu(x)", 'F.gelu(x, approximate="tanh")'],
    "softplus": ["F.softplus(x)", "F.softplus(x, beta=0.5)", "F.softplus(x, 2.0, 5.0)"],
    "threshold": ["F.threshold(x, 0.25, -1.0)"],
    "hardshrink": ["F.hardshrink(x, 0.25)"],
    "softshrink": ["F.softshrink(x, 0.25)"],
    "hardtanh": ["F.hardtanh(x)", "F.hardtanh(x, -0.5, 2.0)"],
    "clamp": ["torch.clamp(x, -0.5, 2.0)", "torch.clamp(x, min=-0.5)", "torch.clamp(x, max=0.5)"],
    "clamp_min": ["torch.clamp_min(x, 0.5)"],
    "clamp_max": ["torch.clamp_max(x, 0.5)"],
    "pow": [f"torch.pow(x, {n})" for n in (1, 2, 3, 4, 0.5, -0.5, -1, 1.5)] + ["torch.pow(x, y)"],
    "lerp": [f"torch.lerp(x, y, {n})" for n in (0.25, 0.5, 0.75, 1.0)]
    + ["torch.lerp(torch.abs(x), torch.abs(y), p)"],
    # of one sign here and above: how many digits a sum keeps that cancels depends on how it is rounded
    "addcmul": ["torch.addcmul(p, torch.abs(x), torch.abs(y), value=0.5)"],
    "addcdiv": ["torch.addcdiv(p, torch.abs(x), torch.abs(y), value=0.5)"],
    "where": ["torch.where(x > y, x, 0.5)"],
    "masked_fill": ["x.masked_fill(x > y, 0.5)"],
    "lshift": ["i << 3"],
    "rshift": ["i >> 3"],
}
LOSSES = {
    "mse_loss": "F.mse_loss(x, y, reduction='none')",
    "l1_loss": "F.l1_loss(x, y, reduction='none')",
    "binary_cross_entropy": "F.binary_cross_entropy(p, q, reduction='none')",
    "binary_cross_entropy_with_logits": "F.binary_cross_entropy_with_logits(x, p, reduction='none')",
    "soft_margin_loss": "F.soft_margin_loss(x, torch.sign(y), reduction='none')",
}
# What isn't in either table, and is computed by element all the same.
OTHERS = [
    "torch.remainder(x, y)",
    "torch.remainder(x, 1.5)",
    "torch.remainder(i, j)",
    "torch.nan_to_num(x / y)",
    "torch.nan_to_num(x / y, nan=0.5, posinf=1.0, neginf=-2.0)",
    "F.smooth_l1_loss(x, y, reduction='none', beta=0.5)",
    "F.huber_loss(x, y, reduction='none', delta=0.5)",
    "F.kl_div(x, p, reduction='none')",
    "F.kl_div(x, y, reduction='none', log_target=True)",
    "F.poisson_nll_loss(x, p, reduction='none')",
    "F.gaussian_nll_loss(x, y, p, reduction='none')",
]
# The truth where PyTorch's own formula overflows or has no digit left, even in float64.
TRUTHS = {
    CALLS["gelu"][1]: "x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))",
    LOSSES["binary_cross_entropy_with_logits"]: "p * F.softplus(-x) + (1 - p) * F.softplus(x)",
    LOSSES["soft_margin_loss"]: "F.softplus(-x * torch.sign(y))",
}


def calls() -> list[str]:
    """Every row of the table at least once."""
    found = []
    for name, op in OPS.items():
        owner = next((o for o in ("torch", "F", "torch.special") if hasattr(eval(o), name)), None)
        plain = f"{owner}.{name}({', '.join('ijk' if op.domain == 'int' else 'xyp')[: 3 * op.arity - 2]})"
        found += CALLS.get(name, [plain])
    return [*found, *LOSSES.values(), *OTHERS]


def module(call: str, inputs: dict[str, str]) -> Task:
    """A task whose forward returns `call`; the inputs that it names, and what draws each."""
    used = {name: text for name, text in inputs.items() if re.search(rf"\b{name}\b", call)}
    source = f"""\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, {", ".join(used)}):
        return {call}


def get_inputs():
    return [{", ".join(used.values())}]


def get_init_inputs():
    return []
"""
    return Task("t", source)


EXAMPLES = dict.fromkeys("xypq", "torch.rand(3)") | dict.fromkeys("ij", "torch.ones(3, dtype=torch.int32)")


# ---- Triton's functions, computed by torch


def like_triton(function):
    """With numbers as tensors of the other arguments' type."""

    def call(*args):
        dtype = next((a.dtype for a in args[-2:] if isinstance(a, torch.Tensor)), torch.float32)
        return function(*(a if isinstance(a, torch.Tensor) else torch.tensor(a, dtype=dtype) for a in args))

    return call


def namespace(**names: str) -> SimpleNamespace:
    """Functions under Triton's names; names: those that torch calls otherwise."""
    return SimpleNamespace(**{ours: like_triton(getattr(torch, theirs)) for ours, theirs in names.items()})


def same(text: str) -> dict[str, str]:
    return {name: name for name in text.split()}


TL = namespace(
    maximum="fmax",
    minimum="fmin",
    **same("where abs exp exp2 log log2 sqrt rsqrt sin cos erf sigmoid floor ceil"),
)
LIBDEVICE = namespace(
    rint="round",
    **same("expm1 log1p tanh sinh cosh tan asin acos atan asinh acosh atanh erfc trunc"),
    **same("pow fmod atan2 hypot copysign"),
)


def computed(graph: Graph, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the text of an element-wise graph comes to."""
    values: dict = {}
    for node in graph.nodes:
        if node.op == "input":
            values[node] = inputs[node.name]
            continue
        assert node.op == "map", node.op
        text = re.sub(r"\{(\d+)\}", r"a[\1]", node.text)
        text = re.sub(r"\{(#.*?)\}", r"n['\1']", text)
        scope = {"tl": TL, "libdevice": LIBDEVICE, "a": [values[a] for a in node.args], "n": node.attrs}
        values[node] = eval(text, scope).to(node.dtype)
    return values[graph.outputs[0]]


# ---- what goes in


def numbers() -> dict[str, torch.Tensor]:
    """x, y: all pairs of numbers from tiny to huge. p, q: between 0 and 1. i, j: whole numbers."""
    sizes = [m * 10.0**e for e in range(-44, 38, 3) for m in (1.0, 4.3)]
    sizes += [0.0, 3.4e38, float("inf"), 0.25, 0.5, 1.5, 5.5, 12.7, 20.0, 50.7, 88.1, 103.0]
    sizes += [1 - 2**-24, 1 - 2**-12, 1 + 2**-23, 2.0**24, 2.0**63]
    line = torch.tensor([-n for n in sizes] + sizes)
    x, y = torch.cartesian_prod(line, line).unbind(1)
    shares = torch.tensor(
        [0.0, 1e-7, 1e-5, 1e-3, 0.2, 0.5, 0.7, 0.99, 1 - 2**-12, 1 - 2**-20, 1 - 2**-24, 1.0]
    )
    drawn = torch.Generator().manual_seed(0)
    p, q = shares[torch.randint(len(shares), (2, len(x)), generator=drawn)]
    i, j = torch.randint(-(2**31), 2**31, (2, len(x)), generator=drawn).to(torch.int32)
    return {"x": x, "y": y, "p": p, "q": q, "i": i, "j": torch.where(j == 0, 1, j)}


INPUTS = numbers()


def units(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The distance from float64's answer in units of float32's last place there."""
    exponent = torch.floor(torch.log2(truth.abs().clamp(min=2.0**-126)))
    distance = (found.double() - truth).abs() / 2.0 ** (exponent - 23)
    equal = (found == truth.float()) | (found.isnan() & truth.isnan())
    return torch.where(equal, 0.0, distance.nan_to_num(nan=float("inf")))


@pytest.mark.parametrize("call", calls())
def test_a_formula_keeps_the_digits_that_pytorch_keeps(call):
    task = module(call, EXAMPLES)
    arguments = {name: INPUTS[name] for name in INPUTS if re.search(rf"\b{name}\b", call)}
    ours = computed(graph_of(task), arguments)
    torchs = eval(call, {"torch": torch, "F": F}, arguments)
    if not torchs.is_floating_point():
        assert torch.equal(ours, torchs)
        return
    truth = eval(
        TRUTHS.get(call, call), {"torch": torch, "F": F}, {k: v.double() for k, v in arguments.items()}
    )
    lost = units(ours, truth) > 8 + 4 * units(torchs, truth)
    lost &= ~torchs.isnan() & (ours != torchs)
    first = {k: v[lost][:3].tolist() for k, v in arguments.items()}
    told = f"{int(lost.sum())} of {len(lost)}, as {first}: {ours[lost][:3].tolist()}, not {torchs[lost][:3].tolist()}"
    assert not lost.any(), told


def test_every_operator_of_the_tables_is_called():
    assert LOSSES.keys() == PIECES.keys()


# ---- what is written with them


@pytest.fixture(scope="module")
def executor():
    with Executor(device="cpu", workers=1, policy="strict", timeout=30) as running:
        yield running


KERNELS = {
    "too large and too small to be squared": (
        "torch.hypot(x * 1e25, y * 1e25) * 1e-25 + torch.hypot(x * 1e-25, y * 1e-25) * 1e25",
        "torch.randn(5, 37)",
    ),
    "the far end is much larger": ("torch.lerp(x * 1e9, y, 1.0) * x", "torch.randn(5, 37)"),
    "infinities of one sign": ("torch.exp(torch.logaddexp(x.log(), y.log()))", "torch.randn(5, 37).relu()"),
    "a scan that begins with nothing": (
        "torch.exp(torch.logcumsumexp(x.log(), dim=-1)) + y",
        "torch.cat([torch.zeros(5, 3), torch.rand(5, 37)], dim=1)",
    ),
    "a row of nothing": (
        "torch.exp(torch.logsumexp(x.log(), dim=-1))",
        "torch.cat([torch.zeros(2, 37), torch.rand(5, 37)])",
    ),
    "remainders": ("torch.remainder(x, 1.5) + torch.remainder(x, y)", "torch.randn(5, 37)"),
    "remainders of whole numbers": ("(x % 7) * 9 + x % y", "torch.randint(1, 2**30, (5, 37))"),
    "what is no number": ("torch.atan(torch.nan_to_num(x / y, nan=0.5))", "torch.randn(5, 37).relu()"),
    "a threshold of softplus": ("F.softplus(x, 2.0, 1.0) + y", "torch.randn(5, 37)"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_keeps_them_too(name, executor):
    call, inputs = KERNELS[name]
    task = module(call, {"x": inputs, "y": inputs})
    verdict = executor.submit(task, compose(task).source).result()
    assert verdict.correct, (verdict.status, verdict.message)
