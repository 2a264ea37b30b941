"""bench.channels.tasks on a CPU: groups, given samples, a curriculum, paired comparison by group, the user's mistakes."""

import contextlib
import json

import pytest

from bench.channels import compare
from bench.channels import tasks as bench
from nanotriton.config import ConfigError
from nanotriton.executor.common import probe
from nanotriton.parallel.world import World
from nanotriton.tasks.sets import read_tasks, tasks_of
from nanotriton.tasks.task import Task, find_tasks

DOUBLE, KERNEL = probe.TASK["source"], probe.CANDIDATE
RIGHT, WRONG = f"```python\n{KERNEL}```", f"```python\n{KERNEL.replace('x * 2 + 1', 'x * 2 + 1.5')}```"


@pytest.fixture(autouse=True)
def shared(monkeypatch, executors):
    monkeypatch.setattr(
        bench, "Executor", lambda device, *, policy, **_: contextlib.nullcontext(executors(policy=policy))
    )


@pytest.fixture
def data(tmp_path):
    """Three tasks in two groups, in a file as collect_data.py writes them."""
    rows = [
        {"name": "a", "task": DOUBLE, "split": "held_out_shape", "meta": {"operators": ["mul", "add"]}},
        {"name": "b", "task": DOUBLE + "\n\n# b\n", "split": "held_out_operator"},
        {"name": "c", "task": DOUBLE + "\n\n# c\n", "split": "held_out_shape"},
    ]
    return written(tmp_path / "heldout.jsonl", rows)


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(tmp_path, data, samples: list[tuple[str, str]], name: str = "r", **options) -> dict:
    rows = [{"task": task, "completion": completion} for task, completion in samples]
    given = written(tmp_path / f"{name}.samples.jsonl", rows)
    cfg = bench.Config(
        data=str(data), samples=str(given), device="cpu", out=str(tmp_path / f"{name}.json"), **options
    )
    cfg.validate()
    assert bench.main(cfg, World()) == 0
    return json.loads((tmp_path / f"{name}.json").read_text())


def test_tasks_are_scored_by_group_and_compared_in_pairs(tmp_path, data):
    first = run(tmp_path, data, [("a", RIGHT), ("a", WRONG), ("b", "no code"), ("c", WRONG)], "first")
    rate = lambda group, result: result["scores"]["strict"][group]["all"]["correct"]["value"]
    assert first["complete"] and first["groups"] == ["held_out_operator", "held_out_shape"]
    assert rate("held_out_shape", first) == pytest.approx(1 / 4)
    assert rate("held_out_operator", first) == 0.0
    assert first["samples"][0]["operators"] == ["mul", "add"]
    assert "held_out_shape" in (tmp_path / "first.md").read_text()
    second = run(tmp_path, data, [("a", RIGHT), ("a", RIGHT), ("b", "no code"), ("c", RIGHT)], "second")
    found = compare.compare(first, second, "strict")
    assert found["groups"]["held_out_shape"]["difference"] == pytest.approx(0.75)
    assert found["groups"]["held_out_operator"]["difference"] == 0.0
    assert "held_out_shape" in compare.markdown(found, ["first", "second"])


def test_a_curriculum_has_what_was_ever_solved_the_easiest_first(tmp_path, data):
    path = tmp_path / "curriculum.jsonl"
    samples = [("a", RIGHT), ("a", WRONG), ("b", WRONG), ("c", RIGHT)]
    run(tmp_path, data, samples, hard_last=str(path))
    tasks, others = find_tasks(path)
    assert [(t.name, t.meta["pass_rate"]) for t in tasks] == [("c", 1.0), ("a", 0.5)] and not others
    assert tasks[1].meta["split"] == "held_out_shape" and tasks[1].source == find_tasks(data)[0][0].source


def test_tasks_that_were_solved_sometimes(tmp_path, data):
    path = tmp_path / "some.jsonl"
    samples = [("a", RIGHT), ("a", WRONG), ("b", RIGHT), ("b", RIGHT), ("c", WRONG), ("c", RIGHT)]
    run(tmp_path, data, samples, sometimes=str(path))
    assert [(t.name, t.meta["pass_rate"]) for t in find_tasks(path)[0]] == [("a", 0.5), ("c", 0.5)]


def test_a_third_of_the_tasks_that_were_never_solved_goes_along():
    problems = [bench.Problem(str(n), "", n, Task(str(n), DOUBLE)) for n in range(303)]
    rates = {"0": 0.5, "1": 1.0} | {str(n): 0.0 for n in range(2, 302)}  # the last one was not judged
    kept, again, other = ([p.name for p in bench.sometimes(problems, rates, seed)] for seed in (0, 0, 1))
    assert kept == again != other
    assert kept[0] == "0" and "1" not in kept and "302" not in kept and 70 <= len(kept) <= 130


