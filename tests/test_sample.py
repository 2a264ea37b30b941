"""sample.py: a module in, a verified kernel out, with a scripted teacher behind real HTTP."""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

import sample
from nanotriton.config import ConfigError
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.search.writers import ModelWriter, Sampling
from nanotriton.tasks.module import module_task
from nanotriton.tasks.prompt import DEFAULT, SYSTEM
from nanotriton.verdict import Verdict
from tests.test_collect_distil import Server

ROOT = Path(__file__).resolve().parents[1]
HEAD = "import torch\nfrom torch import nn\n\n\n"
# Three modules, each in another form.
MODULES = {
    "kernelbench.py": HEAD
    + """\
class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return torch.where(x > 0, x, x * self.slope)


def get_inputs():
    return [torch.randn(6, 50)]


def get_init_inputs():
    return [0.25]
""",
    "example.py": HEAD
    + """\
class Shifted(nn.Module):
    def __init__(self, by=3.0):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x * 2 + self.by


example_inputs = (torch.randn(4, 33),)
""",
    "parts.py": HEAD
    + """\
class Square(nn.Module):
    def forward(self, x):
        return x * x


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.square = Square()

    def forward(self, x, y):
        return self.square(x) - y


def get_inputs():
    return [torch.randn(70), torch.randn(70)]
""",
}
KERNEL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, out_ptr, constant, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, {formula}, mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self, constant=3.0):
        super().__init__()
        self.constant = constant

    def forward(self, x, y=None):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, x if y is None else y, out, self.constant, x.numel(), 64)
        return out
"""
RIGHT = {
    "kernelbench.py": "tl.where(x > 0, x, x * constant)",
    "example.py": "x * 2 + constant",
    "parts.py": "x * x - y",
}
WRONG, BROKEN = "x * 7", "tl.no_such_function(x)"


def answer(formula: str) -> str:
    return f"Here it is.\n```python\n{KERNEL.format(formula=formula)}```\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def serve():
    servers = []

    def start(script) -> Server:
        servers.append(Server(script))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()


@pytest.fixture
def shared(monkeypatch, executors):
    """One executor for all searches of this process, since a start takes seconds."""

    def make(cfg, policy="strict"):
        return contextlib.nullcontext(executors(policy=policy))

    monkeypatch.setattr(sample, "make_executor", make)
    return make


def options(folder: Path, name: str, server: Server, **more) -> sample.Config:
    return sample.Config(
        file=str(folder / name), endpoint=server.url, served_model="m", out=str(folder / "best.py"), **more
    )


def load(path: Path):
    spec = importlib.util.spec_from_file_location("best", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- with a teacher


@pytest.mark.slow
def test_what_was_wrong_goes_back_until_it_is_right(folder, serve):
    """As a user runs it, with a file that is not in KernelBench's format."""

    def teacher(messages):
        if len(messages) == 2:
            return answer(WRONG)
        return answer(RIGHT["example.py"] if "judged compile_error" in messages[-1]["content"] else BROKEN)

    server = serve(teacher)
    command = [
        sys.executable,
        ROOT / "sample.py",
        "example.py",
        "--endpoint",
        server.url,
        "--served-model",
        "m",
    ]
    done = subprocess.run(
        [*command, "--n", "2", "--rounds", "4"], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split()[:3] for line in done.stdout.splitlines() if line[:5].strip().isdecimal()]
    statuses = ("wrong_value", "compile_error", "correct")
    assert table == [[str(r), str(k), s] for r, s in enumerate(statuses, 1) for k in (1, 2)]
    assert "6 answers in 3 rounds: 2 wrong_value, 2 compile_error, 2 correct" in done.stdout
    assert "from best import ModelNew" in done.stdout

    first, last = server.seen[0], server.seen[-1]
    assert [m["role"] for m in first] == ["system", "user"] and first[0]["content"] == SYSTEM
    assert "class Model(nn.Module)" in first[1]["content"] and "return x * 2 + self.by" in first[1]["content"]
    # the last answer and what was said of it, and none before
    assert [m["role"] for m in last] == ["system", "user", "assistant", "user"] and last[:2] == first
    assert "no_such_function" in last[2]["content"] and "no_such_function" in last[3]["content"]

    text = (folder / "best.py").read_text()
    assert text.endswith(KERNEL.format(formula=RIGHT["example.py"]))
    comment = [line for line in text.splitlines() if line.startswith("#")]
    assert any("example.py" in line for line in comment) and any(
        "Written by: m, round 3" in c for c in comment
    )
    assert any("Speed-up over PyTorch: not measured" in c for c in comment)
    assert any(c.startswith("# Largest error: ") for c in comment)
    assert issubclass(load(folder / "best.py").ModelNew, torch.nn.Module)


