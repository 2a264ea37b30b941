"""What a user may get wrong: one line that says what it is and what is accepted, no traceback, and nothing is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

import train_sft
from nanotriton.config import ConfigError

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
        ('{"prompt": ["a"], "completion": "b"}', 'its prompt is no string but ["a"]'),
        ('{"prompt": "a", "completion": null}', "its completion is no string but null"),
        ('{"prompt": "a", "completion": " "}', "its completion is empty"),
        (r'{"prompt": "\ud800", "completion": "b"}', "its prompt has half of a surrogate pair"),
    ],
)
def test_a_bad_line_of_data_says_what_is_wrong_with_it(tmp_path, line, says):
    (path := tmp_path / "pairs.jsonl").write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(ConfigError) as error:
        train_sft.read_pairs(str(path))
    assert str(error.value).startswith(f"--data {path}, line 3: {says}") and '; {"prompt": text, "completion": text} is expected' in str(error.value)


def test_data_that_is_no_file_of_lines(tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    (tmp_path / "marked").write_text(GOOD + "\r\n", encoding="utf-8-sig")
    for name, says in (("empty", "the file is empty; {"), ("latin", "cannot read: no UTF-8 text (byte 12)"), (".", "cannot read: Is a directory"), ("no", "cannot read: No such file")):
        with pytest.raises(ConfigError) as error:
            train_sft.read_pairs(str(tmp_path / name))
        assert str(error.value).startswith(f"--data {tmp_path / name}: {says}")
    assert train_sft.read_pairs(str(tmp_path / "marked")) == [("a", "b")]


def run(*argv: str, **kw) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120, **kw)


@pytest.mark.parametrize("script", ["train_sft.py", "train_grpo.py"])
def test_help_and_a_mistake_are_answered_before_torch_is_imported(script):
    done = run("-X", "importtime", script, "--help")
    assert done.returncode == 0 and "--eval-tasks" in done.stdout and script in done.stdout, done.stderr
    assert "nanotriton.config" in done.stderr and "| torch\n" not in done.stderr
    done = run(script, "--lr", "foo")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: --lr foo: a number is expected\n")
