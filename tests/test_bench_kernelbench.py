"""KernelBench end to end on a CPU, on small problems in its layout: sources, policies, continuation, the user's mistakes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.channels import kernelbench as bench
from bench.channels import report
from bench.channels.journal import Journal
from nanotriton import config
from nanotriton.config import ConfigError
from nanotriton.executor import Verdict
from nanotriton.executor.common import probe
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.tasks import kernelbench as tasks
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.weights import save_model

ROOT = Path(__file__).resolve().parents[1]
DOUBLE, KERNEL = probe.TASK["source"], probe.CANDIDATE
RELU = DOUBLE.replace("x * 2 + 1", "torch.relu(x)")
ZERO = DOUBLE.replace("x * 2 + 1", "x * 0")
TORCH = KERNEL.replace("return y", "return y * 1.0")  # right, but torch has the last word
WRONG = KERNEL.replace("x * 2 + 1", "x * 2 + 1.5")


@pytest.fixture(autouse=True)
def shared(monkeypatch, executors):
    """One executor a policy for all tests here; the command itself, which starts its own, is in test_two_ranks_share_the_problems."""
    monkeypatch.setattr(
        bench, "Executor", lambda device, *, policy, **_: contextlib.nullcontext(executors(policy=policy))
    )


@pytest.fixture
def data(tmp_path):
    """Two levels in the layout of a clone."""
    for name, source in {
        "level1/1_Double.py": DOUBLE,
        "level1/2_Relu.py": RELU,
        "level1/10_Zero.py": ZERO,
        "level2/1_Double.py": DOUBLE,
    }.items():
        path = tmp_path / "clone" / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path / "clone"


def runs(folder: Path, samples: dict[str, str]) -> Path:
    """A folder of KernelBench's runs/: "1/2/0" is level 1, problem 2, sample 0."""
    folder.mkdir()
    for name, source in samples.items():
        level, problem, sample = name.split("/")
        (folder / f"level_{level}_problem_{problem}_sample_{sample}_kernel.py").write_text(source)
    return folder


def run(tmp_path: Path, data: Path, **options) -> dict:
    given = {"data": str(data), "device": "cpu", "workers": 1, "out": str(tmp_path / "r.json")}
    cfg = config.make(bench.Config, **given, **options)
    cfg.validate()
    assert bench.main(cfg, World()) == 0
    return json.loads((tmp_path / "r.json").read_text())


def statuses(results: dict, policy: str) -> dict[str, str]:
    return {
        f"{row['problem']}/{row['sample']}": row["verdicts"][policy]["status"] for row in results["samples"]
    }


def value(results: dict, policy: str, group: str, figure: str, part: str = "all") -> float:
    return results["scores"][policy][group][part][figure]["value"]


@pytest.mark.slow
def test_runs_folder_under_every_policy(tmp_path, data):
    samples = {
        "1/1/0": KERNEL,
        "1/1/1": WRONG,
        "1/1/2": TORCH,
        "1/1/3": "def (",
        "1/2/0": RELU,
        "2/1/0": KERNEL,
    }
    results = run(tmp_path, data, samples=str(runs(tmp_path / "runs", samples)), levels=[1, 2])
    strict = statuses(results, "strict")
    assert strict == {
        "1/1/0": "correct",
        "1/1/1": "wrong_value",
        "1/1/2": "rule_violation",
        "1/1/3": "syntax_error",
        "1/2/0": "no_code",
        "2/1/0": "correct",
    }
    assert statuses(results, "kernelbench") == strict | {"1/1/2": "correct"}
    assert statuses(results, "autotriton")["1/1/2"] == "correct"
    assert value(results, "strict", "level 1", "correct") == pytest.approx(1 / 8)
    assert results["scores"]["strict"]["level 1"]["all"]["pass_at_k"]["1"]["value"] == pytest.approx(1 / 8)
    assert value(results, "strict", "level 2", "correct") == 1.0
    assert results["complete"] and results["judged"] == {"strict": 6, "kernelbench": 6, "autotriton": 6}
    failed = {f["status"]: f for f in results["scores"]["strict"]["all"]["failures"]}
    assert (
        set(failed) == {"wrong_value", "rule_violation", "syntax_error", "no_code"}
        and failed["no_code"]["count"] == 1
    )
    table = (tmp_path / "r.md").read_text()
    assert "AutoTriton 8B | 83/36 (10/6)" in table and "this run, strict, without weak problems" in table
    assert {f.name for f in tmp_path.glob("r.*")} == {
        "r.json",
        "r.md",
        "r.journal.jsonl",
        "r.status.png",
        "r.speedup.png",
    }


