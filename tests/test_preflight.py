"""Tasks are checked before anything is trained: what is wrong with each is said, and the others are kept."""

import json

import pytest

from nanotriton import config
from nanotriton.executor.__main__ import main
from nanotriton.executor.common import probe
from nanotriton.executor.preflight import NO_VALUES, POLICY, Finding, finding, preflight
from nanotriton.log import Log
from nanotriton.options import JudgeOptions
from nanotriton.parallel.world import World
from nanotriton.runs.preflight import FILE, GivenTasks, fit_tasks
from nanotriton.tasks.task import Task, find_tasks
from nanotriton.verdict import STATUSES, Verdict

GOOD = probe.TASK["source"]
LAST = "return x * 2 + 1"
# what is done to a good task -> a word of the reason that is given
BAD = {
    "inputs_on_a_gpu": (("torch.randn(", "torch.zeros(1, device='cuda') + torch.randn("), "on the CPU"),
    "missing_import": (("class Model", "import no_such_package\n\n\nclass Model"), "No module named"),
    "wrong_arity": (("def forward(self, x)", "def forward(self, x, y)"), "missing 1 required"),
    "too_large": (("torch.randn(", "torch.empty(1 << 33).sum() + torch.randn("), "memory"),
    "dropout": (
        (LAST, "return torch.dropout(x, 0.5, self.training)"),
        "self.eval() at the end of the constructor",
    ),
    "by_name_only": (("def forward(self, x)", "def forward(self, x, *, y)"), "no * before it"),
    "by_name": (
        ("return [torch.randn(4, 33)]", "return {'z': torch.randn(4, 33)}"),
        "a dict has arguments by name",
    ),
    "configured": (("return []", "return [Model]"), "the constructor takes by default may be of any type"),
    "random": ((LAST, f"x = x + torch.rand_like(x)\n        {LAST}"), "draws random numbers"),
    "weak": ((LAST, "return torch.zeros_like(x)"), "zeros would pass"),
    "reads_values": ((LAST, "return x if x.sum().item() > 0 else 2 * x"), NO_VALUES),
    "decides": ((LAST, "return x if x.max() > 0 else 2 * x"), f"int(), float(), if): {NO_VALUES}"),
    "no_tensor": ((LAST, "return 'text'"), "must return tensors"),
}


def broken(name: str) -> str:
    (old, new), _ = BAD[name]
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All kinds of bad tasks, two good ones, and files that are none."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "deep").mkdir()
    for name in BAD:
        (folder / f"{name}.py").write_text(broken(name))
    (folder / "good.py").write_text(GOOD)
    (folder / "deep" / "good.py").write_text(GOOD.replace("x * 2 + 1", "x * 3 - 2"))
    (folder / "__init__.py").write_text("")
    (folder / "no_python.py").write_text("class Model(")
    (folder / "helper.py").write_text("SIZE = 3\n")
    return folder


NONE = {"no_python": "not Python", "helper": "lacks Model"}


def test_a_bad_file_does_not_stop_a_folder(folder):
    tasks, others = find_tasks(folder)
    assert [task.name for task in tasks] == sorted([*BAD, "deep/good", "good"])
    assert sorted(others) == sorted(NONE) and all(NONE[name] in others[name] for name in NONE)


def test_a_package_of_tasks_says_so_if_its_init_should_be_one(tmp_path):
    (tmp_path / "__init__.py").write_text(GOOD.replace("def get_inputs", "def inputs"))
    assert "lacks get_inputs" in find_tasks(tmp_path)[1]["__init__"]


@pytest.mark.parametrize("name", [*BAD, "good"])
def test_what_is_wrong_with_a_task_is_said(executors, name):
    task = Task(name, broken(name) if name in BAD else GOOD)
    (found,) = preflight([task], executors(policy=POLICY))
    assert found.fit == (name == "good")
    assert (BAD[name][1] if name in BAD else "") in found.reason


def test_a_module_whose_recording_leaves_something_out_stays(executors):
    """torch's batch norm updates its averages in a way that no recording of calls shows; a kernel may do it."""
    layer = "    def __init__(self):\n        super().__init__()\n        self.norm = nn.BatchNorm1d(33)\n\n"
    source = GOOD.replace("    def forward", f"{layer}    def forward", 1).replace(
        LAST, "return self.norm(x)"
    )
    (found,) = preflight([Task("norm", source)], executors(policy=POLICY))
    assert found.fit and "wrong_value" in found.reason and "running_mean" in found.reason
    assert "self.eval() at the end of the constructor" in found.reason
    source = source.replace("BatchNorm1d(33)\n", "BatchNorm1d(33)\n        self.eval()\n")
    assert preflight([Task("norm", source)], executors(policy=POLICY)) == [Finding(fit=True)]


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_no_verdict_of_ours_is_held_against_a_task(status):
    found = finding(Verdict(status, message="because"))
    assert found.fit == (Verdict(status).scored or status == "infra_error")
    assert bool(found.reason) == (status != "correct")
    assert not finding(Verdict("timeout", stage="task")).fit


# ---- from a shell


