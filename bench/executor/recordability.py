"""How much real code can be recorded, and does it replay to what a plain run gives?

    python -m bench.executor.recordability --data FOLDER [--replay cpu|cuda] [--out FILE.json]

FOLDER holds Python files that run their own tests and leave the answers in a variable named result... or
test_results, as TritonBench's files do. Each file is recorded with its whole script in a process of its own
and, with --replay, replayed. The answers are compared with a plain run of the same file with the same random
tensors (plain_run.py). Without a GPU a file with Triton in it has no plain run; in others "cuda" reads "cpu".
"""

import collections
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench.results import environment, write_json
from nanotriton import config
from nanotriton.executor.common.card import DEFAULT, Card
from nanotriton.executor.processes import read_card, visible_devices
from nanotriton.plan.aten import PlanError
from nanotriton.plan.plan import Plan

SEED = 0
MEMORY = 40 << 30  # bytes that a plan may want
REPLAY_SECONDS = 90.0  # for a replay, on a GPU or in the evaluator
PLAIN_SECONDS = 240.0  # for a plain run, with its own compilations and autotuning
TOLERANCE = (
    1e-2  # how far a replay may be from a plain run, over the root mean square of the plain run's answer
)
PLAIN_RUN = Path(__file__).with_name("plain_run.py")

# What a replay or a plain run gives: the tensors of its answer on the CPU, or why there are none.
Answer = list[torch.Tensor]


@dataclass
class Config:
    data: str = ""  # a folder of Python files
    replay: Literal["no", "cpu", "cuda"] = "no"  # replay what was recorded: in the evaluator, or on a GPU
    limit: Annotated[float, "> 0"] = 60.0  # CPU seconds for recording a file
    out: str = ""  # JSON file for the results; empty: print only


# ---- recording ----


def record_all(files: list[Path], limit: float, folder: Path, jobs: int, card: Card) -> None:
    """Write into `folder`, for each file, what happened (NAME.json) and the plan's bytes (NAME).

    `jobs` processes are forked from this one when it has warmed up. Each forks a child for each of its files,
    which may die. Recording needs processes that see no GPU.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from nanotriton.executor.child import recorder

    recorder.install(card)
    recorder.warm_up(folder)
    workers = []
    for i in range(jobs):
        workers.append(os.fork())
        if not workers[-1]:
            try:
                for path in files[i::jobs]:
                    record_one(path, limit, folder)
            except BaseException:
                traceback.print_exc()
            finally:  # never return into the process that this was forked from: it would remove its folder
                os._exit(0)
    for pid in workers:
        os.waitpid(pid, 0)


def record_one(path: Path, limit: float, results: Path) -> None:
    """Record one file in a child, and write down what became of it."""
    start, (read, write) = time.monotonic(), os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        pid = os.fork()
        if not pid:
            try:
                os.close(read)
                _child(path, folder, write, limit)
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            data = file.read()
        _, status = os.waitpid(pid, 0)
    head, _, plan = data.partition(b"\n")
    if head:
        fact = json.loads(head)
    elif os.WIFSIGNALED(status):
        fact = {"status": "crashed", "message": f"died of signal {os.WTERMSIG(status)}"}
    else:
        fact = {"status": "crashed", "message": f"ended with code {os.WEXITSTATUS(status)}"}
    fact["seconds"] = round(time.monotonic() - start, 3)
    Path(results, path.stem).write_bytes(plan)
    Path(results, f"{path.stem}.json").write_text(json.dumps(fact))
    print(f"{path.stem:40} {fact['status']:15} {fact.get('message', '')[:150]}", flush=True)


def _child(path: Path, folder: str, fd: int, limit: float) -> None:
    """Write to `fd` a line of JSON that says what happened, and behind it the plan's bytes."""
    import resource

    from nanotriton.executor.child import recorder

    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    body = b""
    try:
        plan = recorder.record_script(path.read_text(), seed=SEED, folder=folder)
        head, body = {"status": "recorded", "launches": len(plan.launches())}, plan.to_bytes()
    except recorder.RecordError as error:
        status = error.status if error.recordable else "unrecordable"
        head = {"status": status, "message": error.message, "line": error.line}
    except Exception as error:
        head = {"status": "crashed", "message": f"{type(error).__name__}: {error}"}
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + body)
    os._exit(0)


def record_apart(cfg: Config, files: list[Path], folder: Path, jobs: int, card: Card) -> dict[str, dict]:
    """{file's name: what became of it}.

    `record_all` runs in a process of its own, as this one may see a GPU.
    """
    pid = os.fork()
    if not pid:
        try:
            record_all(files, cfg.limit, folder, jobs, card)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    facts = {}
    for path in files:
        found = Path(folder, f"{path.stem}.json")
        if found.exists():
            facts[path.stem] = json.loads(found.read_text())
        else:
            facts[path.stem] = {"status": "crashed", "message": "the process that recorded it died"}
    return facts


# ---- replaying ----


