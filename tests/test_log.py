"""A run's files: one row a step, cut back exactly by a rewind, drawn to a picture."""

import doctest
import json
import math
import time

import pytest

from nanotriton import heldout
from nanotriton.log import Log, bar, smooth


def fill(log: Log, steps: range) -> None:
    for step in steps:
        log.step(
            "grpo",
            step,
            9,
            {"rollout": 0.1},
            ("reward",),
            reward=step / 10,
            length=30.0,
            entropy=0.1,
            statuses={"correct": step, "wrong_value": 2},
        )
        log.samples([{"step": step, "split": "train", "completion": "é"}])


def test_rewind_cuts_both_files_to_the_byte(tmp_path):
    log = Log(tmp_path / "run")
    fill(log, range(1, 4))
    position, before = log.position(), (tmp_path / "run" / "metrics.jsonl").read_bytes()
    fill(log, range(4, 7))
    log.rewind(position)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert [r["step"] for r in log.read("samples.jsonl")] == [1, 2, 3]
    fill(log, range(4, 5))
    assert [r["step"] for r in log.read()] == [1, 2, 3, 4]
    log.rewind({})
    assert log.read() == []
    log.rewind(position)  # a file that somebody cut is not filled up
    assert log.position() == {"metrics.jsonl": 0, "samples.jsonl": 0}


def test_a_rewind_leaves_the_measurement_that_was_made_there(tmp_path):
    log = Log(tmp_path)

    def measure(step: int, end: bool = True) -> None:
        log.samples(
            [{"step": step, "split": "test/greedy", "completion": "é"}] * 2
            + [{"step": step, "split": "test/success"}]
        )
        if end:
            log.step("grpo/test", step, 9, {}, (), success=0.5)

    measure(0)
    fill(log, range(1, 2))
    assert log.rewind({}, 0) == {"stage": "grpo/test", "step": 0, "success": 0.5, "seconds": {}}
    assert [r["split"] for r in log.read("samples.jsonl")] == ["test/greedy", "test/success"] and len(
        log.read()
    ) == 1
    fill(log, range(1, 2))
    position, before = log.position(), (tmp_path / "samples.jsonl").read_bytes()
    measure(1, end=False)
    (tmp_path / "metrics.jsonl").open("a").write('{"stage": "grpo/te')  # killed in the middle of a row
    assert (
        log.rewind(position, 1) == {}
        and log.position() == position
        and (tmp_path / "samples.jsonl").read_bytes() == before
    )
    measure(1)
    after = log.position()
    fill(log, range(2, 3))
    assert log.rewind(position, 1)["success"] == 0.5 and log.position() == after
    assert log.rewind(position, 2) == {} and log.position() == position


def test_times_are_apart_so_that_the_rest_can_be_compared(tmp_path):
    log = Log(tmp_path)
    fill(log, range(1, 2))
    (row,) = log.read()
    assert set(row.pop("seconds")) == {"rollout"} and "rollout" not in json.dumps(row)


def test_other_ranks_write_nothing(tmp_path):
    log = Log(tmp_path / "other", main=False)
    fill(log, range(1, 3))
    log.summary(a=1)
    log.plot()
    assert not (tmp_path / "other").exists()


def test_summary_is_updated(tmp_path):
    log = Log(tmp_path)
    log.summary(a=1, b=2)
    log.summary(b=3)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1, "b": 3}


def test_curves_are_drawn_from_few_rows_or_many(tmp_path):
    log = Log(tmp_path)
    log.plot()  # nothing yet: empty panels, no error
    fill(log, range(1, 12))
    log.step("grpo/eval", 3, 9, {}, ("success",), success=0.5, greedy=0.6)
    log.plot()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("*.tmp*"))


def test_curves_are_drawn_while_the_run_goes_on(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("nanotriton.log.time.monotonic", lambda: now)
    drawn = []

    def draw(rows, path):
        nonlocal now
        drawn.append((now, len(rows)))
        now += 2.0  # what a drawing costs

    monkeypatch.setattr("nanotriton.log.draw", draw)
    log = Log(tmp_path)
    for step in range(1, 31):
        now += 10.0
        fill(log, range(step, step + 1))
    assert drawn == [(130.0, 3), (232.0, 13), (334.0, 23)]  # 2 of each 100 seconds
    log.plot()  # after the end, whenever it was drawn last
    assert len(drawn) == 4 and drawn[-1][1] == 30


def test_smooth_is_a_mean_from_the_first_value_on():
    assert smooth([2.0, 2.0, 2.0]) == [2.0, 2.0, 2.0]
    first, *rest = smooth([math.nan, 2.0, math.nan, 2.0])  # two steps in which nothing was judged
    assert math.isnan(first) and rest == [2.0, 2.0, 2.0]


def test_short_steps_have_a_line_now_and_then_and_all_their_rows(tmp_path, monkeypatch, capsys):
    """1600 lines of SFT, of a fourteenth of a second each, would hide what stands between them."""
    now = 100.0
    monkeypatch.setattr("nanotriton.log.time.monotonic", lambda: now)
    log = Log(tmp_path)
    for step in range(1, 51):
        now += 0.07
        log.step("sft", step, 50, {"train": 0.07}, ("loss",), loss=1.0)
        if step == 20:
            log.step("sft/eval", step, 50, {}, ("eval_loss",), eval_loss=2.0)
    said = capsys.readouterr().out.splitlines()
    # 14 or 15 steps a second
    assert [int(line.split()[1].split("/")[0]) for line in said] == [1, 16, 20, 31, 46, 50]
    assert said[0] == "sft    1/50  loss 1.000  train 0.07s"
    assert said[2] == "sft/eval   20/50  eval_loss 2.000"
    assert [row["step"] for row in log.read() if row["stage"] == "sft"] == list(range(1, 51))
    for step in (1, 2):
        now += 1.0
        log.step("grpo", step, 9, {"sample": 1.0}, ())
    assert len(capsys.readouterr().out.splitlines()) == 2  # those of steps that take their time


def test_equal_samples_are_one_row_with_their_number(tmp_path):
    log = Log(tmp_path)
    log.samples([{"completion": "a"}, {"completion": "é"}, {"completion": "a"}])
    log.samples([{"completion": "a"}])
    assert log.read("samples.jsonl") == [
        {"completion": "a", "count": 2},
        {"completion": "é", "count": 1},
        {"completion": "a", "count": 1},
    ]


def test_progress_in_a_log_file_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr("nanotriton.log.EVERY", 0.05)
    for _ in bar(range(3), desc="judging"):
        time.sleep(0.06)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("judging: 1 of 3 in ") and len(lines) == 3
    for _ in bar(range(3), desc="short"):
        pass
    monkeypatch.setenv("RANK", "1")
    for _ in bar(range(2), desc="another rank's"):
        time.sleep(0.06)
    assert capsys.readouterr().err == ""


def test_the_error_of_held_out_success_is_clustered_by_task():
    """The two samples of a task are alike: as independent ones, 256 tasks at 0.6 would seem sure to 0.022."""
    assert doctest.testmod(heldout, optionflags=doctest.ELLIPSIS) == (0, 1)
    alike = [[[True, True]] * 154, [[False, False]] * 102]  # of two ranks
    assert heldout.clustered_error(alike) == pytest.approx((0.6016 * 0.3984 / 255) ** 0.5, rel=1e-3)
    unlike = [[[True, False]] * 256]
    assert heldout.clustered_error(unlike) == 0.0
    for nothing_to_compare in ([[[], [True, True]]], [[]]):
        assert heldout.clustered_error(nothing_to_compare) == 0.0
