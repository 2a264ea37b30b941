"""Is a task fit for training? Each is judged with a candidate that must be right: its own Model.

What the judge says of a task in a verdict comes only when a candidate is there, and a task that can't be
judged takes every sample out of the batch. So the question is put before anything is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanotriton import log
from nanotriton.executor.executor import Executor
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

POLICY = "none"  # the executor's: the task's own Model is PyTorch, and any other policy refuses that

ON_THE_CPU = "inputs are made on the CPU, and the judge moves them to where candidates run"
INFERENCE = "self.eval() at the end of the constructor asks for a kernel for inference"
NO_VALUES = "let no value decide in Python: torch.where in place of an if, a tensor in place of .item()"
# What is added to a reason in which these words stand.
HINTS = {
    "not compiled with CUDA": ON_THE_CPU,
    "No CUDA GPUs are available": ON_THE_CPU,
    "Found no NVIDIA driver": ON_THE_CPU,
    "No module named": "the file may import what is installed here, and nothing that lies beside it",
    "draws random numbers in forward": f"no two answers are the same; if it is dropout, {INFERENCE}",
    "forward of the reference sets": INFERENCE,
    "an argument of type": "what the constructor takes by default may be of any type",
    "required keyword-only argument": "arguments come by position: give it a default, or no * before it",
    "can be given by name only": "give it a default, or no * before it",
    "required positional argument": "a list has the arguments in order, and a dict has them by name",
    "arguments that don't fit": "a dict has arguments by name; one that is an argument goes into a list",
    "would pass": "forward, or what get_inputs draws, must make answers differ",
    "takes more than": "smaller inputs, or a GPU",
    "needs more memory": "smaller inputs",
    "on the host": NO_VALUES,
    "copied to the host": NO_VALUES,
    "shape depends on values": "let forward return a shape that its inputs' shapes decide",
}


@dataclass(frozen=True)
class Finding:
    """What was found out about a task.

    fit: a candidate for it can be judged. reason: why not; of a fit task, what else is odd about it, or "".
    """

    fit: bool
    reason: str = ""


def own_candidate(task: Task) -> str:
    """The task's own Model as a candidate for it."""
    return f"{task.source.rstrip()}\n\n\nModelNew = Model\n"


def preflight(tasks: Sequence[Task], executor: Executor) -> list[Finding]:
    """Judge each task with its own Model; the executor's policy is POLICY. The findings, in order."""
    futures = [executor.submit(task, own_candidate(task)) for task in tasks]
    return [finding(future.result()) for future in log.bar(futures, desc="checking tasks")]


def finding(verdict: Verdict) -> Finding:
    """What the verdict on a task's own Model says of the task.

    A verdict that is not scored is one that every candidate would get. One that is scored speaks of the
    candidate: PyTorch is recorded call by call, and not all that a Model does stands in such a recording
    (running averages of a batch norm don't), while a kernel may do all of it. Such a task stays.
    """
    message = verdict.message or verdict.status
    if verdict.recordable is False:  # what follows is advice to a candidate, not to the author of a task
        message = message.partition("; ")[0]
    reason = hinted(message)
    if verdict.correct:
        return Finding(fit=True)
    if verdict.status == "infra_error":  # our failure, which says nothing of the task
        return Finding(fit=True, reason=f"it could not be checked: {reason}")
    if verdict.scored:
        return Finding(fit=True, reason=f"its own Model would be judged {verdict.status}: {reason}")
    return Finding(fit=False, reason=f"{verdict.status}: {reason}")


def hinted(message: str) -> str:
    """The message, with what to do about it where that is known."""
    hints = [hint for words, hint in HINTS.items() if words in message]
    return f"{message}: {hints[0]}" if hints else message
