"""Several runs become one set: nothing comes twice, a draw may have a pair of each route, and shares hold."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collect_data import Config
from nanotriton.collect.make import make
from nanotriton.collect.manifest import rebuild
from nanotriton.collect.output import merge
from nanotriton.collect.pipeline import Pipeline
from nanotriton.collect.sources import elements
from nanotriton.config import ConfigError

ROOT = Path(__file__).parent.parent


def finished(folder: Path, rows: list[dict]) -> str:
    """The folder of a run that settled these rows."""
    folder.mkdir()
    (folder / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "report.json").write_text(json.dumps({"seconds": 5.0}))
    return str(folder)


def row(key: str, source: str, route: str = "compose", status: str = "kept", **meta) -> dict:
    told = {"key": key, "source": source, "module": "", "small": "", "solution": f"by {route}: {source}"}
    told |= {"reasoning": "", "status": status, "split": "train", "message": "", "seconds": 0.1}
    return told | {"meta": {"route": route, "origin": "grammar", "operators": ["relu"], "literals": 0} | meta}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_two_runs_kept_comes_once(tmp_path):
    one = finished(tmp_path / "one", [row("pair-0-0", "a first module"), row("pair-0-1", "another thing")])
    two = finished(tmp_path / "two", [row("pair-1-0", "another thing"), row("pair-1-1", "a third text")])
    merge(Config(merge=[one, two], out=str(tmp_path / "both")))
    assert [r["name"] for r in lines(tmp_path / "both/sft.jsonl")] == ["pair-0-0", "pair-0-1", "pair-1-1"]
    report = json.loads((tmp_path / "both/report.json").read_text())
    assert report["statuses"] == {"kept": 3, "duplicate": 1} and report["seconds"] == 10.0
    assert [r["key"] for r in lines(tmp_path / "both/manifest.jsonl")] == ["pair-0-0", "pair-0-1", "pair-1-1"]


def test_a_draw_has_a_pair_of_each_route_and_is_no_task_if_one_solved_it(tmp_path):
    composed = finished(
        tmp_path / "a", [row("pair-0-0", "large", draw="0 0"), row("pair-0-1", "x", draw="0 1")]
    )
    rows = [row("compile-0-0", "small", "compile", draw="0 0")]
    rows += [row("compile-0-1", "small x", "compile", "task", draw="0 1")]
    compiled = finished(tmp_path / "b", rows)
    merge(Config(merge=[composed, compiled], out=str(tmp_path / "both")))
    assert [r["name"] for r in lines(tmp_path / "both/sft.jsonl")] == ["pair-0-0", "pair-0-1", "compile-0-0"]
    assert lines(tmp_path / "both/rl.jsonl") == []


def test_a_run_that_was_stopped_is_taken_as_far_as_it_went(tmp_path):
    one = finished(tmp_path / "one", [row("pair-0-0", "a first module")])
    (tmp_path / "one/report.json").unlink()
    merge(Config(merge=[one], out=str(tmp_path / "both")))
    assert len(lines(tmp_path / "both/sft.jsonl")) == 1


def test_a_solution_that_is_too_long_here_makes_a_task(tmp_path):
    """Of another run, whose limits were others."""
    long = row("pair-0-1", "a longer one") | {"solution": "x = 1\n" * 900}
    one = finished(tmp_path / "one", [row("pair-0-0", "a first module"), long])
    merge(Config(merge=[one], out=str(tmp_path / "both")))
    assert [r["name"] for r in lines(tmp_path / "both/sft.jsonl")] == ["pair-0-0"]
    assert json.loads((tmp_path / "both/report.json").read_text())["statuses"] == {"kept": 1, "task": 1}


def test_a_folder_of_no_run_is_told_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="folder of a run is expected"):
        merge(Config(merge=[str(tmp_path)], out=str(tmp_path / "both")))
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("out, why", [("file", "a file is there"), ("file/x", "Not a directory")])
def test_an_output_folder_that_cannot_be_made_is_told_in_one_line(tmp_path, out, why):
    (tmp_path / "file").touch()
    one = finished(tmp_path / "one", [row("pair-0-0", "a first module")])
    out = str(tmp_path / out)
    merge(Config(merge=[one], out=str(tmp_path / "whole")))
    for begin in (
        lambda: Pipeline(Config(out=out)),
        lambda: merge(Config(merge=[one], out=out)),
        lambda: rebuild(Config(manifest=str(tmp_path / "whole" / "manifest.jsonl"), out=out)),
    ):
        with pytest.raises(ConfigError, match=f"--out {out}: cannot make this folder: {why}$"):
            begin()


def test_inductor_goes_over_draws_of_the_grammar_too(tmp_path):
    """A draw comes to each route, a hard one to the first alone; Inductor's text is of the small sizes."""
    pipeline = Pipeline(Config(route=["compose", "compile"], out=str(tmp_path)))
    jobs = [job for job, _ in zip(pipeline.jobs(), range(8), strict=False)]
    assert [job["key"] for job in jobs[:7:2]] == ["pair-0-0", "pair-0-1", "pair-0-2", "hard-0-3"]
    assert [job["key"] for job in jobs[1:6:2]] == ["compile-0-0", "compile-0-1", "compile-0-2"]
    made = next(row for row in map(make, jobs[1:6:2]) if row["solution"])
    assert made["source"] == made["small"] and made["meta"]["route"] == "compile" and made["meta"]["draw"]
    pipeline.journal.rows = {
        key: {"key": key} for key in ("compile-0-2", "hard-0-3", "pair-0-2", "compile-0-1")
    }
    assert [r["key"] for r in pipeline.ordered()] == ["compile-0-1", "pair-0-2", "compile-0-2", "hard-0-3"]


