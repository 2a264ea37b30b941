"""--fresh deletes nothing that the same command is told to read, and nobody is advised to do that."""

import json
from pathlib import Path

import pytest

import train_grpo
import train_sft
from nanotriton import config
from nanotriton.executor.common import probe
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.runs.run import Run
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import save_model

REWARD = "def reward(verdict, completion, task):\n    return 1.0\n"
PAIR = '{"prompt": "a", "completion": "b"}\n'
FILES = {
    "reward": ("mine.py", REWARD),
    "tasks": ("tasks/a.py", probe.TASK["source"]),
    "heldout": ("held.jsonl", json.dumps({"task": probe.TASK["source"], "name": "a"}) + "\n"),
    "prompt": ("words.txt", "Rewrite {source}"),
    "data": ("pairs.jsonl", PAIR),
}


def make_model(folder: Path) -> None:
    train_tokenizer(["a text"], 300, folder)
    shape = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1)
    vocab = Tokenizer(str(folder)).vocab_size
    model = Transformer(ModelConfig(model_type="llama", vocab_size=vocab, **shape))
    save_model(model.init_weights(0), folder)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run of train_grpo.py that has begun, with files of the user's and a model in its folder."""
    folder = Run(train_grpo.Config(out=str(tmp_path), name="mine"), World(), "grpo").folder
    (folder / "metrics.jsonl").write_text('{"stage": "grpo", "step": 1}\n')
    for name, text in FILES.values():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    make_model(folder / "model")
    return folder


def refused(capsys, script, *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        launch(script.main, config.parse(script.Config, list(argv)))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1
    return said


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name != ".lock")


@pytest.mark.parametrize("option", [*FILES, "model"])
def test_fresh_does_not_delete_what_an_option_names(folder, capsys, option):
    value = folder / FILES.get(option, ("model",))[0]
    value = value.parent if option == "tasks" else value
    script = train_sft if option == "data" else train_grpo
    before = files(folder)
    argv = ["--out", str(folder.parent), "--name", "mine", "--" + option, str(value)]
    said = refused(capsys, script, *argv, "--fresh")
    assert said == f"error: --fresh would delete --{option} {value}: give another --name\n"
    said = refused(capsys, script, *argv)
    assert "another --name" in said and "--fresh" not in said
    assert files(folder) == before


def test_links_are_followed_both_ways(folder, tmp_path, capsys):
    """A link outside that leads into the folder, and one in the folder that would be deleted itself."""
    (tmp_path / "elsewhere").symlink_to(folder / "model")
    make_model(tmp_path / "other")
    (folder / "link").symlink_to(tmp_path / "other")
    for model in (tmp_path / "elsewhere", folder / "link", folder / ".." / "mine" / "model"):
        argv = ["--out", str(tmp_path), "--name", "mine", "--model", str(model)]
        assert f"--fresh would delete --model {model}" in refused(capsys, train_grpo, *argv, "--fresh")
        assert f"--model {model} lies in {folder}" in refused(capsys, train_grpo, *argv)


def test_what_lies_elsewhere_is_no_obstacle(folder, tmp_path):
    """Even under a name that begins like the run's."""
    (tmp_path / "mine2").mkdir()
    reward = tmp_path / "mine2" / "mine.py"
    reward.write_text(REWARD)
    cfg = config.make(train_grpo.Config, out=str(tmp_path), name="mine", fresh=True, reward=str(reward))
    Run(cfg, World(), "grpo")
    assert not (folder / "model").exists() and reward.exists()
