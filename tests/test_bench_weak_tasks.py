"""bench.executor.weak_tasks: weak tasks are found by what passes, a shortcut on half of the input too, and what doesn't fit is left out."""

import json

import pytest
import torch

from bench.executor import weak_tasks
from bench.executor.weak_tasks import HALF, Config, examine, examine_apart, halved, largest, shrunk
from nanotriton.tasks.task import Task

TEXT = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return {answer}

rows = {rows}

def get_inputs():
    return [torch.rand(rows, 64)]

def get_init_inputs():
    return []
"""


def task(answer: str, rows: int = 32) -> Task:
    return Task("t", TEXT.format(answer=answer, rows=rows))


def test_half_of_the_input_stands_for_all_of_it():
    x = torch.arange(10.0).view(5, 2)
    assert halved(x).tolist() == [[0, 1], [2, 3], [0, 1], [2, 3], [8, 9]]
    assert halved(3) == 3 and halved(x[:1]) is not x and torch.equal(halved(x[:1]), x[:1])


def test_what_passes_the_loose_check_and_not_ours():
    """The mean of many numbers, a thousandth of it: half of the numbers give it to 1e-4, and so do zeros nearly."""
    row = examine(task("x.mean() * 1e-2", 4096), "cpu")
    assert row["status"] == "ok" and row["reference"] == "passes"
    assert (
        row["pass_ours"] == [] and HALF in row["pass_kernelbench"] and "zeros" not in row["pass_kernelbench"]
    )


def test_a_weak_task_is_found_without_its_name(tmp_path, monkeypatch, capsys):
    file, out = tmp_path / "weak.py", tmp_path / "out.json"
    file.write_text(task("torch.clamp(torch.relu(x), max=0.0)").source)
    monkeypatch.setattr(
        "sys.argv",
        ["weak_tasks", "--tasks", str(file), "--shrink", "8", "16", "--seconds", "60", "--out", str(out)],
    )
    weak_tasks.main()
    found = json.loads(out.read_text())
    assert found["counts"]["weak"] == 1 and found["counts"]["left out"] == 0
    assert found["tasks"][0]["shrink"] == 16 and "zeros" in found["tasks"][0]["message"]
    assert "weak_task" in capsys.readouterr().out


def test_what_takes_too_long_or_too_much_is_left_out():
    cfg = Config(seconds=2.0, memory_gib=16.0)
    assert examine_apart(task("[x for _ in iter(int, 1)][0]"), cfg)["status"] == "timeout"
    cfg = Config(seconds=60.0, memory_gib=6.0, shrink=[8, 0])
    assert examine_apart(task("x * 2", 1 << 27), cfg)["status"] == "memory_limit"
    row = largest(task("x * 2", 1 << 27), cfg)
    assert row["status"] == "ok" and row["shrink"] == 8 and row["reference"] == "passes"


def test_a_cap_of_0_leaves_the_task_alone():
    t = task("x")
    assert shrunk(t, 0) is t and "rows = 8" in shrunk(t, 8).source


def test_usage(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["weak_tasks", "--device", "cuda", "--seconds", "3"])
    with pytest.raises(SystemExit) as stop:
        weak_tasks.main()
    assert stop.value.code == 2 and "--seconds" in capsys.readouterr().err
