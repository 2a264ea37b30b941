"""What the console says: the commonest verdict, groups without spread, how long it takes, and where to look."""

import doctest
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo
import train_sft
from nanotriton import heldout, log
from nanotriton.parallel.world import World
from nanotriton.rollout import Episode
from nanotriton.runs import advice
from nanotriton.runs.advice import AGAIN, Advice, commonest
from nanotriton.runs.report import Step, Update, report
from nanotriton.runs.run import Clock, Run
from nanotriton.tasks.task import Task
from nanotriton.verdict import STATUSES, Verdict
from tests.ranks import Ranks

ROOT = Path(__file__).resolve().parents[1]


def test_durations_are_short():
    assert doctest.testmod(log).failed == 0
    assert [log.duration(s) for s in (0, 59.1, 60, 3599, 86399)] == ["0s", "1m", "1m", "1h00m", "1d00h"]


def episodes(*groups: list[tuple[str, float | None]]) -> list[Episode]:
    """Samples with these (status, reward)s, group by group, as set_advantages() leaves them."""
    made = []
    for number, members in enumerate(groups):
        spread = len({reward for _, reward in members if reward is not None}) > 1
        for status, reward in members:
            stage = "task" * (status == "unsupported" and reward is None)
            verdict = Verdict(status, stage, f"all about {status}" * (status != "correct"))
            made.append(
                Episode(
                    Task("t", "s"), [1], [2], [-1.0], "stop", verdict=verdict, group=number, reward=reward
                )
            )
            made[-1].spread = spread
    return made


@pytest.fixture
def said(tmp_path, capsys):
    """A function: report these episodes as step `step` of a new run, or of the one before -> the console."""
    run = Run(train_sft.Config(out=str(tmp_path)), World(), "grpo")

    def console(samples: list[Episode], step: int = 1, **stats: float) -> str:
        capsys.readouterr()
        run.next_line = 0.0  # as if the step before had taken its time
        names = {"tokens": 0.0, "entropy": 1.0} | stats
        found = {name: torch.tensor([value, 1.0]) for name, value in names.items()}
        report(run, step, train_grpo.Config(steps=9), Step(samples, [Update(0.0, 0.0, [found])], Clock()))
        return capsys.readouterr().out

    console.run = run
    return console


RIGHT, WRONG, CODELESS = ("correct", 1.0), ("wrong_value", 0.0), ("no_code", 0.0)


def test_the_line_names_the_commonest_verdict_and_groups_without_spread(said):
    line = said(episodes([RIGHT, WRONG], [WRONG, WRONG], [CODELESS, RIGHT], [WRONG, WRONG]))
    assert line.count("\n") == 1
    assert re.match(
        r"grpo    1/9  eta \d+\w+  mostly wrong_value 0\.62  reward 0\.250  no_spread 0\.500", line
    )
    (row,) = said.run.read()
    assert row["no_spread"] == 0.5 and row["spread"] == 0.5 and "note" not in row
    assert row["pass_at_k"] == 0.5


def test_the_kl_to_the_reference_has_its_name_on_the_console(said):
    assert "kl" not in said(episodes([RIGHT, WRONG]))
    assert "kl_ref 0.250" in said(episodes([RIGHT, WRONG]), 2, kl_ref=0.25)


def test_a_step_without_spread_says_what_to_look_at_and_not_each_time(said):
    dull = episodes([CODELESS, CODELESS], [WRONG, CODELESS])
    for sample in dull[:2]:
        sample.finish_reason = "length"
    told = said(dull).splitlines()[1]
    assert "no group has rewards that differ, so nothing is learned (mean 0): 75% are no_code" in told
    assert '("all about no_code")' in told and "50% were cut at --max-tokens" in told and advice.PAGE in told
    assert all(said(dull, step).count("\n") == 1 for step in range(2, 1 + AGAIN))
    assert advice.PAGE in said(dull, 1 + AGAIN)
    assert "are wrong_value" in said(episodes([WRONG, WRONG]), 2 + AGAIN)  # another reason is told at once
    assert said(episodes([RIGHT, WRONG], [WRONG, WRONG]), 3 + AGAIN).count("\n") == 1


def test_a_step_in_which_nothing_is_scored_says_so(said):
    told = said(episodes([("unsupported", None)] * 2, [("weak_task", None), ("unsupported", None)]))
    assert "scored 0.000" in told and "no sample has a reward: 75% are unsupported" in told
    (row,) = said.run.read()
    assert math.isnan(row["reward"]) and "reward nan" in told  # 0 would be a score


def test_a_reward_that_forgets_to_return_is_told_and_not_blamed_on_the_judge(said):
    told = said(episodes([("correct", None), ("wrong_value", None)], [("correct", None)] * 2))
    assert "your reward() returned None for all samples: 75% are correct; docs/" in told