def test_the_problems_themselves_are_right_under_none_and_weak_ones_are_set_apart(tmp_path, data):
    results = run(tmp_path, data, samples=str(data), levels=[1], policy=["none"])
    assert statuses(results, "none") == {"1/1/0": "correct", "1/2/0": "correct", "1/10/0": "weak_task"}
    assert value(results, "none", "level 1", "correct") == pytest.approx(2 / 3)
    assert value(results, "none", "level 1", "correct", "fair") == 1.0
    assert results["scores"]["none"]["level 1"]["all"]["not_judged"] == 1
    assert [row["problem"] for row in results["samples"] if row["weak"]] == ["1/10"]


def test_a_finished_run_judges_nothing_again(tmp_path, data, monkeypatch):
    rows = [
        {"level": 1, "problem_id": 2, "sample_id": 4, "completion": "no code at all"},
        {"task": "level1/1_Double", "candidate": "x = 1\n"},
    ]
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = run(tmp_path, data, samples=str(path), levels=[1], policy=["strict"])
    assert statuses(first, "strict") == {"1/1/0": "no_code", "1/2/4": "no_code"}
    monkeypatch.setattr(bench, "Executor", None)  # any attempt to judge would fail
    again = run(tmp_path, data, samples=str(path), levels=[1], policy=["strict"])
    timeless = lambda r: {k: v for k, v in r.items() if k not in ("seconds", "seconds_of", "command")}
    assert timeless(again) == timeless(first)
    with pytest.raises(ConfigError, match="holds a run that was started with --timeout"):
        run(tmp_path, data, samples=str(path), levels=[1], policy=["strict"], timeout=1.0)


def test_a_run_is_not_continued_with_other_candidates(tmp_path, data):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"level": 1, "problem_id": 1, "candidate": "def ("}\n')
    run(tmp_path, data, samples=str(path), levels=[1], policy=["strict"])
    path.write_text('{"level": 1, "problem_id": 1, "candidate": "def ["}\n')
    with pytest.raises(
        ConfigError,
        match=r"holds another candidate for problem 1/1, sample 0: give another --out, or --fresh",
    ):
        run(tmp_path, data, samples=str(path), levels=[1], policy=["strict"])
    assert statuses(
        run(tmp_path, data, samples=str(path), levels=[1], policy=["strict"], fresh=True), "strict"
    ) == {"1/1/0": "syntax_error"}


def test_samples_of_a_training_run_join_by_source(tmp_path, data):
    path = tmp_path / "samples.jsonl"
    fenced = f"```python\n{KERNEL}```"
    path.write_text(
        "".join(
            json.dumps({"task": "anything", "task_source": s, "completion": c}) + "\n"
            for s, c in ((RELU, "no"), (DOUBLE, fenced), (DOUBLE, "no"))
        )
    )
    given = bench.read_samples(str(path), tasks.load_problems(str(data), [1]))
    assert list(given) == [("1/2", 0), ("1/1", 0), ("1/1", 1)]
    assert given["1/1", 0]["candidate"] == KERNEL and given["1/1", 1]["candidate"] is None
    path.write_text(
        "".join(
            json.dumps({"task": "anything", "task_source": DOUBLE, "completion": c, "count": n}) + "\n"
            for c, n in ((fenced, 3), ("no", 2))
        )
    )
    given = bench.read_samples(str(path), tasks.load_problems(str(data), [1]))
    assert [given["1/1", s]["candidate"] for s in range(5)] == [KERNEL] * 3 + [None] * 2 and len(given) == 5


