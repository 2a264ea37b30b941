"""Where a candidate's names stand, what binds them, and what its own functions are given.

Attributes are known by their names alone. Other names are known by the function that they stand in, where a
nested function is part of its outer one.
"""

import ast
from collections.abc import Iterator

from nanotriton.rules.source import Source, last_name, walk

MODULE = 0  # in place of a function: outside of all
CALLED = ("forward", "__call__")  # what runs when an object is called
AUTOGRAD = ("torch.autograd.Function", "torch.autograd.function.Function")


class Scopes:
    """The functions of a source, and for each node the one that it stands in.

    functions: number of a function -> its definition. home: id of a node -> the number of its function.
    stored: number of a function -> the names that its statements bind; bound: with its arguments.
    """

    def __init__(self, source: Source):
        self.source = source
        self.functions: dict[int, ast.FunctionDef] = {}
        self._home: dict[int, int] = {}
        self._owner: dict[int, ast.ClassDef] = {}  # id of a method -> its class
        for unit in source.nodes[ast.ClassDef]:
            self._owner |= {id(node): unit for node in _functions_in(unit)}
        methods = [node for unit in source.nodes[ast.ClassDef] for node in _functions_in(unit)]
        outer = [node for node in source.tree.body if isinstance(node, ast.FunctionDef)]
        for node in [*outer, *methods]:
            self.functions[id(node)] = node
            for inner in walk(node):
                self._home[id(inner)] = id(node)
        self.stored: dict[int, set[str]] = self.empty()
        self.bound: dict[int, set[str]] = {}
        self._find_bound()

    def home(self, node: ast.AST) -> int:
        """The number of the function that a node stands in."""
        return self._home.get(id(node), MODULE)

    def empty(self) -> dict[int, set[str]]:
        """An empty set for the module and for each function."""
        return {number: set() for number in (MODULE, *self.functions)}

    def shared(self) -> list[ast.Global | ast.Nonlocal]:
        """The statements that bind names of another scope."""
        return self.source.nodes[ast.Global] + self.source.nodes[ast.Nonlocal]

    def _find_bound(self) -> None:
        for node in self.source.nodes[ast.Name]:
            if not isinstance(node.ctx, ast.Load):
                self.stored[self.home(node)].add(node.id)
        self.bound = {number: set(names) for number, names in self.stored.items()}
        for node in self.source.nodes[ast.arg]:
            self.bound[self.home(node)].add(node.arg)
        for node in self.shared():
            self.bound[self.home(node)] -= set(node.names)

    def holds(self, names: dict[int, set[str]], node: ast.Name) -> bool:
        """Whether a name is among those of its function, or of the module if its function doesn't bind it."""
        home = self.home(node)
        return node.id in names[home] or (node.id in names[MODULE] and node.id not in self.bound[home])

    # ---- what functions are given

    def run_by(self, call: ast.Call) -> list[ast.FunctionDef]:
        """The candidate's own functions that a call may run, methods by their names alone."""
        name = last_name(call.func)
        units = self.source.units
        found: list[ast.AST] = []
        for unit in units.get(name, []):
            found.append(unit)
            if isinstance(unit, ast.ClassDef):  # Layer(x)
                found += _methods(unit, ("__init__",))
            made = getattr(unit, "func", None)
            for other in units.get(made.id, []) if isinstance(made, ast.Name) else []:  # self.layer(x)
                found += _methods(other, CALLED)
        if name == "apply":  # Gelu.apply(x)
            for unit in self._classes(getattr(call.func, "value", None)):
                found += _methods(unit, ("forward",))
        return [f for f in found if isinstance(f, ast.FunctionDef) and not self.source.is_kernel(f)]

    def given(self, function: ast.FunctionDef, call: ast.Call) -> list[tuple[str, ast.AST]]:
        """(parameter, argument) of a call of a function. What is spread may be any that is left."""
        a = function.args
        names = _positional(function)
        if self._is_told_first(function, call):
            del names[:1]
        only = [arg.arg for arg in a.kwonlyargs]
        rest, others = ([arg.arg] if arg else [] for arg in (a.vararg, a.kwarg))
        found: list[tuple[str, ast.AST]] = []
        spread = False
        for number, value in enumerate(call.args):
            spread = spread or isinstance(value, ast.Starred)
            places = names[number:] + rest if spread else (names[number : number + 1] or rest)
            found += [(name, value) for name in places]
        for keyword in call.keywords:
            if keyword.arg is None:
                places = names + only + others
            else:
                places = [keyword.arg] if keyword.arg in names + only else others
            found += [(name, keyword.value) for name in places]
        return found

    def receiver(self, function: ast.FunctionDef | ast.Lambda) -> str | None:
        """The name of a method's first parameter, which no call names: its object, its class, or autograd's
        context. A function of the module's has none, whatever its parameters are called."""
        owner = self._owner.get(id(function))
        names = _positional(function)
        if owner is None or not names:
            return None
        if not _is_static(function):
            return names[0]
        plain = function.name == "forward" and _methods(owner, ("setup_context",))
        return names[0] if self._is_of_autograd(owner) and not plain else None

    def _is_of_autograd(self, unit: ast.ClassDef) -> bool:
        """Whether a class is an autograd.Function, or is made of one."""
        todo, seen = [unit], set()
        while todo:
            unit = todo.pop()
            seen.add(id(unit))
            for base in unit.bases:
                if self.source.path(base) in AUTOGRAD:
                    return True
                todo += [other for other in self._classes(base) if id(other) not in seen]
        return False

    def _is_told_first(self, function: ast.FunctionDef, call: ast.Call) -> bool:
        """Whether a function's first parameter is none of the call's arguments."""
        if self.receiver(function) is None:
            return False
        if _is_static(function):
            return getattr(call.func, "attr", "") == "apply"
        if self._classes(getattr(call.func, "value", None)):  # Layer.run(layer, x)
            return "classmethod" in _decorators(function)
        return True

    def _classes(self, node: ast.AST | None) -> list[ast.ClassDef]:
        """The candidate's own classes that a name may stand for."""
        units = self.source.units.get(getattr(node, "id", ""), [])
        return [unit for unit in units if isinstance(unit, ast.ClassDef)]


