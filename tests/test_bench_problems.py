"""The table by problem of a benchmark's report."""

import json
from pathlib import Path

import pytest

from bench.channels import report
from bench.channels.problems import by_problem, failure

ROOT = Path(__file__).resolve().parents[1]


def verdict(status: str, message: str = "", speedup: float | None = None) -> dict:
    return {"status": status, "message": message, "speedup": speedup}


def results(*rows: tuple[str, dict | None]) -> dict:
    """A results file of one policy, as far as the table reads it. rows: (problem, verdict)."""
    samples = [
        {
            "problem": name,
            "weak": "zeros pass" if name == "w" else None,
            "verdicts": {"strict": v} if v else {},
        }
        for name, v in rows
    ]
    return {"scores": {"strict": {}}, "samples": samples}


def test_a_problem_has_its_share_its_best_time_and_its_most_frequent_failure():
    lines = by_problem(
        results(
            ("b", verdict("correct", speedup=1.5)),
            ("b", verdict("wrong_value", "row 3 of x | y is off")),
            ("b", verdict("wrong_value", "row 7 of x | y is off")),
            ("b", verdict("timeout")),
            ("b", verdict("correct", speedup=2.25)),
            ("w", verdict("correct")),
            ("a", None),
        )
    )
    assert lines[0] == "## By problem, strict"
    assert lines[4:7] == [
        "| b | 2 of 5 | 2.25x | wrong_value (2): row N of x \\| y is off |",
        "| w (weak: zeros pass) | 1 of 1 | - |  |",
        "| a | not judged | - |  |",
    ]


@pytest.mark.parametrize("length", range(70, 100))
def test_a_long_message_breaks_no_table(length):
    text = failure([verdict("crashed", "x" * (length - 8) + "|" * 8)])
    assert text.replace("\\|", "").count("|") == 0 and len(text) < 110


@pytest.mark.parametrize("name", ["kernelbench_references", "tritonbench_gold_t"])
def test_every_problem_of_a_real_results_file_has_a_row(name, tmp_path, monkeypatch):
    found = json.loads((ROOT / "results" / f"{name}.json").read_text())
    monkeypatch.setattr(report, "plots", lambda *_: None)
    report.write(found, tmp_path / "x.json")
    page = (tmp_path / "x.md").read_text()
    rows = page[page.index("## By problem") :].splitlines()[4:]
    assert len(rows) == len({sample["problem"] for sample in found["samples"]})
    assert all(row.count("|") - row.count("\\|") == 5 for row in rows)
    assert "## By problem" not in report.markdown(found)
