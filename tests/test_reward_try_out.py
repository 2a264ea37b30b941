"""A reward file is tried on made-up verdicts before anything is trained."""

import pytest

import train_grpo
from nanotriton.config import ConfigError
from nanotriton.parallel.world import World
from nanotriton.reward.reward import load_reward
from nanotriton.reward.try_out import completion, made_up, try_out
from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks.task import Task

TASK = Task("level1/relu", "class Model: pass")


@pytest.fixture
def trial(tmp_path):
    def of(body: str, timed: bool = False) -> str:
        file = tmp_path / "mine.py"
        file.write_text("# mine\ndef reward(verdict, completion, task):\n" + body)
        return try_out(load_reward(file), TASK, timed)

    return of


@pytest.mark.parametrize(
    "body, says",
    [
        ("    return 1.0 if verdict.is_right else 0.0", "mine.py, line 3: AttributeError: 'Verdict' object"),
        (
            "    return 1.0 if verdict.correct else verdict.eror",
            "'eror'; a verdict has answer, correct, cost",
        ),
        ("    return verdict.scored and task.level", "'level'; a task has key, meta, name, solution, source"),
        ("    return 'good' if verdict.correct else 0.0", "it returned 'good'"),
        ("    return 1.0 if verdict.correct else float('nan')", "it returned nan"),
        ("    return {'a': verdict.speedup}", "the part 'a' is None"),
        ("    return 1.0 if verdict.scored else [0]", r"it returned \[0\]"),
        # what never ran has no launches and no error, and what has no code has no block of code
        ("    return 1.0 if verdict.correct else -0.1 * verdict.launches", "NoneType"),
        ("    return 1.0 if verdict.correct else 1 / (1 + verdict.max_error)", "NoneType"),
        ("    return len(completion.split('```')[1]) * verdict.scored", "line 3: IndexError"),
        ("    raise SystemExit(0)", "line 3: SystemExit: 0"),
        ("    raise KeyError('two\\nlines')", "KeyError: .two.*lines.$"),
        ("    raise ValueError", "line 3: ValueError$"),
    ],
)
def test_a_mistake_for_any_kind_of_verdict_is_one_line(trial, body, says):
    with pytest.raises(ConfigError, match=says) as error:
        trial(body)
    assert "\n" not in str(error.value)


def test_a_right_one_has_a_speed_where_candidates_are_timed(trial):
    body = "    return verdict.speedup * 1.0 if verdict.correct else 0.0"
    assert trial(body, timed=True) == ""
    with pytest.raises(ConfigError, match="TypeError"):
        trial(body)


def test_the_task_is_the_runs_and_the_completion_holds_a_kernel(trial):
    assert trial("    return {'level1/relu': 1.0}[task.name] * len(completion.split())") == ""
    assert "class ModelNew" in extract_candidate(completion())


def test_they_are_told_apart():
    verdicts = [verdict for verdict, _ in made_up(False)]
    kinds = [(True, True), (False, True), (False, True), (False, False)]
    assert [(v.correct, v.scored) for v in verdicts] == kinds
    assert [v.correct for v, _ in made_up(True) if v.speedup] == [True]


def test_a_missing_return_is_told(trial):
    assert "is a return missing?" in trial("    verdict.correct")
    assert trial("    return 1.0 if verdict.correct else None") == ""


def test_it_comes_before_the_run_has_a_folder(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(verdict, completion, task):\n    return verdict.nothing\n")
    cfg = train_grpo.Config(out=str(tmp_path / "out"))
    cfg.paid.reward = str(file)
    with pytest.raises(ConfigError, match=f"--reward {file}, line 2: .*'nothing'; a verdict has"):
        train_grpo.main(cfg, World())
    assert not (tmp_path / "out").exists()


def test_attributes_of_the_users_own_objects_are_not_listed(trial):
    with pytest.raises(ConfigError) as error:
        trial("    return completion.nothing")
    assert str(error.value).endswith("has no attribute 'nothing'")


@pytest.mark.parametrize("option", ["loss", "advantage"])
def test_a_name_that_only_the_options_know_is_found_before_the_run_has_a_folder(tmp_path, option):
    cfg = train_grpo.Config(out=str(tmp_path / "out"))
    setattr(cfg, option, "mine")
    with pytest.raises(ValueError, match=f"unknown {option} 'mine': "):
        train_grpo.main(cfg, World())
    assert not (tmp_path / "out").exists()
