"""Modules out of any Python package: nn.Module classes that can be constructed and called alone, with inputs
that were found by trying.

Only classes whose whole source, with what it needs of its own file, stands without the package are kept:
the task must be one file.
"""

import ast
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from nanotriton.tasks.task import Task

INPUTS = (
    "torch.randn(8, 32)",
    "torch.randn(4, 16, 32)",
    "torch.randn(2, 8, 16, 16)",
    "torch.randn(2, 8, 4, 8, 8)",
    "torch.randn(32)",
)
NUMBERS = (
    ("8",),
    ("32",),
    ("16",),
    ("8", "16"),
    ("32", "16"),
    ("8", "16", "3"),
    ("8", "8", "3"),
    ("4", "8"),
    ("3",),
    ("2",),
)
TEXT = """\
import torch
import torch.nn as nn
import torch.nn.functional as F{imports}


{body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{arguments}]
"""
WRAPPED = """\
class Model(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        self.layer = nn.{name}({names})

    def forward(self, {inputs}):
        return self.layer({inputs})"""


def extract(package: str, counts: dict[str, int] | None = None) -> Iterator[Task]:
    """Tasks of a package's modules. counts, if given, is told how many were found and how many run."""
    counts = {} if counts is None else counts
    for cls in classes(package):
        counts["found"] = counts.get("found", 0) + 1
        source = runnable(cls)
        if source:
            counts["runnable"] = counts.get("runnable", 0) + 1
            yield Task(f"{cls.__module__}.{cls.__qualname__}", source, None, {"origin": package})


def classes(package: str) -> list[type]:
    """The nn.Module classes that a package's own files define, in order of name. Files that can't be imported
    are passed over.
    """
    found: dict[str, type] = {}
    for module in imported(package):
        for name, value in vars(module).items():
            if (
                isinstance(value, type)
                and issubclass(value, nn.Module)
                and value.__module__ == module.__name__
                and not name.startswith("_")
            ):
                found[f"{module.__name__}.{name}"] = value
    return [found[name] for name in sorted(found)]


def imported(package: str) -> Iterator:
    folder = Path(package)
    if folder.is_dir():
        for path in sorted(folder.rglob("*.py")):
            yield from load_file(path)
        return
    root = importlib.import_module(package)
    yield root
    for info in pkgutil.walk_packages(
        getattr(root, "__path__", []), f"{package}.", onerror=lambda name: None
    ):
        if "test" not in info.name:
            try:
                yield importlib.import_module(info.name)
            except Exception:  # whatever a stranger's file raises on import, the others are still wanted
                continue


def load_file(path: Path) -> Iterator:
    name = re.sub(r"\W", "_", str(path.with_suffix("")))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[name]
        return
    yield module


def runnable(cls: type) -> str | None:
    """A task's source with the first constructor arguments and inputs that work, or None."""
    parts = body_of(cls)
    if parts is None:
        return None
    required = required_parameters(cls.__init__)
    tensors = required_parameters(cls.forward)
    if required is None or tensors is None or not 1 <= len(tensors) <= 3:
        return None
    for arguments in (n for n in ((), *NUMBERS) if len(n) == len(required)):
        for draw in INPUTS:
            source = parts(arguments, [draw] * len(tensors), required, tensors)
            if runs(source):
                return source
    return None


def required_parameters(function) -> list[str] | None:
    """The positional parameters without a default, self left out; None if they can't be told, or there are
    others that must be given.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    if any(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters):
        return None
    return [
        p.name
        for p in parameters
        if p.default is inspect.Parameter.empty and p.kind not in (*kinds, inspect.Parameter.VAR_KEYWORD)
    ]


def body_of(cls: type):
    """A function that makes the task's text: torch.nn's own classes are wrapped, others are copied with what
    they need of their file.
    """
    if cls.__module__.startswith("torch.nn.modules"):
        return lambda arguments, draws, required, tensors: TEXT.format(
            imports="",
            inputs=", ".join(draws),
            arguments=", ".join(arguments),
            body=WRAPPED.format(
                parameters="".join(f", {p}" for p in required),
                name=cls.__name__,
                names=", ".join(required),
                inputs=", ".join(tensors),
            ),
        )
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(sys.modules[cls.__module__])))
    except (OSError, TypeError, SyntaxError):
        return None
    text = closed(tree, cls.__name__)
    if text is None:
        return None
    imports, body = text
    body = re.sub(rf"\b{cls.__name__}\b", "Model", body)
    return lambda arguments, draws, required, tensors: TEXT.format(
        imports=imports, body=body, inputs=", ".join(draws), arguments=", ".join(arguments)
    )


def closed(tree: ast.Module, name: str) -> tuple[str, str] | None:
    """(imports, definitions) that a class needs, or None if it needs anything but torch and the standard
    library.
    """
    definitions = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    definitions |= {
        t.id: n for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }
    imports = {
        (a.asname or a.name).split(".")[0]: n
        for n in tree.body
        if isinstance(n, ast.Import | ast.ImportFrom)
        for a in n.names
    }
    needed, todo, used = [], [name], {}
    while todo:
        current = todo.pop()
        if current in needed:
            continue
        needed.append(current)
        for other in {n.id for n in ast.walk(definitions[current]) if isinstance(n, ast.Name)}:
            if other in definitions:
                todo.append(other)
            elif other in imports:
                used[other] = imports[other]
    modules = [n.module or "." if isinstance(n, ast.ImportFrom) else n.names[0].name for n in used.values()]
    relative = any(isinstance(n, ast.ImportFrom) and n.level for n in used.values())
    standard = (*sys.stdlib_module_names, "torch", "numpy")
    if relative or len(needed) > 8 or any(m.split(".")[0] not in standard for m in modules):
        return None
    lines = sorted({ast.unparse(n) for n in used.values()})
    body = "\n\n\n".join(
        ast.unparse(n) for n in dict.fromkeys(definitions[k] for k in definitions if k in needed)
    )
    return "".join(f"\n{line}" for line in lines), body


def runs(source: str) -> bool:
    """Whether a task's forward gives tensors of a floating type, on the meta device and then for real, the
    same twice.
    """
    names: dict = {"__name__": "task"}
    try:
        exec(compile(source, "<task>", "exec"), names)
        torch.manual_seed(0)
        model, inputs = names["Model"](*names["get_init_inputs"]()), names["get_inputs"]()
        with torch.no_grad():
            answers = [model(*inputs) for _ in itertools.repeat(None, 2)]
    except Exception:
        return False
    same = [isinstance(a, torch.Tensor) and a.numel() and torch.isfinite(a).all() for a in answers]
    return all(same) and torch.equal(*answers)
