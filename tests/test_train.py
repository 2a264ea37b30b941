"""The training scripts as a user runs them: from one command, twice the same, killed and continued, stopped by Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train_grpo
from nanotriton import config
from nanotriton.parallel.program import launch
from nanotriton.schedule import learning_rate

ROOT = Path(__file__).parent.parent
TINY = [
    "--sft-steps",
    "6",
    "--sft-examples",
    "300",
    "--steps",
    "2",
    "--prompts",
    "2",
    "--group",
    "2",
    "--resample",
    "1",
]
TINY += ["--eval-tasks", "4", "--eval-every", "1", "--max-tokens", "16"]


def test_the_learning_rate_rises_falls_and_stays_at_its_least():
    rates = [learning_rate(step, 100, 4e-3, 0.1, 0.15) for step in range(100)]
    assert rates[:10] == pytest.approx([4e-4 * (i + 1) for i in range(10)]) and rates[10] == 4e-3
    assert (
        rates == rates[:10] + sorted(rates[10:], reverse=True)
        and rates[55] == pytest.approx(2e-3)
        and rates[-10:] == [6e-4] * 10
    )
    assert learning_rate(99, 100, 4e-3, 0.1) < 2e-6


def command(out: Path, *more: str, torchrun: bool = False) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run"] if torchrun else [sys.executable]
    return [*start, "train_grpo.py", "--out", str(out), *TINY, *more]


def run(argv: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)


def metrics(folder: Path) -> list[dict]:
    """Every row of both stages without its wall-clock times."""
    rows = [
        json.loads(line)
        for name in ("sft/metrics.jsonl", "metrics.jsonl")
        for line in (folder / name).read_text().splitlines()
    ]
    for row in rows:
        row.pop("seconds")
    return rows


def processes(out: Path) -> list[str]:
    """Command lines of processes, in any state but dead, that name this run or were started by it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"NANOTRITON_TEST={out}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """One whole run, never interrupted."""
    out = tmp_path_factory.mktemp("straight")
    done = run(command(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "laptop"


def test_one_command_trains_measures_and_leaves_a_trace(straight):
    summary = json.loads((straight / "summary.json").read_text())
    assert {
        "heldout_before",
        "heldout_after",
        "greedy_before",
        "greedy_after",
        "seconds_sft",
        "seconds_grpo",
        "seed",
    } <= set(summary)
    assert summary["heldout_samples"] == 8 and summary["seconds_sft"] > 0 and summary["seconds_grpo"] > 0
    assert (straight / "curves.png").read_bytes().startswith(b"\x89PNG")
    samples = [json.loads(line) for line in (straight / "samples.jsonl").read_text().splitlines()]
    assert {s["split"] for s in samples} == {
        "train",
        "dev/success",
        "dev/greedy",
        "test/success",
        "test/greedy",
    }
    # no group has spread, so each has been replaced
    assert sum(s["count"] for s in samples if s["split"] == "train") == 2 * 2 * 2 * 2
    steps = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    assert all(
        set(s["seconds"]) == {"sample", "reward", "wait", "logprobs", "backward", "optimizer", "sync"}
        for s in steps
        if s["stage"] == "grpo"
    )
    assert all(
        s["verdict"]["status"] and (s["verdict"]["message"] or s["verdict"]["status"] == "correct")
        for s in samples
    )
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (straight / "model" / name).exists()


def here(argv: list[str]) -> int:
    """The script's main in this process: for what ends before any training. TINY first, as the synthetic tasks are made before that."""
    try:
        launch(train_grpo.main, config.parse(train_grpo.Config, [*TINY, *argv]))
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_finished_run_is_not_run_again_and_other_settings_are_refused(straight, capsys):
    before = (straight / "metrics.jsonl").read_bytes()
    assert here(["--out", str(straight.parent)]) == 0
    assert "is finished" in capsys.readouterr().out and (straight / "metrics.jsonl").read_bytes() == before
    assert here(["--out", str(straight.parent), "--lr", "1e-3"]) == 2
    err = capsys.readouterr().err
    assert f"holds a run that was started with --lr {train_grpo.Config.lr}" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "how", ["ctrl-c", *(pytest.param(how, marks=pytest.mark.slow) for how in ("kill worker", "kill agent"))]
)
def test_stopped_at_any_moment_it_continues_to_the_same_end_and_leaves_no_process(straight, tmp_path, how):
    env = os.environ | {"NANOTRITON_TEST": str(tmp_path)}
    argv = command(tmp_path, torchrun=how != "ctrl-c")
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    want = {"ctrl-c": "sft    1/6", "kill worker": "grpo    1/2", "kill agent": "grpo/test    0/2"}[how]
    for line in process.stdout:
        if want in line:
            break
    if how == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    elif how == "kill agent":
        process.kill()
    else:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
    rest = process.communicate(timeout=60)[0]
    if how == "ctrl-c":
        assert process.returncode == 130 and "Traceback" not in rest
    deadline = time.monotonic() + 15
    while processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes(tmp_path) == []
    done = run(command(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert metrics(tmp_path / "laptop") == metrics(straight)
    assert (tmp_path / "laptop/model/model.safetensors").read_bytes() == (
        straight / "model/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    "argv, says",
    [
        (["--model", "/nowhere/at/all"], "--sft-steps has no effect with --model"),
        (["--tasks", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--reward", "/nowhere.py"], "no such reward file"),
        (["--kll", "1"], "did you mean --kl"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, argv, says, capsys):
    assert here(["--out", str(tmp_path), *argv]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_a_mistake_that_is_mended_is_no_other_run(tmp_path, capsys):
    """What was refused before anything was done leaves nothing that the right command would have to agree with."""
    assert here(["--out", str(tmp_path), "--tasks", "/nowhere/at/all"]) == 2
    assert here(["--out", str(tmp_path), "--reward", "/nowhere.py"]) == 2
    assert "no such reward file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", "..", "mine", "../mine"])
def test_fresh_deletes_nothing_but_a_run(tmp_path, capsys, name):
    (tmp_path / "out" / "mine").mkdir(parents=True)
    (thesis := tmp_path / "out" / "mine" / "thesis.tex").write_text("years of work")
    assert here(["--out", str(tmp_path / "out"), "--name", name, "--fresh"]) == 2
    assert thesis.exists() and capsys.readouterr().err.count("\n") == 1
