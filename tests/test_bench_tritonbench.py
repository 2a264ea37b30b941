"""TritonBench end to end on a CPU, on small problems in its layout: call, stdout and tensors, weak tests, joins, the user's mistakes."""

import contextlib
import functools
import json
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from bench.channels import answers
from bench.channels import tritonbench as bench
from bench.channels import tritonbench_throughput as throughput
from bench.channels.golds import Files, GoldAnswer, KeptGolds
from bench.channels.inflight import InFlight, Running
from nanotriton.config import ConfigError
from nanotriton.executor.child.script import run_file
from nanotriton.executor.script import ScriptExecutor
from nanotriton.parallel.world import World
from nanotriton.tasks import tritonbench as tasks
from nanotriton.verdict import Fault, Verdict

LINE = "#" * 146
DOUBLE = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""
DOUBLE_TEST = """
import torch

def test_double():
    results = {}
    results["small"] = double(torch.randn(100, device="cuda"))
    results["half"] = double(torch.ones(65, device="cuda", dtype=torch.float16))
    return results

result_gold = test_double()
"""
SHAPE_TEST = """
def test_shape():
    return {"shape": double(torch.randn(4, device="cuda")).shape, "fine": True}

result_gold = test_shape()
"""
PRINT_TEST = """
if __name__ == "__main__":
    result_gold = {"y": double(torch.randn(8, device="cuda"))}
    print("done", len(result_gold))
"""
BROKEN = "import triton.no_such_module\n"


def lay_out(folder: Path) -> Path:
    """A clone with three problems in G, one of them with a gold file that does not run, and one in T."""
    data = folder / "clone" / "data"
    for channel in "GT":
        (data / f"TritonBench_{channel}_v1").mkdir(parents=True)
    code = {
        "double": DOUBLE,
        "shape": DOUBLE.replace("* 2", "* 3"),
        "prints": DOUBLE.replace("* 2", "* 4"),
        "broken": BROKEN + DOUBLE.replace("* 2", "* 5"),
    }
    test = {"double": DOUBLE_TEST, "shape": SHAPE_TEST, "prints": PRINT_TEST, "broken": DOUBLE_TEST}
    for name in code:
        (data / "TritonBench_G_v1" / f"{name}.py").write_text(f"{code[name]}\n{LINE}\n{test[name]}")
    (data / "TritonBench_G_v1.json").write_text(
        json.dumps([{"file": f"{n}.py", "output": code[n], "difficulty": "2"} for n in code])
    )
    for style in ("simp", "comp"):
        (data / f"TritonBench_G_{style}_alpac_v1.json").write_text(
            json.dumps(
                [{"instruction": f"Write {n}, {style}.", "input": "", "output": code[n]} for n in code]
            )
        )
    (data / "TritonBench_T_v1" / "twice.py").write_text(
        f"import torch\ndef twice(x):\n    return x + x\n{LINE}\nimport torch\nfrom twice import twice\ntest_results = {{'a': twice(torch.randn(40, device='cuda'))}}\n"
    )
    (data / "TritonBench_T_v1.jsonl").write_text(
        json.dumps([{"file": "twice.py", "name": "twice", "description": "Adds the input to itself."}])
    )
    return folder / "clone"


