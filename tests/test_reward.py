"""Verdict to number: defaults, options, what leaves the batch, and a user's own reward file."""

import math
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo
from nanotriton import config, grpo
from nanotriton.parallel.world import World
from nanotriton.reward.execution import PROGRESS, speed
from nanotriton.reward.reward import RewardConfig, load_reward, reward, reward_function
from nanotriton.rollout import judged, rollout
from nanotriton.runs import run
from nanotriton.sampler.sampler import Sample
from nanotriton.tasks.task import Task
from nanotriton.verdict import STATUSES, UNSCORED, Verdict

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


def test_speed_is_paid_to_the_correct_only_and_between_two_ends():
    options = RewardConfig(speed=0.6, slowest=1 / 16, fastest=4.0)
    value = lambda status, s: reward(Verdict(status, speedup=s), options)
    assert value("correct", None) == value("correct", 1 / 16) == value("correct", 1e-9) == 1
    assert [value("correct", s) for s in (0.25, 1.0, 2.0)] == pytest.approx([1.2, 1.4, 1.5])
    assert value("correct", 4.0) == value("correct", 1000.0) == 1.6
    assert value("wrong_value", 4.0) == 0
    for broken in (math.inf, -math.inf, math.nan, 0.0, -1.0):
        assert speed(Verdict("correct", speedup=broken), 1 / 16, 4.0) == 0


def test_answers_that_are_all_slower_than_pytorch_can_be_told_apart():
    options = RewardConfig(speed=1.0)
    rewards = [reward(Verdict("correct", speedup=s), options) for s in (0.2, 0.3, 0.6, 0.9)]
    found, spread = grpo.advantages(rewards, [0] * 4, std_floor=options.noise)
    assert spread.all() and found.tolist() == sorted(found.tolist()) and found[-1] - found[0] > 1


def test_the_noise_of_the_clock_is_a_floor_of_the_std():
    """Rule 12: four right answers whose speed-ups differ by less than the clock can tell must not get unit variance."""
    options = RewardConfig(speed=0.5)
    at = lambda s: reward(Verdict("correct", speedup=s), options)
    rewards = [at(s) for s in (1.98, 2.0, 2.0, 2.02)]
    assert options.noise == pytest.approx(at(1.05) - at(1.0)) and RewardConfig().noise == 0
    blown, _ = grpo.advantages(rewards, [0] * 4)
    floored, spread = grpo.advantages(rewards, [0] * 4, std_floor=options.noise)
    assert spread.all() and blown.abs().max() > 1 and floored.abs().max() < 0.3
    real = [at(s) for s in (1.0, 2.0, 3.0, 4.0)]
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

        def submit(self, task, source, draw):
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
        groups = rollout(
            [Task("a", "a"), Task("b", "b")],
            1,
            Sampler(),
            executor,
            Tokens(),
            seeds=[[0], [1]],
        )
        assert said == order
        assert all(e.verdict.correct for group in judged(groups) for e in group)


@pytest.mark.parametrize(
    "options",
    [
        {"partial": 1.0},
        {"partial": -0.1},
        {"speed": -1},
        {"fastest": 0.05},
        {"slowest": 0.0},
        {"clock": -0.1},
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


def test_a_folder_is_no_reward_file(tmp_path):
    with pytest.raises(ValueError, match="this is a folder; a Python file"):
        load_reward(tmp_path)


def test_a_reward_that_raises_is_one_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(verdict, completion, task):\n    return verdict.nothing\n")
    with pytest.raises(config.ConfigError, match=r"mine.py, line 2: AttributeError: .*nothing"):
        load_reward(file)(Verdict("correct"), "abc", None)


@pytest.mark.parametrize(
    "value, kept",
    [
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
