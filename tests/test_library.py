"""nanotriton in other people's programs: installed, imported, and as the reward of TRL and verl."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from concurrent.futures import Future
from pathlib import Path

import pytest

import nanotriton
from nanotriton import library
from nanotriton.executor.processes import cores, default_workers
from nanotriton.reward import adapters
from nanotriton.tasks.prompt import USER
from nanotriton.tasks.task import Task, load_task
from nanotriton.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]
TASK, KERNEL = ROOT / "tests/honest/softmax/task.py", ROOT / "tests/honest/softmax/online.py"
RIGHT = f"Here it is.\n```python\n{KERNEL.read_text()}```"
CHEAT = "```python\nclass ModelNew: pass\n```"


def run(code: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def load(path: Path):
    """A Python file as a module under another name."""
    spec = importlib.util.spec_from_file_location("custom_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- import


def test_importing_the_package_takes_nothing_with_it():
    done = run(
        """
        import sys, nanotriton
        print([name for name in sys.modules if name.startswith(("nanotriton.", "torch", "triton"))])
        from nanotriton import Executor, Task, Verdict, judge, load_task
        print("torch" in sys.modules, set(nanotriton.__all__) <= set(dir(nanotriton)))
        """,
        cwd=ROOT,
    )
    assert done.stdout == "[]\nFalse True\n", done.stderr
    with pytest.raises(AttributeError, match="no attribute 'jugde'"):
        nanotriton.jugde  # noqa: B018


# ---- judge


def test_judge_takes_files_texts_and_tasks():
    for task in (TASK, str(TASK), TASK.read_text(), load_task(TASK)):
        assert nanotriton.judge(task, KERNEL, workers=1, seed=0).status == "correct"
    verdict = nanotriton.judge(TASK, KERNEL.read_text().replace("tl.exp(", "tl.exp2("), workers=1, seed=0)
    assert verdict.status == "wrong_value" and verdict.message
    assert nanotriton.judge(TASK, "no Python", workers=1, seed=0).status == "syntax_error"


@pytest.mark.parametrize(
    "task, source, options, says",
    [
        ("none.py", "x", {}, "none.py: cannot read: No such file"),
        (TASK, "none.py", {}, "none.py: cannot read: No such file"),
        ("x = 1\n", "x", {}, "task: a task defines Model, get_inputs, get_init_inputs; this file lacks"),
        ("class Model", "x", {}, "task: not Python"),
        (TASK, "x", {"device": "tpu"}, "unknown device 'tpu'; one of cpu, cuda"),
        (TASK, "x", {"policy": "lax"}, "unknown policy 'lax'"),
    ],
)
def test_what_judge_cannot_use_is_one_line(task, source, options, says, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        nanotriton.judge(task, source, **options)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_judging_shares_an_executor_which_a_fork_leaves_alone():
    executor = library.shared_executor(workers=1, seed=0)
    assert library.shared_executor(seed=0, workers=1) is executor
    assert library.shared_executor(seed=1, workers=1) is not executor
    code = f"""
        import os, sys
        from nanotriton.library import judge, shared_executor
        mine = shared_executor(workers=1)
        print(judge({str(TASK)!r}, {str(KERNEL)!r}, workers=1).status, flush=True)
        if os.fork() == 0:
            sys.exit(0)  # with all that runs when a process ends
        os.wait()
        print(judge({str(TASK)!r}, "class ModelNew: pass", workers=1).status)
        print(os.path.isdir(mine.root), mine.root)
    """
    done = run(code, cwd=ROOT)
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("correct", "rule_violation"), done.stderr
    assert third.startswith("True ") and not Path(third.split()[1]).exists()


def test_a_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cores() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cores() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert cores() == 1


def test_one_core_is_left_to_the_sampler_but_of_two_both_judge(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    workers = {}
    for count in (1, 2, 3, 16):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, count=count: set(range(count)))
        workers[count] = default_workers()
    assert workers == {1: 1, 2: 2, 3: 2, 16: 15}


# ---- adapters


def test_the_reward_of_trl():
    reward, logged = adapters.trl_reward(workers=1, seed=0), {}
    chats = [[{"role": "assistant", "content": text}] for text in (RIGHT, CHEAT, "no code")]
    void = TASK.read_text().replace("torch.softmax(x, dim=-1)", "x * 0")  # a weak task: zeros would pass
    tasks = [TASK.read_text(), str(TASK), str(TASK), void]
    values = reward(
        prompts=["p"] * 4,
        completions=[*chats, RIGHT],
        completion_ids=[[1]] * 4,
        task=tasks,
        level=[1] * 4,  # another column of the data
        log_extra=logged.__setitem__,
    )
    assert values == [1.0, 0.0, 0.0, None]
    assert logged == {"status": ["correct", "rule_violation", "no_code", "weak_task"]}


def test_a_batch_of_trl_is_judged_on_one_draw(monkeypatch):
    draws = []

    class Judge:
        def submit(self, task, source, draw):
            draws.append(draw)
            done = Future()
            done.set_result(Verdict("correct", "judge"))
            return done

    monkeypatch.setattr(adapters, "shared_executor", lambda **options: Judge())
    reward = adapters.trl_reward()
    for _ in range(2):
        assert reward(completions=[RIGHT, RIGHT], task=[str(TASK)] * 2) == [1.0, 1.0]
    assert draws[0] == draws[1] != draws[2] == draws[3] and None not in draws

    emptied = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append(len(draws)))
    adapters.trl_reward(device="cuda:0")(completions=[RIGHT], task=[str(TASK)])
    assert emptied == [4]  # before anything is submitted


def test_the_score_of_verl(tmp_path):
    options = dict(workers=1, seed=0)
    found = adapters.verl_score("kernels", RIGHT, str(TASK), {"index": 3}, **options)
    assert found == {"score": 1.0, "acc": 1.0, "status": "correct"}
    wrong = dict(data_source="kernels", solution_str="no code", ground_truth=TASK.read_text())
    assert adapters.verl_score(**wrong) == {"score": 0.0, "acc": 0.0, "status": "no_code"}
    (mine := tmp_path / "mine.py").write_text(
        "def reward(verdict, completion, task): return len(completion)\n"
    )
    assert adapters.verl_score(**wrong, reward=str(mine))["score"] == 7.0
    void = TASK.read_text().replace("torch.softmax(x, dim=-1)", "x * 0")
    with pytest.raises(ValueError, match=r"has no score \(weak_task: .*take the task out"):
        adapters.verl_score("kernels", RIGHT, void, **options)
    assert adapters.verl_score("kernels", RIGHT, void, unscored=0.5, **options)["score"] == 0.5


def test_verl_loads_the_function_from_the_file_with_its_options():
    """As verl does it: the file by its path under another name, and the options by name."""
    module = load(ROOT / "nanotriton/reward/adapters.py")
    arguments = dict(data_source="k", solution_str="no code", ground_truth=str(TASK), extra_info=None)
    assert module.verl_score(**{"device": "cpu"}, **arguments)["status"] == "no_code"


PROMPT_END = USER[-9:]
RELU = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(5, 33)]


def get_init_inputs():
    return []
"""
ANSWER = """\
```python
import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(v, {bound}), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), 64)
        return y
```"""


