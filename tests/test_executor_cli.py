"""`python -m nanotriton.executor`: a contract that scripts depend on."""

import doctest
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nanotriton import verdict
from nanotriton.executor import Verdict
from nanotriton.executor.__main__ import main, read_tasks
from nanotriton.executor.common import probe

ROOT = Path(__file__).resolve().parents[1]
RIGHT = probe.CANDIDATE
START = "        y = torch"
CANDIDATES = {
    "right": (RIGHT, "correct"),
    "wrong": (RIGHT.replace("x * 2 + 1", "x * 3"), "wrong_value"),
    "hanging": (RIGHT.replace(START, f"        while True: pass\n{START}"), "timeout"),
    "crashing": (
        RIGHT.replace(
            START, f"        torch.cuda.synchronize()\n        f = lambda: f()\n        [[f()]]\n{START}"
        ),
        "runtime_error",
    ),
    "forking": (
        RIGHT.replace("import torch\n", "import torch\nimport os\n", 1).replace(
            START, f"        os.fork()\n{START}"
        ),
        "rule_violation",
    ),
    "cheating": (RIGHT.replace("return y", "return x * 2 + 1"), "rule_violation"),
}


def test_a_printed_verdict_is_one_line_for_a_person():
    assert doctest.testmod(verdict) == (0, 2)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "task.py").write_text(probe.TASK["source"])
    for name, (source, _) in CANDIDATES.items():
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "nanotriton.executor", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_every_row_of_a_file_of_tasks_has_a_name_of_its_own(tmp_path):
    source = probe.TASK["source"]
    rows = [json.dumps({"task": source, "name": "a"}), json.dumps({"task": source}), "{", "[]"]
    (path := tmp_path / "t.jsonl").write_text("\n".join(rows))
    tasks, others = read_tasks([str(path)])
    assert [task.name for task in tasks] == [f"{path}, a", f"{path}, line 2"]
    assert sorted(others) == [f"{path}, line 3", f"{path}, line 4"]


def test_a_server_stays_warm_and_answers_as_the_command_does(folder, tmp_path):
    path = tmp_path / "warm"
    command = [sys.executable, "-m", "nanotriton.executor", "--serve", str(path), "--policy", "none"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert "ready" in server.stdout.readline()
        assert path.stat().st_mode & 0o077 == 0
        files = [folder / "right.py", folder / "cheating.py", folder / "wrong.py"]
        done = run(folder / "task.py", *files, "--server", path, "--json")
        assert done.returncode == 1 and done.stderr == ""
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line.pop("file") for line in lines] == [str(f) for f in files]
        # by the server's policy a cheat is correct
        assert [Verdict(**line).status for line in lines] == ["correct", "correct", "wrong_value"]
        assert run(folder / "task.py", files[0], "--server", path).returncode == 0
        second = run("--serve", path)
        assert second.returncode == 2 and "already" in second.stderr
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
    done = run(folder / "task.py", folder / "right.py", "--server", path)
    assert done.returncode == 2 and "--serve" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_six_candidates_get_their_verdicts(folder):
    files = [folder / f"{name}.py" for name in CANDIDATES]
    done = run(folder / "task.py", *files, "--json", "--timeout", 5)
    assert done.returncode == 1 and done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.pop("file") for line in lines] == [str(f) for f in files]
    verdicts = [Verdict(**line) for line in lines]
    assert [v.status for v in verdicts] == [status for _, status in CANDIDATES.values()]
    # one after another; a start takes 4 s, and much longer on a loaded machine
    assert sum(sum(v.cost.values()) for v in verdicts) < 30


def test_all_correct_is_exit_0_and_readable(folder):
    done = run(folder / "task.py", folder / "right.py", "--policy", "none", "--time")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{folder / 'right.py'}: correct") and done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, clue",
    [
        ([], "required"),
        (["nowhere.py"], "nowhere.py"),
        (["task.py", "--tasks", "nowhere"], "nowhere"),
        (["task.py", "--mode", "process"], "needs a GPU"),
        (["nowhere.py", "right.py"], "nowhere.py"),
        (["right.py", "right.py"], "get_inputs"),
        (["task.py", "nowhere.py"], "nowhere.py"),
        (["task.py", "right.py", "--device", "tpu"], "cuda"),
        (["task.py", "right.py", "--device", "cuda"], "--device cuda: this machine has no usable CUDA GPU"),
        (["task.py", "right.py", "--policy", "lax"], "strict"),
        (["task.py", "right.py", "--timeout", "soon"], "soon"),
        (["task.py", "right.py", "--timeout", "-1"], "positive"),
        (["task.py", "right.py", "--jsn"], "--jsn"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(folder, arguments, clue, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as stop:
        main([str(folder / a) if a.endswith(".py") else a for a in arguments])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    assert said.err.count("\n") == 1 and clue in said.err