def compile_plan(data: bytes, card: Card) -> dict:
    """{kernel's key: Binary} of the kernels that a replay launches. It runs in a process of its own.

    Raises CompileError, PlanError.
    """
    from nanotriton.executor.gpu.compiler import compile_kernel

    plan = Plan.from_bytes(data, max_memory=MEMORY)
    kernels = [plan.kernels[index] for index in dict.fromkeys(launch.kernel for launch in plan.launches())]
    return {kernel.key: compile_kernel(kernel, card) for kernel in kernels}


def replay(data: bytes, device: str, binaries: dict) -> dict | Answer:
    """The answer of one plan, or why there is none. It runs in a process that may lose its CUDA context."""
    from nanotriton.executor.replay.replayer import Replay, ReplayError

    torch.set_num_threads(1)
    # Tensors are passed on as files: as descriptors, every tensor of an answer would take one.
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        plan = Plan.from_bytes(data, max_memory=MEMORY)
        if device == "cpu":
            outputs = Replay(plan).run([])
        else:
            from nanotriton.executor.gpu.arena import CudaBackend

            backend = CudaBackend(binaries)
            outputs = Replay(plan, backend=backend).run([])
            backend.close()
    except PlanError as error:
        return {"replay": "plan", "message": str(error)}
    except ReplayError as error:
        return {"replay": error.status, "message": error.message, "line": error.line, "fatal": error.fatal}
    return [t.cpu() for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


class Replayer:
    """Replays in a process of its own, and in another one after that lost its GPU, died, or took too long."""

    def __init__(self, device: str):
        self.device, self.pool = device, None

    def __call__(self, data: bytes, binaries: dict) -> dict | Answer:
        self.pool = self.pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            result = self.pool.submit(replay, data, self.device, binaries).result(REPLAY_SECONDS)
        except TimeoutError:
            result = {"replay": "timeout", "message": f"not done after {REPLAY_SECONDS:g} s", "fatal": True}
        except BrokenProcessPool:
            result = {"replay": "crashed", "message": "the process died", "fatal": True}
        if isinstance(result, dict) and result.get("fatal"):
            self.close()
        return result

    def close(self) -> None:
        if self.pool:
            for process in list(self.pool._processes.values()):
                process.kill()
            self.pool.shutdown()
            self.pool = None


class Replayers:
    """Several Replayers, each for one thread at a time."""

    def __init__(self, device: str, count: int):
        self.all = [Replayer(device) for _ in range(count)]
        self.free: queue.SimpleQueue[Replayer] = queue.SimpleQueue()
        for one in self.all:
            self.free.put(one)

    def __call__(self, data: bytes, binaries: dict) -> dict | Answer:
        one = self.free.get()
        try:
            return one(data, binaries)
        finally:
            self.free.put(one)

    def close(self) -> None:
        for one in self.all:
            one.close()


def judge(
    data: bytes, replays: Replayers, evaluates: Replayers, binaries: Future | None, plain: Future | None
) -> dict:
    """Replay one plan and compare the answer with a plain run, if there is one.

    binaries: of compile_plan, for a GPU. If a GPU finds a difference, the evaluator is asked why.
    """
    from nanotriton.executor.gpu.compiler import CompileError

    try:
        outputs = replays(data, binaries.result() if binaries else {})
    except CompileError as error:
        return {"replay": error.status, "message": error.message}
    if isinstance(outputs, dict):
        result = outputs
    elif plain:
        outputs = [t.clone() for t in outputs]  # out of shared memory, of which there may be little
        result = beside_plain_run(outputs, plain.result())
    else:
        result = {"replay": "ran"}
    if binaries and result["replay"] not in ("same", "ran"):
        result["why"] = diagnosis(evaluates(data, {}))
    return result


def diagnosis(seen: dict | Answer) -> str:
    """Why a replay on a GPU is not what a plain run gives, in words.

    seen: what the TTIR evaluator, which looks at every memory access, makes of the same plan.
    """
    if isinstance(seen, dict):
        line = f" (line {seen['line']})" if seen.get("line") else ""
        return f"the evaluator: {seen['replay']}: {seen['message']}{line}"
    # Memory that nobody has written holds NaN.
    if unwritten := sum(int(t.isnan().sum()) for t in seen if t.is_floating_point()):
        return f"{unwritten} elements of its answers come from memory that nobody wrote"
    return "the evaluator finds no fault"


# ---- plain runs ----


def runs_plain(path: Path, device: str) -> bool:
    """Whether the file can be run as it is: without a GPU, only one without Triton."""
    return device == "cuda" or "triton" not in path.read_text()


def plain_run(path: Path, device: str) -> Answer | str:
    """The answer of the file, run as it is in a process of its own; or what that died of."""
    with tempfile.TemporaryDirectory() as folder:
        source, saved = Path(folder) / "source.py", Path(folder) / "out.pt"
        text = path.read_text()
        source.write_text(text if device == "cuda" else text.replace("cuda", "cpu"))
        words = [sys.executable, "-P", PLAIN_RUN, source, saved, str(SEED)]
        try:
            run = subprocess.run(words, capture_output=True, text=True, timeout=PLAIN_SECONDS)
        except subprocess.TimeoutExpired:
            return f"not done after {PLAIN_SECONDS:g} s"
        if run.returncode:
            return (run.stderr.strip().splitlines() or ["?"])[-1][:200]
        return torch.load(saved)


def beside_plain_run(tensors: Answer, want: Answer | str) -> dict:
    """Whether a replay's answer is the plain run's. want: the plain run's answer, or what it died of."""
    if isinstance(want, str):
        return {"replay": "ran", "plain": want}
    if len(want) != len(tensors) or any(a.shape != b.shape for a, b in zip(want, tensors, strict=True)):
        return {"replay": "other shapes", "plain": "ran"}
    worst = max(map(difference, tensors, want), default=0.0)
    return {
        "replay": "same" if worst < TOLERANCE else "differs",
        "plain": "ran",
        "error": worst if worst < float("inf") else "inf",
    }


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the root mean square of `expected`; inf if only one of two is finite."""
    got, expected = as_doubles(got), as_doubles(expected)
    finite = expected.isfinite()
    if (got.isfinite() != finite).any():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = expected[finite].pow(2).mean().sqrt().item() or 1.0
    return (got[finite] - expected[finite]).abs().max().item() / scale


def as_doubles(t: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(t) if t.is_complex() else t).double()


# ---- all files ----


def replay_all(
    cfg: Config, plans: dict[Path, bytes], jobs: int, card: Card, told: Callable[[str, dict], None]
) -> None:
    """Replay every plan, several at a time; as each is done, call told(file's name, what came of it)."""
    cuda = cfg.replay == "cuda"
    replays = Replayers(cfg.replay, 1 if cuda else jobs)
    evaluates = Replayers("cpu", max(1, jobs // 4))
    with (
        ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as compilers,
        ThreadPoolExecutor(max(1, jobs // 2)) as runs,
        ThreadPoolExecutor(len(plans) or 1) as judges,
    ):
        binaries = {path: compilers.submit(compile_plan, data, card) for path, data in plans.items() if cuda}
        plain = {
            path: runs.submit(plain_run, path, cfg.replay) for path in plans if runs_plain(path, cfg.replay)
        }
        judged = {}
        for path, data in plans.items():
            future = judges.submit(judge, data, replays, evaluates, binaries.get(path), plain.get(path))
            judged[future] = path
        for done in as_completed(judged):
            told(judged[done].stem, done.result())
    replays.close()
    evaluates.close()


def main() -> None:
    cfg = config.parse(Config)
    if not cfg.data:
        config.die("--data: a folder of Python files is expected")
    files = sorted(Path(cfg.data).rglob("*.py"))
    if not files:
        config.die(f"--data {cfg.data}: no .py file there")
    try:
        card = read_card(visible_devices(None)) if cfg.replay == "cuda" else DEFAULT
    except ValueError as error:
        config.die(f"--replay cuda: {error}")
    jobs, begun = len(os.sched_getaffinity(0)), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        facts = record_apart(cfg, files, Path(folder), jobs, card)
        measured_on = environment()

        def told(name: str, result: dict) -> None:
            facts[name] |= result
            print(f"{time.monotonic() - begun:4.0f} s  {name:40} {result}", flush=True)
            write(cfg, facts, measured_on)

        if cfg.replay != "no":
            recorded = [path for path in files if facts[path.stem]["status"] == "recorded"]
            plans = {path: Path(folder, path.stem).read_bytes() for path in recorded}
            replay_all(cfg, plans, jobs, card, told)
    for key, counts in counted(facts).items():
        print(key, counts)
    write(cfg, facts, measured_on)


def counted(facts: dict[str, dict]) -> dict[str, dict]:
    """How many files have each status, and how many came of the replay to each result."""
    return {
        key: dict(collections.Counter(fact[key] for fact in facts.values() if key in fact))
        for key in ("status", "replay")
    }


def write(cfg: Config, facts: dict[str, dict], measured_on: dict) -> None:
    """Write what is known so far to --out. Files that are recorded and not replayed yet are listed."""
    if not cfg.out:
        return
    replayed = f" --replay {cfg.replay}" if cfg.replay != "no" else ""
    waiting, exceptions = [], {}
    for name, fact in facts.items():
        if fact["status"] != "recorded" or fact.get("replay", "ran") not in ("ran", "same"):
            exceptions[name] = fact
        elif replayed and "replay" not in fact:
            waiting.append(name)
    found = {
        # the folder's name is enough: its path is this machine's
        "command": f"python -m bench.executor.recordability --data {Path(cfg.data).name}{replayed}",
        "environment": measured_on,
        "counts": counted(facts),
        "not_replayed": waiting,
        "exceptions": exceptions,
    }
    write_json(cfg.out, found)


if __name__ == "__main__":
    main()
