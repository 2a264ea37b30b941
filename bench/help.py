"""`--help` of a benchmark without its imports: torch alone takes seconds, and some want a GPU.

A benchmark's page is the docstring of its file and the options of its class Config. That class needs little
of the file: what its fields name. So only those statements are carried out.
"""

import ast
import sys
import types
from pathlib import Path

from nanotriton import config


def page(module: str, file: Path) -> str:
    """What `python -m module --help` prints."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree) or ""
    if not any(isinstance(node, ast.ClassDef) and node.name == "Config" for node in tree.body):
        return text
    return f"{text}\n\noptions:\n{config.help_text(options_of(module, file, tree))}"


def options_of(module: str, file: Path, tree: ast.Module) -> type:
    """The class Config of a file, made without the rest of it."""
    needed = statements_for("Config", tree)
    part = ast.Module([node for node in tree.body if node in needed], type_ignores=[])
    made = types.ModuleType(module)
    made.__file__ = str(file)  # the comments above the fields are read there
    sys.modules[module] = made
    exec(compile(part, str(file), "exec"), vars(made))
    return made.Config


def statements_for(name: str, tree: ast.Module) -> set[ast.stmt]:
    """The statements of a file that define this name and, in turn, what those read when they are carried
    out.
    """
    defined = {target: node for node in tree.body for target in targets(node)}
    needed: set[ast.stmt] = set()
    names = {name}
    while names:
        node = defined.get(names.pop())  # None: a builtin, or an argument
        if node is not None and node not in needed:
            needed.add(node)
            names |= used(node)
    return needed


def targets(node: ast.stmt) -> list[str]:
    """The names that a statement of a file defines."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [leaf.id for target in node.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def used(node: ast.stmt) -> set[str]:
    """The names that a statement reads. A method of a class reads nothing until it is called."""
    parts: list[ast.AST] = [node]
    if isinstance(node, ast.ClassDef):
        fields = [inner for inner in node.body if not isinstance(inner, ast.FunctionDef)]
        parts = [*node.bases, *node.decorator_list, *fields]
    names = [leaf for part in parts for leaf in ast.walk(part) if isinstance(leaf, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}
