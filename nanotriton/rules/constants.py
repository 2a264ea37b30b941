"""Which expressions of a function hold no data: numbers, shapes, and tensors that torch makes of those alone (a mask, a table of angles).

Torch may compute with them anywhere, as it may in `__init__`. Where the text doesn't tell, an expression counts as data for the rules on the
source, which then name the line; an expression that is taken for a constant and is none is found in the plan.
"""

import ast
from collections.abc import Callable

from nanotriton.plan.aten import words

# whatever they are given
CREATED = words(
    "arange ones zeros eye linspace logspace ones_like zeros_like tril_indices triu_indices finfo iinfo"
)
NEW = words("new_ones new_zeros")
OF_A_SHAPE = words("shape device dtype ndim is_cuda itemsize")
SHAPE_METHODS = words("size dim numel nelement stride element_size ndimension is_contiguous")
PLAIN = words("int float bool str torch.device torch.dtype device dtype")


class Constants:
    """What a function holds that is no data. path: the dotted path of an expression through the imports; units: what a name is assigned."""

    def __init__(
        self,
        function: ast.FunctionDef,
        path: Callable[[ast.AST], str | None],
        units: dict[str, list[ast.AST]],
    ):
        self.path, self.units = path, units
        a = function.args
        given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        self.data = {
            arg.arg for arg in given if not (arg.annotation and ast.unparse(arg.annotation) in PLAIN)
        }
        bound = [
            (_names(t), n.value) for n in ast.walk(function) if isinstance(n, ast.Assign) for t in n.targets
        ]
        bound += [
            (_names(n.target), n.iter if isinstance(n, ast.For | ast.comprehension) else n.value)
            for n in ast.walk(function)
            if isinstance(n, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.comprehension)
        ]
        bound += [
            (_names(n.optional_vars), n.context_expr)
            for n in ast.walk(function)
            if isinstance(n, ast.withitem) and n.optional_vars
        ]
        while (
            fresh := {
                name
                for names, value in bound
                if value is not None and not self.holds(value)
                for name in names
            }
            - self.data
        ):
            self.data |= fresh

    def holds(self, node: ast.AST) -> bool:
        """Whether an expression is a constant, as far as the text tells."""
        if isinstance(node, ast.Name):
            return node.id not in self.data
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                values = self.units.get(node.attr, [])
                return bool(values) and all(self.number(value) for value in values)
            return node.attr in OF_A_SHAPE or self.holds(node.value)
        if isinstance(node, ast.Call):
            path, method = (
                self.path(node.func) or "",
                node.func.attr if isinstance(node.func, ast.Attribute) else "",
            )
            if path.removeprefix("torch.") in CREATED or method in NEW or method in SHAPE_METHODS:
                return True
            if path.startswith("torch.empty"):  # for a kernel to write to
                return False
        return all(self.holds(child) for child in ast.iter_child_nodes(node))

    def number(self, value: ast.AST) -> bool:
        """Whether what `__init__` keeps is a number and no tensor: torch has no part in it."""
        if isinstance(value, ast.FunctionDef | ast.ClassDef):
            return False
        return not any(
            (self.path(n) or "").startswith("torch")
            for n in ast.walk(value)
            if isinstance(n, ast.Name | ast.Attribute)
        )


def _names(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
