"""The stages of a recording in which a candidate's own code runs. What goes wrong there is a RecordError
with the status of a verdict and a message that names the candidate's line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from nanotriton.executor.child import fake_triton
from nanotriton.executor.child.tape import RecordError, Tape, line_of

MAX_MESSAGE = 600


def stage(tape: Tape, status: str, run: Callable[[], Any]) -> Any:
    """Run some of the candidate's code. Any error in it becomes a RecordError that names its line.

    status: of an error of no kind that has its own.
    """
    try:
        result = run()
    except RecordError:
        raise tape.trouble from None
    except CompilationError as error:
        raise _compile_error(tape, error) from None
    except (MemoryError, OutOfResources, SyntaxError) as error:
        raise _of_its_own_kind(tape, error) from None
    except (Exception, SystemExit) as error:
        if _by_the_compiler(error):
            status = "compile_error"
        raise (
            tape.trouble or RecordError(status, _message(tape, error), line_of(error, tape.path))
        ) from None
    if tape.trouble is not None:
        raise tape.trouble
    return result


def _of_its_own_kind(tape: Tape, error: BaseException) -> RecordError:
    if isinstance(error, SyntaxError):
        return RecordError("syntax_error", f"{error.msg} (line {error.lineno})", error.lineno or 0)
    status = "memory_limit" if isinstance(error, MemoryError) else "out_of_resources"
    return RecordError(status, _message(tape, error), line_of(error, tape.path))


def _by_the_compiler(error: BaseException) -> bool:
    """Whether Triton raised it while it compiled."""
    text = str(error)
    of_triton = type(error).__module__.startswith("triton.compiler")
    return "PassManager" in text or fake_triton.INVALID in text or of_triton


def _message(tape: Tape, error: BaseException) -> str:
    """One short line: type, text, the candidate's line."""
    text = " ".join(str(error).split())[:MAX_MESSAGE]
    return f"{type(error).__name__}: {text}" + _where(tape, line_of(error, tape.path))


def _where(tape: Tape, line: int) -> str:
    if not line:
        return ""
    lines = Path(tape.path).read_text(encoding="utf-8").splitlines()
    return f" (line {line}: {lines[line - 1].strip()[:120]})" if line <= len(lines) else f" (line {line})"


def _compile_error(tape: Tape, error: CompilationError) -> RecordError:
    """Triton's front end names a node of the kernel's source; the innermost one is the cause."""
    line = line_of(error, tape.path)
    source = Path(tape.path).read_text(encoding="utf-8")
    chain = [error]
    while isinstance(chain[-1].__cause__, CompilationError):
        chain.append(chain[-1].__cause__)
    # the last of them in the candidate's file gives the line, because Triton's own functions aren't there
    for inner in chain:
        # the source without its decorators
        start = source.find(inner.src.strip("\n")) if inner.src is not None else -1
        if start >= 0 and getattr(inner.node, "lineno", None):
            line = source[:start].count("\n") + inner.node.lineno
    cause = inner.error_message or (str(inner.__cause__) if inner.__cause__ is not None else str(inner))
    text = " ".join(str(cause).split())[:MAX_MESSAGE]
    return RecordError("compile_error", f"{type(inner).__name__}: {text}" + _where(tape, line), line)
