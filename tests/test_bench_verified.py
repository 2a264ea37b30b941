"""KernelBench-Verified's columns: hidden inputs from a clone, and the baseline in TF32."""

import contextlib
import json
from concurrent.futures import Future

import pytest
import torch

from bench.channels import compiled, kernelbench, verified
from nanotriton.config import ConfigError
from nanotriton.executor import Executor
from nanotriton.executor.common import probe
from nanotriton.parallel.world import World
from nanotriton.tasks.kernelbench import Problem
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

DOUBLE, KERNEL = probe.TASK["source"], probe.CANDIDATE
HEAD = '''"""Hidden inputs of a problem, in the benchmark's layout."""
import torch


def _get_inputs():
    raise FileNotFoundError("the problem's own file, which lies elsewhere")


def _scale(inputs, factor):
    return [t * factor if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in inputs]


def get_hidden_inputs():
    configs = []
'''
LISTS = [
    "configs.append(_get_inputs())",
    "configs.append(_scale(_get_inputs(), 5.0))",
    "configs.append(_scale(_get_inputs(), -1.0))",
    "other = _get_inputs()\n    other[0][::2] = -7.0\n    configs.append(other)",
]


def clone(folder, lists=LISTS, problem="1"):
    path = folder / "hidden_tests" / "level1" / f"{problem}_hidden.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + "".join(f"    {line}\n" for line in lists) + "    return configs\n")
    return folder


def inputs_of(task: Task) -> list:
    names: dict = {}
    exec(task.source, names)
    torch.manual_seed(0)
    return names["get_inputs"]()


def test_each_list_but_the_problems_own_is_a_task(tmp_path):
    problem = Problem(1, 1, Task("1_Double", DOUBLE))
    folder = verified.check_folder(str(clone(tmp_path)))
    assert verified.check_folder(str(folder)) == folder
    found = verified.variants(folder, problem)
    assert [variant.label for variant in found] == ["x5", "x-1", "inputs 4"]
    (plain,) = inputs_of(problem.task)
    for variant, expected in zip(found, (5 * plain, -plain, None)):
        (got,) = inputs_of(variant.task)
        if expected is None:  # what the file makes of the problem's inputs, after three other draws of them
            assert got.shape == plain.shape and (got[::2] == -7.0).all() and (got[1::2] != -7.0).all()
        else:
            assert torch.equal(got, expected)
    assert len({problem.task.key, *(variant.task.key for variant in found)}) == 4


@pytest.mark.parametrize(
    ("lists", "said"),
    [(None, "cannot read: No such file"), (["pass"], "no get_hidden_inputs"), (["("], "no Python")],
)
def test_a_clone_of_another_form_is_one_line(tmp_path, lists, said):
    clone(tmp_path, lists or LISTS, "1" if lists else "2")
    with pytest.raises(ConfigError, match=said) as error:
        verified.variants(tmp_path / "hidden_tests", Problem(1, 1, Task("t", DOUBLE)))
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="give a clone of KernelBench-Verified"):
        verified.check_folder(str(tmp_path / "elsewhere"))


def test_right_is_who_is_right_everywhere():
    right, wrong, weak = Verdict("correct"), Verdict("wrong_value", message="5 is 4"), Verdict("weak_task")
    assert verified.joined(right, {"x5": right, "x-1": weak}) == right
    failed = verified.joined(right, {"x5": right, "x-1": wrong})
    assert (failed.status, failed.message) == ("wrong_value", "on inputs x-1: 5 is 4")
    assert verified.joined(wrong, {}) == wrong


def lay_out(tmp_path, candidates, **options):
    problem = tmp_path / "clone" / "level1" / "1_Double.py"
    problem.parent.mkdir(parents=True)
    problem.write_text(DOUBLE)
    rows = [{"level": 1, "problem_id": 1, "candidate": c} for c in candidates]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return kernelbench.Config(
        data=str(tmp_path / "clone"),
        levels=[1],
        samples=str(tmp_path / "s.jsonl"),
        device="cpu",
        workers=1,
        out=str(tmp_path / "r.json"),
        verified=str(clone(tmp_path / "verified")),
        **options,
    )


