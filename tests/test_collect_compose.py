"""The composer: what it writes is executed and judged; its text has sizes from shapes and no number of its
own.
"""

import random
import re
import threading
from collections import Counter

import pytest
from torch import nn

from nanotriton.collect.compose.compose import compose, graph_of
from nanotriton.collect.compose.fuse import fuse
from nanotriton.collect.compose.ir import Unfit
from nanotriton.collect.compose.reasoning import reasoning
from nanotriton.collect.compose.trace import symbolic_trace
from nanotriton.collect.grammar import draft, grammar, steps
from nanotriton.collect.make import computed_literals, make
from nanotriton.executor import Executor
from nanotriton.tasks.task import Task, check_source

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def task(forward: str, inputs: str, init: str = "", arguments: str = "x", init_inputs: str = "") -> Task:
    """A module whose forward returns an expression."""
    constructor = f"    def __init__(self):\n        super().__init__()\n        {init}\n" if init else ""
    source = f"{HEAD}\n\nclass Model(nn.Module):\n{constructor}    def forward(self, {arguments}):\n        return {forward}\n\n\n"
    return Task(
        "t",
        source
        + f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return [{init_inputs}]\n",
    )


MODULES = {
    "map": task("torch.relu(x) * 2.5 + y", "torch.randn(5, 33), torch.randn(33)", arguments="x, y"),
    "map of a channel": task(
        "x * self.gamma", "torch.randn(2, 3, 5, 7)", "self.gamma = nn.Parameter(torch.randn(3, 1, 1))"
    ),
    "half": task(
        "F.gelu(x) + y",
        "torch.randn(5, 33, dtype=torch.float16), torch.randn(5, 1, dtype=torch.float16)",
        arguments="x, y",
    ),
    "whole numbers": task(
        "(x & 15) ^ y",
        "torch.randint(-99, 99, (4, 33), dtype=torch.int32), torch.randint(-99, 99, (4, 33), dtype=torch.int32)",
        arguments="x, y",
    ),
    "softmax": task("torch.softmax(x, dim=-1)", "torch.randn(4, 37)"),
    "layer norm": task("self.norm(x)", "torch.randn(3, 4, 37)", "self.norm = nn.LayerNorm(37)"),
    "group norm": task("self.norm(x)", "torch.randn(2, 8, 5, 3)", "self.norm = nn.GroupNorm(4, 8)"),
    "windows as large as the picture": task(
        "F.avg_pool2d(x, x.shape[2:]) + F.max_pool2d(x, (2, x.size(3)))[:, :, :1]", "torch.rand(3, 4, 6, 7)"
    ),
    "batch norm": task(
        "self.norm(x)", "torch.randn(4, 3, 5, 7)", "self.norm = nn.BatchNorm2d(3, track_running_stats=False)"
    ),
    "rows down": task("torch.logsumexp(x, dim=1)", "torch.randn(3, 7, 19)"),
    "several sums of a row": task(
        "(x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1e-5)",
        "torch.randn(4, 37)",
    ),
    "mean of everything": task(
        "F.mse_loss(x, y)", "torch.randn(9, 37), torch.randn(9, 37)", arguments="x, y"
    ),
    "cross entropy": task(
        "F.cross_entropy(x, y)", "torch.randn(9, 37), torch.randint(0, 37, (9,))", arguments="x, y"
    ),
    "linear": task("F.gelu(self.fc(x))", "torch.randn(5, 37)", "self.fc = nn.Linear(37, 19)"),
    "transposed matmul": task("x.T @ y.T", "torch.randn(37, 5), torch.randn(19, 37)", arguments="x, y"),
    "bmm": task("torch.bmm(x, y)", "torch.randn(2, 5, 37), torch.randn(2, 37, 19)", arguments="x, y"),
    "conv": task(
        "torch.relu(self.conv(x))",
        "torch.randn(2, 3, 9, 8)",
        "self.conv = nn.Conv2d(3, 5, 3, stride=2, padding=1)",
    ),
    "conv transpose": task(
        "self.conv(x)",
        "torch.randn(2, 4, 9)",
        "self.conv = nn.ConvTranspose1d(4, 5, 3, stride=2, output_padding=1)",
    ),
    "grouped conv": task(
        "self.conv(x)", "torch.randn(2, 4, 7, 6)", "self.conv = nn.Conv2d(4, 4, 3, groups=2)"
    ),
    "max pool": task("F.max_pool2d(x, 3, stride=1, padding=1, dilation=2)", "torch.randn(2, 3, 9, 8)"),
    "average pool": task(
        "F.avg_pool1d(x, 3, stride=2, padding=1, count_include_pad=False)", "torch.randn(2, 3, 11)"
    ),
    "reverse scan": task("torch.cumsum(x.flip(-1), dim=-1).flip(-1)", "torch.randn(3, 37)"),
    "scan of columns": task("torch.relu(torch.cumsum(x, dim=1))", "torch.randn(3, 7, 19)"),
    "attention": task(
        "F.scaled_dot_product_attention(x, y, z, is_causal=True)",
        "torch.randn(1, 2, 19, 16), torch.randn(1, 2, 19, 16), torch.randn(1, 2, 19, 16)",
        arguments="x, y, z",
    ),
    "sort": task("torch.sort(x, dim=-1, descending=True)[0]", "torch.randn(3, 37)"),
    "gather": task(
        "torch.gather(x, 1, y)", "torch.randn(5, 37), torch.randint(0, 37, (5, 9))", arguments="x, y"
    ),
    "embedding": task(
        "F.embedding(x, y)", "torch.randint(0, 13, (2, 5)), torch.randn(13, 9)", arguments="x, y"
    ),
    "permute": task("x.permute(0, 2, 1).contiguous()", "torch.randn(2, 5, 7)"),
    "reflection": task('F.pad(x, (2, 1, 1, 2), mode="reflect")', "torch.randn(2, 3, 5, 6)"),
    "pixel shuffle": task("F.pixel_shuffle(x, 2)", "torch.randn(2, 8, 5, 3)"),
    "quantisation": task(
        "torch.clamp(torch.round(x / y), -128, 127).to(torch.int8)",
        "torch.randn(5, 37), torch.rand(5, 1) * 0.1 + 0.01",
        arguments="x, y",
    ),
}


