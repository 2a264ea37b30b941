"""Whole files that run their own tests, as TritonBench's do, and their answers. Each has a sandboxed child.

    with ScriptExecutor(device="cpu") as executor:
        verdict, answer = executor.run(source).result(), executor.answer(source)

The answer is the value of the file's last variable named result... or test_results, and the text that it
prints. `correct` means here that the file ran to its end. To compare answers is the caller's business.

With a GPU the file simply runs. Without one it is recorded, on fake CUDA tensors whose random values are
drawn on the host, and the plan is replayed (replay/replayer.py). A file that reads tensor values on the way
can't be recorded, and comes out `unsupported`.
"""

import json
import os
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, BinaryIO

from nanotriton.executor.executor import Executor
from nanotriton.executor.judge.candidate.script import answer_path
from nanotriton.executor.phases import ScriptPhases
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict


@dataclass
class Answer:
    """A file's answer."""

    tree: Any  # tensors (on the CPU) in containers; None if the file leaves no answer
    stdout: str  # the text that it printed


class ScriptExecutor(Executor):
    """An Executor for whole files. Options as for Executor; there are no rules and nothing is timed."""

    PHASES = ScriptPhases

    def __init__(
        self,
        device: str = "cpu",
        workers: int | None = None,
        timeout: float = 60.0,
        *,
        memory_gib: float | None = None,
    ):
        super().__init__(device, None, workers, "none", timeout, memory_gib=memory_gib, seed=0)
        os.makedirs(os.path.join(self.root, "answers"), mode=0o700)

    def run(self, source: str) -> "Future[Verdict]":
        """Run one file. Identical files run once."""
        return self.submit(Task("script", ""), source)

    def answer(self, source: str) -> Answer:
        """The answer of a file that `run` found correct. Raises FileNotFoundError for any other."""
        return read_answer(self.answer_file(source))

    def printed(self, source: str) -> str:
        """The text of its answer alone, without the tensors."""
        with open(self.answer_file(source), "rb") as file:
            return read_header(file)["stdout"]

    def answer_file(self, source: str) -> str:
        """Where the answer of a file lies. It may be deleted, or copied for `read_answer`."""
        return answer_path(self.root, source)


def read_answer(path: str) -> Answer:
    """An answer from the file in which judge/candidate/script.py left it."""
    from nanotriton.plan import wire

    with open(path, "rb") as file:
        header = read_header(file)
        tree, _ = wire.rebuild(header["tree"], memoryview(file.read()))
    return Answer(tree, header["stdout"])


def read_header(file: BinaryIO) -> dict:
    """What such a file begins with: {"tree", "stdout"}. The tensors' bytes follow."""
    length = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(length))