def test_folders_are_groups_and_a_limit_counts_in_each(tmp_path):
    for name in ("x/1", "x/2", "y/1"):
        path = tmp_path / "tasks" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{DOUBLE}\n# {name}\n")
    problems = bench.problems_of(find_tasks(tmp_path / "tasks")[0], limit=1)
    assert [(p.name, p.group, p.number) for p in problems] == [("x/1", "x", 0), ("y/1", "y", 2)]


def test_tasks_in_the_order_of_their_file():
    tasks = [Task(str(i), DOUBLE + f"# {i}\n") for i in range(5)]
    given = lambda step: [t.name for _, t in tasks_of(step, tasks, 2, 0, seed=3, order="given")]
    assert [given(step) for step in range(3)] == [["0", "1"], ["2", "3"], ["4", "0"]]


@pytest.mark.parametrize(
    "line, why",
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes at character 2)"),
        ('{"task" "x"}', "not JSON (Expecting ':' delimiter at character 9)"),
        ("[" * 100_000, "its JSON is nested too deeply"),
        ("[1]", "not an object"),
        ('{"prompt": "x"}', 'a row {"task"'),
        ('{"task": "x", "name": ["a"]}', 'its name is no text but ["a"]'),
        ('{"task": "x", "meta": "y", "split": "dev"}', 'its meta is no object but "y"'),
        ('{"task": "x", "meta": [1]}', "its meta is no object but [1]"),
        ('{"task": "class Model(:"}', "not Python: invalid syntax (line 1)"),
        ('{"task": "x = 1", "name": "bad"}', "bad: a task defines Model, get_inputs, get_init_inputs; this"),
        (json.dumps({"task": DOUBLE, "name": "good"}), "a second task named good"),
    ],
)
def test_a_row_that_is_no_task_is_left_out_and_named_whatever_is_wrong_with_it(tmp_path, line, why):
    path = tmp_path / "t.jsonl"
    good = [json.dumps({"task": DOUBLE, "name": "good"}), json.dumps({"task": DOUBLE + "# 2"})]
    path.write_text("\n".join([good[0], "", line, good[1]]))
    tasks, others = find_tasks(path)
    assert [t.name for t in tasks] == ["good", "line 4"] and list(others) == ["line 3"]
    assert others["line 3"].startswith(why) and "\n" not in others["line 3"]


def test_a_file_without_a_single_task_is_refused_with_the_first_reason(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"--tasks \S+t.jsonl: it is empty$"):
        read_tasks("--tasks", str(path))
    path.write_text("\n{\n[]\n")
    with pytest.raises(ConfigError, match=r"t.jsonl: no task in this file; line 2: not JSON \("):
        read_tasks("--tasks", str(path))


def test_a_runs_samples_count_as_often_as_they_were_drawn_and_all_are_taken(tmp_path, data):
    """train_grpo.py writes equal samples once, with their number."""
    rows = [
        {"task": "a", "task_source": DOUBLE, "completion": RIGHT, "count": 6},
        {"task": "a", "task_source": DOUBLE, "completion": "no code", "count": 2},
        {"task": "another", "task_source": "", "completion": RIGHT},
    ]
    given = written(tmp_path / "samples.jsonl", rows)
    cfg = bench.Config(data=str(data), samples=str(given), device="cpu", out=str(tmp_path / "r.json"))
    assert bench.main(cfg, World()) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    scores = found["scores"]["strict"]["held_out_shape"]["all"]
    assert scores["samples"] == 8 and scores["correct"]["value"] == pytest.approx(6 / 8)
    assert bench.Config(data=str(data), model="m").n == 4  # a model is asked for so many
    with pytest.raises(ConfigError, match=r"--samples .* entry 1: count 0: a number of equal samples"):
        bad = written(tmp_path / "bad.jsonl", [rows[0] | {"count": 0}])
        bench.main(bench.Config(data=str(data), samples=str(bad), out=str(tmp_path / "s.json")), World())


def test_mistakes(tmp_path, data):
    for options, message in (
        ({"hard_last": "x.json", "samples": "s"}, "--hard-last x.json: a name that ends in .jsonl"),
        ({"sometimes": "x.txt", "samples": "s"}, "--sometimes x.txt: a name that ends in .jsonl"),
        ({}, "give one of --model FOLDER"),
    ):
        with pytest.raises(ConfigError, match=message):
            bench.Config(data=str(data), out=str(tmp_path / "r.json"), **options).validate()
    with pytest.raises(ConfigError, match="of a task in --data"):
        run(tmp_path, data, [("unknown", RIGHT)])
    with pytest.raises(
        ConfigError, match=r'--samples .*: a .jsonl file with a row {"task": name, .* this is a folder'
    ):
        bench.main(bench.Config(data=str(data), samples=str(tmp_path)), World())