def _functions_in(unit: ast.ClassDef) -> list[ast.FunctionDef]:
    """A class's methods, also those that are defined in a branch."""
    found, todo = [], list(unit.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.FunctionDef):
            found.append(node)
        elif not isinstance(node, ast.ClassDef):
            todo += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]
    return found


def _methods(unit: ast.AST, names: tuple[str, ...]) -> list[ast.AST]:
    """The methods of these names, if a unit is a class."""
    found = _functions_in(unit) if isinstance(unit, ast.ClassDef) else []
    return [function for function in found if function.name in names]


def _decorators(function: ast.FunctionDef) -> set[str]:
    """The decorators that are plain names."""
    return {node.id for node in function.decorator_list if isinstance(node, ast.Name)}


def _is_static(function: ast.FunctionDef) -> bool:
    return "staticmethod" in _decorators(function)


def bindings(source: Source) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(target, value) of everything that binds names or attributes to a value, or to an item of one."""
    nodes = source.nodes
    for node in nodes[ast.Assign]:
        for target in node.targets:
            yield from _pairs(target, node.value)
    for node in nodes[ast.AugAssign] + nodes[ast.AnnAssign] + nodes[ast.NamedExpr]:
        if node.value is not None:
            yield node.target, node.value
    for node in nodes[ast.For] + nodes[ast.comprehension]:
        yield node.target, node.iter
    for node in nodes[ast.withitem]:
        if node.optional_vars is not None:
            yield node.optional_vars, node.context_expr


def _pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(target, value) of an assignment; of `a, b = x, y` there are two."""
    sequence = ast.Tuple | ast.List
    both = isinstance(target, sequence) and isinstance(value, sequence)
    if both and len(target.elts) == len(value.elts):
        for inner, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, given)
    else:
        yield target, value


def parameters(function: ast.FunctionDef | ast.Lambda) -> list[ast.arg]:
    """All parameters, `*args` and `**kwargs` too."""
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *(arg for arg in (a.vararg, a.kwarg) if arg)]


def _positional(function: ast.FunctionDef | ast.Lambda) -> list[str]:
    """The names of the parameters that have a place."""
    return [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]


def default_values(function: ast.FunctionDef | ast.Lambda) -> dict[str, ast.AST]:
    """The defaults of a function's parameters, by their names."""
    a = function.args
    found = dict(zip(reversed(_positional(function)), reversed(a.defaults), strict=False))
    return found | {arg.arg: given for arg, given in zip(a.kwonlyargs, a.kw_defaults, strict=True) if given}
