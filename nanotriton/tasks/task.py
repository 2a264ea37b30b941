"""What is asked: one PyTorch module in KernelBench's format.

That is a file with `class Model`, `get_inputs()` and `get_init_inputs()`.
"""

import ast
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from nanotriton.config import reason
from nanotriton.python_text import parse, plain, read
from nanotriton.rows import is_rows, read_lines, read_object

REQUIRED = ("Model", "get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class Task:
    """One task. A candidate for it is Python source that defines `ModelNew` with `Model`'s signatures."""

    name: str
    source: str  # the reference module; this is also what a model is shown
    solution: str | None = None  # a known Triton solution, for SFT (synthetic tasks have one)
    meta: dict = field(default_factory=dict, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "source", plain(self.source))

    @property
    def key(self) -> str:
        """16 hex digits that identify the source: caches go by content, never by name."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def check_source(source: str, where: str) -> str:
    """Return `source` if it is a task; else raise ValueError with one line that says what is missing.

    where: what the line begins with; "": nothing.
    """
    source, begin = plain(source), where and f"{where}: "
    try:
        tree = parse(source)
    except ValueError as error:
        raise ValueError(f"{begin}{error}") from None
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if missing := [name for name in REQUIRED if name not in defined]:
        raise ValueError(f"{begin}a task defines {', '.join(REQUIRED)}; this file lacks {', '.join(missing)}")
    return source


def load_task(path: str | Path) -> Task:
    """Read one task file. Raises ValueError (one line) if it is missing, unreadable or no task."""
    path = Path(path)
    try:
        source = read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot read: {reason(error)}") from None
    return Task(name=path.stem, source=check_source(source, str(path)))


def find_tasks(path: str | Path) -> tuple[list[Task], dict[str, str]]:
    """The tasks of a file or of a folder, in order of path, and {name: why it is no task} of the other files.

    A folder's tasks are its *.py at any depth; their names are relative paths without .py. An __init__.py
    that defines nothing of a task only makes the folder a package. A .jsonl or .jsonl.xz file has a task a
    line, as collect_data.py writes them. Raises ValueError (one line) if there is nothing at `path`, or no
    .py in it.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path}: cannot read: No such file or directory")
    if is_rows(path) and path.is_file():
        return task_rows(path)
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no .py file in this folder; a task defines {', '.join(REQUIRED)}")
    tasks: list[Task] = []
    others: dict[str, str] = {}
    for file in files:
        name = str(file.relative_to(path).with_suffix("")) if path.is_dir() else path.stem
        try:
            tasks.append(Task(name, load_task(file).source))
        except ValueError as error:
            if file.name != "__init__.py" or len(lacking(file)) < len(REQUIRED):
                others[name] = str(error).removeprefix(f"{file}: ")
    return tasks, others


def task_rows(path: Path) -> tuple[list[Task], dict[str, str]]:
    """The tasks of a JSONL file, in its order, and {name: why it is no task} of the other rows.

    A row is {"task": source, "name": ..., "meta": {...}}. Without a name it goes by the number of its line. A
    "split", which the rows of held-out tasks have, is kept in the meta. Raises ValueError (one line) if the
    file can't be read, or has no rows.
    """
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot read: {reason(error)}") from None
    tasks: dict[str, Task] = {}
    others: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            task = task_row(line, place)
            if task.name in tasks:
                raise ValueError(f"a second task named {task.name}")
            tasks[task.name] = task
        except ValueError as error:
            others[place] = str(error)
    if not tasks and not others:
        raise ValueError(f"{path}: it is empty")
    return list(tasks.values()), others


def task_row(line: str, place: str) -> Task:
    """The task in one line of a file, named `place` if it has no name. ValueError says why there is none."""
    row = read_object(line)
    if not isinstance(row.get("task"), str):
        raise ValueError('a row {"task": the module\'s source, "name": ...} is expected')
    name, meta = row.get("name") or place, row.get("meta") or {}
    if not isinstance(name, str | int):
        raise ValueError(f"its name is no text but {json.dumps(name)[:40]}")
    if not isinstance(meta, dict):
        raise ValueError(f"its meta is no object but {json.dumps(meta)[:40]}")
    if "split" in row:
        meta = {**meta, "split": row["split"]}
    named = str(name) if row.get("name") else ""
    return Task(str(name), check_source(row["task"], named), meta=meta)


def lacking(file: Path) -> list[str]:
    """Which of REQUIRED a file does not even name."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it can't be told, so the file is named among those that are no task
        return []
    return [name for name in REQUIRED if name not in text]
