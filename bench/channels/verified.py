"""KernelBench-Verified (arXiv 2607.16241): a candidate must also be right on inputs that it was not shown.

A clone of its repository has a file for each problem, hidden_tests/level<l>/<id>_hidden.py, whose function
get_hidden_inputs() returns lists of inputs: the problem's own as they are, times 3, times 0.01 and negated,
without those on which the reference is not finite. Here each list but the first becomes a task of its own,
and the executor judges the candidate on it. So "right" has our meaning throughout; theirs is an absolute and
relative error below 1e-3, and our share of right candidates is at most theirs.
"""

import ast
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from nanotriton.config import ConfigError, reason
from nanotriton.tasks.kernelbench import Problem
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

FOLDER = "hidden_tests"
SCALED = """

_inputs_as_they_are = get_inputs


def get_inputs():
    import torch

    scaled = lambda x: x * {factor} if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    return [scaled(x) for x in _inputs_as_they_are()]
"""
# For a list of inputs that is no multiple of the problem's own: what the file itself makes of them.
OTHER = """

_get_inputs = get_inputs


{functions}


def get_inputs():
    return get_hidden_inputs()[{number}]
"""


@dataclass(frozen=True)
class Variant:
    """A problem with other inputs."""

    label: str  # such as "x3"
    task: Task


def check_folder(path: str) -> Path:
    """The folder of hidden tests in a clone. ConfigError where there is none."""
    for folder in (Path(path) / FOLDER, Path(path)):
        if folder.name == FOLDER and folder.is_dir():
            return folder
    raise ConfigError(f"--verified {path}: no {FOLDER} in it; give a clone of KernelBench-Verified")


def variants(folder: Path, problem: Problem) -> list[Variant]:
    """The problem with each list of hidden inputs but the one that is its own.

    Raises ConfigError (one line) where the problem has no file of them, or one of another form.
    """
    path = folder / f"level{problem.level}" / f"{problem.id}_hidden.py"
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--verified: {path}: cannot read: {reason(error)}") from None
    except SyntaxError as error:
        raise ConfigError(f"--verified: {path}: no Python: {error.msg}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    listed = lists(functions.get("get_hidden_inputs"))
    if not listed:
        raise ConfigError(f"--verified: {path}: no get_hidden_inputs that appends to a list")
    found = []
    for number, expression in enumerate(listed):
        factor = factor_of(expression)
        if factor == 1.0:
            continue
        if factor is None:
            own = [ast.get_source_segment(text, f) for name, f in functions.items() if name != "_get_inputs"]
            more = "import torch\n" + OTHER.format(functions="\n\n\n".join(own), number=number)
        else:
            more = SCALED.format(factor=factor)
        label = f"inputs {number + 1}" if factor is None else f"x{factor:g}"
        source = problem.task.source.rstrip() + "\n" + more
        found.append(Variant(label, Task(f"{problem.task.name} {label}", source)))
    return found


def lists(function: ast.FunctionDef | None) -> list[ast.expr]:
    """What get_hidden_inputs appends, in order."""
    if function is None:
        return []
    calls = [node.value for node in function.body if isinstance(node, ast.Expr)]
    return [
        call.args[0]
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"
    ]


def factor_of(expression: ast.expr) -> float | None:
    """3.0 of `_scale(_get_inputs(), 3.0)`, 1.0 of `_get_inputs()`, None of anything else."""
    match expression:
        case ast.Call(func=ast.Name("_get_inputs"), args=[]):
            return 1.0
        case ast.Call(func=ast.Name("_scale"), args=[ast.Call(func=ast.Name("_get_inputs")), factor]):
            return float(ast.literal_eval(factor))
    return None


def joined(plain: Verdict, hidden: dict[str, Verdict]) -> Verdict:
    """The verdict on all inputs. hidden: by the label of the variant, of those that were judged."""
    if not plain.correct:
        return plain
    for label, verdict in hidden.items():
        if not verdict.scored:
            continue  # there the reference does not run, or nothing can be told wrong: no candidate's fault
        if not verdict.correct:
            return dataclasses.replace(verdict, message=f"on inputs {label}: {verdict.message}")
    return plain
