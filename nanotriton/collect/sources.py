"""Where modules come from: task files, rows of {pytorch_code, triton_code}, a clone of
pytorch-jit-paritybench, any Python package.
"""

import ast
import importlib.util
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from nanotriton.collect.extract import extract
from nanotriton.collect.paritybench import paritybench
from nanotriton.config import reason
from nanotriton.rows import is_rows, read_lines, read_object
from nanotriton.tasks.module import module_task
from nanotriton.tasks.task import Task

LIMITS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8)  # of a size
QUICK = 1 << 17  # elements of a task's inputs and weights that a CPU verifies in a second


def modules(paths: list[str], counts: Counter | None = None) -> Iterator[Task]:
    """The tasks of every path, in order. A row's own Triton is the task's solution. counts, if given, is told
    what became of the classes of packages. Raises ValueError (one line) for what is no source.
    """
    for text in paths:
        path = Path(text)
        kind = kind_of(text)
        if kind == "rows":
            yield from rows(path)
        elif kind == "clone":
            yield from paritybench(path)
        elif kind == "file":
            yield module_task(path)
        elif kind == "folder":
            yield from folder(path, counts)
        else:
            yield from extract(text, counts)


def kind_of(text: str) -> str:
    """What one of --modules is: rows, clone, file, folder or package.

    Raises ValueError (one line) for what is no source.
    """
    path = Path(text)
    if is_rows(path):
        return "rows"
    if (path / "generated").is_dir():
        return "clone"
    if path.is_file() and path.suffix == ".py":
        return "file"
    if path.is_dir():
        if not any(path.rglob("*.py")):
            raise ValueError(f"--modules {text}: no .py file in this folder")
        return "folder"
    if not text.replace(".", "").isidentifier():
        raise ValueError(
            f"--modules {text}: a task file, a folder, a .jsonl, a clone of pytorch-jit-paritybench or a "
            "package is expected"
        )
    if importlib.util.find_spec(text.split(".")[0]) is None:
        raise ValueError(f"--modules {text}: no such file, folder or installed package")
    return "package"


def folder(path: Path, counts: Counter | None = None) -> Iterator[Task]:
    """The task files of a folder, or files with one module and inputs for it, which are made tasks.

    Other Python files are passed over, and counted. A folder without any task is a package's source.
    """
    passed, found = 0, False
    for file in sorted(path.rglob("*.py")):
        try:
            source = module_task(file).source
        except ValueError:  # no task, or nothing that can be read
            passed += 1
            continue
        found = True
        yield Task(str(file.relative_to(path).with_suffix("")), source, None, {"origin": path.name})
    if not found:
        yield from extract(str(path), counts)
    elif counts is not None and passed:
        counts[f"{path}: a file that is no task"] += passed


def rows(path: Path) -> Iterator[Task]:
    """Lines of {pytorch_code, triton_code} (triton_code may be missing; `small_code` is the same module with
    small sizes), or of {task, small}, as in rl.jsonl.
    """
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--modules {path}: cannot read: {reason(error)}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = row_task(read_object(line), path.stem, number)
        except ValueError as error:
            raise ValueError(
                f"--modules {path}, line {number}: {error}; an object with pytorch_code (or task) is expected"
            ) from None
        yield task


def row_task(row: dict, origin: str, number: int) -> Task:
    """The task in a row. ValueError says what is wrong with it."""
    source, meta = row.get("pytorch_code", row.get("task")), row.get("meta") or {}
    if not isinstance(source, str):
        raise ValueError("it has no module's source")
    if not isinstance(meta, dict):
        raise ValueError(f"its meta is no object but {json.dumps(meta)[:40]}")
    own = {"origin": row.get("origin", origin), "small": row.get("small_code") or row.get("small")}
    solution = row.get("triton_code") or row.get("solution")
    return Task(str(row.get("name") or f"{origin}-{number}"), source, solution, own | meta)


# ---- small sizes ----


def small(source: str) -> str:
    """The same module with its module-level sizes brought down, so that a CPU verifies it in a second. The
    text as it is where that fails, or isn't needed.
    """
    return fitted(source, QUICK, (64, 32, 16, 8))


def fitted(source: str, most: int, limits: tuple[int, ...] = LIMITS) -> str:
    """The same module with sizes of at most the first of `limits` at which inputs, weights and answer have
    no more than `most` elements; of the last one that runs, where none brings them so far down. The text as
    it is where that isn't needed.
    """
    if elements(source) <= most:
        return source
    smallest = source
    for limit in limits:
        text = reduced(source, limit)
        count = elements(text)
        if 0 < count <= most:
            return text
        if count > 0:
            smallest = text
    return smallest


def elements(source: str) -> int:
    """Elements of a task's inputs, weights and answer, found on the meta device; -1 if it doesn't run."""
    names: dict = {"__name__": "task"}
    try:
        with torch.device("meta"), torch.no_grad():
            exec(compile(source, "<task>", "exec"), names)
            inputs = names["get_inputs"]()
            model = names["Model"](*names["get_init_inputs"]())
            answer = model(*inputs)
    except Exception:  # whatever a stranger's code raises: it does not run
        return -1
    tensors = [*inputs, *model.parameters(), *(answer if isinstance(answer, tuple | list) else [answer])]
    return sum(t.numel() for t in tensors if isinstance(t, torch.Tensor))


def reduced(source: str, limit: int) -> str:
    """Whole numbers that are assigned at module level, and those in module-level tuples, at most about
    `limit`.

    Numbers that divide each other still do: a size is divided by a power of two, and odd ones stay odd.
    """
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = " ".join(t.id for t in ast.walk(node) if isinstance(t, ast.Name))
            bound = min(limit, 4) if "batch" in names else limit
            node.value = Shrink(bound).visit(folded(node.value))
    return ast.unparse(tree) + "\n"


class Shrink(ast.NodeTransformer):
    def __init__(self, limit: int):
        self.limit = limit

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        value = node.value
        if type(value) is not int or value <= self.limit:
            return node
        halvings = math.ceil(math.log2(value / self.limit))
        return ast.Constant(max(value >> halvings, 1))


def folded(node: ast.expr) -> ast.expr:
    """`8205 * 2` as one number."""
    try:
        # arithmetic of literals only: no names
        value = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
    except Exception:
        return node
    return ast.Constant(value) if type(value) is int else node