@pytest.fixture(scope="module")
def executors():
    """arguments -> an executor, the same one for the same arguments: a start takes seconds."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda *args, **options: stack.enter_context(ScriptExecutor(*args, **options)))


@pytest.fixture
def data(tmp_path, monkeypatch, executors):
    monkeypatch.setattr(
        bench, "ScriptExecutor", lambda *args, **options: contextlib.nullcontext(executors(*args, **options))
    )
    return lay_out(tmp_path)


def run(tmp_path: Path, data: Path, rows: list[dict] | None = None, **options) -> dict:
    if rows is not None:
        (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options["predictions"] = str(tmp_path / "p.jsonl")
    cfg = bench.Config(data=str(data), device="cpu", workers=1, out=str(tmp_path / "r.json"), **options)
    cfg.validate()
    assert bench.main(cfg, World()) == 0
    return json.loads((tmp_path / "r.json").read_text())


def outcome(results: dict) -> dict[str, tuple]:
    return {
        f"{r['problem']}/{r['sample']}": (r["verdicts"]["tensors"]["status"], r["call"], r["stdout"])
        for r in results["samples"]
    }


def test_gold_files_as_candidates(tmp_path, data):
    results = run(tmp_path, data, gold=True)
    assert outcome(results) == {
        "double/0": ("correct", True, True),
        "shape/0": ("correct", True, True),
        "prints/0": ("correct", True, True),
        "broken/0": ("runtime_error", False, False),
    }
    assert results["weak_tests"] == {"shape": "no float tensor; only shapes, booleans or sums; zeros pass"}
    assert (
        list(results["gold_failures"]) == ["broken"]
        and "no_such_module" in results["gold_failures"]["broken"]
    )
    scores = results["scores"]["tensors"]["G"]
    assert (
        scores["all"]["correct"]["value"]
        == scores["all"]["compiled"]["value"]
        == scores["all"]["loose"]["value"]
        == 0.75
    )
    assert scores["fair"]["problems"] == 3
    table = (tmp_path / "r.md").read_text()
    assert (
        "15.76/15.76 (7.61/2.17)" in table
        and "Weak tests: shape" in table
        and "broken: runtime_error" in table
    )


def test_predictions_by_call_stdout_and_tensors(tmp_path, data):
    code = lambda name: tasks.split(data / "data" / "TritonBench_G_v1" / f"{name}.py")[0]
    rows = [
        {
            "instruction": "Write double, simp.",
            "predict": f"<think>x</think>Here:\n```python\n{DOUBLE}```",
            "label": code("double"),
        },
        {"instruction": "Write double, simp.", "predict": DOUBLE.replace("* 2", "* 2.5")},
        {
            "instruction": "Write double, comp.",
            "predict": "import os\n" + DOUBLE.replace("    return y", "    os._exit(0)"),
        },
        {"instruction": "Write double, comp.", "predict": "def double(x):\n    return x.float() * 2\n"},
        {"instruction": "Write double, comp.", "predict": "<think>never ends"},
        {
            "instruction": "Write shape, simp.",
            "predict": "import torch\ndef double(x):\n    return torch.zeros_like(x)\n",
        },
        {
            "instruction": "?",
            "label": code("prints"),
            "predict": DOUBLE.replace("* 2", "* 4").replace("    return y", "    print(7)\n    return y"),
        },
        {"instruction": "Write broken, simp.", "predict": DOUBLE},
        {
            "instruction": "Write double, simp.",
            "predict": DOUBLE.replace("    return y", "    return y if y.sum() > 1e9 else y + 0"),
        },
    ]
    # so no script is one that another test has had judged, and its answer removed
    results = run(tmp_path, data, rows, seed=1)
    assert outcome(results) == {
        "double/0": ("correct", True, True),
        "double/1": ("wrong_value", True, True),
        "double/2": ("crashed", False, False),
        "double/3": ("wrong_dtype", True, True),
        "double/4": ("no_code", False, False),
        "shape/0": ("correct", True, True),
        "prints/0": ("correct", True, False),
        "broken/0": ("unsupported", True, None),
        "double/5": ("unsupported", None, None),
    }
    row = {f"{r['problem']}/{r['sample']}": r for r in results["samples"]}
    assert (
        "line" in row["double/5"]["verdicts"]["tensors"]["message"]
        and "gold file itself fails" in row["broken/0"]["verdicts"]["tensors"]["message"]
    )
    assert (
        row["double/0"]["triton"] and not row["shape/0"]["triton"] and results["correct_without_triton"] == 1
    )
    assert row["double/0"]["gold_inside"]["double"] == 1.0
    # without shape, whose test any answer of that shape passes
    assert results["scores"]["tensors"]["G"]["fair"]["problems"] == 3


def test_the_papers_columns_run_a_file_as_its_harness_does(tmp_path, data):
    """The candidate's own __main__ block runs there, and the test finds torch only where it is imported."""
    main = '\n\nif __name__ == "__main__":\n    '
    rows = [
        {"problem": "double", "predict": DOUBLE + main + "raise SystemExit('usage: double FILE')"},
        {"problem": "double", "predict": DOUBLE + main + "print('looks right')"},
        {
            "problem": "double",
            "predict": DOUBLE + main + "assert double(torch.ones(3, device='cuda')).sum() == 6",
        },
        {"problem": "shape", "predict": "def double(x):\n    return x * 3\n"},
        {"problem": "shape", "predict": "from torch import nn\ndef double(x):\n    return x * 3\n"},
        {"problem": "double", "predict": "def double(x):\n    return x * 2\n"},
    ]
    assert outcome(run(tmp_path, data, rows, seed=5)) == {
        "double/0": ("correct", False, False),
        "double/1": ("correct", True, False),
        "double/2": ("correct", None, None),  # it reads a value, which no recording can
        "shape/0": ("correct", False, False),
        "shape/1": ("correct", False, False),
        "double/3": ("correct", True, True),  # this test imports torch itself
    }