@pytest.fixture(scope="module")
def executor():
    with Executor(device="cpu", workers=1, policy="strict", timeout=30) as running:
        yield running


@pytest.mark.parametrize("name", MODULES)
def test_one_module_of_each_pattern_is_strictly_correct(name, executor):
    verdict = executor.submit(MODULES[name], compose(MODULES[name]).source).result()
    assert verdict.correct, (verdict.status, verdict.message)


@pytest.mark.parametrize(
    "name", ["softmax", "layer norm", "group norm", "several sums of a row", "cross entropy"]
)
def test_rows_longer_than_a_block_are_gone_over_in_a_loop(name, executor):
    long = Task("t", MODULES[name].source.replace("37", "1337").replace("(2, 8, 5, 3)", "(2, 8, 23, 29)"))
    composed = compose(long)
    assert "for start in range(0, cols, BLOCK)" in composed.source
    verdict = executor.submit(long, composed.source).result()
    assert verdict.correct, (verdict.status, verdict.message)


def test_the_same_solution_serves_other_sizes(executor):
    composed = compose(MODULES["softmax"])
    other = Task("t", MODULES["softmax"].source.replace("4, 37", "7, 150"))
    assert "37" not in composed.source
    assert executor.submit(other, composed.source).result().correct


def test_a_wrong_composition_is_refused(executor):
    """The judge is no rubber stamp: one operator exchanged, and the verdict is another."""
    source = compose(MODULES["softmax"]).source.replace("tl.exp(", "tl.exp2(")
    assert executor.submit(MODULES["softmax"], source).result().status == "wrong_value"


@pytest.mark.parametrize("forward, why", [
    ("torch.fft.fft(x)", "no Triton for"), ("x.sum() if x.sum() > 0 else x", "torch.fx can't follow it"),
    ("F.dropout(x, 0.5)", "random"), ("F.max_pool1d(x, 2, ceil_mode=True)", "ceil_mode"),
    ("F.max_pool1d(x[0], 2)", "without a batch"), ("F.adaptive_avg_pool2d(x, 1)", "without a batch"),
    ("x.flatten(1)", "computes nothing"), ("x.flatten().softmax(0)", "whole tensor"),
])  # fmt: skip
def test_what_is_not_covered_is_unfit_with_a_reason(forward, why):
    with pytest.raises(Unfit, match=why):
        compose(task(forward, "torch.randn(2, 3, 8)"))


