"""The executor for other people's programs: one call judges one candidate.

    from nanotriton import judge
    verdict = judge("task.py", "kernel.py")

`judge` keeps an executor open between calls, because a start takes seconds. To judge many candidates at once,
open an Executor of your own and submit them all.
"""

import os
import threading
from pathlib import Path
from typing import Any

from nanotriton.config import reason
from nanotriton.executor.executor import Executor
from nanotriton.tasks.task import Task, check_source, load_task
from nanotriton.verdict import Verdict

_lock = threading.Lock()
_executors: dict[tuple, Executor] = {}  # by process and options


def judge(task: Task | str | Path, source: str | Path, **options: Any) -> Verdict:
    """Judge one candidate.

    task: a Task, the path of a task's file, or its text.
    source: the candidate's Python, which defines ModelNew; or the path of its file.
    options: the Executor's, such as device="cuda", policy="kernelbench", time=True. The default is policy
        strict on the CPU.
    Returns the verdict, whose status says what was found; a bad candidate raises nothing.
    Raises ValueError (one line) for what is no task, a file that can't be read, and impossible options.
    """
    return shared_executor(**options).submit(as_task(task), as_source(source)).result()


def shared_executor(**options: Any) -> Executor:
    """This process's executor with these options. The first call starts it, and it ends with the process."""
    key = (os.getpid(), *sorted(options.items()))  # a fork has no part in its parent's processes
    with _lock:
        if key not in _executors:
            _executors[key] = Executor(**options)
        return _executors[key]


def as_task(task: Task | str | Path) -> Task:
    """A task from itself, from the path of its file, or from its text. Raises ValueError (one line)."""
    if isinstance(task, Task):
        return task
    if is_path(task):
        return load_task(task)
    return Task("task", check_source(task, "task"))


def as_source(source: str | Path) -> str:
    """A candidate's text, from itself or from the path of its file. Raises ValueError (one line)."""
    if not is_path(source):
        return source
    try:
        return Path(source).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{source}: cannot read: {reason(error)}") from None


def is_path(text: str | Path) -> bool:
    """Whether this is the path of a Python file, and not the text of one."""
    return isinstance(text, Path) or ("\n" not in text and text.endswith(".py"))
