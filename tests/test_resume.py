"""A run that is continued: the same experiment, for longer, or after a signal; never another one unnoticed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import train_grpo
import train_sft
from nanotriton import config
from nanotriton.executor.common import probe
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.runs import provenance
from nanotriton.runs.resume import check_settings
from nanotriton.runs.run import Run

ROOT = Path(__file__).parent.parent
# Rewards that differ whatever an untrained model writes, or no weight would ever move.
REWARD = "def reward(verdict, completion, task):\n    return len(completion) % 7 / 7\n"
SHORT = ["--prompts", "2", "--group", "4", "--max-tokens", "8", "--eval-tasks", "2", "--lr", "1e-2"]
# a schedule that does not know how long the run will be: no warm-up, no decay
CONSTANT = ["--warmup", "0", "--min-lr", "1"]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Path:
    """A folder with a small model, two tasks and a reward."""
    folder = tmp_path_factory.mktemp("given")
    sft = train_sft.Config(out=str(folder), steps=1, examples=300, eval_tasks=0, layers=1, width=32)
    launch(lambda cfg, world: train_sft.main(cfg, world), sft)
    (folder / "tasks").mkdir()
    (folder / "tasks" / "a.py").write_text(probe.TASK["source"])
    (folder / "tasks" / "b.py").write_text(probe.TASK["source"].replace("* 2", "* 3"))
    (folder / "reward.py").write_text(REWARD)
    return folder


def command(given: Path, out: Path, steps: int, *more: str) -> list[str]:
    """The options of a run on what is given."""
    named = ["--model", given / "sft" / "model", "--tasks", given / "tasks", "--reward", given / "reward.py"]
    return [str(w) for w in ["--out", out, "--steps", steps, *named, *SHORT, *CONSTANT, *more]]


def here(argv: list[str]) -> int:
    """train_grpo.py's exit status, in this process."""
    try:
        launch(train_grpo.main, config.parse(train_grpo.Config, argv))
    except SystemExit as stop:
        return stop.code
    return 0


