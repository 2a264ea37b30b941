"""Modules out of packages: found, made and called by trying, alone in one file; what is left out has a reason."""

import sys
from collections import Counter

import pytest

from nanotriton.collect.extract import classes, extract, runnable, runs
from nanotriton.tasks.task import check_source

FILES = {
    "__init__.py": "raise RuntimeError('a compiled part is for another machine')\n",
    "helpers.py": """\
import torch


def scaled(x, by):
    return x * by


def _log_api_usage_once(obj):
    torch._C._log_api_usage_once(str(obj))
""",
    "layers.py": """\
import torch
from torch import nn

from .helpers import _log_api_usage_once, scaled


class Scaled(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        _log_api_usage_once(self)
        self.layer = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x):
        return scaled(self.layer(x), 2.0)


class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class NoInput(nn.Module):
    def forward(self):
        return torch.ones(3)


class Foreign(nn.Module):
    def forward(self, x):
        return pytest.approx(x)


import pytest
""",
    "broken.py": "import no_such_package\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "a_strange_package"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.name
    for name in [n for n in sys.modules if n.split(".")[0] == folder.name]:
        del sys.modules[name]


def test_a_package_whose_own_file_raises_is_entered_without_it(package):
    counts: Counter = Counter()
    (task,) = extract(package, counts)
    assert task.name == f"{package}.layers.Scaled" and task.meta == {"origin": package}
    source = check_source(task.source, "task")
    assert "def scaled" in source and "log_api_usage" not in source and "class Model(nn.Module)" in source
    assert "from .helpers" not in source and runs(source)
    assert counts == {
        f"{package}: runnable": 1,
        f"{package}: a file that can't be imported": 1,
        f"{package}: needs more than its file, torch and the standard library": 1,
        f"{package}: takes no input, or more than three": 1,
        f"{package}: no arguments found that work, or random, or not finite": 1,
    }


@pytest.mark.parametrize("name", ["Sigmoid", "Linear", "LayerNorm", "BCELoss", "NLLLoss", "Embedding", "GRU"])
def test_layers_of_torch_are_found_with_what_they_take(name):
    cls = next(c for c in classes("torch.nn.modules") if c.__name__ == name)
    source, why = runnable(cls)
    assert why == "runnable" and f"nn.{name}(" in source


def test_a_file_of_a_folder_that_raises_is_counted(tmp_path):
    (tmp_path / "broken.py").write_text("raise OSError('compiled for another machine')")
    (tmp_path / "empty.py").write_text("")
    counts: Counter = Counter()
    assert list(extract(str(tmp_path), counts)) == []
    assert counts == {f"{tmp_path}: a file that can't be imported": 1}


def test_a_package_that_is_not_there_is_told():
    with pytest.raises(ValueError, match="can't be imported"):
        list(extract("no_package_of_this_name"))