def test_the_paper_runs_the_same_file_where_that_makes_no_difference():
    test = "result = double(1)\n"
    assert tasks.paper_script(DOUBLE, test, 3) == tasks.script(DOUBLE, test, 3)
    for code in (
        DOUBLE + '\nif __name__ == "__main__":\n    print(1)\n',
        DOUBLE.replace("import torch\n", ""),
    ):
        assert tasks.paper_script(code, test, 3) != tasks.script(code, test, 3)


def test_channel_t_and_a_run_that_is_continued(tmp_path, data, monkeypatch):
    triton = DOUBLE.replace("def double(", "def twice(")
    rows = [
        {"prompt": "Functional Description: Adds the input to itself.\nGo.", "predict": p}
        for p in (triton, triton.replace("* 2", "* 3"))
    ]
    first = run(tmp_path, data, rows, channel="T")
    assert outcome(first) == {"twice/0": ("correct", True, True), "twice/1": ("wrong_value", True, True)}
    monkeypatch.setattr(bench, "ScriptExecutor", None)  # any attempt to judge would fail
    assert outcome(run(tmp_path, data, rows, channel="T")) == outcome(first)


def test_scripts_run_for_real_where_there_is_no_need_of_a_gpu(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text(
        tasks.script(
            "import torch\ntorch.randn(3)\ndef f(x):\n    return x * 2\n",
            "result_gold = [f(torch.randn(5)), 3]\nother = 1\n",
            7,
        )
    )
    tensor, three = run_file(str(path))
    torch.manual_seed(7)
    assert torch.equal(tensor, torch.randn(5) * 2) and three == 3


def test_numpy_in_an_answer(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import torch\nx = torch.arange(3.0)\nresult = {'a': x.numpy(), 'b': [x.numpy()[1], (2, x)]}\n"
    )
    found = run_file(str(path))
    assert isinstance(found["a"], torch.Tensor) and found["a"].tolist() == [0, 1, 2]
    assert found["b"][0] == 1.0 and type(found["b"][0]) is float and found["b"][1][0] == 2


def test_an_executor_of_scripts_says_what_fails(executors):
    executor = executors("cpu", workers=1)
    futures = {
        name: executor.run(text)
        for name, text in {
            "syntax_error": "def (",
            "no_code": " ",
            "runtime_error": "1 / 0\n",
            "correct": "print(3)\n",
        }.items()
    }
    assert {name: future.result().status for name, future in futures.items()} == {
        name: name for name in futures
    }
    assert (
        executor.answer("print(3)\n") == executor.answer("print(3)\n")
        and executor.answer("print(3)\n").stdout == "3\n"
    )
    with pytest.raises(FileNotFoundError):
        executor.answer("1 / 0\n")


# ---- answers ----


def verdict(got, want) -> str:
    try:
        answers.check_answer(got, want)
    except Fault as fault:
        return fault.status
    return "correct"


def test_answers_are_compared_recursively():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    tree = {"a": [x, (x.half(), 3)], "b": {"c": True, "d": "text", "e": None, "f": 0.5}}
    assert verdict(tree, tree) == "correct"
    assert verdict({**tree, "a": [x * 1.0005, (x.half(), 3)]}, tree) == "correct"
    assert verdict({**tree, "a": [x * 1.05, (x.half(), 3)]}, tree) == "wrong_value"
    assert verdict({**tree, "a": [x, (x, 3)]}, tree) == "wrong_dtype"
    assert verdict({**tree, "a": [x[:, None], (x.half(), 3)]}, tree) == "wrong_shape"
    assert (
        verdict({**tree, "a": [x]}, tree)
        == verdict({"a": tree["a"]}, tree)
        == verdict([tree], tree)
        == "wrong_shape"
    )
    assert verdict({**tree, "a": [x, (x.half(), 4)]}, tree) == "wrong_value"
    assert verdict({**tree, "b": {**tree["b"], "c": False}}, tree) == "wrong_value"
    # True == 1, but it is no bool
    assert verdict({**tree, "b": {**tree["b"], "c": 1}}, tree) == "wrong_shape"


def test_what_is_not_finite_must_be_so_in_both():
    inf, nan = float("inf"), float("nan")
    want = torch.tensor([1.0, inf, -inf, nan])
    assert verdict(want.clone(), want) == "correct"
    for other in ([1.0, inf, inf, nan], [1.0, inf, -inf, 0.0], [nan, inf, -inf, nan], [1.0, 3e38, -inf, nan]):
        assert verdict(torch.tensor(other), want) == "not_finite"
    assert verdict(torch.tensor([1, 2]), torch.tensor([1, 3])) == "wrong_value"
    assert verdict(torch.tensor([1j, 2.0]), torch.tensor([1j, 2.0])) == "correct"
    assert (
        verdict(torch.zeros(3), torch.zeros(3)) == "correct"
        and verdict(torch.full((3,), 1e-9), torch.zeros(3)) == "wrong_value"
    )


@pytest.mark.parametrize(
    ("answer", "weak"),
    [
        ({"a": torch.randn(9)}, []),
        (None, ["no answer"]),
        ({"a": torch.zeros(3)}, ["zeros pass"]),
        ([torch.tensor(2.5)], ["only shapes, booleans or sums"]),
        ({"a": torch.arange(4)}, ["no float tensor"]),
        ([True, (3, 4)], ["no float tensor", "only shapes, booleans or sums", "zeros pass"]),
    ],
)
def test_weak_tests(answer, weak):
    assert answers.weakness(answer) == weak


# ---- files and their mistakes ----


def test_scripts():
    text = tasks.script("x = 1", PRINT_TEST, 5)
    assert (
        "if True:" in text
        and "torch.manual_seed(5)" in text
        and text.endswith("test_results_of_this_file = result_gold\n")
    )
    assert tasks.answer_name("a = 1\ntest_results = 2\nresult_b = 3\nprint(result_b)\n") == "result_b"
    assert tasks.answer_name("print(1)\n") is None and tasks.answer_name("def (") is None
    assert tasks.free_names(DOUBLE_TEST) == {"double"}


def test_extraction():
    helper, entry = "```python\nx = 1\n```", "```\ndef double(x):\n    return x\n```"
    names = frozenset({"double"})
    assert tasks.extract(f"{entry}\nand\n{helper}", names) == "def double(x):\n    return x\n"
    assert tasks.extract(f"{helper}\n{helper.replace('1', '2')}", names) == "x = 2\n"
    assert tasks.extract(f"<think>{entry}</think>\nx = 3", names) == "x = 3\n"
    assert tasks.extract("<think>" + entry, names) is tasks.extract("  \n", names) is None


def test_instructions_are_joined(data):
    problems = tasks.load_problems(str(data / "data"), "G")
    assert [p.name for p in problems] == ["double", "shape", "prints", "broken"] and problems[0].entries == {
        "double"
    }
    assert [p.name for p in tasks.select(problems, ["shape.py", "double"])] == ["double", "shape"] and len(
        tasks.select(problems, limit=3)
    ) == 3
    row = {"instruction": "Write shape, comp.", "predict": "x"}
    assert tasks.join([row, row], problems, "f") == {("shape", 0): "x", ("shape", 1): "x"}
    assert tasks.join([{"problem": "shape", "sample": 3, "predict": "x"}], problems, "f") == {
        ("shape", 3): "x"
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"instruction": "Write shape, simp."}, "no text under predict"),
        ({"instruction": "Write nothing.", "predict": "x"}, "not in the data (...Write nothing.)"),
        (
            {"instruction": "?", "label": "import triton", "predict": "x"},
            "it fits several problems: double, shape, prints, broken",
        ),
        ({"problem": "shape", "sample": 0, "predict": "x"}, "has a sample 0 already"),
        ({"problem": "shape", "sample": -1, "predict": "x"}, "a number is expected"),
    ],
)
def test_bad_predictions(data, row, said):
    with pytest.raises(ValueError, match=r"p\.jsonl entry 2") as caught:
        tasks.join(
            [{"problem": "shape", "predict": "x"}, row], tasks.load_problems(str(data), "G"), "p.jsonl"
        )
    assert said in str(caught.value)


