"""What a user may get wrong: one line that says what it is and what is accepted, no traceback, and nothing is lost."""

import errno
import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import train_grpo
import train_sft
from nanotriton import config
from nanotriton.config import ConfigError
from nanotriton.parallel import stop
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.runs.run import Run
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.tasks.prompt import of_text
from nanotriton.transformer.model_config import ModelError
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import load_config

ROOT = Path(__file__).parent.parent
GOOD = '{"prompt": "a", "completion": "b"}'


@pytest.mark.parametrize(
    "line, says",
    [
        ("{'prompt': 1}", "not JSON (Expecting property name enclosed in double quotes at character 2)"),
        (GOOD[:-3], "not JSON (Unterminated string starting at at character 31)"),
        ('["a", "b"]', "not an object"),
        ('{"prompt": "a", "text": "b"}', "it has no completion, only prompt, text"),
        ('{"completion": "b"}', "it has no prompt, only completion"),
        ("{}", "it has no prompt"),
        ('{"task": NaN, "completion": "b"}', "its task is no string but NaN"),
        ('{"task": ["class Model: 1"], "completion": "b"}', "its task is no string but ["),
        ('{"prompt": 3, "completion": "b"}', "its prompt is no string but 3"),
        ('{"prompt": ["a"], "completion": "b"}', 'a message is no {"role": ..., "content": text}: "a"'),
        ('{"task": "relu", "completion": "b"}', "its task is no module's source: it has no class Model"),
        (
            '{"messages": [{"role": "user", "content": "a"}]}',
            "its last message is the user's; the assistant's",
        ),
        ('{"messages": [{"role": "assistant", "content": "b"}]}', "there are no messages"),
        ('{"messages": [{"role": "robot", "content": "b"}]}', 'the role "robot" of a message is none of'),
        ('{"messages": []}', "its messages are no list of messages but []"),
        ('{"prompt": "a", "completion": null}', "its completion is no string but null"),
        ('{"prompt": "a", "completion": " "}', "its completion is empty"),
        (r'{"prompt": "\ud800", "completion": "b"}', "its prompt has half of a surrogate pair"),
    ],
)
def test_a_bad_line_of_data_says_what_is_wrong_with_it(tmp_path, line, says):
    (path := tmp_path / "pairs.jsonl").write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(ConfigError) as error:
        train_sft.read_pairs(str(path))
    assert str(error.value).startswith(
        f"--data {path}, line 3: {says}"
    ) and '; {"task" or "prompt": ..., "completion": ...} or {"messages"' in str(error.value)


def test_data_that_is_no_file_of_lines(tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    (tmp_path / "marked").write_text(GOOD + "\r\n", encoding="utf-8-sig")
    for name, says in (
        ("empty", "the file is empty; a line of {"),
        ("latin", "cannot read: no UTF-8 text (byte 12)"),
        (".", "cannot read: Is a directory"),
        ("no", "cannot read: No such file"),
    ):
        with pytest.raises(ConfigError) as error:
            train_sft.read_pairs(str(tmp_path / name))
        assert str(error.value).startswith(f"--data {tmp_path / name}: {says}")
    assert train_sft.read_pairs(str(tmp_path / "marked")) == [(of_text("a"), "b")]


def run(*argv: str, **kw) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120, **kw
    )


@pytest.mark.parametrize("script", ["train_sft.py", "train_grpo.py"])
def test_help_and_a_mistake_are_answered_before_torch_is_imported(script):
    done = run("-X", "importtime", script, "--help")
    assert done.returncode == 0 and "--eval-tasks" in done.stdout and script in done.stdout, done.stderr
    assert "nanotriton.config" in done.stderr and "| torch\n" not in done.stderr
    done = run(script, "--lr", "foo")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: --lr foo: a number is expected\n")


def test_the_small_model_is_what_train_sft_makes():
    small = train_grpo.Config().small
    assert (small.sft_steps, small.sft_examples) == (
        train_sft.Config.steps,
        train_sft.Config.examples,
    )


def mistake(capsys, main, cls, *argv: str, before: str = "") -> str:
    """What a script says of a mistake, in this process: one line. before: what it says before that."""
    with pytest.raises(SystemExit) as stop:
        launch(main, config.parse(cls, list(argv)))
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and err.count("\n") == 1 and err.startswith("error: ") and out == before
    return err


sft, grpo = (
    (train_sft.main, train_sft.Config),
    (train_grpo.main, train_grpo.Config, "--steps", "1", "--prompts", "1", "--eval-tasks", "1"),
)


