"""The expressions of a function that hold no data: numbers, shapes, and tensors made of those alone.

Such a tensor is a mask or a table of angles. Torch may compute with it anywhere, as it may in `__init__`.
Where the text doesn't tell, an expression counts as data, and the rules on the source name its line. If an
expression is wrongly taken for a constant, the rules on the plan find it.
"""

import ast
from collections.abc import Callable, Collection

from nanotriton.plan.aten import words

# constants whatever their arguments are
CREATED = words("""
    arange ones zeros eye linspace logspace ones_like zeros_like tril_indices triu_indices finfo iinfo
""")
NEW = words("new_ones new_zeros")
OF_A_SHAPE = words("shape device dtype ndim is_cuda itemsize")
SHAPE_METHODS = words("size dim numel nelement stride element_size ndimension is_contiguous")
GROWING = words("append appendleft add extend insert setdefault update")  # what they are given is kept
PLAIN = words("int float bool str torch.device torch.dtype device dtype")  # annotations


class Constants:
    """The names of a function that hold data, and by them the expressions that don't.

    path: the dotted path of an expression through the imports. units: name -> the values assigned to it.
    tensors: names of attributes that may hold tensors, whatever else is assigned to them.
    """

    def __init__(
        self,
        function: ast.FunctionDef,
        path: Callable[[ast.AST], str | None],
        units: dict[str, list[ast.AST]],
        tensors: Collection[str] = (),
    ):
        self.path = path
        self.units = units
        self.tensors = tensors
        self.data = _data_arguments(function.args)
        bindings = _bindings(function)
        grows = True
        while grows:
            grows = False
            for names, value in bindings:
                if not names <= self.data and not self.holds(value):
                    self.data |= names
                    grows = True

    def holds(self, node: ast.AST) -> bool:
        """Whether an expression, however deep, is a constant, as far as the text tells."""
        todo = [node]
        while todo:
            node = todo.pop()
            known = self._known(node)
            if known is False:
                return False
            if known is None:  # all of its parts decide
                todo += ast.iter_child_nodes(node)
        return True

    def _known(self, node: ast.AST) -> bool | None:
        """Whether a node is a constant, None if its parts decide."""
        if isinstance(node, ast.Name):
            return node.id not in self.data
        if isinstance(node, ast.Attribute):
            return self._known_attribute(node)
        if not isinstance(node, ast.Call):
            return None
        path = self.path(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if path.removeprefix("torch.") in CREATED or method in NEW | SHAPE_METHODS:
            return True
        return False if path.startswith("torch.empty") else None  # memory for a kernel to write to

    def _known_attribute(self, node: ast.Attribute) -> bool | None:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            values = [] if node.attr in self.tensors else self.units.get(node.attr, [])
            return bool(values) and all(self._is_number(value) for value in values)
        return True if node.attr in OF_A_SHAPE else None

    def _is_number(self, value: ast.AST) -> bool:
        """Whether a value that `__init__` keeps is a number and no tensor: torch has no part in it."""
        if isinstance(value, ast.FunctionDef | ast.ClassDef):
            return False
        for node in ast.walk(value):
            if isinstance(node, ast.Name | ast.Attribute) and (self.path(node) or "").startswith("torch"):
                return False
        return True


def _data_arguments(a: ast.arguments) -> set[str]:
    """The names of arguments that are not annotated as numbers."""
    given = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    given += [arg for arg in (a.vararg, a.kwarg) if arg]
    found = set()
    for arg in given:
        plain = arg.annotation and ast.unparse(arg.annotation) in PLAIN
        if not plain:
            found.add(arg.arg)
    return found


def _bindings(function: ast.FunctionDef) -> list[tuple[set[str], ast.AST]]:
    """(names, value) of every place in a function that binds names to a value, or to an item of one."""
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            found += [(_names(target), node.value) for target in node.targets]
        elif isinstance(node, ast.For | ast.comprehension):
            found.append((_names(node.target), node.iter))
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            if node.value is not None:
                found.append((_names(node.target), node.value))
        elif isinstance(node, ast.withitem) and node.optional_vars:
            found.append((_names(node.optional_vars), node.context_expr))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GROWING
        ):
            found += [(_names(node.func.value) - {"self"}, given) for given in node.args]
    return found


def _names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