@pytest.mark.parametrize("name", MODULES)
def test_any_file_with_a_module_and_inputs(folder, serve, shared, name, capsys):
    server = serve(lambda messages: answer(RIGHT[name]))
    assert sample.main(options(folder, name, server, n=1), World()) == 0
    assert (folder / "best.py").read_text().endswith(KERNEL.format(formula=RIGHT[name]))
    assert len(server.seen) == 1  # nothing is timed here, so nothing is asked for after a right answer


def test_without_a_right_answer_nothing_is_written(folder, serve, shared, capsys):
    server = serve(lambda messages: answer(WRONG) if len(messages) == 2 else "I can't.")
    assert sample.main(options(folder, "example.py", server, n=1, rounds=3), World()) == 1
    out = capsys.readouterr().out
    assert "3 answers in 3 rounds: 2 no_code, 1 wrong_value" in out
    assert "no verified kernel" in out and not (folder / "best.py").exists()
    assert server.seen[2][-1]["content"].startswith(
        "That was judged no_code: the answer has no ```python block"
    )


def test_a_kernel_that_is_wrong_on_other_inputs_is_not_written(folder, serve, shared, monkeypatch, capsys):
    """Right for the inputs of the search, as a kernel may be that was chosen among many."""
    server, strict = serve(lambda messages: answer(RIGHT["example.py"])), []

    class Other:
        def submit(self, task, code):
            done: Future = Future()
            done.set_result(Verdict("wrong_value", "judge", "output[0] differs"))
            return done

    def make(cfg, policy="strict"):
        strict.extend([1] if policy == "strict" else [])
        return contextlib.nullcontext(Other()) if len(strict) == 2 else shared(cfg, policy)

    monkeypatch.setattr(sample, "make_executor", make)
    assert sample.main(options(folder, "example.py", server, n=1), World()) == 1
    assert "round 1, answer 1: judged again it is wrong_value: output[0] differs" in capsys.readouterr().out
    assert not (folder / "best.py").exists()


def test_each_executor_has_secret_inputs_of_its_own(folder, serve):
    cfg = options(folder, "example.py", serve([]))
    with sample.make_executor(cfg) as one, sample.make_executor(cfg) as other:
        assert one.secret != other.secret and one.policy == "strict" and not one.time


def test_a_server_that_does_not_answer_is_not_the_models_failure(folder, serve, shared, monkeypatch, capsys):
    impatient = functools.partial(sample.Client, retries=1, backoff=0.01)
    monkeypatch.setattr(sample, "Client", impatient)
    server = serve(lambda messages: 503)
    assert sample.main(options(folder, "example.py", server, n=1, rounds=1), World()) == 1
    assert "infra_error" in capsys.readouterr().out
    server = serve(lambda messages: 401)
    with pytest.raises(ConfigError, match=r"--endpoint .*: HTTP 401"):
        sample.main(options(folder, "example.py", server, n=1), World())


# ---- mistakes


def mistake(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "sample.py", *words], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == "", (
        done.stdout + done.stderr
    )
    return done.stderr.removeprefix("error: ").strip()


def test_a_mistake_is_one_line(folder):
    server = ["--endpoint", "http://127.0.0.1:1/v1"]
    assert mistake([], folder) == "no module is given: python sample.py MODULE.py --model FOLDER"
    assert mistake(["example.py"], folder) == "give one of --model FOLDER and --endpoint URL"
    assert mistake(["example.py", *server, "--model", "x"], folder).startswith("give one of")
    assert mistake(["example.py", *server, "--out", "best.txt"], folder).startswith("--out best.txt: a name")
    assert mistake(["example.py", *server, "--out", "example.py"], folder).endswith("the module's own file")
    assert mistake(["example.py", *server, "--rouns", "3"], folder).endswith("did you mean --rounds?")
    assert mistake(["example.py", *server, "--template", "{"], folder).startswith("--template {: not JSON")


