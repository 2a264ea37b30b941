"""The executor's benchmarks: throughput asks for what it says, recordability tells every file's fate, the rules are timed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.executor import rules
from bench.executor.throughput import LEVELS, Config, candidates, main, measure, started, tasks_of
from tests.candidates import read


def test_sets_of_tasks():
    cfg = Config()
    plain, dots = tasks_of(cfg, False, 12, 1), tasks_of(cfg, True, 3, 1)
    assert len({t.source for t in plain}) == 12 and not any("tl.dot" in t.solution for t in plain)
    assert len({t.source for t in dots}) == 3 and all("tl.dot" in t.solution for t in dots)


def test_figures_fit_together():
    cfg = Config(workers=1)
    executor, seconds = started(cfg)
    with executor:
        found = measure(executor, candidates(tasks_of(cfg, False, 1, 1), 8))
    assert found["candidates"] == 8 and found["statuses"] == {"correct": 8} and seconds > 0
    assert found["per_second"] == pytest.approx(8 / found["seconds"], rel=0.1)
    assert {LEVELS[1], LEVELS[3]} <= set(found["cpu_ms"]) <= set(LEVELS) and found[
        "cpu_ms_total"
    ] == pytest.approx(sum(found["cpu_ms"].values()), abs=0.1)
    assert {"record", "judge", "run"} <= set(found["stage_wall_ms"]) and "children_cpu" not in found[
        "stage_wall_ms"
    ]


def test_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--n", "3"])
    assert stop.value.code == 2 and "--n 3" in capsys.readouterr().err


@pytest.mark.slow
def test_recordability_says_of_each_file_what_became_of_it(tmp_path):
    (tmp_path / "data").mkdir()
    files = {
        "right": "import torch\nresult_gold = torch.randn(4, device='cuda') + 1\n",
        "asks": "import torch\nx = torch.randn(4, device='cuda')\nresult_gold = x + 1 if x.sum().item() > 0 else x\n",
    }
    for name, source in files.items():
        (tmp_path / "data" / f"{name}.py").write_text(source)
    (tmp_path / "data" / "latin.py").write_bytes(b"# \xe9\n")
    command = [
        sys.executable,
        "-m",
        "bench.executor.recordability",
        "--data",
        tmp_path / "data",
        "--replay",
        "cpu",
        "--out",
        tmp_path / "out.json",
    ]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    found = json.loads((tmp_path / "out.json").read_text())
    assert (
        found["counts"] == {"status": {"unrecordable": 1, "recorded": 1, "crashed": 1}, "replay": {"same": 1}}
        and found["not_replayed"] == []
    )
    assert found["exceptions"]["asks"]["line"] == 3 and found["exceptions"]["latin"]["message"].startswith(
        "UnicodeDecodeError"
    )


def test_the_rules_are_timed_on_every_candidate(tmp_path, monkeypatch, capsys):
    cases = read("honest")[:3]
    monkeypatch.setattr(rules, "read", lambda suite: cases if suite == "honest" else [])
    out = tmp_path / "rules.json"
    code = rules.main(["--repeats", "1", "--out", str(out)])
    checks = json.loads(out.read_text())["checks"]
    assert checks["rules of policy strict"]["candidates"] == checks["extraction"]["candidates"] == 3
    assert all(found["median_ms"] > 0 for found in checks.values()) and code in (0, 1)
    assert "extraction, long: " in capsys.readouterr().out