@pytest.mark.parametrize(
    "forward", ["torch.mv(x, y)", "x.softmax(-1) * y", "x - x.mean(-1)", "F.layer_norm(x, (96,)) * y"]
)
def test_a_vector_beside_a_square_matrix_is_no_statistic_of_its_rows(forward):
    """By its shape alone it could be one: each row's kernel would take one number of it."""
    inputs = "torch.randn({}, 96), torch.randn(96)"
    with pytest.raises(Unfit, match="square"):
        compose(task(forward, inputs.format(96), arguments="x, y"))
    if forward != "x - x.mean(-1)":
        assert "y_ptr + col" in compose(task(forward, inputs.format(64), arguments="x, y")).source


def test_a_vector_of_a_statistic_for_each_row_of_a_square_matrix():
    made = compose(task("x.sum(-1) * y", "torch.randn(96, 96), torch.randn(96)", arguments="x, y"))
    assert "y_ptr + row" in made.source


@pytest.mark.parametrize("base, forward, why", [
    ("nn.LayerNorm", "def forward(self, x): return x + 1", "another class"), ("nn.Module", "pass", "no forward"),
])  # fmt: skip
def test_a_class_that_inherits_its_parts_is_unfit(base, forward, why):
    source = f"{HEAD}class Model({base}):\n    {forward}\n"
    source += "def get_inputs():\n    return [torch.randn(4, 8)]\ndef get_init_inputs():\n    return []\n"
    with pytest.raises(Unfit, match=why):
        compose(Task("inherits", source))


def test_reductions_of_the_same_rows_share_a_kernel_and_a_chain_is_one_kernel():
    assert len(fuse(graph_of(MODULES["several sums of a row"]))) == 1
    chain = task("torch.softmax(torch.relu(x) * 2, dim=-1) + 1", "torch.randn(4, 37)")
    assert [s.kind for s in fuse(graph_of(chain))] == ["rows"]
    two = task("torch.softmax(x @ y, dim=-1)", "torch.randn(4, 37), torch.randn(37, 19)", arguments="x, y")
    assert [s.kind for s in fuse(graph_of(two))] == ["matmul", "rows"]


def test_what_follows_a_group_norm_is_computed_in_its_kernel(executor):
    module = task(
        "torch.tanh(F.leaky_relu(self.norm(x), 0.1))",
        "torch.randn(2, 8, 5, 3)",
        "self.norm = nn.GroupNorm(4, 8)",
    )
    composed = compose(module)
    assert len(composed.stages) == 1 and executor.submit(module, composed.source).result().correct


def test_a_loss_of_two_branches_is_computed_in_order():
    """A node joins the stage of its latest argument only if nothing that comes later is needed there."""
    module = task(
        "torch.relu(x @ y) + torch.softmax(x @ y, dim=-1)",
        "torch.randn(4, 37), torch.randn(37, 19)",
        arguments="x, y",
    )
    stages = fuse(graph_of(module))
    position = {n: s.number for s in stages for n in s.nodes}
    for stage in stages:
        for node in stage.nodes:
            assert all(position.get(a, -1) <= stage.number for a in node.args)


@pytest.mark.parametrize("spelling", ["torch.relu(x)", "x.relu()", "F.relu(x)", "nn.ReLU()(x)"])
def test_an_operator_is_known_by_any_of_its_spellings(spelling):
    module = task("self.act(x)", "torch.randn(5, 33)", "self.act = nn.ReLU()")
    if not spelling.startswith("nn."):
        module = task(spelling, "torch.randn(5, 33)")
    assert "x = tl.maximum(x, 0)" in compose(module).source


def test_numbers_that_a_module_keeps_reach_the_kernel_as_arguments():
    source = compose(task("F.elu(x) * self.scale", "torch.randn(5, 33)", "self.scale = 0.37")).source
    assert "0.37" not in source.split("class ModelNew")[0] and "self.scale, BLOCK" in source
    assert (
        compose(task("self.act(x)", "torch.randn(5, 33)", "self.act = nn.LeakyReLU(0.3)")).source.count(
            "negative_slope"
        )
        >= 3
    )