@pytest.mark.parametrize(
    "change, says",
    [
        (("example_inputs = ", "inputs = "), r"it has no inputs for Shifted.forward: a file is expected"),
        (("by=3.0", "by"), r"Shifted.__init__ takes by: get_init_inputs\(\) is expected"),
        (
            ("x * 2 + self.by", "x @ x"),
            r"example.py can't be judged: unsupported: the reference itself fails",
        ),
        (("x * 2 + self.by", "x * 0"), r"example.py can't be judged: weak_task"),
    ],
)
def test_a_module_that_cannot_be_judged_costs_no_answer(folder, serve, shared, change, says):
    server = serve([])
    (folder / "example.py").write_text(MODULES["example.py"].replace(*change))
    with pytest.raises(ConfigError, match=says) as error:
        sample.main(options(folder, "example.py", server), World())
    assert "\n" not in str(error.value) and server.seen == []
    with pytest.raises(SystemExit) as stop:
        launch(sample.main, options(folder, "example.py", server))
    assert stop.value.code == 2


# ---- our own sampler


def small_model(folder: Path, template: str = "") -> Path:
    """A random model that answers with anything at all."""
    from nanotriton.tasks.bpe import train_tokenizer
    from nanotriton.transformer.model import Transformer
    from nanotriton.transformer.model_config import ModelConfig
    from nanotriton.transformer.tokenizer import Tokenizer
    from nanotriton.transformer.weights import save_model

    train_tokenizer([KERNEL, MODULES["example.py"]] * 2, 400, folder)
    tokenizer = Tokenizer(folder)
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
    )
    save_model(Transformer(config), folder, tokenizer.files)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder


CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_a_model_answers_equal_prompts_in_one_go_and_says_what_it_has_no_room_for(tmp_path):
    world = World()
    writer = ModelWriter(str(small_model(tmp_path, CHAT)), world.device, world.dtype, Sampling(max_tokens=5))
    assert writer.converses
    short = dataclasses.replace(DEFAULT, messages=(("user", "x"),))
    long = dataclasses.replace(DEFAULT, messages=(("user", "x " * 600),))
    asked, generate = [], writer.sampler.generate
    writer.sampler.generate = lambda requests, **more: asked.append(requests) or generate(requests, **more)
    written = writer.write([short, long, short, short], [1, 2, 1, 3])
    assert [request.n for request in asked[0]] == [3]
    assert (
        written[0] == written[2] != written[3]
        and written[0].error == "it was cut after 5 tokens (--max-tokens)"
    )
    assert written[1].text == "" and "leaves no room in the model's 256" in written[1].error
    bare = ModelWriter(str(small_model(tmp_path / "bare")), world.device, world.dtype, Sampling(max_tokens=5))
    assert not bare.converses


@pytest.mark.slow
def test_a_model_that_was_trained_here_from_nothing(folder):
    """train_sft.py makes a small model that knows one right and one wrong answer by heart."""
    task = module_task(folder / "example.py")
    pairs = [{"task": task.source, "completion": answer(f)} for f in (RIGHT["example.py"], BROKEN)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs * 8))
    run = functools.partial(subprocess.run, cwd=folder, capture_output=True, text=True, timeout=400)
    train = ["train_sft.py", "--data", "pairs.jsonl", "--steps", "120", "--layers", "2", "--width", "64"]
    train += ["--batch", "4", "--lr", "0.005", "--eval-tasks", "0", "--out", str(folder / "out")]
    done = run([sys.executable, ROOT / train[0], *train[1:]])
    assert done.returncode == 0, done.stdout + done.stderr
    command = [sys.executable, ROOT / "sample.py", "example.py", "--model", "out/sft/model", "--seed", "1"]
    done = run([*command, "--n", "8", "--rounds", "2"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no chat template" in done.stdout and " correct " in done.stdout
    assert (folder / "best.py").read_text().endswith(KERNEL.format(formula=RIGHT["example.py"]))