def test_from_a_shell_every_task_has_a_line(folder, capsys):
    assert main([str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    names = sorted([*BAD, *NONE, "deep/good", "good"])
    assert [line.split(": ")[0] for line in lines[:-1]] == sorted(f"{folder}/{name}.py" for name in names)
    assert [line for line in lines if line.endswith(": ok")] == [
        f"{folder}/deep/good.py: ok",
        f"{folder}/good.py: ok",
    ]
    assert lines[-1] == f"2 of {len(names)} tasks are fit"


@pytest.mark.slow
def test_one_task_or_several_are_asked_for(folder, capsys):
    assert main([str(folder / "good.py")]) == 0
    assert capsys.readouterr().out == f"{folder}/good.py: ok\n"
    assert main(["--tasks", str(folder / "good.py"), str(folder / "helper.py"), "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["task"], row["fit"]) for row in rows] == [
        (str(folder / "good.py"), True),
        (str(folder / "helper.py"), False),
    ]


# ---- in a run


class Quiet(Log):
    """A run as far as the preflight knows one."""

    world, continued = World(), False

    def __init__(self, folder):
        super().__init__(folder)
        self.said = []

    def say(self, *words):
        self.said.append(" ".join(map(str, words)))


def test_a_run_trains_on_what_is_left_and_says_so(folder, tmp_path):
    run = Quiet(tmp_path)
    given = [GivenTasks("--tasks", str(folder)), GivenTasks("--heldout", "")]
    own, heldout = fit_tasks(given, run, JudgeOptions())
    assert [task.name for task in own] == ["deep/good", "good"] and heldout == []
    said = "\n".join(run.said)
    for name, word in NONE.items() | {name: word for name, (_, word) in BAD.items()}.items():
        (line,) = [line for line in run.said if line.startswith(f"  {name}: left out: ")]
        assert word in line
    assert f"trains on 2 of {len(BAD) + 4} tasks" in said
    assert len(run.read(FILE)) == len(BAD) + 4


def test_a_continued_run_keeps_its_tasks(folder, tmp_path, monkeypatch):
    """A task that takes too long on a busy day must not change what a run trains on."""
    run = Quiet(tmp_path)
    given = [GivenTasks("--tasks", str(folder))]
    rows = [
        {"option": "--tasks", "task": name, "fit": name == "weak", "reason": ""}
        for name in (task.name for task in given[0].tasks)
    ] + [{"option": "--tasks", "task": name, "fit": False, "reason": "x"} for name in NONE]
    run.append(FILE, rows)
    run.continued = True
    monkeypatch.setattr("nanotriton.runs.preflight.preflight", None)
    assert [task.name for task in fit_tasks(given, run, JudgeOptions())[0]] == ["weak"]


def test_a_continued_run_that_does_not_know_a_task_examines_all(folder, tmp_path):
    """Such as one that another version began, which named the rows of a file otherwise."""
    run = Quiet(tmp_path)
    run.append(FILE, [{"option": "--tasks", "task": "good", "fit": False, "reason": "x"}])
    run.continued = True
    own = fit_tasks([GivenTasks("--tasks", str(folder))], run, JudgeOptions(), look=False)[0]
    assert "good" in [task.name for task in own]
    assert len(run.read(FILE)) == len(BAD) + 4


def test_a_run_without_a_task_stops(tmp_path):
    file = tmp_path / "only.py"
    file.write_text(broken("weak"))
    run = Quiet(tmp_path / "run")
    with pytest.raises(config.ConfigError, match=r"--heldout .*only\.py: no task in it can be judged"):
        fit_tasks([GivenTasks("--heldout", str(file))], run, JudgeOptions())
    assert "zeros would pass" in run.said[1]


def test_two_ranks_agree_on_the_tasks(folder, tmp_path, monkeypatch):
    """Each checks its share, and both hear of all."""
    given = GivenTasks("--tasks", str(folder))
    names = [task.name for task in given.tasks]
    of_rank_1 = [("--tasks", name) for name in names[1::2]], [Finding(True)] * len(names[1::2])

    class RankZero(World):
        def gather(self, x):
            return [x, of_rank_1]

    checked = []

    def all_are_fit(tasks, executor):
        checked.extend(task.name for task in tasks)
        return [Finding(True)] * len(tasks)

    monkeypatch.setattr("nanotriton.runs.preflight.preflight", all_are_fit)
    run = Quiet(tmp_path)
    run.world = RankZero(rank=0, world_size=2)
    (found,) = fit_tasks([given], run, JudgeOptions())
    assert checked == names[::2] and [task.name for task in found] == names


def test_a_folder_without_a_task_is_a_mistake_at_once(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    with pytest.raises(config.ConfigError, match="it holds no task"):
        GivenTasks("--tasks", str(tmp_path))
    (tmp_path / "half.py").write_text("class Model:\n    pass\n")
    with pytest.raises(config.ConfigError, match=r"no task in this folder; half\.py: .* lacks get_inputs"):
        GivenTasks("--tasks", str(tmp_path))


def test_without_a_preflight_every_task_is_taken(folder, tmp_path):
    run = Quiet(tmp_path)
    given = [GivenTasks("--tasks", str(folder)), GivenTasks("--heldout", "")]
    own, _ = fit_tasks(given, run, JudgeOptions(), look=False)
    assert [task.name for task in own] == sorted([*BAD, "deep/good", "good"])
    assert not any(line.startswith("checking") for line in run.said)
    assert any("no_python: left out: not Python" in line for line in run.said)
