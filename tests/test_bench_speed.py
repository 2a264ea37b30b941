"""Baselines and clocks without a GPU: torch.compile's times with a stopwatch of the test's, TritonBench's scripts as tasks of the executor."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from bench.channels import agreement, compiled, eval_throughput, kernelbench, perf, tritonbench
from bench.channels.journal import Journal
from nanotriton import config
from nanotriton.config import ConfigError
from nanotriton.executor import Executor, Verdict
from nanotriton.executor.common import probe
from nanotriton.executor.gpu.timing import Timing
from nanotriton.parallel.world import World
from nanotriton.tasks.task import Task
from tests.test_bench_tritonbench import DOUBLE, lay_out

pytestmark = pytest.mark.slow

SOURCE, KERNEL = probe.TASK["source"], probe.CANDIDATE


class Stopwatch:
    """Runs each work as the real one does, and says 10, 20, ... us."""

    def __init__(self):
        self.places = []

    def time(self, works, budget):
        for work in works:
            for i in range(4):
                work.before(i)
                work.run()
        return [Timing(10.0 * (i + 1), 0.0, 4, "graph") for i in range(len(works))]


def test_the_reference_is_compiled_and_timed_beside_itself():
    seen = []

    def compiler(model):
        def fast(*inputs):
            seen.append(inputs[0].sum().item())
            return model(*inputs)

        return fast

    assert compiled.measure(SOURCE, Stopwatch(), "cpu", compiler) == {
        "us": 10.0,
        "eager_us": 20.0,
        "clock": "graph",
    }
    assert len(seen) == 3 + 4 and len(set(seen[3:6])) == 3 and seen[3] == seen[6]  # three draws take turns
    real = compiled.measure(SOURCE, Stopwatch(), "cpu", lambda model: torch.compile(model, backend="eager"))
    assert real["us"] == 10.0


class Canned:
    """A helper that answers by the task's source."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, request):
        self.asked.append(request["source"])
        return self.answers[request["source"]]


def test_a_task_is_compiled_once_and_half_a_line_is_measured_again(tmp_path):
    tasks = [Task("a", "A"), Task("b", "B"), Task("again", "A")]
    helper = Canned({"A": {"us": 5.0, "eager_us": 6.0}, "B": {"error": "Unsupported: no"}})
    found = compiled.times(tasks, tmp_path, helper=helper)
    assert (
        helper.asked == ["A", "B"]
        and found[tasks[0].key]["us"] == 5.0
        and found[tasks[1].key]["error"] == "Unsupported: no"
    )
    path = tmp_path / "compiled.cpu.jsonl"
    path.write_text(path.read_text()[:-20])
    other = json.dumps({"task": tasks[1].key, "torch": "0.1", "us": 1.0})
    path.write_text(path.read_text() + "\n" + other + "\n")  # another torch's time is not ours
    assert compiled.times(tasks, tmp_path, helper=helper) == found and helper.asked == ["A", "B", "B"]
    assert compiled.times(tasks, tmp_path, helper=helper) == found and len(helper.asked) == 3