@pytest.mark.parametrize("forward", [
    "torch.clamp(x, -self.a, 2 * self.a)", "torch.min(x, torch.tensor(self.a, device=x.device))",
    "x * (1.0 / self.a) + (self.a - 1)", "F.leaky_relu(x, self.a)", "torch.pow(torch.abs(x), 0.13 + self.a)",
])  # fmt: skip
def test_a_number_of_the_constructor_is_no_constant(forward, executor):
    """The judge makes the module with another number."""
    source = task(forward, "torch.randn(5, 33)", "self.a = a", init_inputs="0.37").source
    module = Task("t", source.replace("__init__(self)", "__init__(self, a)"))
    solution = compose(module).source
    assert "0.37" not in solution and executor.submit(module, solution).result().correct


def test_two_threads_that_trace_leave_modules_as_they_were():
    before, inside, first_is_done = nn.Module.__call__, threading.Event(), threading.Event()

    class Second(nn.Module):
        def forward(self, x):
            inside.set()
            assert first_is_done.wait(10)
            return x

    second = threading.Thread(target=symbolic_trace, args=(Second(),))

    class First(nn.Module):
        def forward(self, x):
            second.start()
            inside.wait(0.2)  # the second is in its forward by now, if it may
            return x

    symbolic_trace(First())
    first_is_done.set()
    second.join()
    assert inside.is_set() and nn.Module.__call__ is before


def test_the_grammar_is_deterministic_and_every_text_is_a_task():
    texts = []
    for i in range(60):
        draft = grammar.draw(random.Random(f"0 {i}"))
        again = grammar.draw(random.Random(f"0 {i}"))
        assert draft.source(True) == again.source(True)
        texts += [check_source(draft.source(large), "drawn") for large in (False, True)]
    assert len(set(texts)) > 100


def test_the_grammar_has_a_hundred_operators_and_more():
    assert len(grammar.operators()) >= 250
    assert {s.group for s in steps.ROW_STEPS + steps.SORT_STEPS + steps.GATHER_STEPS} >= {
        "row",
        "sort",
        "layout",
    }


def test_composed_text_has_no_number_that_its_task_does_not_have():
    kept = 0
    for i in range(40):
        drawn = grammar.draw(random.Random(f"7 {i}"))
        try:
            solution = compose(drawn.task("t", False)).source
        except Unfit:
            continue
        kept += 1
        assert computed_literals(drawn.source(True), solution) == 0, solution
        for name, (small, _) in drawn.sizes.items():
            if name in draft.SMALL and small > 32 and small not in (64,):
                assert not re.search(rf"(?<![\w.]){small}(?![\w.])", solution), (name, small)
    assert kept >= 35


def test_reasoning_is_about_the_kernel_that_follows_it():
    text = reasoning(compose(MODULES["cross entropy"]))
    assert "two kernels" in text and "atomic add" in text and "one program per row" in text.lower()
    assert "Parameters are made as in `Model`" in reasoning(compose(MODULES["linear"]))
    assert "Parameters" not in reasoning(compose(MODULES["softmax"]))


def test_reasoning_begins_with_what_a_module_has_and_lacks():
    first = lambda name: reasoning(compose(MODULES[name])).splitlines()[0]
    assert first("softmax").endswith("dimensions.") and "parameters" not in first("softmax")
    assert ".weight" in first("linear") and ".bias" in first("linear") and "no bias" not in first("linear")
    task = MODULES["linear"]
    bare = Task("bare", re.sub(r"(nn\.Linear\([^()]*)\)", r"\1, bias=False)", task.source))
    assert "has no bias" in reasoning(compose(bare)).splitlines()[0]


