"""Python source as Python reads it: byte order mark, coding line and line ends are no part of the program.

Everything that takes source from outside (a file, a row of data, a model's completion) goes through here.
So the rules, the recorder and Triton, which reads a kernel's text back from a file, all see the same text.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

MARK = "\ufeff"  # the byte order mark
# PEP 263: a comment in line 1, or in line 2 behind a line without code, that names the file's encoding
CODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)([-\w.]+)", re.ASCII)
NO_CODE = re.compile(r"^[ \t\f]*(#.*)?$")


def plain(source: str) -> str:
    r"""The same program without a byte order mark, and with \n at the end of each line.

    A coding line names utf-8 afterwards: the text was decoded already, and whoever writes it to a file writes
    utf-8. Left as it is, `# coding: utf-7` would make another program of that file.
    """
    source = source.removeprefix(MARK).replace("\r\n", "\n").replace("\r", "\n")
    first, newline, rest = source.partition("\n")
    if CODING.match(first):
        return CODING.sub(r"\1utf-8", first) + newline + rest
    second, end, others = rest.partition("\n")
    if NO_CODE.match(first) and CODING.match(second):
        return first + newline + CODING.sub(r"\1utf-8", second) + end + others
    return source


def parse(source: str) -> ast.Module:
    """The tree of a program. ValueError says in one line that it is no Python, and in which line of it."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        place = f" (line {error.lineno})" if error.lineno else ""
        raise ValueError(f"not Python: {error.msg}{place}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte, or thousands of brackets
        raise ValueError(f"not Python: {error or 'nested too deeply'}") from None


def decode(data: bytes) -> str:
    """A file's bytes as `plain` text, in the encoding that the file names. Raises ValueError (one line)."""
    try:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        encoding, _ = tokenize.detect_encoding(io.BytesIO(lines).readline)
        return plain(data.decode(encoding))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def read(path: str | Path) -> str:
    """A Python file's text. Raises OSError, or ValueError if its bytes are no text."""
    return decode(Path(path).read_bytes())


def read_anyhow(path: str | Path) -> str:
    """A candidate's file: bytes that are no text are no Python either, but still get a verdict."""
    data = Path(path).read_bytes()
    try:
        return decode(data)
    except ValueError:
        return plain(data.decode("utf-8", "replace"))
