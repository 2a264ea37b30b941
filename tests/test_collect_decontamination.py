"""Nothing of a benchmark comes in, in whatever clothes. The benchmark here is made of draws of the grammar."""

import random
import sys
from pathlib import Path

import pytest
from plants import COPIES, other_shapes

from nanotriton.collect.filters import Decontaminator
from nanotriton.collect.fingerprint import fingerprint
from nanotriton.collect.grammar import grammar
from nanotriton.collect.make import make
from nanotriton.collect.pipeline import Pipeline

sys.path.insert(0, str(Path(__file__).parents[1]))
import collect_data

LAYERED = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    \"\"\"{what}, with a tail.\"\"\"

    def __init__(self, channels, width, size):
        super(Model, self).__init__()
        self.layer = {layer}
        self.limit = 0.75

    def forward(self, x):
        x = self.layer(x)  # the work
        x = torch.{first}(x)
        x = x * 1.5
        x = torch.{second}(x)
        return x


batch_size = 16
channels = 8
width = 24
size = 3
length = 40


def get_inputs():
    return [torch.randn(batch_size, channels, {inner})]


def get_init_inputs():
    return [channels, width, size]
"""
LAYERS = {
    "a convolution": ("nn.Conv1d(channels, width, size)", "length"),
    "a convolution of pictures": ("nn.Conv2d(channels, width, size, padding=1)", "length, length"),
    "a transposed convolution": ("nn.ConvTranspose1d(channels, width, size)", "length"),
    "a pooling": ("nn.AvgPool2d(size)", "length, length"),
}
TAILS = (("tanh", "sigmoid"), ("relu", "exp"), ("sigmoid", "abs"))


def problems() -> list[str]:
    """Stand-ins for a benchmark: layers with tails."""
    return [
        LAYERED.format(what=what, layer=layer, inner=inner, first=first, second=second)
        for what, (layer, inner) in LAYERS.items()
        for first, second in TAILS
    ]


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    for number, text in enumerate(problems()):
        (folder / f"{number}_problem.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def decontaminator(benchmark):
    return Decontaminator.of([str(benchmark)])


@pytest.mark.parametrize("how", COPIES)
def test_every_copy_of_every_problem_is_found(decontaminator, how):
    for text in problems():
        planted = COPIES[how](text)
        compile(planted, "planted", "exec")
        assert planted != text and decontaminator.check(planted)[0] == "copy", planted


def test_every_problem_with_other_shapes_is_marked(decontaminator):
    for text in problems():
        planted = other_shapes(text)
        assert fingerprint(planted).shapes != fingerprint(text).shapes
        assert decontaminator.check(planted)[0] == "same operator", planted


def test_a_module_that_does_not_load_is_known_by_its_text(decontaminator):
    broken = problems()[0].replace("import torch.nn as nn", "import torch.nn as nn\nimport no_such_package")
    assert fingerprint(broken).shapes == () and decontaminator.check(broken)[0] == "copy"


def test_modules_that_have_nothing_to_do_with_it_stay(decontaminator):
    texts = [grammar.draw(random.Random(f"5 {i}")).source(True) for i in range(60)]
    ours = {fingerprint(text).operators for text in problems()}
    unrelated = [text for text in texts if fingerprint(text).operators not in ours]
    assert len(unrelated) > 50 and {decontaminator.check(text) for text in unrelated} == {("", "")}


@pytest.mark.parametrize("strict", [False, True])
def test_what_becomes_of_them_in_a_run(benchmark, tmp_path, strict):
    cfg = collect_data.Config(out=str(tmp_path), exclude=[str(benchmark)], strict_decontamination=strict)
    run = Pipeline(cfg)
    found = {}
    for name, text in (("copy", problems()[0]), ("shapes", other_shapes(problems()[1]))):
        task = {"name": name, "source": text, "solution": None, "meta": {}}
        row = make({"key": name, "route": "distil", "task": task, "fingerprint": True})
        found[name] = run.filtered(row), row["status"], row["meta"].get("same_operator_as")
    assert found["copy"][:2] == (True, "copy")
    assert found["shapes"] == (True, "copy", "1_problem.py") if strict else (False, "emitted", "1_problem.py")
