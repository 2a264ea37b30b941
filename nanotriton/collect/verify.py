"""Every pair is executed before it is kept: strictly correct, twice, with secrets that have nothing in
common.

The executor draws a candidate's secret inputs and weights from its own secret, the task and the
candidate's text. A candidate that was correct is judged once more with a line break at its end: the same
program, and all secrets other ones.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager

from nanotriton.executor import Executor
from nanotriton.tasks.task import Task

AGAIN = "\n"
PROBE = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def nothing_kernel(out_ptr):
    tl.store(out_ptr, 0.0)


class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()

    def forward(self, *inputs):
        out = torch.empty(1, device=next(x.device for x in inputs if isinstance(x, torch.Tensor)))
        nothing_kernel[(1,)](out)
        return out
# a wrong answer to anything: what the executor says then tells whether the task itself is a fair
# question
"""


class Verifier:
    """Judges (task, solution) pairs, many at a time; a pair's verdicts arrive by callback in whatever order
    they finish.
    """

    def __init__(self, executor: Executor, window: int = 16):
        self.executor, self.window = executor, window
        self.open: dict[Future, tuple[Task, str, int, object]] = {}

    def submit(self, task: Task, solution: str, ticket: object) -> None:
        self.open[self.executor.submit(task, solution)] = (task, solution, 1, ticket)

    def full(self) -> bool:
        return len(self.open) >= self.window

    def results(self, until_empty: bool = False) -> Iterator[tuple[object, str, str]]:
        """(ticket, status, message) of what has finished; waits for at least one, or for all."""
        while self.open:
            done, _ = wait(self.open, return_when=FIRST_COMPLETED)
            for future in done:
                task, solution, turn, ticket = self.open.pop(future)
                verdict = future.result()
                if verdict.correct and turn == 1:
                    self.open[self.executor.submit(task, solution + AGAIN)] = (task, solution, 2, ticket)
                    continue
                status = verdict.status if verdict.correct or turn == 1 else f"second_{verdict.status}"
                yield ticket, status, verdict.message
            if not until_empty and not self.full():
                return


@contextmanager
def verifier(device: str, workers: int, timeout: float = 20.0) -> Iterator[Verifier]:
    with Executor(device=device, workers=workers, policy="strict", timeout=timeout) as executor:
        yield Verifier(executor, window=8 * workers)


def all_correct(
    pairs: Iterable[tuple[Task, str]], device: str, workers: int, tell: Callable[[str, str], None]
) -> bool:
    """Judge every pair again with a new executor, whose secrets are new. tell(name, status) is called for
    each that isn't correct.
    """
    right = True
    with Executor(device=device, workers=workers, policy="strict", timeout=20.0) as executor:
        futures = [(task, executor.submit(task, solution)) for task, solution in pairs]
        for task, future in futures:
            verdict = future.result()
            if not verdict.correct:
                right = False
                tell(task.name, verdict.status)
    return right
