"""A task made of anybody's file: a PyTorch module, and how to make inputs for it.

A file in KernelBench's format is a task as it stands. In another one the class is renamed to `Model`, and the
functions that it lacks are added at its end. The file is read here and not run.
"""

import ast
import io
import tokenize
from pathlib import Path

from nanotriton.config import nearest, reason
from nanotriton.python_text import parse
from nanotriton.tasks.task import Task

ACCEPTED = (
    "a file is expected that defines one nn.Module class, and get_inputs() or example_inputs for its forward"
)


def module_task(path: str | Path, wanted: str = "") -> Task:
    """The task that asks for a kernel for the module in a file.

    wanted: the name of its class; "": Model if there is one, or else the one class that no other uses.
    Raises ValueError (one line) that says what is missing and what is accepted.
    """
    try:
        source = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot read: {reason(error)}") from None
    try:
        return Task(Path(path).stem, completed(source, parse(source), wanted))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def completed(source: str, tree: ast.Module, wanted: str) -> str:
    """The text of the task. Raises ValueError (one line)."""
    classes = module_classes(tree)
    chosen = choose(classes, wanted)
    added = additions(source, tree, chosen, classes)
    if chosen == "Model":
        return "\n\n\n".join([source.rstrip(), *added]) + "\n" if added else source
    if (whole := renamed(source, tree, chosen)) is None:
        whole = source
        added.insert(0, f"class Model({chosen}):\n    pass")
    return "\n\n\n".join([whole.rstrip(), *added]) + "\n"


def additions(source: str, tree: ast.Module, chosen: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    """The functions of a task that a file lacks, as text. Raises ValueError (one line)."""
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if chosen != "Model" and "Model" in functions | assigned(tree).keys() | all_classes(tree).keys():
        raise ValueError(f"it uses the name Model for something else than {chosen}, which shall be the Model")
    added = []
    if "get_inputs" not in functions:
        example = assigned(tree).get("example_inputs")
        if example is None:
            raise ValueError(f"it has no inputs for {chosen}.forward: {ACCEPTED}")
        added.append(inputs_function(source, example))
    if "get_init_inputs" not in functions:
        if needed := required(chosen, classes):
            raise ValueError(
                f"{chosen}.__init__ takes {', '.join(needed)}: "
                "get_init_inputs() is expected, which returns them in a list"
            )
        added.append("def get_init_inputs():\n    return []")
    return added


def renamed(source: str, tree: ast.Module, name: str) -> str | None:
    """The source with a class called Model instead; None where more than the class may have that name."""
    for node in ast.walk(tree):
        # a text with the name in it may be a message, or may be looked up
        if isinstance(node, ast.JoinedStr) and name in ast.unparse(node):
            return None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value:
            return None
    lines = source.splitlines(keepends=True)
    places: list[tuple[int, int]] = []
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string == name:
            if before == ".":  # somebody else's attribute
                return None
            places.append(token.start)
        elif token.string == "Model":
            return None
        before = token.string
    for row, column in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:column]}Model{line[column + len(name) :]}"
    return "".join(lines)


# ---- classes


def all_classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def module_classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """The classes of a file that derive from nn.Module, or from a class of torch.nn, or from one of these."""
    imported = imports(tree)
    found: dict[str, ast.ClassDef] = {}
    for name, node in all_classes(tree).items():
        for base in node.bases:
            first, dot, rest = ast.unparse(base).partition(".")
            full = imported.get(first, first) + dot + rest
            if first in found or full.startswith("torch.nn.") or full.endswith("Module"):
                found[name] = node
    return found


def imports(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: {"nn": "torch.nn"}."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def choose(classes: dict[str, ast.ClassDef], wanted: str) -> str:
    """The class that is asked for. Raises ValueError (one line) where that is not clear."""
    if not classes:
        raise ValueError(f"it defines no nn.Module: {ACCEPTED}")
    if wanted:
        if wanted not in classes:
            raise ValueError(f"it defines no nn.Module {wanted}{nearest(wanted, list(classes))}")
        return wanted
    if "Model" in classes:
        return "Model"
    parts: set[str] = set()  # classes that another one uses
    for name, node in classes.items():
        named = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        parts |= named & classes.keys() - {name}
    whole = [name for name in classes if name not in parts]
    if len(whole) != 1:
        raise ValueError(f"it defines several modules, {', '.join(whole or classes)}: name one with --module")
    return whole[0]


def required(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    """The arguments of a class's constructor that have no default, as far as the file shows it."""
    node = classes[name]
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            given = inner.args
            positional = [*given.posonlyargs, *given.args]
            plain = positional[1 : len(positional) - len(given.defaults)]
            named = [arg for arg, value in zip(given.kwonlyargs, given.kw_defaults) if value is None]
            return [arg.arg for arg in (*plain, *named)]
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != name:
            return required(base.id, classes)
    return []


# ---- inputs


def assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """The value of each name that a file's top level assigns."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def inputs_function(source: str, example: ast.expr) -> str:
    """get_inputs() that evaluates the expression of example_inputs: each call draws anew what it draws."""
    text = ast.get_source_segment(source, example)
    if isinstance(example, ast.Tuple | ast.List):
        return "def get_inputs():\n    return " + (text if isinstance(example, ast.List) else f"list({text})")
    return (
        "def get_inputs():\n"
        f"    inputs = ({text})\n"
        "    return inputs if isinstance(inputs, list | tuple | dict) else [inputs]"
    )
