"""pytorch-jit-paritybench's generated tests as task files. Its repository has no licence file, so nothing of
it is shipped: a clone is read.

A test case is (class, lambda: (arguments and keyword arguments of the constructor), lambda: (those of
forward), whether TorchScript compiles it). Kept are classes whose whole closure inside their file is small
and needs only torch and the standard library. Nothing is executed here.
"""

import ast
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from nanotriton.python_text import read_anyhow
from nanotriton.tasks.task import Task

ALLOWED = ("torch", "math", "numpy", "functools", "itertools", "typing", "collections", "copy")
LONGEST = 6000  # characters of a module
CLOSURE = 6  # definitions that a module may need
PASSES = 8  # over the files: the more, the more files have been read when the first task of the second comes


def paritybench(folder: Path) -> Iterator[Task]:
    """Every task of a clone, each text once, in an order that is always the same and such that the first few
    are a fair sample of all: each of PASSES goes over all files, in an order that no alphabet made, and takes
    the tasks whose hash falls to it.
    """
    hashed = lambda text: zlib.crc32(text.encode())
    files = sorted((folder / "generated").glob("test_*.py"), key=lambda path: hashed(path.name))
    found: dict[Path, list[Task]] = {}
    seen: set[str] = set()
    for turn in range(PASSES):
        for path in files:
            if path not in found:
                found[path] = list(tasks_of(path))
            for task in found[path]:
                key = re.sub(r"\s+", "", task.source)
                if hashed(task.name) % PASSES == turn and key not in seen:
                    seen.add(key)
                    yield task


def tasks_of(path: Path) -> Iterator[Task]:
    for number, (name, source) in enumerate(cases(path)):
        meta = {"origin": "pytorch-jit-paritybench", "licence": "none stated: modules are not redistributed"}
        yield Task(f"{path.stem.removeprefix('test_')}_{name}_{number}", source, None, meta)


class File:
    """A generated test's definitions, imports and cases."""

    def __init__(self, tree: ast.Module):
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, tuple[str, ast.stmt]] = {}
        self.cases: list[ast.expr] = []
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.definitions[node.name] = node
            elif (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                self.assigned(node.targets[0].id, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                for alias in node.names:
                    self.imports[(alias.asname or alias.name).split(".")[0]] = (module or "", node)

    def assigned(self, name: str, node: ast.Assign) -> None:
        if name == "TESTCASES" and isinstance(node.value, ast.List):
            self.cases = node.value.elts
        elif not ast.unparse(node.value).startswith("_mock"):
            self.definitions[name] = node

    def closure(self, root: str) -> list[str]:
        """What a definition needs of this file, itself included."""
        found, todo = [], [root]
        while todo:
            name = todo.pop()
            if name not in found:
                found.append(name)
                todo += [n for n in names_in(self.definitions[name]) if n in self.definitions]
        return found


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def cases(path: Path) -> Iterator[tuple[str, str]]:
    """(class name, task source) of each test case that can stand alone."""
    try:
        file = File(ast.parse(read_anyhow(path)))
    except SyntaxError:
        return
    for case in file.cases:
        try:
            name = case.elts[0].id
            init, forward = case.elts[1].body, case.elts[2].body
            arguments, keywords = (
                init.elts[0].elts,
                {k.value: v for k, v in zip(init.elts[1].keys, init.elts[1].values)},
            )
            inputs, named = forward.elts[0].elts, forward.elts[1].keys
        except (AttributeError, IndexError):
            continue
        if (
            named
            or "_mock" in ast.unparse(init) + ast.unparse(forward)
            or not isinstance(file.definitions.get(name), ast.ClassDef)
        ):
            continue
        if source := alone(file, name, arguments, keywords, inputs):
            yield name, source


def alone(file: File, name: str, arguments: list, keywords: dict, inputs: list) -> str | None:
    """The class with what it needs as one task file, or None if it needs too much."""
    needed = file.closure(name)
    used = set().union(*(names_in(file.definitions[n]) for n in needed))
    foreign = [n for n in used if n in file.imports and file.imports[n][0].split(".")[0] not in ALLOWED]
    positional = as_positional(file.definitions[name], arguments, keywords)
    if foreign or len(needed) > CLOSURE or positional is None:
        return None
    heads = sorted(
        {ast.unparse(file.imports[n][1]) for n in used if n in file.imports}
        | {"import torch", "import torch.nn as nn"}
    )
    body = "\n\n\n".join(ast.unparse(file.definitions[n]) for n in file.definitions if n in needed)
    body = re.sub(rf"(?<![\w.]){name}\b", "Model", body)  # nn.Conv2d stays, where a class is called so too
    if len(body) > LONGEST or "cuda" in body or "print(" in body:
        return None
    listed = lambda values: ", ".join(map(ast.unparse, values))
    return (
        "\n".join(heads)
        + f"\n\n\n{body}\n\n\ndef get_inputs():\n    return [{listed(inputs)}]\n\n\ndef get_init_inputs():\n    return [{listed(positional)}]\n"  # noqa: E501
    )


def as_positional(cls: ast.ClassDef, arguments: list, keywords: dict) -> list | None:
    """A constructor's arguments as one positional list; None if that can't be said."""
    init = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None:
        return None if arguments or keywords else []
    parameters = [a.arg for a in init.args.args[1:]]
    defaults = dict(zip(parameters[len(parameters) - len(init.args.defaults) :], init.args.defaults))
    found, left = list(arguments), dict(keywords)
    for parameter in parameters[len(found) :]:
        if not left:
            break
        value = left.pop(parameter, defaults.get(parameter))
        if value is None:
            return None
        found.append(value)
    return None if left else found
