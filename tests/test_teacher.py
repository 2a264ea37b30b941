"""The teacher with habits: how often it is wrong, that it is the same each time, and that its mistakes are mistakes."""

import train_sft
from nanotriton.executor import Executor
from nanotriton.tasks.grammar import OPS
from nanotriton.tasks.prompt import DEFAULT
from nanotriton.tasks.synthetic import generate
from nanotriton.tasks.teacher import habits, taught


def test_every_third_map_has_a_habit_of_its_kind():
    maps = {op.name: op for op in OPS if op.kind == "map" and not op.operand}
    assert len(habits()) == -(-len(maps) // 3) and habits().keys() <= maps.keys()
    for name, other in habits().items():
        assert (
            other.name != name and not other.operand and bool(other.constants) == bool(maps[name].constants)
        )


def test_without_habits_the_teacher_writes_the_right_solution():
    for task in generate("sft", 40, 0):
        assert taught(task, share=0.0).solution == task.solution


def test_it_is_wrong_as_often_as_it_says_and_the_same_each_time():
    tasks = generate("sft", 600, 0)
    pairs = [(task, taught(task)) for task in tasks]
    wrong = [task for task, pair in pairs if pair.solution != task.solution]
    assert 0.22 < len(wrong) / len(tasks) < 0.34
    assert all(habits().keys() & set(task.meta["ops"]) for task in wrong)
    assert [pair.solution for _, pair in pairs] == [taught(task).solution for task in tasks]
    assert all(pair.source == task.source for task, pair in pairs)


def test_its_mistakes_are_wrong_and_the_rest_is_right():
    tasks = generate("sft", 24, 1)
    expected = ["correct" if taught(t).solution == t.solution else "wrong_value" for t in tasks]
    assert set(expected) == {"correct", "wrong_value"}
    with Executor(workers=1, seed=0) as executor:
        futures = [executor.submit(task, taught(task).solution) for task in tasks]
        assert [f.result().status for f in futures] == expected


def test_sft_trains_on_the_teacher_that_is_named():
    config = dict(examples=40, eval_tasks=4, seed=0)
    exact, _, _ = train_sft.data_sets(train_sft.Config(**config), DEFAULT)
    wrong, _, _ = train_sft.data_sets(train_sft.Config(teacher="habits", **config), DEFAULT)
    assert [prompt for prompt, _ in exact] == [prompt for prompt, _ in wrong]
    assert 0 < sum(a != b for a, b in zip(exact, wrong)) < 40
