"""The table of published predictions: what is counted, what is told of a disagreement, and that remarks survive another run."""

import json

import pytest

from bench.channels import published


def results(tmp_path, name: str, *samples: dict) -> str:
    found = []
    for i, s in enumerate(samples):
        verdict = {"status": s["status"], "stage": "judge", "message": s.get("message", "")}
        found.append(
            {
                "problem": f"p{i}",
                "sample": 0,
                "call": s["call"],
                "stdout": s["stdout"],
                "weak": s.get("weak"),
                "verdicts": {"tensors": verdict},
            }
        )
    path = tmp_path / name
    data = {
        "benchmark": "tritonbench",
        "complete": True,
        "channel": "G",
        "settings": {"predictions": "x/G.jsonl"},
        "environment": {"torch": "2"},
    }
    path.write_text(json.dumps(data | {"samples": found}))
    return str(path)


RIGHT = {"status": "correct", "call": True, "stdout": True}
WRONG = {
    "status": "wrong_value",
    "call": True,
    "stdout": True,
    "message": "3 elements differ",
    "weak": "zeros pass",
}
FAILED = {
    "status": "runtime_error",
    "call": False,
    "stdout": False,
    "message": "TypeError: f() takes 1 (line 7: f(a, b | c))",
}
UNKNOWN = {"status": "unsupported", "call": True, "stdout": None, "message": "no GPU"}


def run(tmp_path, first: str, second: str) -> tuple[int, dict, str]:
    out = tmp_path / "out.json"
    code = published.main(["--runs", first, "--again", second, "--out", str(out)])
    return code, json.loads(out.read_text()), out.with_suffix(".md").read_text()


def test_counts_disagreements_and_remarks(tmp_path):
    first = results(tmp_path, "a.json", RIGHT, WRONG, FAILED, UNKNOWN)
    code, found, _ = run(tmp_path, first, first)
    assert code == 0 and found["verdicts that changed"] == []
    counts = found["sets"]["G.jsonl"]
    assert [counts[k] for k in ("predictions", "call", "paper", "tensors", "weak tests")] == [4, 3, 2, 1, 1]
    assert counts["not told here"] == {"call": 0, "paper": 1, "tensors": 1}
    (only,) = found["disagreements"]
    assert (
        only["problem"] == "p1"
        and only["explanation"] == "both print the same; 3 elements differ (weak test: zeros pass)"
    )
    only["checked"] = "true: it doubles."
    (tmp_path / "out.json").write_text(json.dumps(found))
    _, found, text = run(tmp_path, first, first)
    assert (
        found["disagreements"][0]["checked"] == "true: it doubles." and "Looked at: true: it doubles." in text
    )
    assert "f(a, b" not in text and "takes 1 (line 7)" in text  # no line of a candidate's


def test_a_verdict_that_changed_is_told(tmp_path):
    code, found, text = run(
        tmp_path, results(tmp_path, "a.json", RIGHT, RIGHT), results(tmp_path, "b.json", RIGHT, WRONG)
    )
    assert code == 1 and len(found["verdicts that changed"]) == 1 and "1 verdict changed" in text


def test_mistakes_exit_2(tmp_path, capsys):
    first = results(tmp_path, "a.json", RIGHT)
    (tmp_path / "other.json").write_text("{}")
    for arguments in (
        ["--runs", first],
        ["--runs", first, "--again", str(tmp_path / "other.json")],
        ["--runs", first, "--again", str(tmp_path / "none.json")],
    ):
        with pytest.raises(SystemExit) as stop:
            published.main(arguments)
        assert stop.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