def mistake(tmp_path, **options) -> str:
    cfg = bench.Config(device="cpu", out=str(tmp_path / "x.json"), **options)
    with pytest.raises(ConfigError) as caught:
        cfg.validate()
        bench.main(cfg, World())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mistakes(tmp_path, data):
    good = dict(data=str(data), gold=True)
    assert "give one of" in mistake(tmp_path, data=str(data)) and "--data" in mistake(tmp_path, gold=True)
    assert "no such folder" in mistake(tmp_path, **good | {"data": str(tmp_path / "none")})
    assert "no data/TritonBench_G_v1.json in it" in mistake(
        tmp_path, **good | {"data": str(data / "data" / "TritonBench_G_v1")}
    )
    assert "no problem is called nobody" in mistake(tmp_path, **good, ids=["nobody"])
    assert "cannot read" in mistake(tmp_path, data=str(data), predictions=str(tmp_path / "none.jsonl"))
    assert "no simp instruction for twice" in mistake(
        tmp_path, data=str(data), channel="T", endpoint="http://localhost:9/v1"
    )
    rows = tmp_path / "p.jsonl"
    row = '{"problem": "shape", "sample": 0, "predict": "x"}\n'
    for text, said in (
        (row + '{"pro', "line 2: not JSON (the last line is cut short)"),
        (row + row, "has a sample 0 already"),
        ('{"instruction": "?", "predict": "x"}', "not in the data"),
    ):
        rows.write_text(text)
        assert said in mistake(tmp_path, data=str(data), predictions=str(rows))
    file = data / "data" / "TritonBench_G_v1" / "shape.py"
    file.write_text(DOUBLE)
    assert "0 lines of 146 #" in mistake(tmp_path, **good)
    file.unlink()
    assert "shape.py: cannot read" in mistake(tmp_path, **good)
    listing = data / "data" / "TritonBench_G_v1.json"
    for text, said in (
        ("[1]", "item 1 of channel G has no file or output"),
        ("{", "not JSON"),
        ("{}", "an array is expected"),
        ("[]", "has no items"),
    ):
        listing.write_text(text)
        assert said.replace("an array", "a JSON array") in mistake(tmp_path, **good)