def steps(folder: Path) -> list[dict]:
    """The rows of training steps without their wall-clock times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows if row["stage"] == "grpo"]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(given, tmp_path_factory) -> Path:
    """A run of four steps."""
    out = tmp_path_factory.mktemp("whole")
    assert here(command(given, out, 4)) == 0
    rows = steps(out / "laptop")
    assert len(rows) == 4 and rows[0]["spread"] > 0 and rows[-1]["norm"] > 0  # it learns something
    return out / "laptop"


@pytest.fixture(scope="module")
def half(given, tmp_path_factory) -> Path:
    """The folder for --out of a run of two of those steps. Tests continue copies of it."""
    out = tmp_path_factory.mktemp("half")
    assert here(command(given, out, 2)) == 0
    return out


@pytest.fixture
def copied(half, tmp_path) -> Path:
    return shutil.copytree(half, tmp_path / "copy")


# ---- for longer


@pytest.mark.slow
def test_more_steps_are_those_of_a_longer_run(given, whole, copied):
    """Where the schedule doesn't depend on their number. What may change freely changes as well."""
    free = ["--save-every", "3", "--eval-every", "3", "--timeout", "20", "--micro-tokens", "4096"]
    assert here(command(given, copied, 4, *free)) == 0
    assert steps(copied / "laptop") == steps(whole) and weights(copied / "laptop") == weights(whole)
    summary = json.loads((copied / "laptop" / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["seconds_grpo"] > 0


@pytest.mark.slow
def test_a_run_of_so_many_minutes_is_whole_and_goes_on_with_more(given, whole, tmp_path):
    assert here(command(given, tmp_path, 4, "--minutes", "1e-9")) == 0
    folder = tmp_path / "laptop"
    assert json.loads((folder / "summary.json").read_text())["steps"] == 1
    assert (folder / "model" / "config.json").exists() and steps(folder) == steps(whole)[:1]
    assert here(command(given, tmp_path, 4, "--minutes", "1e-9")) == 0  # nothing is left to do
    assert steps(folder) == steps(whole)[:1]
    assert here(command(given, tmp_path, 4)) == 0  # without a limit
    assert steps(folder) == steps(whole) and weights(folder) == weights(whole)


def test_fewer_steps_and_other_settings_are_refused(given, copied, capsys):
    assert here(command(given, copied, 1)) == 2
    assert "--steps 2 (it may grow)" in capsys.readouterr().err
    assert here(command(given, copied, 4, "--seed", "1")) == 2
    said = capsys.readouterr().err
    assert "holds a run that was started with --seed 0: start it like that, or give" in said
    assert here(command(given, copied, 2)) == 0
    assert "is finished" in capsys.readouterr().out


def test_sft_grows_by_steps_or_by_epochs(tmp_path):
    folder = tmp_path
    was = config.flat(train_sft.Config(steps=0, epochs=1.0, lr=0.1))
    assert check_settings(folder, was, was | {"epochs": 2.0}, train_sft.Config, "epochs", "")
    assert not check_settings(folder, was, was, train_sft.Config, "epochs", "")
    for refused in ({"epochs": 0.5}, {"steps": 7}, {"epochs": 2.0, "lr": 0.2}):
        with pytest.raises(config.ConfigError):
            check_settings(folder, was, was | refused, train_sft.Config, "epochs", "")
    with pytest.raises(config.ConfigError, match="--steps 0"):
        # from epochs to steps is no growth
        check_settings(folder, was, was | {"steps": 7}, train_sft.Config, "steps", "")


@pytest.mark.parametrize(
    "then, now, says",
    [
        # what --model changes with it is not the user's
        ({"updates": 3}, {"model": "m", "tasks": "d"}, "with --updates 3, and without --model, --tasks"),
        ({"model": "m"}, {}, "with --model m"),
        ({"model": "m"}, {"model": "m", "lr": 0.1}, "with --lr 1e-06"),
        ({"reward": "r.py"}, {"reward": ""}, "with --reward r.py"),
        ({}, {"reward": "r.py", "ahead": True}, "without --ahead, --reward"),
        ({"ahead": True, "preflight": False}, {}, "with --ahead, --no-preflight"),
        ({}, {"preflight": False, "clip_low": 0.1}, "without --clip-low, --no-preflight"),
        ({"template": '{"a": 1}'}, {}, """with --template '{"a": 1}'"""),
        ({"steps": 90}, {"steps": 80}, "with --steps 90 (it may grow)"),
        ({}, {"recipe": "autotriton", "model": "m"}, "with --recipe default, and without --model"),
    ],
)
def test_a_refusal_names_what_was_given_and_can_be_typed(tmp_path, then, now, says):
    was, settings = (config.flat(config.make(train_grpo.Config, **given)) for given in (then, now))
    with pytest.raises(config.ConfigError) as error:
        check_settings(tmp_path, was, settings, train_grpo.Config, "steps", "another --name")
    assert str(error.value) == (
        f"{tmp_path} holds a run that was started {says}: start it like that, or give another --name"
    )


# ---- its files


@pytest.mark.parametrize("changed", ["reward.py", "tasks/b.py", "tasks/new.py", "sft/model/config.json"])
def test_a_file_that_changed_since_is_an_error(given, copied, capsys, changed):
    file = given / changed
    before = file.read_bytes() if file.exists() else None
    file.write_bytes((before or probe.TASK["source"].encode()) + b"\n")
    try:
        assert here(command(given, copied, 4)) == 2
        said = capsys.readouterr().err
    finally:
        file.unlink() if before is None else file.write_bytes(before)
    assert said.count("\n") == 1 and file.name in said
    assert ("is new" if before is None else "changed") in said
    kept = copied / "laptop" / "provenance" / "inputs"
    assert (kept / "reward" / "reward.py").read_text() == REWARD
    assert (kept / "tasks" / "b.py").read_bytes() == (given / "tasks" / "b.py").read_bytes()


def test_a_file_that_is_gone_is_an_error(given, copied, capsys):
    file = given / "tasks" / "b.py"
    file.rename(file.with_suffix(".away"))
    try:
        assert here(command(given, copied, 4)) == 2
    finally:
        file.with_suffix(".away").rename(file)
    assert "--tasks b.py is gone" in capsys.readouterr().err


def test_data_that_changed_since_is_an_error(tmp_path, capsys):
    data = tmp_path / "pairs.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    cfg = train_sft.Config(out=str(tmp_path / "out"), data=str(data))
    folder = tmp_path / "out" / "sft"
    folder.mkdir(parents=True)
    provenance.keep_inputs(folder, cfg)
    assert provenance.check_inputs(folder, cfg, "") == ""
    data.write_text('{"prompt": "a", "completion": "c"}\n')
    assert "--data pairs.jsonl changed" in provenance.check_inputs(folder, cfg, "")


def test_weights_are_known_by_their_ends(tmp_path):
    file = tmp_path / "model.safetensors"
    seen = set()
    big = bytes(3 * provenance.ENDS)
    for content in (big, b"x" + big[1:], big[1:] + b"x", big + b"\0"):
        file.write_bytes(content)
        seen.add(provenance.fingerprint(file))
    assert len(seen) == 4


BEFORE = '{"stage": "grpo/test", "step": 0, "success": 0.5, "seconds": {}}\n'


@pytest.mark.parametrize("changed", ["reward", "seed", "nothing"])
def test_what_was_only_measured_is_forgotten_when_a_mistake_is_mended(tmp_path, capsys, changed):
    """A reward file that fails is found when the first samples are rewarded, after the first measurement."""
    (reward := tmp_path / "r.py").write_text("def reward(verdict, completion, task): oops\n")
    started = lambda **more: Run(
        config.make(train_grpo.Config, out=str(tmp_path), reward=str(reward), **more), World(), "grpo"
    )
    folder = started().folder
    for name in ("metrics.jsonl", "samples.jsonl", "tasks.jsonl"):
        (folder / name).write_text(BEFORE)
    (folder / "mine.py").write_text("")
    if changed == "reward":
        reward.write_text(REWARD)
    run = started(**({"seed": 1} if changed == "seed" else {}))
    kept = {name for name in ("metrics.jsonl", "samples.jsonl", "tasks.jsonl") if (folder / name).exists()}
    said = capsys.readouterr().out
    if changed == "nothing":
        assert run.continued and len(kept) == 3 and said == ""
    else:
        assert not run.continued and not kept and "no step was done yet, so it begins anew" in said
    assert (folder / "mine.py").exists()
    assert (folder / "provenance/inputs/reward/r.py").read_text() == reward.read_text()


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoints/step-00000001/x", "summary.json"])
def test_after_a_step_another_reward_is_another_run(tmp_path, left):
    (reward := tmp_path / "r.py").write_text(REWARD)
    cfg = config.make(train_grpo.Config, out=str(tmp_path), reward=str(reward))
    folder = Run(cfg, World(), "grpo").folder
    (folder / "metrics.jsonl").write_text(BEFORE)
    (folder / left).parent.mkdir(parents=True, exist_ok=True)
    (folder / left).write_text(BEFORE + '{"stage": "grpo", "step": 1}\n{"stage": "gr')
    before = (folder / "metrics.jsonl").read_text()
    reward.write_text(REWARD + "\n")
    with pytest.raises(config.ConfigError, match=r"--reward r\.py changed"):
        Run(cfg, World(), "grpo")
    assert (folder / "metrics.jsonl").read_text() == before


# ---- what ran


def test_a_run_keeps_its_command_code_and_machine(whole):
    (start,) = [json.loads(line) for line in (whole / "provenance/starts.jsonl").read_text().splitlines()]
    assert start["argv"] == sys.argv and start["ranks"] == 1
    assert {"time", "commit", "python", "torch", "triton", "card", "cores", "diff", "untracked"} <= set(start)
    inputs = json.loads((whole / "provenance" / "inputs.json").read_text())
    assert set(inputs) == {"model", "tasks", "reward"} and list(inputs["tasks"]) == ["a.py", "b.py"]
    assert [row["fit"] for row in map(json.loads, (whole / "tasks.jsonl").open())] == [True, True]


def test_code_that_changed_is_told_and_kept(tmp_path, monkeypatch):
    answers = {"diff": "", "rev-parse": "abc\n", "ls-files": "new.py\n"}
    monkeypatch.setattr(provenance, "git", lambda command, *_: answers[command])
    monkeypatch.delenv("NANOTRITON_COMMIT", raising=False)
    (tmp_path / "provenance").mkdir()
    assert provenance.keep_start(tmp_path, 1) == ""
    assert provenance.keep_start(tmp_path, 1) == ""
    answers["diff"] = "+ another loss\n"
    assert "the code changed since the last start (abc)" in provenance.keep_start(tmp_path, 2)
    assert provenance.keep_start(tmp_path, 2) == ""
    assert (tmp_path / "provenance" / "code-3.diff").read_text() == answers["diff"]
    rows = [json.loads(line) for line in (tmp_path / "provenance" / "starts.jsonl").open()]
    assert [row["diff"] for row in rows] == ["", "", "code-3.diff", "code-3.diff"]
    assert rows[0]["untracked"] == ["new.py"]


def test_a_start_that_was_stopped_early_is_kept_too(tmp_path):
    """While SFT made the model, say, when the GRPO run has no metrics yet. Its inputs may be others now."""
    started = lambda **more: (
        Run(config.make(train_grpo.Config, out=str(tmp_path), **more), World(), "grpo").folder
    )
    (tmp_path / "r.py").write_text(REWARD)
    folder = started(reward=str(tmp_path / "r.py"))
    assert (folder / "provenance" / "inputs" / "reward" / "r.py").exists()
    started()
    assert len((folder / "provenance" / "starts.jsonl").read_text().splitlines()) == 2
    assert not (folder / "provenance" / "inputs").exists()
    assert json.loads((folder / "provenance" / "inputs.json").read_text()) == {}
    started(fresh=True)
    assert len((folder / "provenance" / "starts.jsonl").read_text().splitlines()) == 1


def test_without_git_a_run_still_says_what_it_can(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NANOTRITON_COMMIT", raising=False)
    assert provenance.environment()["commit"] is None and provenance.git("diff") == ""


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_the_last_step_and_the_rest_is_the_same(given, whole, tmp_path, number):
    """--save-every is 10 with a model: without the signal nothing would be there."""
    argv = [sys.executable, "train_grpo.py", *command(given, tmp_path, 4)]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(argv, cwd=ROOT, env=env, text=True, start_new_session=True, **pipes)
    for line in process.stdout:
        if line.startswith("grpo    1/4"):
            break
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + number and "Traceback" not in said
    assert f"ended by {number.name}, step " in said and "is saved; the same command continues" in said
    (checkpoint,) = (tmp_path / "laptop" / "checkpoints").iterdir()
    assert 1 <= int(checkpoint.name.removeprefix("step-")) < 4
    assert here(command(given, tmp_path, 4)) == 0
    assert steps(tmp_path / "laptop") == steps(whole) and weights(tmp_path / "laptop") == weights(whole)


@pytest.mark.slow
def test_a_signal_in_a_rollout_gives_it_up_and_one_in_an_update_waits(given, tmp_path, monkeypatch):
    """The weights of a checkpoint are always those of a whole step."""
    for when, saved in (("rollout", 1), ("update_policy", 2)):
        calls = []

        def signalled(*args, real=getattr(train_grpo, when), calls=calls, **more):
            calls.append(1)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*args, **more)

        monkeypatch.setattr(train_grpo, when, signalled)
        assert here(command(given, tmp_path / when, 4)) == 128 + signal.SIGTERM
        monkeypatch.undo()
        found = [f.name for f in (tmp_path / when / "laptop" / "checkpoints").iterdir()]
        assert found == [f"step-{saved:08d}"]


def test_a_signal_before_the_first_step_leaves_nothing_to_save(given, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_grpo, "rollout", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    assert here(command(given, tmp_path, 4)) == 128 + signal.SIGINT
    assert "ended by SIGINT, no step was finished" in capsys.readouterr().out


def test_every_rank_hears_of_a_signal_that_one_got():
    from nanotriton.parallel import stop

    class OfTwo(World):
        def gather(self, x):
            return [x, signal.SIGTERM]

    stop.STATE.came = 0
    with pytest.raises(stop.Interrupted, match="SIGTERM") as told:
        stop.check(OfTwo())
    assert told.value.number == signal.SIGTERM
    with stop.deferred(), pytest.raises(stop.Interrupted), stop.at_once(OfTwo()):
        pass
    stop.check(World())