@pytest.mark.slow
def test_trls_grpo_trainer_trains_two_steps_with_our_executor(tmp_path, monkeypatch):
    """A small Llama has learnt by heart one right and one wrong answer, and TRL raises the right one."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("datasets")
    from nanotriton.tasks.bpe import train_tokenizer

    answers = [ANSWER.format(bound=bound) for bound in ("0.0", "1.0")]
    train_tokenizer([PROMPT_END, *answers] * 2, 400, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = [tokenizer(PROMPT_END + answer + tokenizer.eos_token)["input_ids"] for answer in answers]
    transformers.set_seed(0)
    shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    shape |= dict(bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer), **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    ids = torch.tensor(rows)
    for _ in range(120):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    model.save_pretrained(tmp_path / "model")
    (tmp_path / "task.py").write_text(RELU)

    example = load(ROOT / "docs/examples/trl_grpo.py")
    chat = "{{ messages[-1].content[-9:] }}"  # the prompt's end is all that it has learnt to answer
    (tmp_path / "model" / "chat_template.jinja").write_text(chat)
    statuses = []
    judge_batch = adapters.trl_reward(workers=1, seed=0)

    def triton_reward(log_extra, **columns):
        return judge_batch(log_extra=lambda name, column: statuses.append(column), **columns)

    monkeypatch.setattr(example, "trl_reward", lambda: triton_reward)
    trainer = example.make_trainer(
        str(tmp_path / "model"),
        str(tmp_path / "task.py"),
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=16,
        num_generations=16,
        max_completion_length=ids.shape[1] + 8,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        seed=0,
    )
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    assert [len(column) for column in statuses] == [16, 16]
    for row, column in zip(log, statuses, strict=True):
        assert row["reward"] == pytest.approx(column.count("correct") / 16)
    assert {"correct", "wrong_value"} <= {*statuses[0], *statuses[1]}
    assert any((p.detach() - before[name]).abs().max() > 1e-5 for name, p in trainer.model.named_parameters())


# ---- installed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of this tree. It is built of a copy, because setuptools leaves its own files where it builds."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("setuptools is older than pyproject.toml asks for")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "nanotriton", folder / "nanotriton")
    # what a wheel must leave behind, and data in a folder that is no package
    (folder / "nanotriton" / "left.pyc").write_bytes(b"")
    (folder / "nanotriton" / "pages" / "deep").mkdir(parents=True)
    (folder / "nanotriton" / "pages" / "deep" / "page.html").write_text("<p>")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-build-isolation",
        "--no-deps",
        "-q",
        "-w",
        "dist",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (folder / "dist").glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    files = {f.relative_to(ROOT) for f in (ROOT / "nanotriton").rglob("*") if f.is_file()}
    expected = {str(f) for f in files if "__pycache__" not in f.parts}
    assert names == expected | {"nanotriton/pages/deep/page.html"}
    needed = [re.match(r"Requires-Dist: ([\w-]+)", line) for line in lines]
    asked = (ROOT / "requirements.txt").read_text().splitlines()
    assert [name[1] for name in needed if name] == [re.match(r"[\w-]+", line)[0] for line in asked]


@pytest.mark.slow
def test_installed_it_judges_from_another_folder(wheel, tmp_path):
    """In an environment of its own, which borrows torch from this one."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "env"], cwd=tmp_path, check=True, timeout=60
    )
    python = tmp_path / "env" / "bin" / "python"
    show = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"
    packages = Path(json.loads(subprocess.check_output([python, "-c", show], text=True)))
    (packages / "borrowed.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")) + "\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*command, str(wheel)], check=True, timeout=120)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "reward.py").write_text("raise SystemExit('a module of the user')\n")
    code = f"""
        import sys, nanotriton
        from nanotriton import judge
        from nanotriton.reward import adapters
        print(nanotriton.__file__)
        print(sys.excepthook is sys.__excepthook__)
        print(judge({str(TASK)!r}, {str(KERNEL)!r}, workers=1))
        print(adapters.verl_score("k", "no code", {str(TASK)!r}))
    """
    script = tmp_path / "elsewhere" / "program.py"
    script.write_text(textwrap.dedent(code))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    options = dict(cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=120)
    done = subprocess.run([python, script], **options)
    where, hook, verdict, score = done.stdout.splitlines()
    assert Path(where).is_relative_to(packages), done.stderr
    assert hook == "True" and verdict.startswith("correct (") and "'status': 'no_code'" in score
    done = subprocess.run([python, "-m", "nanotriton.executor", TASK, KERNEL], **options)
    assert done.returncode == 0 and "correct" in done.stdout, done.stderr
    # its files that are no Python came with it
    row = {"stage": "grpo", "step": 1, "reward": 0.5, "statuses": {"correct": 1}, "seconds": {}}
    (tmp_path / "elsewhere" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    done = subprocess.run([python, "-m", "nanotriton.browse", ".", "--out", "page.html"], **options)
    assert done.returncode == 0 and "<script" in (tmp_path / "elsewhere" / "page.html").read_text(), (
        done.stderr
    )


def test_only_our_own_programs_lose_their_traceback_of_ctrl_c(tmp_path):
    tell = "import nanotriton, sys; print(sys.excepthook is nanotriton.excepthook)"
    package = tmp_path / "another"
    package.mkdir()
    (package / "__init__.py").write_text("import nanotriton\n")
    (package / "__main__.py").write_text(f"{tell}\n")
    (tmp_path / "program.py").write_text(f"{tell}\n")
    options = dict(cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, timeout=60)
    for words, ours in (
        (["-m", "another"], "False\n"),
        (["program.py"], "False\n"),
        (["-m", "nanotriton.executor", "--help"], None),
    ):
        out = subprocess.check_output([sys.executable, *words], **options)
        assert out == ours if ours else "usage: python -m nanotriton.executor" in out


def test_a_task_keeps_its_name_and_a_text_is_called_task():
    assert library.as_task(TASK).name == "task" and library.as_task(Task("mine", "x")).name == "mine"
    assert library.as_source(Path(KERNEL)) == KERNEL.read_text() and library.as_source("a.py\n") == "a.py\n"
