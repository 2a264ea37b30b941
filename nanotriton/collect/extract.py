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
import types
from collections import Counter
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
    "torch.randint(0, 8, (4, 16))",
    "torch.rand(8, 32)",
)
# What other inputs may be than the first: like it, or a class, a place or a label for each of its rows.
OTHERS = ("torch.randint(0, 8, (8,))", "torch.randint(0, 2, (8, 32)).float()", "torch.randn(8)")
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
DEFINITIONS = 8  # that a class may need
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


def extract(package: str, counts: Counter | None = None) -> Iterator[Task]:
    """Tasks of a package's modules. counts, if given, is told what became of each: "runnable", or why it was
    left out.
    """
    counts = Counter() if counts is None else counts
    for cls in classes(package, counts):
        source, why = runnable(cls)
        counts[f"{package}: {why}"] += 1
        if source:
            yield Task(f"{cls.__module__}.{cls.__qualname__}", source, None, {"origin": package})


def classes(package: str, counts: Counter | None = None) -> list[type]:
    """The nn.Module classes that a package's own files define, in order of name. Files that can't be imported
    are passed over, and counted.
    """
    counts = Counter() if counts is None else counts
    found: dict[str, type] = {}
    for module in imported(package, counts):
        for name, value in vars(module).items():
            if (
                isinstance(value, type)
                and issubclass(value, nn.Module)
                and value.__module__ == module.__name__
                and not name.startswith("_")
            ):
                found[f"{module.__name__}.{name}"] = value
    return [found[name] for name in sorted(found)]


def imported(package: str, counts: Counter) -> Iterator:
    folder = Path(package)
    if folder.is_dir():
        for path in sorted(folder.rglob("*.py")):
            try:
                yield load_file(path)
            except Exception:  # whatever a stranger's file raises on import, the others are still wanted
                counts[f"{package}: a file that can't be imported"] += 1
        return
    root = entered(package)
    yield root
    path = getattr(root, "__path__", [])
    already_counted = lambda name: None  # below, where a package was imported before it is walked through
    for info in pkgutil.walk_packages(path, f"{package}.", onerror=already_counted):
        if "test" not in info.name:
            try:
                yield importlib.import_module(info.name)
            except Exception:  # as above
                counts[f"{package}: a file that can't be imported"] += 1


def entered(package: str):
    """A package; where its own __init__ raises (a compiled part may be for another machine), an empty module
    in its place, through which its files are found.
    """
    if "." in package:
        entered(package.rpartition(".")[0])
    try:
        return importlib.import_module(package)
    except Exception:  # whatever a stranger's __init__ raises
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"--modules {package}: it can't be imported") from None
        root = types.ModuleType(package)
        root.__path__ = list(spec.submodule_search_locations)
        sys.modules[package] = root
        return root


def load_file(path: Path) -> types.ModuleType:
    """A file as a module. Raises what the file raises."""
    name = re.sub(r"\W", "_", str(path.with_suffix("")))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[name]
        raise
    return module


def runnable(cls: type) -> tuple[str | None, str]:
    """(a task's source with the first constructor arguments and inputs that work, "runnable"), or (None, why
    there is none).
    """
    parts = body_of(cls)
    if parts is None:
        return None, "needs more than its file, torch and the standard library"
    required = required_parameters(cls.__init__)
    tensors = required_parameters(cls.forward)
    if required is None or tensors is None:
        return None, "takes arguments by keyword only"
    if not 1 <= len(tensors) <= 3:
        return None, "takes no input, or more than three"
    for names, arguments in constructions(cls, required):
        for draws in drawn_inputs(len(tensors)):
            source = parts(arguments, draws, names, tensors)
            if runs(source):
                return source, "runnable"
    return None, "no arguments found that work, or random, or not finite"


def constructions(cls: type, required: list[str]) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """(names, values) of constructor arguments to try."""
    yield from ((required, values) for values in ((), *NUMBERS) if len(values) == len(required))
    kinds = [p.kind for p in inspect.signature(cls.__init__).parameters.values()]
    inherited = "__init__" in vars(nn.Module) and cls.__init__ is nn.Module.__init__
    if inspect.Parameter.VAR_POSITIONAL in kinds and not inherited:  # as the recurrent layers take theirs
        names = [f"size_{i}" for i in range(2)]
        yield from ((names, values) for values in NUMBERS if len(values) == 2)


def drawn_inputs(count: int) -> Iterator[list[str]]:
    """Inputs to try: all alike, or one and what goes with it."""
    yield from ([draw] * count for draw in INPUTS)
    if count == 2:
        yield from ([draw, other] for draw in ("torch.randn(8, 32)", "torch.rand(8, 32)") for other in OTHERS)


