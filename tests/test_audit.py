"""The audit finds rewards that don't stand, says why, and writes a page that can be compared."""

import contextlib
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from nanotriton.reward import audit
from nanotriton.reward.audit import Sample, fenced, main, page, read_samples, suspect
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict
from tests.candidates import read

CASES = {case.name: case for case in read("exploits")}


def row(case, reward=1.0, **more):
    verdict = asdict(Verdict("correct"))
    return {
        "step": 3,
        "split": "train",
        "task": case.name,
        "task_source": case.task.source,
        "prompt": "",
        "completion": "",
        "candidate": case.source,
        "verdict": verdict,
        "reward": reward,
        "advantage": 0.0,
        **more,
    }


def write(folder, rows):
    (folder / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def test_rewarded_candidates_are_read_once(tmp_path):
    honest, cheat = CASES["relu/honest"], CASES["relu/skips_relu_on_non_negative_inputs"]
    rows = [
        row(honest),
        row(honest, 2.0),
        row(cheat, 0.0),
        row(cheat, None),
        row(cheat, 1.0, split="dev"),
        row(honest, 1.0, candidate=None),
    ]
    samples = read_samples(write(tmp_path, rows))
    assert [(s.task.name, s.count, s.reward) for s in samples] == [
        ("relu/honest", 2, 2.0),
        (cheat.name, 1, 1.0),
    ]
    assert [s.task.name for s in read_samples(tmp_path / "samples.jsonl", "train")] == ["relu/honest"]


def test_partial_credit_is_not_a_claim_to_be_right(tmp_path):
    """A wrong answer with some credit is read and left alone; with the reward of a right one it is judged."""
    wrong, honest = asdict(Verdict("wrong_value")), CASES["relu/honest"]
    rows = [row(honest, 0.5, verdict=wrong), row(honest, 1.0, verdict=wrong, candidate="x"), row(honest, 1.4)]
    assert [(s.candidate, s.reward) for s in read_samples(write(tmp_path, rows))] == [
        ("x", 1.0),
        (honest.source, 1.4),
    ]


def test_what_a_run_writes_is_read(tmp_path):
    """Equal samples are one row; the candidate is in the completion."""
    honest = CASES["relu/honest"]
    written = row(
        honest, completion=f"So:\n```python\n{honest.source}```", count=3, verdict=Verdict("correct").brief()
    )
    del written["candidate"]
    (sample,) = read_samples(write(tmp_path, [written, written, written | {"completion": "no code"}]))
    assert (sample.candidate, sample.count, sample.before) == (honest.source, 6, {"status": "correct"})


FULL = {"task": "t", "task_source": "", "completion": "", "verdict": {"status": "correct"}, "reward": 1}


@pytest.mark.parametrize(
    "text, says",
    [
        (None, "samples.jsonl: cannot read: No such file"),
        ("\xe9", "cannot read: no UTF-8 text"),
        ("{", "line 1: not JSON (Expecting property name"),
        ("3", "line 1: not an object"),
        (
            '{"task": "x"}',
            "line 1: a sample has task, task_source, completion, verdict, reward; this one lacks task_source",
        ),
        (json.dumps(FULL | {"verdict": "x"}), 'line 1: its verdict can\'t be "x"'),
        (json.dumps(FULL | {"reward": "1"}), 'its reward can\'t be "1"'),
        (json.dumps(FULL | {"verdict": {}}), "its verdict has no status"),
    ],
)
def test_an_unusable_run_is_one_line(tmp_path, capsys, text, says):
    if text is not None:
        (tmp_path / "samples.jsonl").write_text(text + "\n", encoding="latin-1")
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "argv, says",
    [
        ([], "required: run"),
        (["--limit", "x"], "invalid int value: 'x'"),
        (["--page", "."], "cannot write the page: Is a directory"),
        (
            ["--page", "none/a.md"],
            "none/a.md: cannot write the page: No such file or directory; --page FILE puts it elsewhere",
        ),
    ],
)
def test_bad_usage_is_one_line_before_anything_is_judged(tmp_path, capsys, monkeypatch, argv, says):
    monkeypatch.chdir(write(tmp_path, [row(CASES["relu/honest"])]))
    monkeypatch.setattr(audit, "Executor", None)
    try:
        code = main([*(["."] if argv else []), *argv])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and says in error and error.startswith("audit: ") and error.count("\n") == 1