def test_a_verdict_is_taken_over_where_a_looser_policy_runs_the_same_code():
    def implied(status: str, policy: str, source: str = KERNEL):
        return bench.implied(Verdict(status), source, policy)

    assert implied("correct", "kernelbench").status == "correct"
    assert implied("wrong_value", "none").status == "wrong_value"
    for status in ("rule_violation", "unsupported", "infra_error"):
        assert implied(status, "autotriton") is None
    assert implied("correct", "autotriton", KERNEL.replace("@triton.jit", "@jit")).status == "rule_violation"
    assert bench.entry_point(DOUBLE, "strict") == DOUBLE
    assert (
        bench.entry_point(DOUBLE, "none").endswith("ModelNew = Model\n")
        and bench.entry_point(KERNEL, "none") == KERNEL
    )
    assert bench.entry_point("def (", "none") == "def ("


def test_baseline_times(tmp_path, data):
    path = tmp_path / "baseline_time_torch_compile.json"
    path.write_text(json.dumps({"level1": {"1_Double.py": {"mean": 0.5}}}))
    assert bench.read_baseline(str(path)) == {"1/1": 500.0}
    row = {"kind": "verdict", "problem": "1/1", "policy": "strict"}
    lines = [{"kind": "sample", "problem": "1/1", "sample": i, "candidate": KERNEL} for i in range(2)]
    lines += [
        row
        | {"sample": i, "verdict": asdict(Verdict("correct", time_us=t, reference_us=300.0, speedup=300 / t))}
        for i, t in enumerate((100.0, 250.0))
    ]
    cfg = bench.Config(
        data=str(data),
        levels=[1],
        ids=[1],
        samples=str(tmp_path / "s"),
        policy=["strict"],
        baseline=str(path),
        out=str(tmp_path / "r.json"),
        workers=1,
        device="cpu",
    )
    # as a run on a GPU leaves it
    with Journal(
        Path(cfg.out), {k: v for k, v in config.flat(cfg).items() if k not in bench.KernelBench.free}
    ) as journal:
        for line in lines:
            journal.append(line)
    runs(tmp_path / "s", {"1/1/0": KERNEL, "1/1/1": KERNEL})
    results = run(
        tmp_path,
        data,
        levels=[1],
        ids=[1],
        samples=str(tmp_path / "s"),
        policy=["strict"],
        baseline=str(path),
    )
    assert results["scores"]["strict"]["all"]["all"]["speedup"]["value"] == pytest.approx((3 * 1.2) ** 0.5)
    against = results["scores_against"]["baseline_time_torch_compile.json"]["strict"]["all"]["all"]
    assert (
        against["speedup"]["value"] == pytest.approx((5 * 2) ** 0.5)
        and against["fast_p"]["2"]["value"] == 0.5
    )
    assert "against baseline_time_torch_compile.json" in (tmp_path / "r.md").read_text()
    path.write_text("[1]")
    with pytest.raises(ValueError, match="not KernelBench's format"):
        bench.read_baseline(str(path))


# ---- a model ----


@pytest.fixture
def model(tmp_path):
    """A model folder of our own: a tokenizer without a chat template, random weights, so its answers are noise."""
    folder = tmp_path / "model"
    train_tokenizer([DOUBLE, KERNEL], 300, folder)
    config = ModelConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    save_model(Transformer(config).init_weights(0), folder, [])
    return folder