def test_the_option_is_named_and_what_it_takes(tmp_path, capsys):
    out = ("--out", str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x = (")
    assert f"--tasks {tmp_path}/empty: no .py file in this folder; a task defines Model" in mistake(
        capsys, *grpo, *out, "--tasks", str(tmp_path / "empty")
    )
    assert f"--heldout {tmp_path}/file: not Python" in mistake(
        capsys, *grpo, *out, "--heldout", str(tmp_path / "file")
    )
    assert f"{tmp_path}/none.py: cannot read: No such file or directory\n" in mistake(
        capsys, *grpo, *out, "--tasks", str(tmp_path / "none.py")
    )
    for script in (sft, grpo):
        assert (
            f"{tmp_path}/none: no such folder; a Hugging Face folder or a hub id, owner/name, is expected"
            in mistake(capsys, *script, *out, "--model", str(tmp_path / "none"))
        )
        assert f"{tmp_path}/empty: no config.json" in mistake(
            capsys, *script, *out, "--model", str(tmp_path / "empty")
        )
    assert "--width 100: a multiple of 32 is expected" in mistake(capsys, *sft, *out, "--width", "100")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert f"--out {tmp_path}/file: cannot write in {tmp_path}/file/sft: Not a directory" in mistake(
        capsys, *sft, "--out", str(tmp_path / "file")
    )
    assert "File name too long" in mistake(capsys, *sft, "--out", str(tmp_path), "--name", "x" * 300)
    assert "cannot write in /proc/sft: " in mistake(capsys, *sft, "--out", "/proc")


def test_a_runs_folder_in_place_of_its_model_says_where_the_model_is(tmp_path, capsys):
    run = Run(train_sft.Config(out=str(tmp_path)), World(), "sft").folder
    for script in (sft, grpo):
        told = mistake(capsys, *script, "--out", str(tmp_path), "--name", "b", "--model", str(run))
        assert f"{run}: this is the folder of a run; it has no model yet: a run writes it at its end" in told
    (run / "model").mkdir()
    for reads in (load_config, Tokenizer):
        with pytest.raises(ModelError, match=f"this is the folder of a run; its model is {run}/model$"):
            reads(run)
    (checkpoint := run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    with pytest.raises(
        ModelError, match="this is a checkpoint, for its run alone; a run's model is in its m"
    ):
        load_config(checkpoint)


def test_a_full_disk_is_one_line(capsys):
    def full(cfg, world):
        raise OSError(errno.ENOSPC, "No space left on device", "out/metrics.jsonl")

    with pytest.raises(SystemExit) as stop:
        launch(full, None)
    line = "out/metrics.jsonl can't be written: No space left on device; mended, the same command continues"
    assert stop.value.code == 1 and capsys.readouterr().err == f"error: {line}\n"


def test_fresh_deletes_nothing_before_the_model_is_looked_at(tmp_path, capsys):
    Run(train_sft.Config(out=str(tmp_path)), World(), "sft").say("")
    (tmp_path / "sft" / "metrics.jsonl").write_text("years of work")
    for extra in (("--model", str(tmp_path / "none")), ("--data", str(tmp_path / "none"))):
        capsys.readouterr()
        mistake(capsys, *sft, "--out", str(tmp_path), "--fresh", *extra)
    assert (tmp_path / "sft" / "metrics.jsonl").exists()
    Run(train_sft.Config(out=str(tmp_path), fresh=True), World(), "sft")
    assert sorted(p.name for p in (tmp_path / "sft").iterdir()) == [
        ".lock",
        "config.json",
        "provenance",
    ]


def test_a_run_keeps_the_time_at_which_it_began_and_its_tokenizer_tells_it(tmp_path, capsys):
    """A template that prints the date gives a continued run the prompts of the straight one."""
    template = {"chat_template": "{{ strftime_now('%Y') }} {{ mood }}", "eos_token": "<|end|>"}
    train_tokenizer(["a text"], 300, tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(template))
    cfg = train_sft.Config(out=str(tmp_path))
    Run(cfg, World(), "sft")
    path = tmp_path / "sft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"began": "2001-02-03T04:05:06"}))
    (tmp_path / "sft" / "metrics.jsonl").write_text("")
    run = Run(cfg, World(), "sft")
    assert run.began == datetime(2001, 2, 3, 4, 5, 6)
    chat = run.tokenizer(str(tmp_path / "model"), '{"mood": "calm"}').chat([])
    assert chat == "2001 calm" and capsys.readouterr().out == ""
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    run.tokenizer(str(tmp_path / "model"), "")
    said = capsys.readouterr().out
    assert "warning: " in said and "has no chat template" in said and said.count("\n") == 1
    train_tokenizer(["a text"], 300, tmp_path / "model")
    run.tokenizer(str(tmp_path / "model"), "")  # one of our own, which reads sources
    assert capsys.readouterr().out == ""
    fresh = Run(train_sft.Config(out=str(tmp_path), fresh=True), World(), "sft")
    assert fresh.began > datetime(2020, 1, 1)


def test_a_run_that_is_going_on_is_left_alone(tmp_path, capsys):
    """By a second one with the same command, and by one with --fresh."""
    folder = Run(train_sft.Config(out=str(tmp_path)), World(), "sft").folder
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        for extra in ((), ("--fresh",)):
            assert f"{folder} belongs to a run that is still going" in mistake(
                capsys, *sft, "--out", str(tmp_path), *extra
            )
        assert (folder / "config.json").exists()
        other.communicate()
    Run(train_sft.Config(out=str(tmp_path)), World(), "sft")


def test_what_sft_refuses_is_told_in_the_options_of_grpo(tmp_path, capsys):
    """A run that was stopped while it made its model, and goes on with another length of that."""
    Run(train_sft.Config(out=str(tmp_path / "laptop"), eval_tasks=1), World(), "sft").append(
        "metrics.jsonl", [{"stage": "sft", "step": 1}]
    )
    drawing = f"{tmp_path}/laptop: drawing 1 training task\n"
    told = mistake(capsys, *grpo, "--out", str(tmp_path), "--sft-steps", "7", before=drawing)
    assert (
        "laptop/sft holds a run that was started with --sft-steps 1600 (it may grow), --sft-teacher exact: "
        in told
    )


def test_a_folder_of_something_else_is_named(tmp_path, capsys):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "metrics.jsonl").write_text("")
    for text, says in (
        ("{", "x/config.json holds no settings of a run: give another --name, or delete"),
        ('{"save_every": 1}', "/x holds a run of another script, or of another version of this one"),
    ):
        (tmp_path / "x" / "config.json").write_text(text)
        assert says in mistake(capsys, *sft, "--out", str(tmp_path), "--name", "x")


AS_SCRIPT = f"import sys; sys.modules['__main__'].__file__ = '{ROOT}/train_sft.py'; import nanotriton\n"


def test_ctrl_c_and_a_closed_pipe_leave_no_traceback():
    """At any time: while torch is imported, where no code of ours could catch it, too."""
    start = [
        sys.executable,
        "-c",
        f"{AS_SCRIPT}import time; print('begun', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt as e: raise RuntimeError from e",
    ]
    with subprocess.Popen(start, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == b""
    reader, writer = os.pipe()
    os.close(reader)
    done = run_to(writer, f"{AS_SCRIPT}for _ in range(9999): print('line', flush=True)")
    assert done.returncode == 1 and done.stderr == ""
    done = run_to(subprocess.PIPE, f"{AS_SCRIPT}raise BrokenPipeError('of a child')")
    assert "of a child" in done.stderr


@pytest.mark.parametrize(
    "script, number",
    [
        ("train_grpo.py", signal.SIGINT),
        ("train_grpo.py", signal.SIGTERM),
        ("train_sft.py", signal.SIGINT),
        ("sample.py", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_imports_of_a_script_at_once(tmp_path, script, number):
    """The real torch swallows what is raised while it imports numpy, as this one does."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import time\nprint('begun', flush=True)\ntry: time.sleep(60)\nexcept BaseException: print('on')\n"
    )
    argv = [sys.executable, script] + ["a.py", "--model", "m"] * (script == "sample.py")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(argv, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == "" and process.returncode == 128 + number


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop.leave_at_once()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_as_a_library_it_leaves_the_programs_own_tracebacks_alone():
    tell = "import nanotriton; print(sys.excepthook is nanotriton.excepthook)"
    for before, ours in (
        ("import sys\n", False),
        (AS_SCRIPT, True),
    ):
        assert run_to(subprocess.PIPE, before + tell).stdout == f"{ours}\n"


def run_to(stdout, code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60
    )


@pytest.mark.parametrize("kernel", [True, False])
def test_pairs_that_teach_no_kernel_are_told_and_a_last_one_that_is_too_long_is_left_out(
    tmp_path, capsys, kernel
):
    """It would be the one that is kept back for eval_loss."""
    answer = "```python\nclass ModelNew:\n    pass\n```" if kernel else "class ModelNew:\n    pass\n"
    rows = [{"prompt": "a", "completion": answer}] * 3 + [{"prompt": "a", "completion": "x = 1 " * 900}]
    (data := tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = dict(vocab=300, layers=1, width=32, steps=1, batch=2)
    cfg = train_sft.Config(out=str(tmp_path), data=str(data), max_len=512, **small)
    train_sft.main(cfg, World())
    out = capsys.readouterr().out
    assert ("has a ```python block with a ModelNew" in out) == (not kernel)
    assert "\n3 pairs: on average a prompt has " in out and "left out" not in out
    assert json.loads((tmp_path / "sft" / "summary.json").read_text())["eval_loss"] > 0
