"""Verdict to number: defaults, options, what leaves the batch, and a user's own reward file."""

import math
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo
from nanotriton import config, grpo, run
from nanotriton.advice import Advice
from nanotriton.report import Step, Update, report
from nanotriton.reward.execution import PROGRESS, speed
from nanotriton.reward.reward import RewardConfig, load_reward, reward, reward_function, total
from nanotriton.rollout import Episode, rollout
from nanotriton.run import Clock
from nanotriton.sampler import Sample
from nanotriton.tasks.task import Task
from nanotriton.verdict import STATUSES, UNSCORED, Verdict
from nanotriton.world import World
from tests.ranks import Ranks

ROOT = Path(__file__).resolve().parents[1]


def test_default_is_one_for_correct_and_zero_for_every_other_scored_status():
    for status in STATUSES - UNSCORED:
        assert reward(Verdict(status)) == float(status == "correct")


def test_unsupported_is_no_way_out_of_a_zero():
    """Code of its own that the executor lacks is worth 0; where the task is what can't be judged, nothing."""
    assert (
        reward(Verdict("unsupported", stage="run")) == reward(Verdict("unsupported", stage="record")) == 0.0
    )
    assert reward(Verdict("unsupported", stage="task")) is None
    assert not Verdict("unsupported", stage="run").judged and Verdict("wrong_value").judged


def test_unscored_verdicts_leave_the_batch_whatever_the_options():
    options = RewardConfig(partial=0.5, speed=1.0)
    assert [reward(Verdict(status), options) for status in sorted(UNSCORED)] == [None] * 2


def test_partial_credit_grows_with_the_stage_and_never_pays_a_cheat():
    options = RewardConfig(partial=0.5)
    got = {status: reward(Verdict(status), options) for status in STATUSES - UNSCORED}
    assert got["correct"] == 1 and got["wrong_value"] == 0.5
    assert (
        got["compile_error"]
        < got["runtime_error"]
        < got["wrong_shape"]
        < got["wrong_dtype"]
        < got["wrong_value"]
    )
    for cheat in (
        "no_code",
        "syntax_error",
        "rule_violation",
        "too_fast",
        "input_modified",
        "timeout",
        "crashed",
        "output_limit",
        "memory_limit",
    ):
        assert got[cheat] == 0
    assert set(PROGRESS) <= STATUSES


def test_speed_is_paid_to_the_correct_only_above_the_noise_and_below_the_cap():
    options = RewardConfig(speed=0.5, speed_cap=4.0, speed_noise=0.05)
    value = lambda status, s: reward(Verdict(status, speedup=s), options)
    assert value("correct", None) == 1 and value("correct", 0.3) == 1 and value("correct", 1.04) == 1
    assert value("correct", 2.0) == pytest.approx(1.25)
    assert value("correct", 4.0) == value("correct", 1000.0) == 1.5
    assert value("wrong_value", 4.0) == 0
    assert (
        speed(Verdict("correct", speedup=math.inf), 4.0, 0.05)
        == speed(Verdict("correct", speedup=math.nan), 4.0, 0.05)
        == 0
    )


def test_the_noise_of_the_clock_is_a_floor_of_the_std():
    """Rule 12: four right answers whose speed-ups differ by less than the clock can tell must not get unit variance."""
    options = RewardConfig(speed=0.5)
    rewards = [reward(Verdict("correct", speedup=s), options) for s in (1.98, 2.0, 2.0, 2.02)]
    assert (
        options.noise == pytest.approx(reward(Verdict("correct", speedup=1.05000001), options) - 1, rel=1e-4)
        and RewardConfig().noise == 0
    )
    blown, _ = grpo.advantages(rewards, [0] * 4)
    floored, spread = grpo.advantages(rewards, [0] * 4, std_floor=options.noise)
    assert spread.all() and blown.abs().max() > 1 and floored.abs().max() < 0.3
    real = [reward(Verdict("correct", speedup=s), options) for s in (1.0, 2.0, 3.0, 4.0)]
    assert (
        grpo.advantages(real, [0] * 4)[0].tolist()
        == grpo.advantages(real, [0] * 4, std_floor=options.noise)[0].tolist()
    )


def test_the_options_of_the_training_script(monkeypatch):
    cfg = config.parse(train_grpo.Config, ["--partial", "0.25", "--speed", "0.5"])
    value = reward_function(cfg.paid)
    assert (
        value(Verdict("wrong_value"), "", None) == 0.25
        and value(Verdict("correct", speedup=4.0), "", None) == 1.5
    )
    assert value(Verdict("infra_error"), "", None) is None
    with pytest.raises(config.ConfigError, match="--speed needs a GPU and --mode replay"):
        train_grpo.main(cfg, World())
    made = {}
    monkeypatch.setattr(run, "Executor", lambda **options: made.update(options))
    run.make_executor(World(device=torch.device("cuda")), 0, timed=True)
    assert made["time"] and made["device"] == "cuda"


