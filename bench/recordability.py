"""How much real code can be recorded, and does it replay to what a plain run gives?

    python -m bench.recordability --data FOLDER [--replay cpu|cuda] [--out FILE.json] [--limit SECONDS]

FOLDER holds Python files that run their own tests and leave the answers in a variable named result... or test_results (TritonBench's format).
Each file is recorded with its whole script in a process of its own, and, with --replay, replayed. The answers are compared with a
plain run of the same file with the same random tensors; on the CPU that is possible for files without Triton ("cuda" reads "cpu").
"""

import argparse
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
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from bench import environment
from bench.journal import write_json
from nanotriton.executor.common.card import DEFAULT, Card
from nanotriton.executor.processes import read_card, visible_devices
from nanotriton.plan.aten import PlanError
from nanotriton.plan.plan import Plan

SEED = 0
MEMORY = 40 << 30  # bytes that a plan may want
REPLAY_SECONDS = 90.0  # for a replay, on a GPU or in the evaluator
PLAIN_SECONDS = 240.0  # for a plain run, with its own compilations and autotuning
PLAIN = """
import sys, torch
def on_host(name):
    real = getattr(torch, name)
    def draw(*args, **kwargs):
        device = kwargs.pop("device", None)
        kwargs.pop("generator", None)
        like = name.endswith("_like")
        args = [torch.empty(a.shape, dtype=a.dtype) if like and isinstance(a, torch.Tensor) else a for a in args]
        t = real(*args, **{k: v for k, v in kwargs.items() if k != "requires_grad"}, device="cpu").to(device or ("cuda" if like else "cpu"))
        return t.requires_grad_(kwargs.get("requires_grad", False))
    return draw
for name in ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm"):
    setattr(torch, name, on_host(name))
for name in ("normal_", "uniform_", "random_"):
    real = getattr(torch.Tensor, name)
    setattr(torch.Tensor, name, lambda self, *a, real=real, **k: self.copy_(real(torch.empty(self.shape, dtype=self.dtype), *a, **k)))
torch.manual_seed(SEED)
import importlib.util
spec = importlib.util.spec_from_file_location("candidate", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["candidate"] = module
spec.loader.exec_module(module)
found = [v for name, v in vars(module).items() if name.startswith(("result", "test_results"))][-1]
torch.save([t.detach().cpu() for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor)], sys.argv[2])
"""


def record_all(files: list[Path], limit: float, folder: Path, jobs: int, card: Card) -> None:
    """Writes into `folder`, for each file, what happened (NAME.json) and the plan's bytes (NAME). A child per file, which may die, forked by
    `jobs` processes from one that has warmed up."""
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
            finally:  # never back into what this was forked from, whose folder it would remove
                os._exit(0)
    for pid in workers:
        os.waitpid(pid, 0)


def record_one(path: Path, limit: float, results: Path) -> None:
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
    end = (
        f"died of signal {os.WTERMSIG(status)}"
        if os.WIFSIGNALED(status)
        else f"ended with code {os.WEXITSTATUS(status)}"
    )
    fact = json.loads(head) if head else {"status": "crashed", "message": end}
    Path(results, path.stem).write_bytes(plan)
    Path(results, f"{path.stem}.json").write_text(
        json.dumps(fact | {"seconds": round(time.monotonic() - start, 3)})
    )
    print(f"{path.stem:40} {fact['status']:15} {fact.get('message', '')[:150]}", flush=True)


def _child(path: Path, folder: str, fd: int, limit: float) -> None:
    import resource

    from nanotriton.executor.child import recorder

    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        plan = recorder.record_script(path.read_text(), seed=SEED, folder=folder)
        head, body = {"status": "recorded", "launches": len(plan.launches())}, plan.to_bytes()
    except recorder.RecordError as error:
        head, body = (
            {
                "status": error.status if error.recordable else "unrecordable",
                "message": error.message,
                "line": error.line,
            },
            b"",
        )
    except Exception as error:
        head, body = {"status": "crashed", "message": f"{type(error).__name__}: {error}"}, b""
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + body)
    os._exit(0)


