"""A set is made again from its manifest, whatever routes made it; what can't be is named and left out."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanotriton.collect import manifest
from nanotriton.collect.fingerprint import digest
from nanotriton.collect.make import make
from nanotriton.rows import read_lines
from nanotriton.tasks.task import Task

MODULE = """\
import torch
import torch.nn as nn

rows = {rows}


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * {number}


def get_inputs():
    return [torch.randn(rows, 300)]


def get_init_inputs():
    return []
"""
SOLUTION = "class ModelNew: pass\n"


def given(route: str, number: int, rows: int = 8, solution: str | None = None) -> dict:
    """A row of the journal for a module that came from a file."""
    task = Task(f"m{number}", MODULE.format(rows=rows, number=number), solution)
    fields = {
        "name": task.name,
        "source": task.source,
        "solution": task.solution,
        "meta": {"origin": "files"},
    }
    return make({"key": f"{task.name}-{route}", "route": route, "task": fields})


def drawn(route: str = "compose") -> dict:
    """A row of the journal for a draw of the grammar that has a solution."""
    failed = []
    for i in range(9):
        row = make({"key": f"pair-3-{i}", "route": route, "seed": f"3 {i}"})
        if row["solution"]:
            return row
        failed.append(row["message"])
    raise AssertionError(failed)


def rebuilt(folder: Path, lines: list[dict], modules: list[str]) -> list[dict]:
    """The pairs that come out."""
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = folder / "out"
    cfg = SimpleNamespace(manifest=str(path), modules=modules, out=str(out), workers=1, reasoning=False)
    manifest.rebuild(cfg)
    return [json.loads(line) for line in (out / "sft.jsonl").read_text().splitlines()]


@pytest.fixture
def modules(tmp_path) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    for number, rows in ((1, 8), (2, 4096)):
        (folder / f"m{number}.py").write_text(MODULE.format(rows=rows, number=number))
    solved = {"pytorch_code": MODULE.format(rows=8, number=3), "triton_code": SOLUTION}
    (tmp_path / "solved.jsonl").write_text(json.dumps(solved) + "\n")
    return folder


@pytest.mark.slow
def test_every_route_is_made_again(tmp_path, modules):
    """Also where a CPU was given small sizes, and where a teacher, who won't say the same again, wrote it."""
    taught = given("distil", 2, 4096)
    taught |= {"source": taught["small"], "solution": SOLUTION}
    rows = [drawn(), given("compose", 1), given("compile", 1), given("compile", 2, 4096), taught]
    rows += [given("compose", 3, solution=SOLUTION), drawn("compile")]
    routes = ["compose", "compose", "compile", "compile", "distil", "given", "compile"]
    assert [row["meta"]["route"] for row in rows] == routes
    assert "4096" not in rows[3]["source"] and all(row["solution"] for row in rows)
    pairs = rebuilt(
        tmp_path, [manifest.line(row) for row in rows], [str(modules), f"{tmp_path}/solved.jsonl"]
    )
    assert [(p["task"], p["solution"]) for p in pairs] == [(r["source"], r["solution"]) for r in rows]
    assert (tmp_path / "out" / "missing.jsonl").read_text() == ""


def test_modules_that_are_not_there_are_named_and_the_rest_is_made(tmp_path, modules):
    rows = [given("compose", 1), given("compose", 7), given("compose", 8)]
    lines = [manifest.line(row) for row in rows]
    with pytest.raises(
        ValueError, match=r"none of --modules has 2 modules \(2 of files\), such as m7"
    ) as told:
        rebuilt(tmp_path, lines, [str(modules)])
    assert "\n" not in str(told.value) and "sft.jsonl has the other 1" in str(told.value)
    named = (tmp_path / "out" / "missing.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in named] == ["m7-compose", "m8-compose"]
    assert len((tmp_path / "out" / "sft.jsonl").read_text().splitlines()) == 1


def test_a_text_that_was_not_verified_is_not_written(tmp_path):
    line = manifest.line(drawn()) | {"solution": "0" * 64}
    with pytest.raises(ValueError, match="1 pair came out otherwise than verified, such as"):
        rebuilt(tmp_path, [line], [])
    assert (tmp_path / "out" / "sft.jsonl").read_text() == ""


def test_another_torch_is_told_where_its_compiler_wrote_the_text(tmp_path, modules):
    line = manifest.line(given("compile", 1)) | {"solution": "0" * 64, "torch": "2.0.0"}
    with pytest.raises(ValueError, match=r"written by torch 2\.0\.0, and this is"):
        rebuilt(tmp_path, [line], [str(modules)])


def test_a_file_that_is_no_manifest_is_told_in_one_line(tmp_path):
    for line, says in (({"key": "a"}, "line 1: an object with key, route"), ([1], "line 1: an object")):
        with pytest.raises(ValueError, match=says):
            rebuilt(tmp_path, [line], [])


def test_the_search_for_modules_ends_with_the_last_that_is_named():
    """Of a package each module is tried, which takes a second."""
    lines = [manifest.line(given("compose", 1)), manifest.line(given("given", 3, solution=SOLUTION))]
    tasks = iter([Task("m1", MODULE.format(rows=8, number=1)), Task("m3", MODULE.format(rows=8, number=3))])
    later = [Task("m3", MODULE.format(rows=8, number=3), SOLUTION), Task("m4", "never asked for")]
    found = manifest.find_modules(lines, rest := iter([*tasks, *later]))
    assert {(task.name, solved) for (_, solved), task in found.items()} == {
        ("m1", False),
        ("m3", False),
        ("m3", True),
    }
    assert [task.name for task in rest] == ["m4"]
    assert manifest.find_modules([manifest.line(drawn())], iter(later)) == {}


def test_the_pairs_in_results_are_those_that_the_manifest_there_names():
    data = Path(__file__).parents[1] / "results" / "data"
    lines = map(json.loads, filter(None, read_lines(data / "manifest.jsonl.xz")))
    named = {e["key"]: (e["source"], e["solution"]) for e in lines if e["route"] == "compose" and "draw" in e}
    pairs = map(json.loads, filter(None, read_lines(data / "sft.jsonl.xz")))
    assert {p["name"]: (digest(p["task"]), digest(p["solution"])) for p in pairs} == named
