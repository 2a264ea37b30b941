"""Route compile: what Inductor writes is rewritten as a person writes, and is still right."""

import ast
import logging
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._triton import has_triton

from nanotriton.collect.compile.host import Buffer, Host
from nanotriton.collect.compile.inductor import compiled
from nanotriton.collect.compose.ir import Unfit
from nanotriton.collect.make import computed_literals
from nanotriton.executor import Executor
from nanotriton.tasks.task import Task

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def task(forward: str, inputs: str, init: str = "", arguments: str = "x") -> Task:
    """A module whose forward returns an expression."""
    constructor = f"    def __init__(self):\n        super().__init__()\n        {init}\n" if init else ""
    body = (
        f"class Model(nn.Module):\n{constructor}    def forward(self, {arguments}):\n        return {forward}"
    )
    tail = f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    return Task("t", f"{HEAD}\n\n{body}\n\n\n{tail}")


MODULES = {
    "map": task("torch.relu(x) * 2.5 + y", "torch.randn(5, 33), torch.randn(33)", arguments="x, y"),
    "row held at once": task("torch.softmax(x, dim=-1)", "torch.randn(5, 7, 33)"),
    "row gone over in a loop": task("x - x.mean(-1, keepdim=True)", "torch.randn(2, 5003)"),
    "lanes": task("torch.log_softmax(x, dim=1)", "torch.randn(3, 7, 19)"),
    "lanes and their place": task("x.amax(1) + x.argmax(1)", "torch.randn(5, 7, 6)"),
    "scan": task("torch.cumsum(x, dim=-1)", "torch.randn(3, 37)"),
    "any": task("(x > 1.5).any(-1)", "torch.randn(5, 7, 6)"),
    "linear": task("F.gelu(self.fc(x))", "torch.randn(5, 37)", "self.fc = nn.Linear(37, 19)"),
    "products of batches": task(
        "torch.bmm(x, y)", "torch.randn(2, 5, 37), torch.randn(2, 37, 19)", arguments="x, y"
    ),
    "conv and norm": task(
        "self.norm(F.relu(self.conv(x)))",
        "torch.randn(2, 3, 10, 12)",
        "self.conv, self.norm = nn.Conv2d(3, 5, 3, padding=1), nn.LayerNorm(12)",
    ),
    "transposed conv": task(
        "self.conv(x)", "torch.randn(2, 4, 8)", "self.conv = nn.ConvTranspose1d(4, 6, 3, stride=2)"
    ),
    "running statistics": task("self.norm(x)", "torch.randn(2, 6, 8, 9)", "self.norm = nn.BatchNorm2d(6)"),
    "list of answers": task("[torch.relu(x), x * 2.0]", "torch.randn(5, 33)"),
    "concatenation": task(
        "torch.cat([x, y], 1)", "torch.randn(2, 3, 5), torch.randn(2, 4, 5)", arguments="x, y"
    ),
    "embedding": task(
        "F.embedding(x, self.w)", "torch.randint(0, 9, (2, 5))", "self.w = nn.Parameter(torch.randn(9, 4))"
    ),
}
INHERITED = Task(
    "t",
    HEAD
    + """

@torch.jit.script
def double(x):
    return x * 2.0


class Base(nn.Module):
    def forward(self, x):
        return double(self.fc(x))


class Model(Base):
    width = 7

    def __init__(self):
        super(Model, self).__init__()
        self.fc = nn.Linear(5, Model.width)


def get_inputs():
    return [torch.randn(3, 5)]


def get_init_inputs():
    return []
""",
)


@pytest.fixture(scope="module")
def executor():
    with Executor(device="cpu", workers=1, policy="strict", timeout=60) as running:
        yield running


@pytest.mark.parametrize("name", MODULES)
def test_each_form_is_strictly_correct_and_has_nothing_of_inductors(name, executor):
    source = compiled(MODULES[name])
    verdict = executor.submit(MODULES[name], source).result()
    assert verdict.correct, (verdict.status, verdict.message, source)
    kernels = source.split("class ModelNew")[0]
    assert not re.search(r"tmp\d|XBLOCK|xnumel|ks\d|rindex|triton_helpers|eviction|broadcast_to", kernels)


def test_an_inherited_forward_and_a_scripted_function(executor):
    source = compiled(INHERITED)
    assert executor.submit(INHERITED, source).result().correct
    assert "ModelNew.width" in source and "class ModelNew(Base)" in source


def test_one_text_serves_other_sizes(executor):
    """Sizes of inputs and of parameters are read, so that no number of the example is in the text."""
    linear = MODULES["linear"]
    source = compiled(linear).replace("nn.Linear(37, 19)", "nn.Linear(70, 130)")
    other = Task("t", linear.source.replace("(5, 37)", "(9, 70)").replace("(37, 19)", "(70, 130)"))
    assert executor.submit(other, source).result().correct
    softmax = MODULES["row held at once"]
    assert "33" not in compiled(softmax)
    longer = Task("t", softmax.source.replace("5, 7, 33", "2, 3, 300"))
    assert executor.submit(longer, compiled(softmax)).result().correct


def test_a_row_reads_as_a_person_writes_it():
    source = compiled(MODULES["row held at once"])
    kernel = source.split("@triton.jit\n")[1].split("\n\n\n")[0].splitlines()
    assert kernel[0] == "def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):"
    assert [line.strip().split(" = ")[0] for line in kernel[1:5]] == ["row", "col", "mask", "x"]
    assert len(kernel) <= 10 and "out = torch.empty_like(x)" in source


@pytest.mark.parametrize(
    "name", [n for n in MODULES if n not in ("conv and norm", "row gone over in a loop")]
)
def test_no_number_is_computed(name):
    assert computed_literals(MODULES[name].source, compiled(MODULES[name])) == 0


@pytest.mark.parametrize("forward, why", [
    ("torch.fft.fft(x).real", "."), ("F.dropout(x, 0.5)", "random"), ("torch.sort(x)[0]", "no kernel"),
])  # fmt: skip
def test_what_has_no_kernel_is_unfit_with_a_reason(forward, why):
    with pytest.raises(Unfit, match=why):
        compiled(task(forward, "torch.randn(3, 8)"))


def test_what_others_log_is_heard_afterwards(caplog):
    compiled(MODULES["map"])
    logging.getLogger("other").warning("heard")
    assert "heard" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_process_that_has_asked_torch_for_a_card_can_compile_and_knows_none_afterwards():
    """torch keeps the answer, which transformers, say, asks for as it is imported."""
    assert not has_triton()
    assert "@triton.jit" in compiled(MODULES["map"])
    assert not has_triton()


def test_of_several_buffers_the_first_says_how_many_elements_there_are():
    """Whichever of a set came first would be another one in another process, and so would the text."""
    host = Host(SimpleNamespace(), nn.Module(), [], list)
    names = [f"buffer{i}" for i in range(9)]
    for name in names:
        host.buffers[name] = Buffer(ast.parse("(3, 5)", mode="eval").body, ast.Tuple([]), "float32", name)
    for first in names:
        passed = {"in_ptr0": "x", "out_ptr0": first, "out_ptr1": "buffer4", "xnumel": "15"}
        others = {f"out_ptr{i + 2}": name for i, name in enumerate(names)}
        arguments = {p: ast.parse(text, mode="eval").body for p, text in (passed | others).items()}
        kernel = SimpleNamespace(pointers=[p for p in arguments if p != "xnumel"])
        step = ("launch", kernel, arguments)
        assert host.count(ast.parse("3 * 5", mode="eval").body, step) == f"{first}.numel()"
