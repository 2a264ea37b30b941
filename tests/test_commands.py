"""Every command that the documents name is one: its words go through the options of the program that it starts."""

import argparse
import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

import train_grpo
from nanotriton import config
from tests.test_docs import DOCS, ROOT, module_file

TEXTS = [*DOCS, ROOT / "speedrun.sh", ROOT / "collect_data.py"]
BLOCK = re.compile(r"^```(?:bash|sh|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a line of a synopsis has, and no command.
SYNOPSIS = re.compile(r"\[|\]|\.\.\.|\S\|\S|<|`")


class Parsed(Exception):
    """The words of a command are right; the program need not do what they say."""


def commands(file: Path) -> list[str]:
    """The commands of a document, one a line: of its indented and fenced blocks, of a docstring or a script."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        text = text.split('"""')[1]
    if file.suffix != ".sh":
        indented = "\n".join(re.findall(r"^(?: {4}|\t)(.*)$", text, re.MULTILINE))
        text = "\n".join([*BLOCK.findall(text), indented])
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    parts = [part.strip() for line in lines for part in re.split(r"&&|  #", line)]
    programs = re.compile(r"(\w+=\S+ )*(python|torchrun) ")
    return [part.removesuffix("&") for part in parts if programs.match(part) and not SYNOPSIS.search(part)]


def words_of(command: str) -> list[str]:
    """The words that a shell makes of it. Variables with a default have that, and others stand as they are."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", command)
    return [word for word in shlex.split(text) if not re.fullmatch(r"[A-Z_]+=\S*", word)]


def program_of(words: list[str]) -> tuple[str, list[str]]:
    """(a script or a module, its own words) of a command whose launcher's options are right, too."""
    launcher, *rest = words
    if launcher == "torchrun":
        found = get_args_parser().parse_args(rest)
        rest = [*["-m"] * found.module, found.training_script, *found.training_script_args]
    if rest[0] == "-m":
        rest = rest[1:]
    return rest[0], rest[1:]


def accept(program: str, words: list[str], monkeypatch) -> None:
    """SystemExit for words that the program refuses. Nothing is done of what they say."""
    file = ROOT / program if program.endswith(".py") else module_file(program)
    assert file is not None and file.is_file(), f"{program} is no program"
    module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    if hasattr(module, "Config"):
        if program == "sample.py":  # the module's file may stand first, without a name
            words = ["--file", *words] if not words[0].startswith("-") else words
        config.parse(module.Config, [re.sub(r"^--from\b", "--manifest", word) for word in words])
        return
    if hasattr(module, "read_arguments"):
        module.read_arguments(words)
        return
    parse = argparse.ArgumentParser.parse_args

    def parsed(self, args=None, namespace=None):
        parse(self, args, namespace)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    with pytest.raises(Parsed):
        module.main(words)


ALL = [(file, command) for file in TEXTS for command in commands(file)]


def test_there_are_commands():
    assert len(ALL) > 40 and {file.name for file, _ in ALL} >= {"README.md", "recipes.md", "speedrun.sh"}


@pytest.mark.parametrize(("file", "command"), ALL, ids=[f"{f.name}-{n}" for n, (f, _) in enumerate(ALL)])
def test_a_command_that_a_document_names_is_accepted(file, command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)  # results would be written here
    program, words = program_of(words_of(command))
    if "--prompt" in words and (name := words[words.index("--prompt") + 1]).endswith(".txt"):
        (tmp_path / name).write_text("{source}")  # the user's own
    try:
        accept(program, words, monkeypatch)
    except SystemExit:
        raise AssertionError(f"{command}\n{capsys.readouterr().err}") from None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "error: DATA and KERNELBENCH are expected"),
        (["results", "hub"], "error: results: no sft.jsonl or sft.jsonl.xz in it"),
        (["results/data", "results"], "error: results: no folder level1 in it"),
    ],
)
def test_the_speedrun_finds_a_wrong_path_before_anything_is_trained(words, why):
    done = subprocess.run(["bash", "speedrun.sh", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(why) and done.stderr.count("\n") == 1
    assert not done.stdout


def test_the_speedrun_hands_on_the_options_of_grpo(tmp_path):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    given = {"TASKS": "mine.jsonl", "TEMPERATURE": "1.3", "LR": "2e-4", "STEPS": "56", "MINUTES": "9"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    printed = subprocess.run(
        ["bash", "speedrun.sh", "results/data", "hub"],
        cwd=ROOT,
        env=os.environ | given | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = next(line for line in printed.splitlines() if line.startswith("train_grpo.py")).split()[1:]
    cfg = config.parse(train_grpo.Config, words)
    assert (cfg.tasks, cfg.temperature, cfg.lr, cfg.steps, cfg.minutes) == ("mine.jsonl", 1.3, 2e-4, 56, 9)