def test_a_split_that_is_not_there_is_no_clean_audit(tmp_path, capsys):
    write(tmp_path, [row(CASES["relu/honest"])])
    assert main([str(tmp_path), "--split", "trian"]) == 2
    assert "--split trian" in (error := capsys.readouterr().err) and "has train" in error


def test_what_cannot_be_judged_again_does_not_stand(tmp_path, capsys, monkeypatch, executors):
    monkeypatch.setattr(audit, "Executor", lambda **_: contextlib.nullcontext(executors()))
    broken = row(
        CASES["relu/honest"], task_source="import nowhere_at_all\n" + CASES["relu/honest"].task.source
    )
    assert main([str(write(tmp_path, [broken]))]) == 1
    assert "0 differ, 1 could not be" in capsys.readouterr().out


def test_a_run_with_an_undeserved_reward(tmp_path):
    """The command itself, on an honest kernel and on one that was right on plain inputs only."""
    names = ["relu/honest", "relu/skips_relu_on_non_negative_inputs", "softmax/torch_compile"]
    write(tmp_path, [row(CASES[name]) for name in names])
    done = subprocess.run(
        [sys.executable, "-m", "nanotriton.reward.audit", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "3 of 3 distinct rewarded candidates judged again, 2 differ; the page is" in done.stdout
    assert (
        f"{names[1]}, step 3: reward 1, judged again wrong_value" in done.stdout
        and "judged again rule_violation" in done.stdout
    )
    text = (tmp_path / "audit.md").read_text()
    assert text.index(names[1]) < text.index(names[2]) and "judged again it is wrong_value" in text
    assert "relu_abs" not in text.split("Candidate:")[-1]


def test_suspicion_orders_the_page():
    task, plain = Task("t", "class Model: pass"), {"status": "correct", "speedup": None}
    known = [
        Sample(
            task, "a", plain, 1.0, after=Verdict("correct", launches=2, effective_launches=2, answer="own")
        ),
        Sample(
            task,
            "b",
            plain,
            1.0,
            after=Verdict(
                "correct", launches=3, effective_launches=1, torch_ops={"clone": 1}, torch_bytes=64
            ),
        ),
        Sample(task, "c", plain, 1.0, after=Verdict("wrong_value", message="off")),
        Sample(
            task,
            "d",
            plain | {"speedup": 40.0},
            1.0,
            after=Verdict("correct", launches=1, effective_launches=1, answer="input"),
        ),
        Sample(task, "e", plain, 1.0, after=Verdict("infra_error", message="no luck")),
    ]
    suspect(known)
    assert [s.differs for s in known] == [False, False, True, False, False]
    order = sorted(known, key=lambda s: -s.points)
    assert [s.candidate for s in order] == ["c", "e", "d", "b", "a"] and known[0].reasons == {}
    text = page(known, 3, "run")
    assert text.count("\n## ") == 3 and "only 1 of 3" not in text and page(known, 3, "run") == text
    assert "Nothing about them is suspicious." in page(known[:1], 3, "run")


def test_code_cannot_close_its_block():
    assert fenced("x = '````'").startswith("`````python\n")


def test_the_conclusion_says_what_was_left_out():
    sample = lambda status: audit.Sample(Task("t", ""), "", {}, 1.0, after=Verdict(status))
    some = [sample("correct"), sample("wrong_value"), sample("infra_error")]
    assert audit.conclusion(some[:1], 1) == "1 of 1 distinct rewarded candidate judged again, 0 differ"
    told = audit.conclusion(some, 2312)
    assert told == (
        "3 of 2312 distinct rewarded candidates judged again, 1 differ, 1 could not be (--limit 2312 judges all)"
    )