def completions(folder: Path) -> dict[tuple[str, int], str]:
    lines = [
        json.loads(line) for path in folder.glob("r.journal*.jsonl") for line in path.read_text().splitlines()
    ]
    found = [
        ((line["problem"], line["sample"]), line["completion"]) for line in lines if line["kind"] == "sample"
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def test_samples_of_a_model_depend_on_problem_and_number_only(tmp_path, data, model):
    options = dict(model=str(model), levels=[1], max_tokens=12, policy=["strict"])
    results = run(tmp_path, data, n=3, **options)
    whole = completions(tmp_path)
    assert len(whole) == 9 and len(set(whole.values())) > 1 and results["complete"]
    assert set(statuses(results, "strict").values()) == {"no_code"}
    assert all(
        row["tokens"] <= 12 and row["finish_reason"] in ("stop", "length") for row in results["samples"]
    )
    (tmp_path / "b").mkdir()
    run(tmp_path / "b", data, n=1, **options)
    assert len(completions(tmp_path / "b")) == 3
    run(tmp_path / "b", data, n=3, **options)  # more of the same run
    assert completions(tmp_path / "b") == whole
    # as long as the model's context leaves room
    results = run(tmp_path / "b", data, n=1, fresh=True, **options | {"max_tokens": 512})
    assert results["complete"] and all(0 < row["tokens"] < 512 for row in results["samples"])


def test_a_run_is_not_continued_with_other_weights_of_the_same_folder(tmp_path, data, model):
    folder = model  # which is this test's own
    options = dict(model=str(folder), levels=[1], ids=[1], max_tokens=4, policy=["strict"])
    results = run(tmp_path, data, n=1, **options)
    assert (
        results["model"].startswith(f"{folder} (")
        and f"Model: `{folder} (" in (tmp_path / "r.md").read_text()
    )
    (folder / "README.md").write_text("A model.")
    run(tmp_path, data, n=2, **options)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    assert run(tmp_path, data, n=2, **options)["complete"]  # nothing is left to ask it
    with pytest.raises(ConfigError, match=r"holds answers of .*, and .* is asked now"):
        run(tmp_path, data, n=3, **options)


@pytest.mark.slow
def test_two_ranks_share_the_problems(tmp_path, data, model):
    run(tmp_path, data, n=2, model=str(model), levels=[1], max_tokens=12, policy=["strict"])
    out = tmp_path / "two"
    out.mkdir()
    words = f"--data {data} --levels 1 --model {model} --n 2 --max-tokens 12 --policy strict --device cpu --workers 1 --out {out}/r.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "--",
        "bench.channels.kernelbench",
        *words.split(),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.glob("r.journal*")) == ["r.journal.1.jsonl", "r.journal.jsonl"]
    assert completions(out) == completions(tmp_path)
    results = json.loads((out / "r.json").read_text())
    assert results["complete"] and results["judged"] == {"strict": 6}


# ---- an endpoint, and kill -9 ----