def test_speed_against_torch_compile_is_in_the_results_and_the_table(tmp_path, monkeypatch):
    for i in (1, 2):
        path = tmp_path / "clone" / "level1" / f"{i}_P.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE + f"# {i}\n")
    rows = [{"level": 1, "problem_id": i, "candidate": KERNEL} for i in (1, 2)]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = kernelbench.Config(
        data=str(tmp_path / "clone"),
        levels=[1],
        samples=str(tmp_path / "s.jsonl"),
        policy=["strict"],
        out=str(tmp_path / "r.json"),
        device="cpu",
        compile_baseline=True,
    )
    with pytest.raises(ConfigError, match="it needs --device cuda"):
        cfg.validate()
    # as a run on a GPU leaves it
    with Journal(
        Path(cfg.out), {k: v for k, v in config.flat(cfg).items() if k not in kernelbench.KernelBench.free}
    ) as journal:
        for i in (1, 2):
            journal.append({"kind": "sample", "problem": f"1/{i}", "sample": 0, "candidate": KERNEL})
            verdict = asdict(Verdict("correct", time_us=100.0, reference_us=300.0, speedup=3.0))
            journal.append(
                {"kind": "verdict", "problem": f"1/{i}", "sample": 0, "policy": "strict", "verdict": verdict}
            )

    def times(tasks, folder, device, way):
        assert way == "compile" and folder == tmp_path and [t.name for t in tasks] == ["1_P", "2_P"]
        return {tasks[0].key: {"us": 120.0}, tasks[1].key: {"error": "BackendCompilerFailed: no"}}

    monkeypatch.setattr(compiled, "times", times)
    assert kernelbench.main(cfg, World()) == 0
    results = json.loads(Path(cfg.out).read_text())
    eager, against = (
        s["strict"]["all"]["all"] for s in (results["scores"], results["scores_against"]["torch.compile"])
    )
    assert (
        eager["fast_p"]["2"]["value"] == 1.0
        and eager["speedup"]["value"] == pytest.approx(3.0)
        and eager["timed"] == 2
    )
    assert against["fast_p"]["1"]["value"] == 0.5 and against["fast_p"]["1.5"]["value"] == 0.0
    assert against["speedup"]["value"] == pytest.approx(1.2) and against["timed"] == 1
    assert results["baselines_us"] == {"torch.compile": {"1/1": 120.0}} and results["not_compiled"] == {
        "1/2": "BackendCompilerFailed: no"
    }
    table = (tmp_path / "r.md").read_text()
    assert "against torch.compile" in table and "- 1/2: BackendCompilerFailed: no" in table


# ---- TritonBench's scripts ----

SCRIPT = """
import os

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), '..')))

from TorchBench_v1.twice import twice as op
from performance_utils import Performance_Metrics, do_bench_config

import torch


class performance_metrics(Performance_Metrics):
    def __init__(self, dtype=None, is_backward=False, **kwargs):
        super().__init__('twice', dtype=dtype, is_backward=is_backward, **kwargs)

    def get_input_tensors(self):
        self.input_tensors = []
        for i in range(2, 9):
            self.input_tensors.append(MAKE)

    def to_cuda(self, input_tensor):
        return tuple(t.cuda() for t in input_tensor)

    def call_op(self, input_tensor):
        CALL


if __name__ == '__main__':
    op_perf = performance_metrics()
    op_perf.run_benchmark()
"""
BARE = SCRIPT.replace("MAKE", "torch.randn(2**i)").replace("CALL", "return op(input_tensor)")
IN_PLACE = SCRIPT.replace("MAKE", "(torch.randn(2**i), torch.zeros(2**i), 3)").replace(
    "CALL", "x, y, scale = input_tensor\n        op(x, y)"
)
TWICE = "def twice(x):\n    return x + x\n"
INTO = "def twice(x, y):\n    y.copy_(x * 2)\n"
CANDIDATE = DOUBLE.replace("def double(", "def twice(")
INTO_CANDIDATE = DOUBLE.replace("def double(x):\n    y = torch.empty_like(x)", "def twice(x, y):").replace(
    "    return y\n", ""
)


def test_what_there_is_to_know_of_a_script():
    assert perf.look(TWICE, BARE, 3) == {"numbers": [2, 4, 6], "kind": "'bare'", "changed": []}
    assert perf.look(INTO, IN_PLACE, 1) == {"numbers": [6], "kind": "tuple", "changed": [1]}
    assert perf.look(TWICE, BARE, 50)["numbers"] == list(range(7))
    with pytest.raises(ValueError, match="answers nothing"):
        perf.look("def twice(x, y):\n    pass\n", IN_PLACE, 1)
    with pytest.raises(ValueError, match="no input of at most 512 MiB"):
        perf.look(TWICE, BARE.replace("torch.randn(2**i)", "torch.empty(2**28)"), 1)
    with pytest.raises(NameError):
        perf.look("def other(x):\n    return x\n", BARE, 1)


