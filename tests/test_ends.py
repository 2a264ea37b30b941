"""What a run says when it ends, and when the same command is given once more."""

import doctest
import json

import pytest

import train_grpo
import train_sft
from nanotriton import config, log
from nanotriton.parallel.world import World
from nanotriton.runs.report import conclude, result
from nanotriton.runs.run import Run


def started(tmp_path, **options) -> Run:
    cfg = config.make(train_grpo.Config, out=str(tmp_path), **options)
    return Run(cfg, World(), "grpo")


def measured(success: float, step: int) -> dict:
    more = {"success_se": 0.01, "greedy": 0.5, "greedy_n": 96, "success_n": 192}
    return {"stage": "grpo/test", "step": step, "success": success, **more}


def trained(reward: float, step: int) -> dict:
    return {"stage": "grpo", "step": step, "reward": reward}


def test_the_last_line_is_the_result(tmp_path, capsys):
    """Of a run that was continued too: what it began with stands in its files, and not on this console."""
    run = started(tmp_path)
    rows = [measured(0.451, 0), trained(0.4, 1), measured(0.6, 1), trained(0.5, 2), measured(0.736, 2)]
    run.append("metrics.jsonl", rows)
    (run.folder / "sft").mkdir()
    (run.folder / "sft" / "summary.json").write_text('{"seconds": 100.0}')
    run.spent, run.done = 4000.0, 2
    run.plot = lambda: None
    conclude(run, train_grpo.Config())
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "success 0.451 -> 0.736 on 96 test tasks, in 1h08m"
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["seconds"] == pytest.approx(summary["seconds_sft"] + summary["seconds_grpo"])


def test_without_held_out_tasks_it_is_what_was_paid():
    said = result({"heldout_tasks": 0, "seconds": 4000.0}, [0.125, 0.9, 0.25])
    assert said == "mean reward 0.125 -> 0.250 from the first step to the last, in 1h06m"


def test_seconds_are_said_as_a_person_does():
    assert doctest.testmod(log).failed == 0
    assert [log.took(s) for s in (0.4, 59.7, 3599.4, 3600)] == ["0s", "1m00s", "59m59s", "1h00m"]


@pytest.mark.parametrize(
    "options, done, longer",
    [
        ({}, 80, "--steps"),
        ({"minutes": 5.0}, 40, "--minutes"),  # the time was over first
        ({"steps": 1}, 1, "--steps"),
        ({"minutes": 5.0}, 80, "--steps"),
    ],
)
def test_a_finished_run_says_what_continues_it(tmp_path, capsys, options, done, longer):
    folder = started(tmp_path, **options).folder
    (folder / "metrics.jsonl").write_text("")
    (folder / "summary.json").write_text(json.dumps({"steps": done}))
    # a limit where there was none makes nothing longer
    more = {} if "minutes" in options else {"minutes": 30.0}
    assert started(tmp_path, **options, **more).finished()
    said = capsys.readouterr().out
    assert (
        f"is finished after {'1 step' if done == 1 else f'{done} steps'}: its model is {folder}/model" in said
    )
    assert f"; a larger {longer} continues it; for a new run give another --name, or --fresh" in said
    assert said.count("larger") == 1


def test_the_small_models_own_run_gives_no_advice(tmp_path, capsys):
    """Its options have other names there, and what it made is in use."""
    grpo = train_grpo.Config(out=str(tmp_path))
    folder = Run(train_sft.small_config(grpo), World(), "sft").folder
    (folder / "metrics.jsonl").write_text("")
    (folder / "summary.json").write_text('{"steps": 1600}')
    assert train_sft.small_model(grpo, World()) == str(folder / "model")
    assert capsys.readouterr().out == (
        f"{folder} is finished after 1600 steps: its model is {folder}/model\n"
    )
    assert train_sft.main(train_sft.small_config(grpo), World())
    assert "a larger --steps continues it" in capsys.readouterr().out


def test_sft_by_epochs_is_continued_by_epochs(tmp_path, capsys):
    cfg = train_sft.Config(out=str(tmp_path), steps=0)
    folder = Run(cfg, World(), "sft").folder
    (folder / "metrics.jsonl").write_text("")
    (folder / "summary.json").write_text('{"steps": 9}')
    train_sft.main(cfg, World())
    assert "a larger --epochs continues it" in capsys.readouterr().out