def required_parameters(function) -> list[str] | None:
    """The parameters without a default, self left out; None if they can't be told, or some must be given by
    keyword.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    missing = [p for p in parameters if p.default is inspect.Parameter.empty]
    if any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in missing):
        return None
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in missing if p.kind not in starred]


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
    text = closed(sys.modules[cls.__module__], cls.__name__)
    if text is None:
        return None
    imports, body = text
    body = re.sub(rf"\b{cls.__name__}\b", "Model", body)
    return lambda arguments, draws, required, tensors: TEXT.format(
        imports=imports, body=body, inputs=", ".join(draws), arguments=", ".join(arguments)
    )


def closed(module: types.ModuleType, name: str) -> tuple[str, str] | None:
    """(imports, definitions) that a class needs, or None if it needs anything but its own package, torch and
    the standard library. What it imports of its package comes along.
    """
    files = {module.__name__: File.of(module)}
    found: dict[str, ast.stmt] = {}
    lines: set[str] = set()
    todo = [(module.__name__, name)]
    while todo:
        where, current = todo.pop()
        file = files.setdefault(where, File.of(sys.modules.get(where)))
        node = file.definitions.get(current) if file else None
        if node is None or found.get(current, node) is not node or len(found) > DEFINITIONS:
            return None  # not there, or two files have something of this name, or it is too much
        if current in found:
            continue
        found[current] = node
        quiet(node)
        for other in sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}):
            if other in file.definitions:
                todo.append((where, other))
            elif other in file.imports:
                origin, original, line = file.imports[other]
                if not comes_along(origin, module.__name__):
                    return None
                ours = own(origin, module.__name__)
                if ours and original != other:
                    return None
                todo += [(origin, other)] if ours else []
                lines |= set() if ours else {line}
    texts = [ast.unparse(node) for node in dict.fromkeys(reversed(found.values()))]
    return "".join(f"\n{line}" for line in sorted(lines)), "\n\n\n".join(texts)


def own(origin: str, module: str) -> bool:
    """Whether two modules are of the same package, which isn't torch."""
    return origin.split(".")[0] == module.split(".")[0] != "torch"


def comes_along(origin: str, module: str) -> bool:
    """Whether a task may import from a module, or can take its text along."""
    known = (*sys.stdlib_module_names, "torch", "numpy")
    return own(origin, module) or origin.split(".")[0] in known


class File:
    """A module's definitions, and where its other names come from."""

    def __init__(self, tree: ast.Module, package: str):
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, tuple[str, str, str]] = {}  # name -> (module, name there, the line)
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                named = (t for t in node.targets if isinstance(t, ast.Name))
                self.definitions |= {t.id: node for t in named}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for a in node.names:
                    origin = a.name
                    if isinstance(node, ast.ImportFrom):
                        parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                        origin = ".".join([*(parts if node.level else []), *filter(None, [node.module])])
                    said = ast.unparse(type(node)(**{**vars(node), "names": [a]}))
                    self.imports[(a.asname or a.name).split(".")[0]] = (origin, a.name, said)

    @classmethod
    def of(cls, module: types.ModuleType | None) -> "File | None":
        try:
            tree = ast.parse(inspect.getsource(module))
        except (OSError, TypeError, SyntaxError):
            return None
        package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
        return cls(tree, package)


def quiet(node: ast.stmt) -> None:
    """Take calls out that only tell torch that a class was used."""

    class Quiet(ast.NodeTransformer):
        def visit_Expr(self, line: ast.Expr) -> ast.Expr | ast.Pass:
            return ast.Pass() if "log_api_usage" in ast.unparse(line).split("(")[0] else line

    ast.fix_missing_locations(Quiet().visit(node))


def runs(source: str) -> bool:
    """Whether a task's forward gives tensors of a floating type, on the meta device and then for real, the
    same twice.
    """
    names: dict = {"__name__": "task"}
    try:
        exec(compile(source, "<task>", "exec"), names)
        torch.manual_seed(0)
        model = names["Model"](*names["get_init_inputs"]())
        inputs = names["get_inputs"]()
        with torch.no_grad():
            answers = [model(*inputs) for _ in itertools.repeat(None, 2)]
    except Exception:  # whatever a stranger's code raises: it does not run
        return False
    first, second = (list(a) if isinstance(a, tuple | list) else [a] for a in answers)
    tensors = [isinstance(a, torch.Tensor) and a.numel() and a.isfinite().all() for a in first]
    return bool(tensors) and all(tensors) and all(map(torch.equal, first, second))