@pytest.mark.parametrize(
    ("script", "gold", "good"),
    [(BARE, TWICE, CANDIDATE), (IN_PLACE, INTO, INTO_CANDIDATE)],
    ids=["an answer", "in place"],
)
def test_a_script_is_a_task_of_the_executor(script, gold, good):
    facts = perf.look(gold, script, 2)
    tasks = [perf.task("twice", gold, script, i, facts) for i in facts["numbers"]]
    with Executor("cpu", "replay", 1, "none") as executor:
        judge = lambda source: [executor.submit(t, perf.candidate(source, script, facts)) for t in tasks]
        right, wrong, broken = (
            judge(good),
            judge(good.replace("* 2", "* 2.1")),
            judge(good.replace("* 2", "* nobody")),
        )
        assert [f.result().status for f in right] == ["correct", "correct"], right[0].result()
        assert {f.result().status for f in wrong} == {"wrong_value"} and {
            f.result().status for f in broken
        } == {"compile_error"}
        line = 1 + good[: good.index("* 2")].count("\n")
        assert f"line {line}" in broken[0].result().message  # the candidate's own lines keep their numbers


def test_rounding_to_tf32():
    x = torch.tensor([1.0, 1.0 + 2**-11, 1.0 + 2**-12, -3.14159265, 0.0])
    assert perf.to_tf32(x).tolist() == [1.0, 1.0 + 2**-10, 1.0, -3.140625, 0.0]
    assert perf.to_tf32(x.half()).dtype == torch.float16


def test_speed_ups_add_up_as_the_benchmark_does():
    verdicts = [Verdict("correct", time_us=t, reference_us=r) for t, r in ((10.0, 10.0), (10.0, 50.0))]
    assert perf.speedup(verdicts, "G") == perf.speedup(verdicts, "T") == 3.0
    verdicts[0] = Verdict("correct", time_us=5.0, reference_us=10.0)
    assert perf.speedup(verdicts, "G") == 4.0 and perf.speedup(verdicts, "T") == 3.5
    assert (
        perf.speedup([*verdicts, Verdict("wrong_value")], "G")
        is perf.speedup([], "G")
        is perf.speedup([Verdict("correct")], "T")
        is None
    )


def test_scripts_are_found_in_a_clone_and_missed_in_one_line(tmp_path, capsys):
    clone = lay_out(tmp_path)
    cfg = tritonbench.Config(data=str(clone), gold=True, device="cuda", out=str(tmp_path / "r.json"))
    problems = tritonbench.tritonbench.load_problems(str(clone), "G")
    make = lambda **more: tritonbench.TritonBench(
        config.make(tritonbench.Config, **config.flat(cfg) | more),
        World(),
        problems,
        {("double", 0): DOUBLE},
        None,
    )
    assert make().not_timed.startswith(f"no speed: {clone} has no performance_metrics/perf_G/golden_metrics")
    assert capsys.readouterr().err.count("\n") == 1
    folder = clone / "performance_metrics" / "perf_G" / "golden_metrics"
    folder.mkdir(parents=True)
    assert (
        make().not_timed == ""
        and perf.find_scripts(str(clone / "data"), "G") == folder
        and perf.find_scripts(str(clone), "T") is None
    )
    assert (
        make(speed_inputs=0).not_timed == "no speed: --speed-inputs 0"
        and make(device="cpu").not_timed == "no speed: it is measured on a GPU"
    )
    assert capsys.readouterr().err == ""


