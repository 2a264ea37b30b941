"""--ahead: the next step is sampled while this one is judged, from weights that are one step older."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

import train_grpo
from nanotriton.config import ConfigError
from nanotriton.reward.reward import reward_function
from nanotriton.rollout import Episode
from nanotriton.runs.report import Update
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict
from tests.ranks import Ranks

TASKS = [Task(f"t{i}", f"source {i}") for i in range(40)]


def run(monkeypatch, steps: int, **options):
    """-> (samples of each step, what happened in order: "sampled by weights of step i", "judged", "learned")."""
    cfg = train_grpo.Config(prompts=4, group=2, steps=steps, epochs=1, updates=2, **options)
    weights, happened, firsts = SimpleNamespace(step=0), [], []

    class Slow(Future):
        def result(self):
            happened.append("judged")
            return Verdict("correct")

    def rollout(tasks, n, *_, seeds, **__):
        happened.append(f"sampled by weights of step {weights.step}")
        groups = [[Episode(t, [1], [s % 97], [-1.0], "stop") for s in row] for t, row in zip(tasks, seeds)]
        groups[0][0].pending = Slow()
        return groups

    def update(episodes, trainer, clock, first):
        firsts.append(first)
        return Update(0.0, 0.0, [])

    monkeypatch.setattr(train_grpo, "rollout", rollout)
    monkeypatch.setattr(train_grpo, "update_policy", update)
    idle = SimpleNamespace(free=lambda: None, model=None, param_groups=[])
    world, reward = Ranks(1).world(0), reward_function(cfg.paid)
    trainer = train_grpo.Trainer(cfg, world, TASKS, reward, None, None, None, idle, idle, None)
    samples = []
    for step in range(steps):
        done = train_grpo.grpo_step(step, trainer)
        assert done.episodes[0].verdict.correct and done.episodes[0].pending is None
        samples.append([(e.group, e.task.name, *e.ids) for e in done.episodes])
        weights.step += 1
        happened.append("learned")
    assert trainer.ahead is None
    return samples, happened, firsts


def test_the_same_samples_are_asked_for_one_step_earlier(monkeypatch):
    plain, order, firsts = run(monkeypatch, 3)
    sampled = "sampled by weights of step {}".format
    assert order == [x for step in range(3) for x in (sampled(step), "judged", "learned")]
    assert firsts == [True, False] * 3
    ahead, order, firsts = run(monkeypatch, 3, ahead=True)
    assert ahead == plain  # the tasks and the seeds; with a real sampler the weights differ
    assert order == [
        *(sampled(0), sampled(0), "judged", "learned"),
        *(sampled(1), "judged", "learned"),
        *("judged", "learned"),  # nothing comes after the last step
    ]
    assert firsts == [True, False, False, False, False, False]


@pytest.mark.parametrize("option", [{"resample": 1}, {"time": True}, {"speed": 0.5}, {"loss": "gspo"}])
def test_what_wants_verdicts_at_once_or_forgets_the_weights_does_not_go_with_it(option):
    cfg = train_grpo.Config(ahead=True)
    for part in (cfg, cfg.judge, cfg.paid):
        for name, value in option.items():
            if hasattr(part, name):
                setattr(part, name, value)
    with pytest.raises(ConfigError, match="--ahead: not with"):
        cfg.validate()
