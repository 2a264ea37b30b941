"""TensorBoard and Weights & Biases: told what the files are told, and never worth a run."""

import doctest
import importlib
import sys
import types

import pytest

from nanotriton import trackers
from nanotriton.config import ConfigError
from nanotriton.log import Log
from tests.run_folders import many_samples


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self, fails_at: int = 99):
        self.told, self.fails_at = [], fails_at

    def step(self, stage, step, numbers):
        if step >= self.fails_at:
            raise OSError("no network\nmore of it")
        self.told.append((stage, step, numbers))

    def samples(self, split, step, rows):
        self.told.append((split, step, len(rows)))


def run(log: Log, steps: int) -> None:
    for step in range(1, steps + 1):
        log.samples(
            {**row, "step": step, "split": split} for row in many_samples(4) for split in ("dev", "train")
        )
        log.step("grpo", step, steps, {"sample": 1.0}, (), reward=0.5, kl=None, statuses={"correct": 3})


def test_a_tracker_is_told_every_number_and_every_sample(tmp_path):
    log, recorder = Log(tmp_path), Recorder()
    log.trackers = trackers.Trackers([recorder])
    run(log, 1)
    assert recorder.told == [
        ("dev", 1, 4),
        ("train", 1, 4),
        ("grpo", 1, {"reward": 0.5, "statuses/correct": 3, "seconds/sample": 1.0}),
    ]
    assert doctest.testmod(trackers) == (0, 1)


def test_a_tracker_that_fails_is_dropped_and_the_run_goes_on(tmp_path):
    log, broken, whole, said = Log(tmp_path), Recorder(fails_at=2), Recorder(), []
    log.trackers = trackers.Trackers([broken, whole], said.append)
    run(log, 3)
    assert [told[1] for told in broken.told] == [1, 1, 1, 2, 2]
    assert [told[1] for told in whole.told] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert said == ["warning: Recorder is told no more: OSError: no network"]
    assert len(log.read()) == 3


def test_a_package_that_is_missing_is_told_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--wandb: the package wandb is not installed: pip install wandb"):
        trackers.check_packages({"wandb": "project", "tensorboard": False})
    trackers.check_packages({"wandb": "", "tensorboard": False})  # none is asked for
    trackers.check_packages({})


def test_only_what_is_asked_for_is_opened(tmp_path):
    def kinds(**settings):
        return [type(found).__name__ for found in trackers.open_trackers(tmp_path, settings, print).found]

    assert kinds() == kinds(tensorboard=False, wandb="") == []
    assert kinds(tensorboard=True, wandb="p") == ["TensorBoard", "WandB"]
    assert not {"wandb", "tensorboard"} & set(sys.modules) or not list(tmp_path.iterdir())


def test_weights_and_biases_gets_axes_settings_and_a_table_of_completions(tmp_path, monkeypatch):
    """A stand-in for the package that keeps the calls which its documentation describes."""
    calls = []
    stand_in = types.SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append(("axis", name, step_metric)),
        log=lambda values: calls.append(("log", values)),
    )
    module = types.ModuleType("wandb")
    module.init = lambda **options: calls.append(("init", options)) or stand_in
    module.Table = lambda columns, data: (columns, data)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for _ in range(2):  # the second time it continues
        log = Log(tmp_path / "a")
        log.trackers = trackers.open_trackers(
            tmp_path / "a", {"wandb": "kernels", "lr": 1e-4, "began": "x"}, print
        )
        run(log, 2)
    opened = [options for kind, *options in calls if kind == "init"]
    assert len(opened) == 2 and opened[0] == opened[1]
    assert opened[0][0] | {"id": ""} == {
        "project": "kernels",
        "name": "a",
        "id": "",
        "resume": "allow",
        "dir": tmp_path / "a",
        "config": {"wandb": "kernels", "lr": 1e-4, "began": "x"},
    }
    assert ("axis", "grpo/*", "grpo/step") in calls and (
        "axis",
        "samples/train/*",
        "samples/train/step",
    ) in calls
    numbers = [values for kind, values in (c for c in calls if c[0] == "log") if "grpo/reward" in values]
    assert numbers[1] == {
        "grpo/reward": 0.5,
        "grpo/statuses/correct": 3,
        "grpo/seconds/sample": 1.0,
        "grpo/step": 2,
    }
    tables = [values for kind, values in (c for c in calls if c[0] == "log") if "samples/train" in values]
    columns, rows = tables[0]["samples/train"]
    first = dict(zip(columns, rows[0]))
    expected = many_samples(4)[0]
    assert len(rows) == 4 and first["status"] == expected["verdict"]["status"]
    assert first["completion"] == expected["completion"] and first["reward"] == expected["reward"]


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    for steps in (3, 1):  # the second run continues before the end of the first, which is taken back
        log = Log(tmp_path)
        log.trackers = trackers.open_trackers(tmp_path, {"tensorboard": True}, print)
        run(log, steps)
        log.trackers.found[0].writer.close()
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("grpo/reward")] == [1]
    assert "grpo/statuses/correct" in events.Tags()["scalars"]
    text = events.Tensors("samples/train/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "ModelNew" in text and "status" in text


def test_weights_and_biases_itself_accepts_it(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log, said = Log(tmp_path / "a"), []
    log.trackers = trackers.open_trackers(tmp_path / "a", {"wandb": "kernels", "lr": 1e-4}, said.append)
    run(log, 2)
    (tracker,) = log.trackers.found  # it was not dropped
    assert tracker.run.summary["grpo/reward"] == 0.5 and said == []
    tracker.run.finish()
    assert list((tmp_path / "a" / "wandb").glob("offline-run-*/*.wandb"))