class Server:
    """Answers by problem and seed. After `stop_after` requests it answers no more."""

    def __init__(self, stop_after: int = 1 << 30):
        self.asked, self.lock, self.enough = [], threading.Lock(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][-1]["content"]
                with server.lock:
                    server.asked.append(("relu" in prompt, body["seed"]))
                    if len(server.asked) > stop_after:
                        server.enough.set()
                        return  # hang up
                text = (
                    f"```python\n{KERNEL}```"
                    if body["seed"] % 3 == 0
                    else "I can't."
                    if body["seed"] % 3 == 1
                    else f"```python\n{WRONG}```"
                )
                data = json.dumps(
                    {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.mark.slow
def test_an_evaluation_killed_and_restarted_ends_with_the_same_table(tmp_path, data):
    options = dict(levels=[1], ids=[1, 2], n=8, served_model="m", policy=["strict"], concurrency=2, retries=2)
    (tmp_path / "a").mkdir()
    whole = Server()
    expected = run(tmp_path / "a", data, endpoint=whole.url, **options)
    whole.close()
    assert len(whole.asked) == 16

    server = Server(stop_after=7)
    out = tmp_path / "r.json"
    flags = {"data": data, "endpoint": server.url, "out": out, "device": "cpu", "workers": 1, "retries": 100}
    flags = {**{k: v for k, v in options.items() if k not in ("ids", "levels", "policy")}, **flags}
    command = [
        sys.executable,
        "-m",
        "bench.channels.kernelbench",
        *(w for k, v in flags.items() for w in (f"--{k.replace('_', '-')}", str(v))),
    ]
    process = subprocess.Popen(
        [*command, "--levels", "1", "--ids", "1", "2", "--policy", "strict"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert server.enough.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    journal = tmp_path / "r.journal.jsonl"
    kept = sum(json.loads(line)["kind"] == "sample" for line in journal.read_text().split("\n")[:-1])
    assert 1 <= kept <= 7
    with open(journal, "a") as file:
        file.write('{"kind": "sample", "pro')  # the worst moment to die
    server.close()

    rest = Server()
    rest.url = server.url  # the same run: only the port may differ, and the endpoint is one of its settings
    lines = journal.read_text().splitlines()
    settings = json.loads(lines[0])
    port = f"http://127.0.0.1:{rest.http.server_port}/v1"
    journal.write_text("\n".join([json.dumps(settings | {"endpoint": port}), *lines[1:]]))
    again = run(tmp_path, data, endpoint=port, **options)
    rest.close()
    assert len(rest.asked) == 16 - kept
    assert statuses(again, "strict") == statuses(expected, "strict")
    assert again["scores"] == expected["scores"]
    assert set(statuses(again, "strict").values()) >= {"no_code", "wrong_value"}


# ---- mistakes, one line each ----


def mistake(tmp_path, **options) -> str:
    cfg = config.make(bench.Config, device="cpu", out=str(tmp_path / "x.json"), **options)
    with pytest.raises(ConfigError) as caught:
        cfg.validate()
        bench.main(cfg, World())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_command_line_says_it_in_one_line(data, capsys):
    with pytest.raises(SystemExit) as stop:
        launch(
            bench.main,
            config.parse(bench.Config, ["--data", str(data), "--levels", "3", "--samples", str(data)]),
        )
    error = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and error.count("\n") == 1
        and error.startswith("error: ")
        and "no folder level3 in it" in error
    )


def test_mistakes(tmp_path, data):
    good = dict(data=str(data), levels=[1])
    assert "give one of --model" in mistake(tmp_path, **good)
    assert "give one of --model" in mistake(tmp_path, **good, model="m", samples="s")
    assert "--data" in mistake(tmp_path, samples="s")
    assert "no such folder" in mistake(tmp_path, data=str(tmp_path / "none"), samples="s")
    assert "no folder level1 in it" in mistake(tmp_path, data=str(tmp_path), samples="s")
    assert "levels 1 to 4" in mistake(tmp_path, data=str(data), levels=[5], samples="s")
    assert "given twice" in mistake(tmp_path, data=str(data), levels=[1, 1], samples="s")
    assert "no such file or folder" in mistake(tmp_path, **good, samples=str(tmp_path / "none"))
    assert "no problem has the id 77" in mistake(tmp_path, **good, ids=[77], samples=str(data))
    assert "--baseline" in mistake(tmp_path, **good, samples=str(data), baseline=str(tmp_path / "none"))
    rows = tmp_path / "rows.jsonl"
    for text, said in (
        ('{"level": 1,', "line 1: not JSON (the last line is cut short)"),
        ("", "it is empty"),
        ('{"level": 1, "problem_id": 77, "completion": "x"}\n', "problem 1/77, which is not"),
    ):
        rows.write_text(text)
        assert said in mistake(tmp_path, **good, samples=str(rows))
    rows.write_bytes(b"\xff\n")
    assert "rows.jsonl: cannot read" in mistake(tmp_path, **good, samples=str(rows))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no file in it is named level_<l>_problem_<id>" in mistake(tmp_path, **good, samples=str(empty))
    unknown = runs(tmp_path / "unknown", {"1/99/0": KERNEL})
    assert "problem 1/99, which is not in the data" in mistake(tmp_path, **good, samples=str(unknown))
    other = runs(tmp_path / "other", {"2/99/0": KERNEL})
    assert "no candidate for the problems asked for" in mistake(tmp_path, **good, samples=str(other))
    (unknown / "again").mkdir()
    twice = runs(unknown / "again" / "x", {"1/99/0": KERNEL})
    assert "already has a sample 0" in mistake(tmp_path, **good, samples=str(twice.parent.parent))
    (data / "KernelBench" / "level1" / "2_Again.py").write_text(RELU)
    assert "two problems have the id 2" in mistake(tmp_path, **good, samples=str(data))
    (data / "KernelBench" / "level1" / "2_Again.py").write_text("x = 1")
    assert "this file lacks Model" in mistake(tmp_path, **good, samples=str(data))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"completion": "x"}, "it names no problem"),
        ({"level": 1, "problem_id": "x", "completion": "y"}, "numbers are expected"),
        ({"level": 1, "problem_id": 1}, "neither completion nor candidate"),
        ({"level": 1, "problem_id": 1, "sample": "a", "completion": "x"}, "a number is expected"),
        ({"task": "nobody", "completion": "x"}, "not in the data"),
        ({"problem": "1/1", "sample": 0, "completion": "x"}, "has a sample 0 already"),
    ],
)
def test_bad_rows(tmp_path, data, row, said):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({"problem": "1/1", "sample": 0, "completion": "x"}) + "\n" + json.dumps(row) + "\n"
    )
    with pytest.raises(ValueError, match="entry 2") as caught:
        bench.read_samples(str(path), tasks.load_problems(str(data), [1]))
    assert said in str(caught.value)