def test_samples_without_a_reward_are_told_beside_groups_without_spread(said):
    """A reward() that returns nothing for a wrong answer teaches nothing, and its mean looks perfect."""
    members = [RIGHT, ("wrong_value", None), ("wrong_value", None), ("wrong_value", None)]
    told = said(episodes(members))
    assert "nothing is learned (mean 1; 75% of the samples have no reward at all): 75% are wrong" in told
    fewer = [RIGHT, ("wrong_value", None), ("wrong_value", None)]
    assert said(episodes(fewer), step=2).count("\n") == 1  # the same again, whatever its numbers are
    assert said(episodes(fewer), step=1 + AGAIN).count("\n") == 2


def test_samples_that_were_all_masked_for_their_length_are_told(said):
    cut = episodes([("no_code", None), ("no_code", None)])
    for sample in cut:
        sample.finish_reason = "length"
    assert "all were cut at --max-tokens (--truncated mask leaves them out): 100% are no_code" in said(cut)


def test_equal_rewards_that_are_imitated_are_no_problem(said):
    """--advantage rejection has tokens to learn from, but the groups have no spread all the same."""
    line = said(episodes([RIGHT, RIGHT]), tokens=5.0)
    assert line.count("\n") == 1 and "no_spread 1.000" in line


def test_all_right_is_nothing_to_learn_from_either(said):
    assert "(mean 1): 100% are correct;" in said(episodes([RIGHT, RIGHT]))


def test_messages_of_all_ranks_count_and_are_short():
    mine = episodes([CODELESS])

    class OfTwo(World):
        def gather(self, x):
            return [x, {"two\nlines " + "x" * 200: 2}]

    numbers = {"scored": 0, "statuses": {"no_code": 3}, "truncated": 0.0}
    told = Advice().of(1, mine, numbers, OfTwo())
    assert '("two lines xxx' in told and "..." in told and len(told) < 300
    assert commonest({"b": 2, "a": 2, "c": 1}) == ("a", 0.4)


def test_a_rank_none_of_whose_samples_has_a_reward_is_named():
    """Its executor fails, and the others train on."""
    ranks, failed = Ranks(3), ("infra_error", None)
    mine = [episodes([RIGHT, WRONG]), episodes([failed, failed], [failed, CODELESS]), episodes([failed] * 2)]
    mine[1][-1].verdict = Verdict("weak_task")
    numbers = {
        "scored": 0.25,
        "no_spread": 0.5,
        "statuses": {"infra_error": 5, "correct": 1},
        "truncated": 0.0,
    }
    told = [Advice() for _ in range(3)]

    def of(step: int) -> str:
        with ThreadPoolExecutor(3) as pool:
            lines = list(pool.map(lambda r: told[r].of(step, mine[r], numbers, ranks.world(r)), range(3)))
        assert len(set(lines)) == 1
        return lines[0]

    line = of(1)
    assert re.search(
        r"no sample of rank 1 \(\S+\) has a reward: 75% are infra_error "
        r'\("all about infra_error"\) \(2 ranks in all\)',
        line,
    )
    assert "\n" not in line and of(2) == "" and of(1 + AGAIN) == line
    numbers["scored"] = 1.0
    assert of(2 + AGAIN) == ""


def test_the_page_has_a_line_for_every_verdict():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / advice.PAGE).read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(STATUSES)


def test_every_name_on_the_console_is_in_the_glossary(said):
    """The names stand before their numbers."""
    line = said(
        episodes([RIGHT, WRONG], [WRONG, ("infra_error", None)]),
        tokens=3.0,
        kl_sampler=0.1,
        clip_fraction=0.1,
        kl_ref=0.1,
    )
    line += "  sft    1/6  loss 6.964  norm 2.392  lr 0.004"
    names = set(re.findall(r"(?<=  )(\w+) [\d.e-]+", line)) | {"eta", "mostly"}
    assert {"reward", "scored", "no_spread", "kl_ref", "kl_sampler", "clip_fraction", "norm", "lr"} <= names
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert sorted(name for name in names if f"`{name}`" not in glossary) == []


def test_held_out_success_of_which_nothing_was_judged_is_no_number(monkeypatch):
    """A 0 of ours would look as if the model had unlearned all."""
    failed = SimpleNamespace(verdict=Verdict("infra_error"), row=lambda *_: {})
    monkeypatch.setattr(heldout, "rollout", lambda tasks, count, *_, **__: [[failed] * count for _ in tasks])
    monkeypatch.setattr(heldout, "judged", lambda groups: groups)
    run = SimpleNamespace(world=World(), samples=list)
    without = dict.fromkeys(["sampler", "executor", "tokenizer"])
    found = heldout.heldout(run, [Task("t", "")] * 2, step=1, split="test", max_tokens=1, seed=0, **without)
    assert math.isnan(found["success"]) and math.isnan(found["greedy"])
    assert found["success_n"] == 0 and found["statuses"] == {"infra_error": 4}