NORMS = {
    "pictures": ("nn.BatchNorm2d(3)", "torch.randn(4, 3, 5, 7)"),
    "features": ("nn.BatchNorm1d(19, momentum=0.3)", "torch.randn(7, 19)"),
    "without weights": ("nn.BatchNorm3d(3, affine=False)", "torch.randn(2, 3, 5, 3, 4)"),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_batch_norm_updates_its_running_statistics(name, executor):
    layer, inputs = NORMS[name]
    module = task("torch.relu(self.norm(x))", inputs, f"self.norm = {layer}")
    solution = compose(module).source
    assert executor.submit(module, solution).result().correct
    still = re.sub(r"\n    tl.store\(running_\w+ptr.*", "", solution)
    assert still.count("tl.store") == solution.count("tl.store") - 2
    assert not executor.submit(module, still).result().correct


LONG = {
    "any": "(x > 3.5).any(dim=1)",
    "all": "(x > -3.5).all(dim=-1)",
    "argmax": "torch.argmax(x, dim=1)",
    "argmin": "x.argmin(dim=-1, keepdim=True)",
    "prod": "torch.prod(1 + x * 0.01, dim=1)",
    "cumsum": "torch.cumsum(torch.tanh(x), dim=1) * 2",
    "reverse cumsum": "torch.cumsum(x.flip(1), dim=1).flip(1)",
    "cumprod": "torch.cumprod(1 + x * 0.01, dim=1)",
    "logcumsumexp": "torch.logcumsumexp(x, dim=1)",
    "exclusive": "torch.cumsum(x, dim=1) - x",
    "sort": "torch.sort(x, dim=1)[0]",
    "entropy": "-(torch.softmax(x, dim=1) * torch.log_softmax(x, dim=1)).sum(dim=1)",
}


@pytest.mark.parametrize("name", LONG)
def test_reductions_and_scans_of_rows_of_several_blocks(name, executor):
    module = task(LONG[name], "torch.randn(3, 2500)")
    verdict = executor.submit(module, compose(module).source).result()
    assert verdict.correct, (verdict.status, verdict.message)


SPELLINGS = {
    "position along the first dimension": ("x.argmax(dim=0)", "torch.randn(9, 37)"),
    "scan of the first dimension": ("torch.logcumsumexp(x, dim=0)", "torch.randn(9, 37)"),
    "whole numbers": ("torch.cumsum(x, dim=0)", "torch.randint(-9, 9, (9, 37))"),
    "product of the middle": ("x.prod(dim=1)", "torch.rand(3, 5, 37) + 0.5"),
    "einsum": ('torch.einsum("bij,kj->bik", x, y)', "torch.randn(2, 5, 37), torch.randn(19, 37)"),
    "einsum of four dimensions": ('torch.einsum("bijl,lk->bijk", x, y)', "torch.randn(2, 3, 5, 37), torch.randn(37, 19)"),
    "vector times matrix": ("y @ x", "torch.randn(9, 37), torch.randn(9)"),
    "gram with an epilogue": ("torch.relu(x @ x.T + y)", "torch.randn(9, 37), torch.randn(9)"),
    "a column": ("x[:, 3] * 2", "torch.randn(9, 37)"),
    "the last row": ("x[-1] + 1", "torch.randn(9, 37)"),
    "the end of a row": ("x[..., -5:]", "torch.randn(9, 37)"),
    "a window": ("torch.relu(x[:, 1:4, :, 2:])", "torch.randn(2, 5, 6, 7)"),
    "selected": ("x.select(1, 2)", "torch.randn(3, 5, 7)"),
    "one column": ("x @ y", "torch.randn(9, 37), torch.randn(37, 1)"),
    "features as a picture": ("F.instance_norm(x[:, None, None]).squeeze(1).squeeze(1) + y", "torch.randn(9, 37), torch.randn(37)"),
    "pooled features": ("F.max_pool1d(x.unsqueeze(1), 2).squeeze(1).sum(dim=1)", "torch.randn(9, 38)"),
    "masked scan": ("torch.cumsum(x * (y > 0), dim=1)", "torch.randn(9, 37), torch.randn(9, 37)"),
    "largest of everything": ("torch.max(x)", "torch.randn(9, 370)"),
    "shape of an intermediate": ("torch.relu(x @ y).view(x.shape[0], -1, 4).mean(dim=2)", "torch.randn(9, 37), torch.randn(37, 12)"),
    "computed number of a row": ("(x / (torch.abs(y) + 1)).amax(dim=(2, 3))", "torch.randn(3, 7, 5, 4), torch.randn(7, 1, 1)"),
    "computed operand of a squeezed statistic": ("x.mean(dim=(2, 3)) / (torch.abs(y) + 1)", "torch.randn(3, 7, 5, 4), torch.randn(3, 1)"),
    "operand of a squeezed statistic": ("torch.amax(x, dim=(2, 3)) * y", "torch.randn(3, 7, 5, 4), torch.randn(7)"),
    "statistics of one element": (
        "torch.logsumexp(x.mean(dim=(2, 3), keepdim=True), dim=1, keepdim=True).sum(dim=(2, 3)) * 10.0",
        "torch.randn(3, 7, 5, 4)",
    ),
    "cosine embedding": (
        "F.cosine_embedding_loss(x, y, z, margin=0.1)",
        "torch.randn(9, 37), torch.randn(9, 37), torch.randint(0, 2, (9,)).float() * 2 - 1",
    ),
    "hinge embedding": (
        "F.hinge_embedding_loss(x, y)", "torch.randn(9, 37), torch.randint(0, 2, (9, 37)).float() * 2 - 1"
    ),
    "tuples": (
        "F.max_pool2d(x, (3, 2), stride=(2, 1), padding=(1, 0))", "torch.randn(2, 3, 9, 8)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_was_once_refused_or_wrong(name, executor):
    forward, inputs = SPELLINGS[name]
    count = len(inputs.split("torch.")) - 1
    module = task(forward, inputs, arguments=", ".join("xyz"[: count if count < 4 else 3]))
    verdict = executor.submit(module, compose(module).source).result()
    assert verdict.correct, (verdict.status, verdict.message)


def test_sizes_are_those_of_the_tensor_by_its_name_in_forward():
    """A name is in capitals on the host and not in a kernel: sizes are the host's."""
    for forward in (
        "torch.sigmoid(A[..., : A.shape[-1] // 2]) * A[..., A.shape[-1] // 2 :]",
        "torch.relu(A) * A.numel() / A.size(1)",
        "A[:, 1:] - A[:, :-1]",
    ):
        source = compose(task(forward, "torch.randn(3, 9, 8)", arguments="A")).source
        host = source.split("def forward")[1]
        assert "A.shape" in host or "A.numel()" in host
        assert not re.search(r"(?<![\w.])a\b", host)


LAYERS = {
    "Conv1d(4, 6, 3, 2, 1, 2)": (4, 13),
    "Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False)": (4, 9, 8),
    "Conv3d(4, 6, (1, 3, 5), padding='same')": (4, 5, 6, 7),
    "Conv2d(4, 8, 3, groups=4, stride=2)": (4, 9, 8),
    "ConvTranspose1d(4, 6, 5, stride=3, padding=2, output_padding=1, dilation=2)": (4, 7),
    "ConvTranspose2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2))": (4, 5, 6),
    "ConvTranspose3d(4, 8, (2, 3, 1), stride=2, padding=(0, 1, 0), groups=2, output_padding=1)": (4, 3, 4, 3),
    "MaxPool1d(4, 1, 2, 3)": (3, 17),
    "MaxPool3d((2, 3, 2), stride=(1, 2, 2), padding=1)": (3, 5, 7, 6),
    "AvgPool3d(3, stride=2, padding=1, count_include_pad=False)": (2, 5, 6, 7),
    "AvgPool1d(4, 1, 2)": (3, 17),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_hyperparameter_of_a_window_counts(layer, executor):
    shape = ", ".join(map(str, LAYERS[layer]))
    module = task("torch.tanh(self.layer(x))", f"torch.randn(2, {shape})", f"self.layer = nn.{layer}")
    verdict = executor.submit(module, compose(module).source).result()
    assert verdict.correct, (verdict.status, verdict.message)


def test_a_chain_of_layers_has_a_name_for_each_size():
    """The second layer's sizes are those that the first computed, and no shape is asked for again."""
    module = task(
        "F.max_pool2d(torch.relu(self.conv(x)), 2)",
        "torch.randn(2, 3, 9, 8)",
        "self.conv = nn.Conv2d(3, 5, 3)",
    )
    source = compose(module).source.split("def forward")[1]
    assert source.count(".shape") == 2 and "_2" not in source


def test_operators_are_drawn_evenly():
    """No operator in more than 5% of the modules, and single operators in two of five."""
    count = Counter()
    drawn = [grammar.draw(random.Random(f"3 {i}")) for i in range(1000)]
    for one in drawn:
        count.update(set(one.ops))
    assert max(count.values()) <= 60, count.most_common(3)
    assert 420 <= sum(one.family.startswith("single") for one in drawn) <= 560
    assert 320 <= sum(one.family.startswith("fused") for one in drawn) <= 460


def test_what_is_no_python_is_counted_and_does_not_end_the_run():
    row = {"source": MODULES["softmax"].source, "solution": "K = @x@.shape[3]", "meta": {}}
    made = make({"key": "t", "route": "compose", "task": row})
    assert (made["status"], made["solution"]) == ("failed", "") and "given wrote no Python" in made["message"]