def test_a_timed_candidate_waits_until_sampling_is_over():
    """Its time would be that of a GPU which it shares with the sampler."""
    said, text = [], "```python\nimport triton\nclass ModelNew:\n    pass\n```"

    class Sampler:
        config = SimpleNamespace(max_position_embeddings=64)

        def generate(self, requests, on_finish):
            for i, _ in enumerate(requests):
                on_finish(Sample(i, 0, [1, 2], [-1.0, -1.0], "stop"))
                said.append("sampled")

    class Executor:
        def expect(self, tasks):
            said.append(f"{len(tasks)} tasks expected")

        def submit(self, task, source):
            said.append("submitted")
            done = Future()
            done.set_result(Verdict("correct"))
            return done

    class Tokens:
        has_chat_template, reads_source, eos_ids = False, True, {2}
        encode, decode = lambda self, text: [1], lambda self, ids: text

    executor = Executor()
    for executor.time, order in (
        (False, ["2 tasks expected", *["submitted", "sampled"] * 2]),
        (True, ["sampled", "sampled", "submitted", "submitted"]),
    ):
        said.clear()
        rollout(
            [Task("a", "a"), Task("b", "b")],
            1,
            Sampler(),
            executor,
            Tokens(),
            seeds=[[0], [1]],
            clock=said.append,
        )
        assert [s for s in said if s not in ("sample", "reward")] == order and said[-1] == "reward"


@pytest.mark.parametrize(
    "options",
    [
        {"partial": 1.0},
        {"partial": -0.1},
        {"speed": -1},
        {"speed_cap": 1.0},
    ],
)
def test_impossible_options_are_one_line(options):
    with pytest.raises(ValueError) as error:
        RewardConfig(**options)
    assert "\n" not in str(error.value)


def test_a_users_own_reward_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def reward(verdict, completion, task):\n    return 2.0 * verdict.correct + len(completion)\n"
    )
    assert load_reward(file)(Verdict("correct"), "abc", None) == 5.0


@pytest.mark.parametrize(
    "text, says",
    [
        ("x = 1\n", "must define reward"),
        ("reward = 3\n", "must define reward"),
        ("def reward(verdict): return 1\n", "too many positional"),
        ("def reward(\n", "SyntaxError"),
        ("import nosuchmodule\n", "nosuchmodule"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        (
            "NOISE = -1\ndef reward(v, c, t): return 1\n",
            "NOISE must be a finite number, 0 or above; it is -1",
        ),
        ("NOISE = 'x'\ndef reward(v, c, t): return 1\n", "it is 'x'"),
        (None, "no such reward file"),
    ],
)
def test_an_unusable_reward_file_is_one_line_that_names_it(tmp_path, text, says):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError) as error:
        load_reward(file)
    assert says in str(error.value) and str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_reward_that_raises_is_one_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(verdict, completion, task):\n    return verdict.nothing\n")
    with pytest.raises(config.ConfigError, match=r"mine.py, line 2: AttributeError: .*nothing"):
        load_reward(file)(Verdict("correct"), "abc", None)


def test_a_reward_that_exits_does_not_end_the_run_well(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(verdict, completion, task):\n    raise SystemExit(0)\n")
    with pytest.raises(config.ConfigError, match=r"mine.py, line 2: SystemExit: 0"):
        load_reward(file)(Verdict("correct"), "abc", None)


def test_a_reward_file_finds_itself(tmp_path):
    file = tmp_path / "mine.py"
    text = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass(slots=True)\n"
    text += "class Paid:\n    right: float = 0.5\ndef reward(verdict, completion, task):\n    return Paid().right\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert load_reward(file)(Verdict("correct"), "abc", None) == 0.5


@pytest.mark.parametrize(
    "value, kept",
    [
        ("10**400", "x"),
        ("1", 1.0),
        ("None", None),
        ("True", 1.0),
        ("'good'", "x"),
        ("float('nan')", "x"),
        ("float('inf')", "x"),
        ("[1]", "x"),
        ("{'a': True, 'b': 0.5}", {"a": 1.0, "b": 0.5}),
        ("{}", "x"),
        ("{'a': None}", "x"),
        ("{'a': float('nan')}", "x"),
        ("{'a': {'b': 1.0}}", "x"),
        ("{1: 1.0}", "x"),
        ("{'': 1.0}", "x"),
    ],
)
def test_what_a_users_reward_returns_is_checked(tmp_path, value, kept):
    file = tmp_path / "mine.py"
    file.write_text(f"def reward(verdict, completion, task):\n    return {value}\n")
    if kept == "x":
        with pytest.raises(
            config.ConfigError, match=r"mine.py: reward\(\) must return a finite number, a dict"
        ):
            load_reward(file)(Verdict("correct"), "abc", None)
    else:
        assert load_reward(file)(Verdict("correct"), "abc", None) == kept


# ---- parts

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
    lengths, speeds = ("", "x" * 100, "x" * 99999), (None, 0.2, 1.04, 1.5, 4.0, 1e9)
    for status in STATUSES:
        for text in lengths:
            values = [total(worth(Verdict(status, speedup=s), text, None)) for s in speeds]
            if status == "correct":
                assert values == sorted(values) and values[0] >= 1 and values[-1] <= 1.6
                assert values[0] == values[1] == values[2] < values[3] < values[4] == values[5]
            elif status in UNSCORED:
                assert values == [None] * 6
            else:
                assert len(set(values)) == 1 and 0 <= values[0] <= 0.2
    short, long = (worth(Verdict("correct"), text, None)["brevity"] for text in lengths[1:])
    assert short > long == 0
    assert worth.noise == pytest.approx(RewardConfig(speed=0.5).noise)