@pytest.mark.slow
def test_a_right_candidate_is_judged_on_every_hidden_input_and_a_wrong_one_on_none(tmp_path, monkeypatch):
    judged = []

    class Counted(Executor):
        def submit(self, task, source):
            judged.append(task.name)
            return super().submit(task, source)

    monkeypatch.setattr(kernelbench, "Executor", Counted)
    cfg = lay_out(tmp_path, [KERNEL, KERNEL.replace("x * 2 + 1", "x * 2")], policy=["strict", "none"])
    assert kernelbench.main(cfg, World()) == 0
    rows = json.loads((tmp_path / "r.json").read_text())["samples"]
    on_hidden = dict.fromkeys(["x5", "x-1", "inputs 4"], "correct")
    assert [row["hidden"] for row in rows] == [
        dict.fromkeys(["strict", "none"], on_hidden),
        {"strict": {}, "none": {}},
    ]
    # the looser policy runs the same code, so that it has its verdicts from the stricter one
    assert sorted(judged) == sorted(["1_Double"] * 2 + [f"1_Double {label}" for label in on_hidden])
    judged.clear()
    assert kernelbench.main(cfg, World()) == 0 and judged == []


def test_who_fails_on_hidden_inputs_is_not_right_in_the_columns(tmp_path, monkeypatch):
    class Canned:
        """Judges every second candidate wrong where the inputs are negated."""

        def submit(self, task, source):
            wrong = task.name.endswith("x-1") and source.endswith("# 1\n")
            verdict = (
                Verdict("wrong_value", "judge", "far off")
                if wrong
                else Verdict("correct", time_us=50.0, reference_us=100.0, speedup=2.0)
            )
            (future := Future()).set_result(verdict)
            return future

    monkeypatch.setattr(kernelbench, "Executor", lambda *_, **__: contextlib.nullcontext(Canned()))
    times = lambda tasks, folder, device, way: {task.key: {"us": 30.0} for task in tasks}
    monkeypatch.setattr(compiled, "times", times)
    cfg = lay_out(tmp_path, [f"{KERNEL}# {i % 2}\n" for i in range(4)], policy=["strict"], tf32_baseline=True)
    with pytest.raises(ConfigError, match="--tf32-baseline times TF32 on a GPU"):
        cfg.validate()
    assert kernelbench.main(cfg, World()) == 0
    results = json.loads((tmp_path / "r.json").read_text())
    assert results["scores"]["strict"]["all"]["all"]["correct"]["value"] == 1.0
    tf32 = kernelbench.BASELINES["tf32"]
    assert results["verified"].keys() == {"", tf32}
    hidden = results["verified"][tf32]["strict"]["all"]["all"]
    assert hidden["correct"]["value"] == 0.5 and hidden["timed"] == 2
    assert hidden["speedup"]["value"] == pytest.approx(0.6) and hidden["pass_at_k"]["2"][
        "value"
    ] == pytest.approx(5 / 6)
    assert hidden["statuses"] == {"correct": 2, "wrong_value": 2}
    table = (tmp_path / "r.md").read_text()
    assert f"| KernelBench-Verified, against {tf32} |" in table and "50.0" in table


def test_the_baseline_in_tf32_is_torchs_switch_and_it_is_put_back():
    seen = []
    model = lambda x: seen.append(torch.get_float32_matmul_precision()) or x
    before = torch.get_float32_matmul_precision()
    assert compiled.in_tf32(model)(3) == 3 and seen == ["high"]
    with pytest.raises(ZeroDivisionError):
        compiled.in_tf32(lambda x: x / 0)(1)
    assert torch.get_float32_matmul_precision() == before
    assert set(compiled.FASTER) == set(compiled.FILES) == set(kernelbench.BASELINES)


def test_verdicts_on_hidden_inputs_make_no_problem_weak(tmp_path, monkeypatch):
    class Weak:
        def submit(self, task, source):
            (future := Future()).set_result(Verdict("weak_task" if "x5" in task.name else "correct"))
            return future

    monkeypatch.setattr(kernelbench, "Executor", lambda *_, **__: contextlib.nullcontext(Weak()))
    cfg = lay_out(tmp_path, [KERNEL], policy=["strict"])
    assert kernelbench.main(cfg, World()) == 0
    results = json.loads((tmp_path / "r.json").read_text())
    assert results["samples"][0]["weak"] is None
    assert results["verified"][""]["strict"]["all"]["fair"]["correct"]["value"] == 1.0
