"""Dynamic sampling inside a GRPO step: dull groups make way for fresh tasks, the same ones on any number of ranks."""

import threading
from itertools import chain
from types import SimpleNamespace

import pytest

import train_grpo
from nanotriton.reward.reward import reward_function
from nanotriton.rollout import Episode
from nanotriton.runs.report import Update
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict
from tests.ranks import Ranks

TASKS = [Task(f"t{i}", f"source {i}") for i in range(40)]


def fake_rollout(tasks, n, *_, seeds, **__):
    """Verdicts that depend on the task and the seed alone: of every fifth task some samples are right, of the others none or all."""

    def episode(task: Task, seed: int, j: int) -> Episode:
        number = int(task.name[1:])
        right = j % 2 == 0 if number % 5 == 0 else number % 2 == 0
        return Episode(
            task,
            [1],
            [seed % 97, 2],
            [-1.0, -1.0],
            "stop",
            verdict=Verdict("correct" if right else "wrong_value"),
        )

    return [[episode(t, s, j) for j, s in enumerate(row)] for t, row in zip(tasks, seeds, strict=True)]


def run(monkeypatch, size: int, **options):
    """One step on `size` ranks -> (all samples as (group, task, ids, reward), the groups of each optimizer step)."""
    cfg = train_grpo.Config(prompts=8, group=2, steps=5, **options)
    ranks, samples, updates = Ranks(size), [], {}

    def update(episodes, trainer, clock, first):
        updates.setdefault(trainer.world.rank, []).append([e.group for e in episodes if e.spread])
        return Update(0.0, 0.0, [])

    monkeypatch.setattr(train_grpo, "rollout", fake_rollout)
    monkeypatch.setattr(train_grpo, "update_policy", update)
    idle = SimpleNamespace(free=lambda: None, model=None, param_groups=[])

    def rank(r: int) -> None:
        reward = reward_function(cfg.paid)
        trainer = train_grpo.Trainer(cfg, ranks.world(r), TASKS, reward, None, None, None, idle, idle, None)
        for e in train_grpo.grpo_step(2, trainer).episodes:
            samples.append((e.group, e.task.name, tuple(e.ids), e.reward))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    return sorted(samples), [
        sorted(chain(*(updates[r][k] for r in range(size)))) for k in range(len(updates[0]))
    ]


def spread(samples) -> set[int]:
    return {i for i, *_ in samples if len({reward for j, _, _, reward in samples if i == j}) > 1}


def test_off_by_default_and_then_replaces_only_the_dull_groups(monkeypatch):
    first, _ = run(monkeypatch, 1)
    assert len(first) == 8 * 2 and 0 < len(spread(first)) < 8
    more, updates = run(monkeypatch, 1, resample=1)
    assert more[: len(first)] == first  # the first round is what it was
    # fresh tasks
    assert (
        len(more) == 2 * (8 + 8 - len(spread(first))) and len({name for _, name, *_ in more}) == len(more) / 2
    )
    # 2 samples each, in 2 epochs
    assert sorted(chain(*updates)) == sorted([i for i in spread(more) for _ in range(2)] * 2)


@pytest.mark.parametrize("rounds", [0, 1, 3, 50])
def test_any_number_of_ranks_draws_and_learns_the_same(monkeypatch, rounds):
    one = run(monkeypatch, 1, resample=rounds)
    assert run(monkeypatch, 3, resample=rounds) == one
    assert len(spread(one[0])) <= 8 and len(one[0]) <= len(TASKS) * 2
    if rounds == 50:  # of 40 tasks 8 have spread: they are found, or all were tried
        assert len(spread(one[0])) == 8 or len(one[0]) == len(TASKS) * 2


def test_each_round_asks_for_the_missing_groups_only_and_the_step_is_never_padded(monkeypatch):
    asked, plain = [], fake_rollout

    def counted(tasks, *args, **options):
        asked.append(len(tasks))
        return plain(tasks, *args, **options)

    monkeypatch.setitem(globals(), "fake_rollout", counted)  # the name that run() reads
    samples, _ = run(monkeypatch, 1, resample=2)
    found = [len(spread([s for s in samples if s[0] < sum(asked[: k + 1])])) for k in range(3)]
    assert asked == [8, 8 - found[0], 8 - found[1]]
    assert len(samples) == 2 * sum(asked) and found[2] < 8
