"""Pass rates: sampled, judged and written into the tasks' meta; a stopped run goes on; limits choose tasks."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanotriton.collect import difficulty
from nanotriton.config import ConfigError
from nanotriton.model import ModelConfig, Transformer
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.tasks.task import find_tasks
from nanotriton.tokenizer import Tokenizer
from nanotriton.verdict import Verdict
from nanotriton.weights import save_model

MODULE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {number}


def get_inputs():
    return [torch.randn({rows}, 33)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random model of a few thousand parameters."""
    folder = tmp_path_factory.mktemp("model")
    train_tokenizer([MODULE] * 2, 300, folder)
    tokenizer = Tokenizer(folder)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
    )
    save_model(Transformer(config).init_weights(0), folder, tokenizer.files)
    return folder


def tasks(folder: Path, count: int) -> Path:
    """A file as rl.jsonl is."""
    rows = [
        {
            "name": f"task {i}",
            "task": MODULE.format(number=i, rows=4096),
            "small": MODULE.format(number=i, rows=4),
            "meta": {"origin": "x"},
        }
        for i in range(count)
    ]
    path = folder / "rl.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_model_that_knows_nothing_is_never_right(model, tmp_path, capsys):
    path = tasks(tmp_path, 2)
    difficulty.main(difficulty.Config(file=str(path), model=str(model), k=2, max_tokens=8))
    for number, row in enumerate(rows_of(path)):
        assert row["name"] == f"task {number}" and "4096" in row["task"]
        assert row["meta"] == {"origin": "x", "pass_rate": 0.0, "pass_k": 2, "pass_model": str(model)}
    assert "2 tasks: 2 never right" in capsys.readouterr().out
    found, others = find_tasks(path)
    assert [task.meta["pass_rate"] for task in found] == [0.0, 0.0] and not others


def test_a_prompt_without_room_for_an_answer_has_no_rate(model, tmp_path):
    path = tasks(tmp_path, 1)
    long = rows_of(path)[0] | {"small": "", "task": MODULE.format(number=1, rows=4) + "# and on\n" * 300}
    path.write_text(json.dumps(long) + "\n")
    difficulty.main(difficulty.Config(file=str(path), model=str(model), k=1, max_tokens=4))
    assert rows_of(path)[0]["meta"]["pass_rate"] is None


class Rollout:
    """Stands for sampling and judging: answer j to task i is right if j < i. It fails after `lasts` calls."""

    def __init__(self, lasts: int = 99):
        self.asked, self.lasts = [], lasts

    def __call__(self, batch, k, *_, seeds, **__):
        if len(self.asked) == self.lasts:
            raise KeyboardInterrupt
        self.asked.append([task.name for task in batch])
        assert all("randn(4, 33)" in task.source for task in batch)  # the small one
        assert len({seed for group in seeds for seed in group}) == k * len(batch)
        return [[self.episode(int(task.name.split()[1]), j) for j in range(k)] for task in batch]

    @staticmethod
    def episode(i: int, j: int):
        status = "infra_error" if i == 5 else "correct" if j < i else "wrong_value"
        return SimpleNamespace(verdict=Verdict(status))


def test_a_run_that_was_stopped_asks_only_for_what_is_not_known(model, tmp_path, monkeypatch):
    path = tasks(tmp_path, 6)
    cfg = difficulty.Config(file=str(path), model=str(model), k=4, batch=2)
    monkeypatch.setattr(difficulty, "rollout", first := Rollout(lasts=2))
    with pytest.raises(KeyboardInterrupt):
        difficulty.main(cfg)
    assert first.asked == [["task 0", "task 1"], ["task 2", "task 3"]]
    assert "pass_rate" not in rows_of(path)[0]["meta"]
    with open(f"{path}.rates.jsonl", "a") as journal:
        journal.write('{"key": "half a')
    monkeypatch.setattr(difficulty, "rollout", second := Rollout())
    difficulty.main(cfg)
    assert second.asked == [["task 4", "task 5"]]
    rates = [row["meta"]["pass_rate"] for row in rows_of(path)]
    assert rates == [0.0, 0.25, 0.5, 0.75, 1.0, None]
    monkeypatch.setattr(difficulty, "rollout", other := Rollout())
    difficulty.main(difficulty.Config(file=str(path), model=str(model), k=8, batch=9))
    assert len(other.asked[0]) == 6  # another k: none of these rates is known


def test_limits_choose_the_tasks_that_are_written(model, tmp_path, monkeypatch):
    path, out = tasks(tmp_path, 6), tmp_path / "some.jsonl"
    monkeypatch.setattr(difficulty, "rollout", Rollout())
    cfg = difficulty.Config(file=str(path), model=str(model), k=4, least=0.1, most=0.9, out=str(out))
    difficulty.main(cfg)
    assert [row["meta"]["pass_rate"] for row in rows_of(out)] == [0.25, 0.5, 0.75]
    assert "pass_rate" not in rows_of(path)[0]["meta"]


@pytest.mark.parametrize("change, says", [
    ({"file": ""}, "TASKS.jsonl --model"), ({"least": 0.5}, "--out FILE"), ({"least": 0.9, "most": 0.1}, "is above"),
])  # fmt: skip
def test_options_that_do_not_go_together_are_told(change, says):
    with pytest.raises(ConfigError, match=says):
        difficulty.Config(**{"file": "rl.jsonl", "model": "m"} | change).validate()


def test_a_file_that_is_none_is_told_in_one_line(model, tmp_path):
    for text, says in (("{", "cannot read"), ('{"a": 1}\n', "line 1: an object with")):
        (tmp_path / "rl.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=says):
            difficulty.main(difficulty.Config(file=str(tmp_path / "rl.jsonl"), model=str(model)))
