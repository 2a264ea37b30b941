"""A packed file of rows is read wherever a plain one is, and what isn't one is told in a line."""

import json
import lzma
from types import SimpleNamespace

import pytest

from bench.channels.sources import read_jsonl
from nanotriton.collect import manifest
from nanotriton.collect.sources import modules
from nanotriton.config import ConfigError
from nanotriton.rows import read_lines
from nanotriton.tasks.pairs import read_pairs
from nanotriton.tasks.task import find_tasks

TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1  # \u2028 is no end of a line


def get_inputs():
    return [torch.randn(4)]


def get_init_inputs():
    return []
"""
ROW = {"name": "plus", "task": TASK, "completion": "text", "pytorch_code": TASK}


def write(path, rows) -> str:
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return str(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.xz"])
def test_every_reader_takes_both(tmp_path, name):
    path = write(tmp_path / name, [ROW])
    assert [task.source for task in find_tasks(path)[0]] == [TASK]
    assert [task.source for task in modules([path])] == [TASK]
    assert [completion for _, completion in read_pairs(path)] == ["text"]
    assert read_jsonl(path) == [ROW]
    entry = dict.fromkeys(manifest.NEEDED, "x")
    assert manifest.read(write(tmp_path / f"manifest-{name}", [entry])) == [entry]


def test_what_is_not_packed_is_told_in_one_line(tmp_path):
    path = tmp_path / "rows.jsonl.xz"
    path.write_text(json.dumps(ROW))
    with pytest.raises(ValueError, match="can't be unpacked"):
        read_lines(path)
    for read, error in ((find_tasks, ValueError), (read_pairs, ConfigError), (read_jsonl, ValueError)):
        with pytest.raises(error, match=r"rows\.jsonl\.xz: cannot read: it can't be unpacked") as told:
            read(str(path))
        assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="cannot read: it can't be unpacked"):
        manifest.rebuild(SimpleNamespace(manifest=str(path), modules=[], out=str(tmp_path), workers=1))


@pytest.mark.parametrize(
    "line, why",
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes at character 2); an object with"),
        ("[]", "not an object; an object with pytorch_code"),
        ("{}", "it has no module's source; an object"),
        ('{"task": 3}', "it has no module's source; an object"),
        ('{"pytorch_code": "x", "meta": "y"}', 'its meta is no object but "y"'),
    ],
)
def test_a_bad_row_of_modules_says_what_is_wrong_with_it(tmp_path, line, why):
    (path := tmp_path / "rows.jsonl").write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(ValueError) as error:
        list(modules([str(path)]))
    assert str(error.value).startswith(f"--modules {path}, line 2: {why}")
