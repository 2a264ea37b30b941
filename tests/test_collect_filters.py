"""Nothing of a benchmark comes in, nothing comes twice, held-out sets are held out; a set is rebuilt from its
manifest.
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanotriton.collect import make as make_module
from nanotriton.collect.files import Journal
from nanotriton.collect.filters import Decontaminator, Duplicates
from nanotriton.collect.fingerprint import exact, fingerprint
from nanotriton.collect.make import computed_literals
from nanotriton.collect.sources import elements, fitted, modules, small
from nanotriton.collect.split import split_of
from nanotriton.tasks.task import Task

ROOT = Path(__file__).parents[1]
PROBLEM = '''\
import torch
import torch.nn as nn


class Model(nn.Module):
    """A convolution, scaled, and what is above a limit."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super(Model, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.conv(x)
        x = x * 2.5  # scale
        return torch.relu(torch.tanh(x) - 0.25)


batch_size = 16
in_channels = 8
out_channels = 24
kernel_size = 3


def get_inputs():
    return [torch.randn(batch_size, in_channels, 32, 32)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
'''
UNRELATED = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k):
        scores = q @ k.transpose(1, 2)
        return torch.log_softmax(scores, dim=-1)


def get_inputs():
    return [torch.randn(2, 9, 16), torch.randn(2, 11, 16)]


def get_init_inputs():
    return []
"""


def renamed(text: str) -> str:
    for old, new in (
        ("conv", "layer"),
        ("batch_size", "n"),
        ("out_channels", "width"),
        ("in_channels", "depth"),
        ("kernel_size", "k"),
    ):
        text = re.sub(rf"\b{old}\b", new, text)
    return re.sub(r"\bx\b", "hidden", text)


def split_in_two(text: str) -> str:
    """The same work in two modules, one of them called by the other."""
    text = (
        text.replace("class Model(", "class Inner(")
        .replace("super(Model", "super(Inner")
        .replace("return torch.relu(torch.tanh(x) - 0.25)", "return x")
    )
    return (
        text
        + """

class Model(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        self.inner = Inner(*arguments)

    def forward(self, x):
        return (self.inner(x).tanh() - 0.25).relu()
"""
    )


COPIES = {
    "plain": PROBLEM, "renamed": renamed(PROBLEM), "reformatted": ast.unparse(ast.parse(PROBLEM)), "other constants": PROBLEM.replace("2.5", "1.5").replace("0.25", "0.5"),
    "split": split_in_two(PROBLEM), "other spelling": PROBLEM.replace("torch.relu(torch.tanh(x) - 0.25)", "torch.sub(x.tanh(), 0.25).relu()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def decontaminator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "1_Conv_Tanh.py").write_text(PROBLEM)
    return Decontaminator.of([str(folder)])


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_found_however_they_are_written(decontaminator, how):
    assert decontaminator.check(COPIES[how])[0] == "copy"


def test_the_same_operators_on_other_shapes_are_marked_and_others_are_not(decontaminator):
    assert decontaminator.check(PROBLEM.replace("32, 32", "64, 48"))[0] == "same operator"
    assert decontaminator.check(UNRELATED) == ("", "")


def test_a_solution_that_contains_a_problems_text_is_a_copy(decontaminator):
    assert decontaminator.check(UNRELATED, solution=PROBLEM)[0] == "copy"


def test_a_folder_without_problems_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="a folder of benchmark problems is expected"):
        Decontaminator.of([str(tmp_path)])


def test_fingerprints_see_through_spelling_and_not_through_operators():
    assert fingerprint(PROBLEM).operators == ("conv", "mul", "tanh", "sub", "relu")
    assert fingerprint(COPIES["split"]).operators == fingerprint(PROBLEM).operators
    assert fingerprint(PROBLEM).shapes == ((16, 8, 32, 32),)
    assert fingerprint("not Python at all(").operators == ()


def test_duplicates_by_tree_and_by_neighbourhood():
    found = Duplicates()
    assert found.check("a", PROBLEM) == ""
    assert found.check("b", renamed(PROBLEM)) == "a"
    assert found.check("c", PROBLEM.replace("2.5", "7.5")) == "" and exact(PROBLEM) != exact(
        PROBLEM.replace("2.5", "7.5")
    )
    long = PROBLEM + "\n".join(f"value_{i} = {i}" for i in range(200))
    assert (
        found.check("d", long) == "" and found.check("e", long.replace("value_7 = 7", "value_7 = 8")) == "d"
    )


def test_held_out_sets_share_nothing_with_what_is_trained_on():
    operators = [f"op{i}" for i in range(200)]
    held = {o for o in operators if split_of([o], []) == "held_out_operator"}
    assert 0 < len(held) < 20
    trained = [(a, b) for a, b in pairwise(operators * 3) if split_of([a, b], [7]) == "train"]
    assert not held & {o for pair in trained for o in pair}
    compositions = {
        (a, b)
        for a in operators[:60]
        for b in operators[:60]
        if split_of([a, b], []) == "held_out_composition"
    }
    assert compositions and not compositions & set(trained)
    shapes = [n for n in range(500) if split_of(["x"], [n, 3]) == "held_out_shape"]
    assert shapes and all(
        split_of(["y"], [3, n]) == "held_out_shape" for n in shapes if split_of(["y"], []) == "train"
    )


def test_small_sizes_keep_what_divides_what():
    large = PROBLEM.replace("batch_size = 16", "batch_size = 4096").replace(
        "out_channels = 24", "out_channels = 4096"
    )
    text = small(large)
    assert 0 < elements(text) < elements(large) and "kernel_size = 3" in text
    assert small(text) == text


SIZED = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        return x * y EXTRA


rows = 640
cols = 1024


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("extra", ["/ x.shape[-1] ** 0.5", "/ 3.0"])
def test_a_factor_of_the_sizes_is_read_from_them(extra):
    task = {"name": "t", "source": SIZED.replace("EXTRA", extra), "solution": None, "meta": {}}
    made = make_module.make({"key": "t", "route": "compose", "task": task})
    assert made["status"] == "emitted" and "1024 **" not in made["solution"]


def test_a_solution_with_a_number_that_comes_from_the_sizes_is_dropped(monkeypatch):
    sized = lambda task: SimpleNamespace(source=f"n = {len(task.source)}", stages=[])
    monkeypatch.setattr(make_module, "compose", sized)
    monkeypatch.setattr(make_module, "reasoning", lambda composed: "")
    task = {"name": "t", "source": SIZED.replace("EXTRA", ""), "solution": None, "meta": {}}
    made = make_module.make({"key": "t", "route": "compose", "task": task})
    assert (made["status"], made["solution"]) == ("unfit", "")


def test_large_tensors_get_wide_offsets_and_small_ones_do_not():
    """Their texts differ, and no number in them comes from the sizes."""
    large = SIZED.replace("EXTRA", "").replace("rows = 640", "rows = 1 << 22")
    made = make_module.make(
        {"key": "t", "route": "compose", "task": {"name": "t", "source": large, "solution": None, "meta": {}}}
    )
    assert made["status"] == "emitted" and "tl.program_id(0).to(tl.int64)" in made["solution"]
    usual = SIZED.replace("EXTRA", "")
    made = make_module.make(
        {"key": "t", "route": "compose", "task": {"name": "t", "source": usual, "solution": None, "meta": {}}}
    )
    assert made["status"] == "emitted" and "int64" not in made["solution"]


def test_an_rl_task_has_sizes_that_are_judged_quickly():
    source = SIZED.replace("EXTRA", "")
    assert elements(fitted(source, 1 << 17)) <= 1 << 17 < elements(source)
    assert "rows = 160" in fitted(source, 1 << 17)
    assert fitted(source, 1 << 22) == source
    five = source.replace("rows, cols)", "rows, 40, 40, 40, cols)")  # too many dimensions for any limit
    assert "rows = 5\n" in fitted(five, 1 << 12) and "cols = 8\n" in fitted(five, 1 << 12)


def test_computed_literals_are_those_that_nothing_explains():
    task = "rows = 4096\nx = 0.3\n"
    assert computed_literals(task, "a = 0.3 * 4096 + 1\nBLOCK = 1024\n") == 0
    assert computed_literals(task, "a = 0.000244140625\nb = 12288\n") == 2


def test_a_journal_that_was_cut_off_loses_only_its_last_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"key": "a"}\n{"key": "b"}\n{"key": "c", "st')
    journal = Journal(path)
    assert set(journal.rows) == {"a", "b"}
    journal.add({"key": "c"})
    assert set(Journal(path).rows) == {"a", "b", "c"}


def test_sources_that_are_none_are_told_in_one_line(tmp_path):
    bad = tmp_path / "rows.jsonl"
    bad.write_text('{"triton_code": "x"}\n')
    with pytest.raises(ValueError, match="line 1: it has no module's source; an object with pytorch"):
        list(modules([str(bad)]))
    with pytest.raises(ValueError, match="no such file, folder or installed package"):
        list(modules(["no_package_of_this_name"]))
    bad.write_text(json.dumps({"pytorch_code": PROBLEM, "triton_code": "y", "name": "n"}) + "\n")
    (task,) = modules([str(bad)])
    assert (task.name, task.solution) == ("n", "y")


@pytest.mark.parametrize("arguments, said", [
    (["--shard", "3/2"], "1 <= K <= N"), (["--route", "distil"], "--endpoint URL"), (["--verify", "gpu"], "cpu, cuda, later"),
    (["--out", "README.md"], "--out README.md: cannot make this folder: a file is there"),
])  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_line(arguments, said):
    failed = subprocess.run(
        [sys.executable, "collect_data.py", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert failed.returncode == 2 and said in failed.stderr and len(failed.stderr.strip().splitlines()) == 1


def test_a_pair_with_its_task_is_asked_in_sft_as_in_grpo(tmp_path):
    import train_sft
    from nanotriton.tasks.bpe import train_tokenizer
    from nanotriton.tasks.prompt import build_prompt
    from nanotriton.transformer.tokenizer import Tokenizer

    path = tmp_path / "sft.jsonl"
    rows = [
        {"prompt": "ask", "task": PROBLEM, "completion": "answer"},
        {"prompt": "ask", "completion": "answer"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = train_sft.read_pairs(str(path))
    train_tokenizer([PROBLEM, "ask answer"], 300, tmp_path)
    tokenizer = Tokenizer(tmp_path)
    cfg = train_sft.Config(data=str(path), max_len=10_000)
    (task_ids, _), (plain_ids, _) = train_sft.encode(texts, cfg, tokenizer)
    assert task_ids == build_prompt(Task("t", PROBLEM), tokenizer) and plain_ids == tokenizer.encode("ask\n")


def test_a_folder_of_modules_with_inputs_is_a_folder_of_tasks(tmp_path):
    """As sample.py takes them; the inputs are the user's own, and no guess."""
    head = "import torch\nfrom torch import nn\n\n\n"
    net = head + "class Net(nn.Module):\n    def forward(self, x):\n        return x.relu()\n\n\n"
    (tmp_path / "a.py").write_text(net + "example_inputs = torch.randn(5, 7)\n")
    (tmp_path / "b.py").write_text(net + "def get_inputs():\n    return [torch.randn(3)]\n")
    (tmp_path / "c.py").write_text(net)
    (tmp_path / "helper.py").write_text("SIZE = 3\n")
    counts: Counter = Counter()
    found = {task.name: task.source for task in modules([str(tmp_path)], counts)}
    assert sorted(found) == ["a", "b"] and "torch.randn(5, 7)" in found["a"]
    assert counts == {f"{tmp_path}: a file that is no task": 2}
    assert elements(found["a"]) == 70
    assert [task.name for task in modules([str(tmp_path / "b.py")])] == ["b"]
    with pytest.raises(ValueError, match=r"c.py: it has no inputs for Net.forward"):
        list(modules([str(tmp_path / "c.py")]))