def compile_plan(data: bytes, card: Card) -> dict:
    """{kernel's key: Binary} of the kernels that a replay launches, in a process of its own. Raises CompileError, PlanError."""
    from nanotriton.executor.gpu.compiler import compile_kernel

    plan = Plan.from_bytes(data, max_memory=MEMORY)
    return {
        k.key: compile_kernel(k, card)
        for k in {launch.kernel: plan.kernels[launch.kernel] for launch in plan.launches()}.values()
    }


def replay(data: bytes, device: str, binaries: dict) -> dict | list[torch.Tensor]:
    """The answer's tensors of one plan, on the CPU, or why there are none. In a process that may lose its CUDA context."""
    from nanotriton.executor.replay.replayer import Replay, ReplayError

    torch.set_num_threads(1)
    # or every tensor of an answer would take a descriptor
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
    """Replays in a process of its own, which is another one after whatever lost its GPU or its life, or took too long."""

    def __init__(self, device: str):
        self.device, self.pool = device, None

    def __call__(self, data: bytes, binaries: dict) -> dict | list[torch.Tensor]:
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
    """Some, each for one thread at a time."""

    def __init__(self, device: str, count: int):
        self.all = [Replayer(device) for _ in range(count)]
        self.free: queue.SimpleQueue[Replayer] = queue.SimpleQueue()
        for one in self.all:
            self.free.put(one)

    def __call__(self, data: bytes, binaries: dict) -> dict | list[torch.Tensor]:
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
    """Replay one plan, compare with a plain run where there can be one, and ask the evaluator why, where a GPU finds a difference."""
    from nanotriton.executor.gpu.compiler import CompileError

    try:
        outputs = replays(data, binaries.result() if binaries else {})
    except CompileError as error:
        return {"replay": error.status, "message": error.message}
    if isinstance(outputs, list):
        outputs = [t.clone() for t in outputs]  # out of shared memory, of which there may be little
    result = (
        outputs
        if isinstance(outputs, dict)
        else compare(outputs, plain.result())
        if plain
        else {"replay": "ran"}
    )
    if binaries and result["replay"] not in ("same", "ran"):
        result["why"] = diagnosis(evaluates(data, {}))
    return result


def diagnosis(seen: dict | list[torch.Tensor]) -> str:
    """Why a replay is not what a plain run gives: `seen` is what the TTIR evaluator, which looks at every access, makes of the same plan."""
    if isinstance(seen, dict):
        return f"the evaluator: {seen['replay']}: {seen['message']}" + (
            f" (line {seen['line']})" if seen.get("line") else ""
        )
    if unwritten := sum(int(t.isnan().sum()) for t in seen if t.is_floating_point()):
        return f"{unwritten} elements of its answers come from memory that nobody wrote"
    return "the evaluator finds no fault"


def runs_plain(path: Path, device: str) -> bool:
    return device == "cuda" or "triton" not in path.read_text()