def test_candidates_that_are_verified_later_are_counted(tmp_path):
    """Such a run ends when it has as many as were asked for, and its journal is counted when it goes on."""
    config = Config(verify="later", count=2, out=str(tmp_path))
    pipeline = Pipeline(config)
    made = [row("pair-0-0", "one"), row("pair-0-1", "two"), row("pair-0-2", "three") | {"solution": ""}]
    for number, candidate in enumerate(made):
        assert pipeline.enough() == (number == 2)
        pipeline.settle(candidate, "emitted", "")
    assert pipeline.tasks == 1 and Pipeline(config).enough()


def test_a_run_that_verifies_nothing_names_the_candidates_that_it_made(tmp_path, capsys):
    pipeline = Pipeline(Config(verify="later", count=2, out=str(tmp_path)))
    for key in ("pair-0-0", "pair-0-1"):
        pipeline.settle(row(key, f"module {key}"), "emitted", "")
    pipeline.finish(1.0)
    assert capsys.readouterr().out.startswith(f"{tmp_path}/candidates.jsonl: 2 candidates, not verified yet")
    assert len(lines(tmp_path / "candidates.jsonl")) == 2


def test_the_sets_do_not_depend_on_how_far_ahead_other_workers_were(tmp_path):
    """What was settled behind the last wanted pair stays in the journal, and surplus hard tasks too."""
    keys = ["pair-0-0", "hard-0-3", "pair-0-4", "hard-0-7", "pair-0-8", "hard-0-11", "pair-0-12"]
    pipeline = Pipeline(Config(count=3, rl_share=0.5, out=str(tmp_path)))
    for key in reversed(keys):  # in whatever order they were done
        settled = row(key, key.replace("-", " module "), status="kept" if "pair" in key else "task")
        pipeline.settle(settled | ({} if "pair" in key else {"solution": ""}), settled["status"], "")
    pipeline.finish(1.0)
    assert [r["name"] for r in lines(tmp_path / "sft.jsonl")] == ["pair-0-0", "pair-0-4", "pair-0-8"]
    assert [r["name"] for r in lines(tmp_path / "rl.jsonl")] == ["hard-0-3", "hard-0-7"]
    assert len(lines(tmp_path / "journal.jsonl")) == len(keys)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_maker_behind(tmp_path):
    """Its makers end with it, however it ends."""
    command = [
        sys.executable,
        "collect_data.py",
        "--verify",
        "later",
        "--workers",
        "2",
        "--out",
        str(tmp_path),
    ]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    while not (tmp_path / "journal.jsonl").exists() or not (tmp_path / "journal.jsonl").stat().st_size:
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.05)
    makers = [int(pid) for pid in children.read_text().split()]
    run.kill()
    run.wait()
    end = time.monotonic() + 30
    while alive := [pid for pid in makers if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)
    assert len(makers) >= 2


@pytest.mark.parametrize("verify, most, largest", [("cuda", 1 << 20, 1 << 20), ("cuda", 0, None)])
def test_a_gpu_verifies_at_the_size_of_a_task_or_at_the_modules_own(tmp_path, verify, most, largest):
    out = str(tmp_path / "run")
    pipeline = Pipeline(Config(count=1, verify=verify, rl_elements=most, out=out))
    with ThreadPoolExecutor(1) as makers:
        row = next(pipeline.made(makers))
    assert elements(row["source"]) > 1 << 20
    assert elements(row["small"]) <= largest if most else row["small"] == row["source"]


@pytest.mark.parametrize(
    "mistake",
    [
        {"modules": ["/nonexistent"]},
        {"modules": ["relu", "no_such_package_"]},
        {"exclude": ["/nonexistent"]},
        "empty",
    ],
)
def test_a_mistake_leaves_no_folder_behind(tmp_path, mistake):
    (tmp_path / "empty").mkdir()
    if mistake == "empty":
        mistake = {"modules": [str(tmp_path / "empty")]}
    with pytest.raises(ValueError, match=f"--{next(iter(mistake))} "):
        Pipeline(Config(out=str(tmp_path / "run"), **mistake))
    assert not (tmp_path / "run").exists()
