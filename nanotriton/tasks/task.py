"""What is asked: one PyTorch module in KernelBench's format (`class Model`, `get_inputs()`,
`get_init_inputs()`)."""

import ast
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from nanotriton.config import reason
from nanotriton.python_text import plain, read

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
    """Return `source` if it is a task; else raise ValueError with one line that says what is missing."""
    source = plain(source)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{where}: not Python: {error}") from None
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if missing := [name for name in REQUIRED if name not in defined]:
        raise ValueError(
            f"{where}: a task defines {', '.join(REQUIRED)}; this file lacks {', '.join(missing)}"
        )
    return source


def load_task(path: str | Path) -> Task:
    """Read one task file. Raises ValueError (one line) if it is missing, unreadable or no task."""
    path = Path(path)
    try:
        source = read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot read: {reason(error)}") from None
    return Task(name=path.stem, source=check_source(source, str(path)))


def load_tasks(path: str | Path) -> list[Task]:
    """Read a task file, or every *.py under a folder, in order of path. Names are relative paths
    without .py."""
    path = Path(path)
    if not path.is_dir():
        return [load_task(path)]
    files = sorted(path.rglob("*.py"))
    if not files:
        raise ValueError(f"{path}: no .py file in this folder; a task defines {', '.join(REQUIRED)}")
    return [Task(str(f.relative_to(path).with_suffix("")), load_task(f).source) for f in files]
