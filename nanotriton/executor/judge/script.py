"""Whole files that run their own tests, as TritonBench's do: what do they answer? In the executor's sandbox, one child a file.

    with ScriptExecutor(device="cpu") as executor:
        verdict, answer = executor.run(source).result(), executor.answer(source)

The answer is what the file leaves in its last variable named result... or test_results, and what it prints. `correct` means here that
the file ran to its end; comparing answers is the caller's business. With a GPU the file simply runs. Without one it is recorded, on
fake CUDA tensors whose random values are drawn on the host, and the plan is replayed (replayer.py); a file that reads tensor values on the
way can't be recorded and comes out `unsupported`.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanotriton.executor.executor import Entry, Executor
from nanotriton.executor.sandbox.zygote import Ended, Report
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

NAMES = ("result", "test_results")
STDOUT = 1 << 16  # characters kept of what a file prints
ANSWER_BYTES = 1 << 30
# What PyTorch says where it has no CUDA, or lacks on the CPU: no fault of the file's, as a GPU would run it.
CPU_ONLY = ("ATen_cuda library", "not implemented on the CPU", "Torch not compiled with CUDA")


@dataclass
class Answer:
    """tree: tensors (on the CPU) in containers, None if the file leaves no answer. stdout: what it printed."""

    tree: Any
    stdout: str


class ScriptExecutor(Executor):
    """An Executor for whole files. Options as for Executor; there are no rules and nothing is timed."""

    def __init__(self, device: str = "cpu", workers: int | None = None, timeout: float = 60.0, *, memory_gib: float = 4.0):
        super().__init__(device, None, workers, "none", timeout, memory_gib=memory_gib, seed=0)
        os.makedirs(os.path.join(self.root, "answers"), mode=0o700)

    def run(self, source: str) -> "Future[Verdict]":
        """Run one file. Identical files run once."""
        return self.submit(Task("script", ""), source)

    def answer(self, source: str) -> Answer:
        """What a file answered that `run` found correct. Raises FileNotFoundError for any other."""
        from nanotriton.plan import wire

        data = memoryview(Path(answer_path(self.root, source)).read_bytes())
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:end]))
        return Answer(wire.rebuild(header["tree"], data[end:])[0], header["stdout"])

    def _first_phase(self) -> str:
        return "script"

    def _next_phase(self, entry: Entry, result: dict) -> str | None:
        return None

    def _flavour(self, phase: str) -> str:
        return "record" if self.device == "cpu" else "cuda"


def answer_path(root: str, source: str) -> str:
    return os.path.join(root, "answers", hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest())


# ---- untrusted: in the child ----


def script_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Record or run candidate.py in `folder`. The answer's payload is a plan, or the bytes of the tensors that the header describes."""
    from nanotriton.executor.child import children, recorder
    from nanotriton.plan import wire

    path, printed = str(Path(folder, "candidate.py")), io.StringIO()
    report.stage(args["how"])
    report.begin()
    try:
        with contextlib.redirect_stdout(printed):
            if args["how"] == "record":
                plan = recorder.record_script(Path(path).read_text(encoding="utf-8"), seed=0, folder=folder, required=False)
                header, payload = {}, plan.to_bytes()
            else:
                description, tensors = wire.describe(run_file(path))
                header, payload = {"tree": description}, wire.raw(tensors)
        report.finish(header | {"stdout": printed.getvalue()[:STDOUT]}, payload)
    except recorder.RecordError as error:
        recordable = error.recordable and not any(text in error.message for text in CPU_ONLY)
        report.finish({"status": error.status, "message": error.message, "line": error.line, "recordable": recordable})
    except (Exception, SystemExit) as error:
        report.finish(children.explain(error, "runtime_error", path))


def run_file(path: str) -> Any:
    """Run a file for real, and return what it leaves in the last variable named result... or test_results."""
    import torch

    from nanotriton.executor.child.children import load

    sys.dont_write_bytecode = True
    torch.manual_seed(0)
    module = load(path)
    names = [name for name in vars(module) if name.startswith(NAMES)]
    return without_numpy(vars(module)[names[-1]]) if names else None


def without_numpy(value: Any) -> Any:
    """An answer with NumPy's arrays as tensors and its numbers as Python's."""
    import numpy
    import torch

    if isinstance(value, numpy.ndarray):
        return torch.tensor(value)
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, dict):
        return {k: without_numpy(v) for k, v in value.items()}
    return type(value)(map(without_numpy, value)) if type(value) in (list, tuple) else value


# ---- trusted: in the worker ----


def script_mode(job, worker) -> Generator:
    """One file to its end, its answer written to the executor's folder. Raises Fault if it does not get there."""
    from nanotriton.executor.judge.candidate import Spawn, check_ended, check_rules, not_its_own
    from nanotriton.executor.judge.compare import Fault
    from nanotriton.executor.judge.process import confinement
    from nanotriton.executor.sandbox.sandbox import Limits
    from nanotriton.plan import wire

    with worker.stage("rules", job.timeout):
        check_rules(job)
    if worker.device == "cpu":
        how, limits, options = "record", Limits(job.timeout, job.memory, output=ANSWER_BYTES), {}
    else:
        how, (limits, options) = "run", confinement(job, worker.device, ANSWER_BYTES)
    ended: Ended = yield Spawn("script", {"how": how}, limits, (), options)
    waited = ended.killed == "timeout" and ended.cpu < job.timeout / 2  # for the machine more than for itself
    if waited or not_its_own(ended):
        ended = yield Spawn("script", {"how": how}, limits, (), options)
    worker.add_cost(how, ended.seconds)
    header = check_ended(ended, limits, frozenset(() if worker.device == "cpu" else ["illegal_memory"]))
    if how == "record":
        tree = replay(job, worker, ended.payload)
    else:
        try:
            tree, _ = wire.rebuild(header["tree"], memoryview(ended.payload))
        except (wire.WireError, KeyError) as error:
            raise Fault("crashed", f"the process left an answer that can't be read: {error}") from None
    description, tensors = wire.describe(tree)
    text = json.dumps({"tree": description, "stdout": str(header.get("stdout", ""))[:STDOUT]}).encode()
    path = answer_path(os.path.dirname(worker.folder), job.source)
    with open(path + ".tmp", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(wire.raw(tensors))
    os.replace(path + ".tmp", path)


def replay(job, worker, data: bytes) -> Any:
    """The answer of a recorded file."""
    from nanotriton.executor.judge.compare import Fault
    from nanotriton.executor.judge.reference import out_of_memory
    from nanotriton.executor.replay.replayer import Replay, ReplayError
    from nanotriton.plan.plan import Plan, PlanError

    try:
        with worker.stage("validate", job.timeout):
            plan = Plan.from_bytes(data, job.memory)
        job.facts |= {"recordable": True, "launches": len(plan.launches())}
        with worker.stage("run", job.timeout):
            return Replay(plan, "cpu").run([])
    except PlanError as error:
        raise Fault("memory_limit" if "bytes of tensors" in str(error) else "crashed", f"plan: {error}") from None
    except ReplayError as error:
        status = "unsupported" if any(text in error.message for text in CPU_ONLY) else error.status
        raise Fault(status, str(error)) from None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise Fault("memory_limit", f"it used more than {job.memory >> 20} MiB") from None