def test_times_of_a_script_are_in_the_table(tmp_path):
    clone = lay_out(tmp_path)
    (clone / "performance_metrics" / "perf_G" / "golden_metrics").mkdir(parents=True)
    cfg = tritonbench.Config(
        data=str(clone), gold=True, device="cuda", out=str(tmp_path / "r.json"), ids=["double", "prints"]
    )
    problems = tritonbench.tritonbench.select(tritonbench.tritonbench.load_problems(str(clone), "G"), cfg.ids)
    run = tritonbench.TritonBench(
        cfg,
        World(),
        problems,
        {(p.name, 0): p.code for p in problems},
        tritonbench.Golds({p.name: p.code for p in problems}),
    )
    with Journal(Path(cfg.out), {}) as run.journal:
        run.collect(run.wanted)
        for name in cfg.ids:
            run.journal.append(
                {
                    "kind": "gold",
                    "problem": name,
                    "sample": 0,
                    "weak": [],
                    "verdict": asdict(Verdict("correct")),
                }
            )
            run.save(name, 0, "tensors", Verdict("correct"), call=True, stdout=True)
        run.save_speed("double", 0, [Verdict("correct", time_us=10.0, reference_us=25.0)], None)
        run.save_speed("prints", 0, [Verdict("unsupported", message="line 3: .item() on 5 tensors")], None)
        results = run.write()
    scores = results["scores"]["tensors"]["G"]["all"]
    assert (
        scores["fast_p"]["2"]["value"] == 0.5
        and scores["timed"] == 1
        and scores["speedup"]["value"] == pytest.approx(2.5)
    )
    rows = {row["problem"]: row for row in results["samples"]}
    assert (
        rows["double"]["times_us"] == [[10.0, 25.0]]
        and rows["prints"]["why"] == "unsupported: line 3: .item() on 5 tensors"
    )
    table = (tmp_path / "r.md").read_text()
    assert (
        "(50.0/50.0)" in table
        and "without a time, counted as not faster: 1" in table
        and "- unsupported: line N: .item() on N tensors: 1" in table
    )


def test_the_throughput_of_an_evaluation(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["x", "--n", "10", "--device", "cpu", "--workers", "1", "--out", str(tmp_path / "t.json")]
    )
    eval_throughput.main()
    found = json.loads((tmp_path / "t.json").read_text())
    # its other problem's solution is its own: there is only one
    assert found["candidates"] == 10 and found["statuses"]["correct"] == 8
    assert (
        0 < found["judging_share"] < 1
        and found["judging_seconds"] < found["seconds"]
        and found["exit_status"] == 0
    )


def test_agreement_compares_what_is_correct_and_timed(tmp_path, monkeypatch, capsys):
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_P.py").write_text(SOURCE)
    timed = [asdict(Verdict("correct", time_us=t, reference_us=30.0, speedup=30.0 / t)) for t in (10.0, 15.0)]
    rows = [
        {"problem": "1/1", "sample": i, "verdicts": {"strict": v}}
        for i, v in enumerate([*timed, asdict(Verdict("correct")), asdict(Verdict("wrong_value"))])
    ]
    run = {
        "benchmark": "kernelbench",
        "settings": {"data": str(tmp_path), "levels": [1]},
        "scores": {"strict": {}},
        "samples": rows,
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    lines = [
        {"kind": "settings"},
        *({"kind": "sample", "problem": "1/1", "sample": i, "candidate": f"candidate {i}"} for i in range(4)),
    ]
    (tmp_path / "run.journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = []

    class Plain(Canned):
        def __init__(self, *arguments):
            assert arguments[0] == "bench.channels.agreement" and arguments[2] == "serve"

        def ask(self, request):
            asked.append(request["candidate"])
            return (
                {"time_us": 10.2, "reference_us": 30.0} if len(asked) == 1 else {"error": "its process died"}
            )

    monkeypatch.setattr(agreement, "Helper", Plain)
    assert agreement.main(str(tmp_path / "run.json"), str(tmp_path / "a.json")) == 1 and asked == [
        "candidate 0",
        "candidate 1",
    ]
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["agree"] == 1 and found["rows"][0]["off"]["speedup"] == pytest.approx(0.02)
    said = capsys.readouterr().out
    assert "1 of 2 speed-ups agree within 5%" in said and "-2.0%" in said and "its process died" in said
