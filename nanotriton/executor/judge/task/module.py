"""A task's file as a module, and its arguments: as Python would import it, and nothing that it does to the
process is more than the task's own failure.

A module that looks itself up in sys.modules (dataclasses, pickle, typing) finds itself, one that reads its
own source (inspect, TorchScript) finds that too. What it prints is cut, what it raises to end the process is
an error like any other, and torch.compile gives back what it is given.
"""

import contextlib
import inspect
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from nanotriton.executor.common.construct import patched
from nanotriton.plan import wire
from nanotriton.plan.trees import describe, without_numpy
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, TaskFault, out_of_memory

NAME = "task"  # of the module: its __name__
RANDOM = "the reference is not deterministic: it draws random numbers in forward"
PRINTED = 4096  # characters of what a task prints that are shown


class Interruption(BaseException):
    """Ours: it ends a computation from outside, whatever code of the task's is running.

    No Exception, so that nothing that the task calls takes it for an error of its own.
    """


class ContextLost(Interruption):
    """The task's own code has ended this process's CUDA context: nothing here can go on.

    kind: of the inputs that it ran on.
    """

    def __init__(self, kind: str):
        super().__init__(f"the reference has ended the GPU's context, on {kind} inputs")
        self.kind = kind


class Exited(Exception):
    """The task's code raised what is no Exception, such as sys.exit's, to end the process that runs it."""


def import_task(task: Task) -> types.ModuleType:
    """The task's module, executed. It is left in sys.modules: whoever calls this undoes that."""
    module = types.ModuleType(NAME)
    module.__file__ = f"<task {task.name} {task.key}>"
    lines = task.source.splitlines(keepends=True)
    # An entry without a time is never compared with a file.
    linecache.cache[module.__file__] = len(task.source), None, lines, module.__file__
    weakref.finalize(module, linecache.cache.pop, module.__file__, None)
    sys.modules[NAME] = module
    exec(compile(task.source, module.__file__, "exec"), vars(module))
    return module


def line_in_task(error: BaseException) -> int | None:
    """The line of the task's file that raised an error, or did not parse."""
    if isinstance(error, SyntaxError):
        return error.lineno
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<task "):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


# ---- what a task's code may do to the process ----


@dataclass
class Allowance:
    """What a task may still print."""

    name: str
    left: int = PRINTED  # characters


class Console:
    """In place of sys.stdout and sys.stderr: of each task it shows the first PRINTED characters."""

    def __init__(self):
        self.now = Allowance("")

    def write(self, text: str) -> int:
        now = self.now
        if now.left > 0:
            sys.__stderr__.write(text[: now.left])
            now.left -= len(text)
            if now.left <= 0:
                sys.__stderr__.write(f"\n[task {now.name} prints more than {PRINTED} characters]\n")
        return len(text)

    def __getattr__(self, name: str):
        return getattr(sys.__stderr__, name)


console = Console()


@contextlib.contextmanager
def contained(allowance: Allowance) -> Iterator[None]:
    """Run a task's own code. Raises Exited where it raises what is neither an Exception nor ours."""
    streams, others = (sys.stdout, sys.stderr), console.now
    sys.stdout = sys.stderr = console
    console.now = allowance
    try:
        with patched([(torch, "compile", uncompiled)]):
            yield
    except (Exception, Interruption):
        raise
    except BaseException as error:
        raise Exited(f"{type(error).__name__}: {error}") from error
    finally:
        sys.stdout, sys.stderr = streams
        console.now = others


def uncompiled(model: Callable | None = None, **options):
    """In place of torch.compile, also as a decorator: the judge asks what a module computes, and looks at
    each of its operators."""
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def excused(doing: str):
    """What goes wrong inside is the task's fault: the sample leaves the batch, unless it is a limit that has
    a status."""
    try:
        yield
    except Fault:
        raise
    except Exception as error:
        if out_of_memory(error):
            limit = "more memory than a process may have here (memory_gib; the benchmarks' --memory-gib)"
            raise TaskFault("memory_limit", f"the task needs {limit}, {doing}") from error
        cause = error.__cause__ if isinstance(error, Exited) else error
        said = cause.msg if isinstance(cause, SyntaxError) else cause
        text = f"{type(cause).__name__}: {said}".split("\n")[0][:300]
        if line := line_in_task(cause):
            text += f" (line {line} of the task)"
        raise TaskFault("unsupported", f"the reference itself fails, {doing}: {text}") from error


# ---- arguments ----


def arguments(given: object, function: Callable, called: str) -> list:
    """What get_inputs or get_init_inputs has returned, as the list of arguments of `function`.

    A dict holds arguments by name. So does the second part of [list, dict], KernelBook's form for a
    constructor. NumPy's arrays become tensors. Raises TaskFault.
    """
    given = without_numpy(given)
    if isinstance(given, dict):
        return by_position(function, [], given, called)
    if isinstance(given, Iterator):
        given = [without_numpy(value) for value in given]
    if not isinstance(given, list | tuple):
        raise TaskFault(
            "unsupported", f"{called}() must return a list of arguments; it returned {describe(given)}"
        )
    if called == "get_init_inputs" and is_call(given, function):
        return by_position(function, *given, called)
    return list(given)


def check_arguments(given: list, called: str) -> None:
    """TaskFault for an argument that no other process can be given."""
    try:
        wire.describe(given)
    except TypeError as error:
        raise TaskFault(
            "unsupported",
            f"{called}() returned an argument of type {error}; supported are tensors, NumPy arrays, numbers, "
            "strings, None, torch's dtypes and devices, and lists, tuples and dicts of these",
        ) from None


def is_call(given: list | tuple, function: Callable) -> bool:
    """Whether two arguments are a list and a dict of arguments: the dict's names are the function's own."""
    if len(given) != 2 or not isinstance(given[0], list) or not isinstance(given[1], dict):
        return False
    signature = inspect.signature(function)
    if given[1]:
        return given[1].keys() <= signature.parameters.keys()
    try:
        signature.bind(*given)
    except TypeError:
        return True
    return False


def by_position(function: Callable, positional: list, named: dict, called: str) -> list:
    """Arguments of which some were given by name, each in its position; defaults fill the gaps."""
    try:
        bound = inspect.signature(function).bind(*positional, **named)
    except TypeError as error:
        raise TaskFault("unsupported", f"{called}() returned arguments that don't fit: {error}") from None
    chosen = set(bound.arguments)
    bound.apply_defaults()
    values, wanted = [], 0
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            values.append(bound.arguments[name])
        elif parameter.kind == parameter.VAR_POSITIONAL:
            values += bound.arguments[name]
        elif name in chosen:
            raise TaskFault(
                "unsupported", f"{called}() names {name}, which can be given by name only; candidates can't"
            )
        if name in chosen:
            wanted = len(values)
    return values[:wanted]