def plain_run(path: Path, device: str) -> list[torch.Tensor] | str:
    """The answers of the file, run as it is in a process of its own; or what it died of."""
    with tempfile.TemporaryDirectory() as folder:
        script, saved = Path(folder) / "plain.py", Path(folder) / "out.pt"
        script.write_text(PLAIN.replace("SEED", str(SEED)))
        source = Path(folder) / "source.py"
        source.write_text(path.read_text() if device == "cuda" else path.read_text().replace("cuda", "cpu"))
        try:
            run = subprocess.run(
                [sys.executable, script, source, saved], capture_output=True, text=True, timeout=PLAIN_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"not done after {PLAIN_SECONDS:g} s"
        return (run.stderr.strip().splitlines() or ["?"])[-1][:200] if run.returncode else torch.load(saved)


def compare(tensors: list[torch.Tensor], want: list[torch.Tensor] | str) -> dict:
    if isinstance(want, str):
        return {"replay": "ran", "plain": want}
    if len(want) != len(tensors) or any(a.shape != b.shape for a, b in zip(want, tensors)):
        return {"replay": "other shapes", "plain": "ran"}
    worst = 0.0
    for got, expected in zip(tensors, want):
        got, expected = (
            torch.view_as_real(t).double() if t.is_complex() else t.double() for t in (got, expected)
        )
        both = got.isfinite() & expected.isfinite()
        if (got.isfinite() != expected.isfinite()).any():
            worst = float("inf")
        elif both.any():
            scale = expected[both].pow(2).mean().sqrt().item() or 1.0
            worst = max(worst, (got[both] - expected[both]).abs().max().item() / scale)
    return {
        "replay": "same" if worst < 1e-2 else "differs",
        "plain": "ran",
        "error": worst if worst < float("inf") else "inf",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--replay", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds a file")
    args = parser.parse_args()
    files = sorted(args.data.rglob("*.py"))
    if not files:
        parser.error(f"{args.data}: no .py file")
    try:
        card = read_card(visible_devices(None)) if args.replay == "cuda" else DEFAULT
    except ValueError as error:
        parser.error(f"--replay cuda: {error}")
    jobs, facts, begun = len(os.sched_getaffinity(0)), {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # Recording needs a process that sees no GPU, replaying on CUDA one that does.
        pid = os.fork()
        if not pid:
            try:
                record_all(files, args.limit, Path(folder), jobs, card)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        measured_on = environment()
        for path in files:
            found = Path(folder, f"{path.stem}.json")
            facts[path.stem] = (
                json.loads(found.read_text())
                if found.exists()
                else {"status": "crashed", "message": "the process that recorded it died"}
            )
        if args.replay:
            plans = {
                p: Path(folder, p.stem).read_bytes() for p in files if facts[p.stem]["status"] == "recorded"
            }
            replays, evaluates = (
                Replayers(args.replay, 1 if args.replay == "cuda" else jobs),
                Replayers("cpu", max(1, jobs // 4)),
            )
            with (
                ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as compilers,
                ThreadPoolExecutor(max(1, jobs // 2)) as runs,
                ThreadPoolExecutor(len(plans) or 1) as judges,
            ):
                binaries = (
                    {p: compilers.submit(compile_plan, data, card) for p, data in plans.items()}
                    if args.replay == "cuda"
                    else {}
                )
                plain = {
                    p: runs.submit(plain_run, p, args.replay) for p in plans if runs_plain(p, args.replay)
                }
                judged = {
                    judges.submit(judge, data, replays, evaluates, binaries.get(p), plain.get(p)): p
                    for p, data in plans.items()
                }
                for done in as_completed(judged):
                    name = judged[done].stem
                    facts[name] |= done.result()
                    print(f"{time.monotonic() - begun:4.0f} s  {name:40} {done.result()}", flush=True)
                    write(args, facts, measured_on)
            replays.close()
            evaluates.close()
    for key, counts in counted(facts).items():
        print(key, counts)
    write(args, facts, measured_on)


def counted(facts: dict[str, dict]) -> dict[str, dict]:
    return {
        key: dict(collections.Counter(f[key] for f in facts.values() if key in f))
        for key in ("status", "replay")
    }


def write(args: argparse.Namespace, facts: dict[str, dict], measured_on: dict) -> None:
    """What is known so far, to --out: what is recorded and not replayed yet is listed."""
    if args.out:
        command = f"python -m bench.recordability --data {args.data.name}" + (
            f" --replay {args.replay}" if args.replay else ""
        )
        waiting = [
            name
            for name, f in facts.items()
            if args.replay and f["status"] == "recorded" and "replay" not in f
        ]
        rest = {
            name: f
            for name, f in facts.items()
            if f["status"] != "recorded" or f.get("replay", "ran") not in ("ran", "same")
        }
        found = {
            "command": command,
            "environment": measured_on,
            "counts": counted(facts),
            "not_replayed": waiting,
            "exceptions": rest,
        }
        write_json(args.out, found)


if __name__ == "__main__":
    main()
