"""A reward with named parts: they add up, are logged, and go with the other options. And the example of the documents."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo
from nanotriton import config
from nanotriton.parallel.world import World
from nanotriton.reward.reward import RewardConfig, load_reward, reward_function, total
from nanotriton.rollout import Episode
from nanotriton.runs.advice import Advice
from nanotriton.runs.report import Step, Update, report
from nanotriton.runs.run import Clock
from nanotriton.tasks.task import Task
from nanotriton.verdict import STATUSES, UNSCORED, Verdict
from tests.ranks import Ranks

ROOT = Path(__file__).resolve().parents[1]
PARTS = """
NOISE = 0.25


def reward(verdict, completion, task):
    if not verdict.scored:
        return None
    if verdict.correct:
        return {"right": 1.0, "brevity": -0.125 * len(completion)}
    return {"partial": 0.5}
"""


class Told:
    """A run that keeps what it is told."""

    say = print

    def __init__(self, world):
        self.advice = Advice()
        self.world, self.rows = world, []

    def step(self, stage, step, of, seconds, shown, **numbers):
        self.shown, self.numbers = shown, numbers

    def samples(self, rows):
        self.rows += rows


def rewarded(options: list[str], statuses: list[str]):
    """A trainer, and one group of samples of 1, 2, 3, ... tokens and characters, with rewards and advantages."""
    cfg = config.parse(train_grpo.Config, options)
    trainer = SimpleNamespace(cfg=cfg, reward_of=reward_function(cfg.paid))
    episodes = []
    for n, status in enumerate(statuses, 1):
        e = Episode(Task("t", "s"), [1], [2] * n, [-1.0] * n, "length", verdict=Verdict(status))
        e.completion = "x" * n
        episodes.append(e)
    train_grpo.set_rewards(episodes, trainer, seed=0)
    train_grpo.set_advantages(episodes, trainer)
    return trainer, episodes


def reported(cfg, episodes, world) -> Told:
    update = Update(0.0, 0.0, [{"tokens": torch.zeros(2), "kl_sampler": torch.zeros(2)}])
    run = Told(world)
    report(run, 1, cfg, Step(episodes, [update], Clock()))
    return run


@pytest.mark.parametrize(
    "kind, statuses, taught, spread",
    [
        ("rejection", ["correct"] * 2, [True, True], [False, False]),
        ("rejection", ["correct", "no_code"], [True, False], [True, True]),
        ("rejection", ["no_code"] * 2, [False, False], [False, False]),
        ("rejection", ["correct", "no_code", "infra_error"], [True, False, False], [True, True, False]),
        ("mean_std", ["correct"] * 2, [False, False], [False, False]),
        ("mean_std", ["correct", "no_code"], [True, True], [True, True]),
    ],
)
def test_what_teaches_and_whether_rewards_differ_are_two_things(kind, statuses, taught, spread):
    trainer, episodes = rewarded(["--advantage", kind], statuses)
    assert [e.taught for e in episodes] == taught and [e.spread for e in episodes] == spread
    numbers = reported(trainer.cfg, episodes, World()).numbers
    assert numbers["no_spread"] == float(not any(spread))


def test_parts_are_summed_and_logged(tmp_path):
    (file := tmp_path / "mine.py").write_text(PARTS)
    trainer, episodes = rewarded(
        ["--reward", str(file)], ["correct", "wrong_value", "infra_error", "correct"]
    )
    assert [e.reward for e in episodes] == [0.875, 0.5, None, 0.5]
    assert [e.row(1, "train").get("parts") for e in episodes] == [
        {"right": 1.0, "brevity": -0.125},
        {"partial": 0.5},
        None,
        {"right": 1.0, "brevity": -0.5},
    ]
    numbers = reported(trainer.cfg, episodes, World()).numbers
    parts = {name: value for name, value in numbers.items() if name.startswith("reward/")}
    assert parts == pytest.approx(
        {"reward/right": 2 / 3, "reward/brevity": -0.625 / 3, "reward/partial": 0.5 / 3}
    )
    assert numbers["reward"] == pytest.approx(sum(parts.values()))


def test_parts_of_two_ranks_are_those_of_one_with_all_samples(tmp_path):
    (file := tmp_path / "mine.py").write_text(PARTS)
    trainer, episodes = rewarded(
        ["--reward", str(file)], ["correct", "correct", "wrong_value", "infra_error"]
    )
    ranks, found = Ranks(2), {}

    def rank(r: int) -> None:
        found[r] = reported(trainer.cfg, episodes[2 * r : 2 * r + 2], ranks.world(r)).numbers

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    alone = reported(trainer.cfg, episodes, World()).numbers
    for numbers in found.values():
        assert {k: v for k, v in numbers.items() if k.startswith("reward")} == pytest.approx(
            {k: v for k, v in alone.items() if k.startswith("reward")}
        )
    assert len([name for name in alone if name.startswith("reward/")]) == 3


def test_the_penalty_of_long_answers_is_a_part(tmp_path):
    (file := tmp_path / "mine.py").write_text(PARTS)
    options = ["--reward", str(file), "--truncated", "soft", "--max-tokens", "4"]
    _, episodes = rewarded(options, ["correct", "correct", "wrong_value", "correct"])
    for e in episodes:
        assert e.reward == pytest.approx(sum(e.parts.values()))
    assert [e.parts.get("overlong", 0.0) for e in episodes][:3] == [0.0] * 3
    assert episodes[3].parts["overlong"] == -1.0
    _, masked = rewarded([*options[:3], "mask", *options[4:]], ["correct"] * 4)
    assert [(e.reward, e.parts) for e in masked] == [(None, {})] * 4  # all of them were cut


def test_a_files_own_noise_is_a_floor_of_the_std(tmp_path):
    (file := tmp_path / "mine.py").write_text(PARTS)
    _, floored = rewarded(["--reward", str(file)], ["correct", "correct"])
    file.write_text(PARTS.replace("NOISE = 0.25", ""))
    _, blown = rewarded(["--reward", str(file)], ["correct", "correct"])
    assert abs(floored[0].advantage) == pytest.approx(0.0625 / 0.25, rel=1e-4)
    assert abs(blown[0].advantage) == pytest.approx(0.5**0.5, rel=1e-4)


def test_a_reward_without_parts_leaves_the_log_as_it_was():
    trainer, episodes = rewarded([], ["correct", "wrong_value"])
    run = reported(trainer.cfg, episodes, World())
    assert not [name for name in [*run.numbers, *run.shown] if "/" in name]
    assert all("parts" not in row for row in run.rows)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--partial", "0.1"], "--partial: not with --reward, whose file decides what is paid"),
        (["--speed", "0.1"], "--speed: not with --reward, whose file decides what is paid; --time has"),
    ],
)
def test_options_of_the_built_in_reward_beside_a_file_are_one_line(options, says, capsys):
    with pytest.raises(SystemExit) as stop:
        config.parse(train_grpo.Config, ["--reward", "mine.py", *options])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith(f"error: {says}") and error.count("\n") == 1


def test_time_needs_a_gpu():
    cfg = config.parse(train_grpo.Config, ["--time"])
    with pytest.raises(config.ConfigError, match="--time needs a GPU and --mode replay"):
        train_grpo.main(cfg, World())


def test_the_example_pays_no_wrong_answer_as_much_as_a_right_one():
    """docs/examples/parts_reward.py, with every status and any length and speed."""
    worth = load_reward(ROOT / "docs" / "examples" / "parts_reward.py")
    lengths, speeds = ("", "x" * 100, "x" * 99999), (None, 0.01, 0.2, 1.04, 1.5, 4.0, 1e9)
    for status in STATUSES:
        for text in lengths:
            values = [total(worth(Verdict(status, speedup=s), text, None)) for s in speeds]
            if status == "correct":
                assert values == sorted(values) and values[0] >= 1 and values[-1] <= 1.6
                assert values[0] == values[1] < values[2] < values[3] < values[4] < values[5] == values[6]
            elif status in UNSCORED:
                assert values == [None] * len(speeds)
            else:
                assert len(set(values)) == 1 and 0 <= values[0] <= 0.2
    short, long = (worth(Verdict("correct"), text, None)["brevity"] for text in lengths[1:])
    assert short > long == 0
    assert worth.noise == pytest.approx(RewardConfig(speed=0.5).noise)