# ---- gold files that are kept, and problems that do not wait for others ----


class Posed:
    """An executor whose verdicts the test gives. run_order: the texts, as they were submitted."""

    def __init__(self, folder: Path):
        self.folder, self.futures, self.run_order = folder, {}, []

    def run(self, source: str) -> Future:
        self.run_order.append(source)
        return self.futures.setdefault(source, Future())

    def end(self, files: Files, status: str = "runtime_error") -> None:
        for source in {files.ours, files.paper}:
            self.futures[source].set_result(Verdict(status))

    def answer_file(self, source: str) -> str:
        return str(self.folder / str(abs(hash(source))))


def problem(name: str, code: str) -> tasks.Problem:
    return tasks.Problem(name, code, "result = f()\n", code, "", {})


def test_no_problem_waits_for_the_files_of_another(tmp_path):
    light, heavy = "import torch\nx = 1\n", "import torch\n# tl.dot( tl.dot( Config( Config(\n"
    problems = [problem("light", light), problem("heavy", heavy), problem("hangs", light + "y = 2\n")]
    running = []
    for p in problems:
        running.append(Running(p, [(0, Files.of(p.code + "z = 3\n", p, 0))], 0))
    executor = Posed(tmp_path)
    inflight = InFlight(executor, KeptGolds("", {}), running)
    candidates = [files.ours for r in running for _, files in r.candidates]
    golds = [r.gold_files.ours for r in running]
    assert executor.run_order == [golds[1], golds[0], golds[2], candidates[1], candidates[0], candidates[2]]
    assert inflight.ended(0.0) is None
    for r in running[:2]:
        executor.end(r.gold_files)
        executor.end(r.candidates[0][1])
    found = [inflight.ended(0.0) for _ in range(5)]
    assert [r.problem.name for r in found if r] == ["light", "heavy"]
    assert [r.problem.name for r in inflight.unfinished] == ["hangs"]


def test_an_answer_is_deleted_when_no_other_problem_needs_it(tmp_path):
    code = "import torch\nx = 1\n"
    running = [Running(problem(name, code), [], 0) for name in ("one", "two")]
    executor = Posed(tmp_path)
    inflight = InFlight(executor, KeptGolds("", {}), running)
    answer = Path(executor.answer_file(running[0].gold_files.ours))
    answer.write_text("an answer")
    inflight.forget(running[0])
    assert answer.exists()
    inflight.forget(running[1])
    assert not answer.exists()