# ---- problems ----


def test_problems_from_a_clone(data):
    problems = tasks.load_problems(str(data), [2, 1])
    assert [p.name for p in problems] == ["1/1", "1/2", "1/10", "2/1"]
    assert [p.name for p in tasks.select(problems, limit=2)] == ["1/1", "1/2", "2/1"]
    assert [p.name for p in tasks.select(problems, ids=[1])] == ["1/1", "2/1"]
    assert [p.name for p in tasks.select(problems, ids=[2, 10], limit=1)] == ["1/2"]
    assert tasks.load_problems(str(data / "KernelBench" / "level2"), [2])[0].task.source == DOUBLE


def test_problems_from_the_hub():
    rows = [
        {"row": {"code": DOUBLE, "level": 1, "name": f"{i}_Double", "problem_id": i}}
        for i in range(150, 0, -1)
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            query = dict(part.split("=") for part in self.path.split("?")[1].split("&"))
            offset = int(query["offset"]) if query["split"] == "level_1" else len(rows)
            data = json.dumps({"rows": rows[offset : offset + 100], "num_rows_total": len(rows)}).encode()
            self.send_response(200 if query["split"] == "level_1" else 404)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    server = f"http://127.0.0.1:{http.server_port}"
    problems = tasks.load_problems("hub", [1], server)
    assert [p.id for p in problems] == list(range(1, 151)) and problems[0].task.name == "1_Double"
    with pytest.raises(ValueError, match=r"level 2, can't be read from the hub.*give --data FOLDER"):
        tasks.load_problems("hub", [2], server)
    http.shutdown()
    http.server_close()


def test_prompts_hold_the_problem():
    for style in ("autotriton", "kernelbench"):
        text = tasks.prompt_of(style).of(RELU).messages[-1][1]
        assert RELU.strip() in text and "ModelNew" in text


def test_report_reads_what_was_written(tmp_path, capsys):
    with pytest.raises(SystemExit):
        report.load(str(tmp_path / "none.json"))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SystemExit):
        report.load(str(tmp_path / "x.json"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "cannot read" in said[0] and "not a results file" in said[1]


def test_verdicts_survive_the_journal():
    assert Verdict(**json.loads(json.dumps(asdict(Verdict("correct", speedup=1.5))))).speedup == 1.5