def test_gold_answers_are_kept_for_later_runs(tmp_path, data, executors):
    executor = executors("cpu", 1, 60.0, memory_gib=None)  # the one that the run uses
    rows = [{"problem": name, "predict": DOUBLE} for name in ("double", "shape", "broken")]
    golds = tmp_path / "golds"
    first = run(tmp_path, data, rows, seed=7, golds=str(golds))
    assert first["golds_kept"] == 0
    executor._known.clear()  # else a file that has run is not run again
    again = run(tmp_path, data, rows, seed=7, golds=str(golds), fresh=True)
    assert again["golds_kept"] == 3
    known = {p.name: p for p in tasks.load_problems(str(data), "G")}
    candidates = {Files.of(DOUBLE, known[row["problem"]], 7).ours for row in rows}
    assert len(executor._known) == len(candidates)  # no gold file was among those that ran
    assert outcome(again) == outcome(first)
    for part in ("weak_tests", "gold_failures", "scores"):
        assert again[part] == first[part]
    for answer in golds.glob("*.answer"):  # half an entry is none
        answer.write_bytes(answer.read_bytes()[:-1])
    executor._known.clear()
    assert run(tmp_path, data, rows, seed=7, golds=str(golds), fresh=True)["golds_kept"] == 1  # the failure


def test_what_a_gold_answer_depends_on(tmp_path):
    files, ran = Files("a = 1\n", "a = 1\n"), (Verdict("timeout"), Verdict("timeout"))
    gold = GoldAnswer(ran[0], None, [], "")
    KeptGolds(str(tmp_path), {"card": "H100", "timeout": 60.0}).keep(files, gold, ran)
    same = KeptGolds(str(tmp_path), {"timeout": 60.0, "card": "H100"})
    assert same.find(files).verdict == gold.verdict
    assert same.find(Files("a = 2\n", "a = 1\n")) is same.find(Files("a = 1\n", "a = 2\n")) is None
    assert KeptGolds(str(tmp_path), {"card": "H100", "timeout": 90.0}).find(files) is None
    assert KeptGolds("", {}).find(files) is None


def test_a_folder_for_gold_answers_that_is_a_file(tmp_path, data):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write there"):
        run(tmp_path, data, gold=True, golds=str(tmp_path / "file"))


@pytest.mark.parametrize("status", ["infra_error", "memory_limit"])
def test_what_another_run_may_not_see_is_not_kept(tmp_path, status):
    files, ran = Files("a = 1\n", "b = 1\n"), (Verdict("runtime_error"), Verdict(status))
    golds = KeptGolds(str(tmp_path), {})
    golds.keep(files, GoldAnswer(ran[0], None, [], ""), ran)
    assert golds.find(files) is None


def test_a_gold_file_that_failed_through_us_is_no_verdict_on_the_candidate(tmp_path):
    files, right = Files("a = 1\n", "b = 1\n"), Verdict("correct")
    for ran in ((Verdict("infra_error"), right), (Verdict("runtime_error"), Verdict("infra_error"))):
        executor = Posed(tmp_path)
        executor.printed = lambda source: ""
        gold = GoldAnswer.found(executor, files, ran)
        assert gold.judge(executor, "", right).status == "infra_error"
        assert gold.judge(executor, "", Verdict("timeout")).status == "timeout"


# ---- where the time goes ----


def test_the_steps_that_are_timed_are_a_file_that_runs(executors):
    executor = executors("cpu", workers=1)
    assert executor.run(throughput.STEPS).result().status == "correct"
    assert list(json.loads(executor.printed(throughput.STEPS))) == [
        "CUDA context",
        "Triton's driver",
        "first kernel",
        "another block size",
        "first torch.matmul",
    ]


def test_what_a_run_tells_of_the_files_that_ran(tmp_path):
    def line(kind: str, seconds: float, cpu: float, **more) -> str:
        verdict = {"status": "timeout", "cost": {"rules": 0.1, "run": seconds, "children_cpu": cpu}}
        return json.dumps({"kind": kind, "problem": "p", "sample": 0, "verdict": verdict, **more})

    no_file = {"kind": "verdict", "problem": "q", "sample": 0, "verdict": {"status": "no_code", "cost": {}}}
    journal = tmp_path / "r.journal.jsonl"
    lines = [line("gold", 8.0, 1.0), line("gold", 9.0, 9.0, kept=True), line("verdict", 2.0, 0.5)]
    journal.write_text("\n".join([json.dumps({"kind": "settings"}), *lines, json.dumps(no_file)]) + "\n")
    assert throughput.files_that_ran(journal, judging=5.0) == {
        "gold files": 1,
        "candidates": 1,
        "lived_s": 10.0,
        "computed_s": 1.5,
        "median_lived_s": 5.0,
        "at_a_time": 2.0,
        "cores_busy": 0.3,
        "slowest_s": {"p/0, gold: timeout": 8.0, "p/0, verdict: timeout": 2.0},
    }
