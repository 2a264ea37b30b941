"""Where a candidate's names stand, and what binds them.

Attributes are known by their names alone. Other names are known by the function that they stand in, where a
nested function is part of its outer one.
"""

import ast
from collections.abc import Iterator

from nanotriton.rules.source import Source, walk

MODULE = 0  # in place of a function: outside of all


class Scopes:
    """The functions of a source, and for each node the one that it stands in.

    functions: number of a function -> its definition. home: id of a node -> the number of its function.
    stored: number of a function -> the names that its statements bind; bound: with its arguments.
    """

    def __init__(self, source: Source):
        self.source = source
        self.functions: dict[int, ast.FunctionDef] = {}
        self._home: dict[int, int] = {}
        methods = [node for unit in source.nodes[ast.ClassDef] for node in unit.body]
        for node in [*source.tree.body, *methods]:
            if isinstance(node, ast.FunctionDef):
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


def given_to(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.AST]:
    """The arguments of a call by the names of the function's parameters, as far as the text tells."""
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    given = dict(zip(names[names[:1] in (["self"], ["ctx"]) :], call.args, strict=False))
    return given | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def parameters(function: ast.FunctionDef | ast.Lambda) -> list[ast.arg]:
    """All parameters, `*args` and `**kwargs` too."""
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *(arg for arg in (a.vararg, a.kwarg) if arg)]


def default_values(function: ast.FunctionDef | ast.Lambda) -> dict[str, ast.AST]:
    """The defaults of a function's parameters, by their names."""
    a = function.args
    positional = [arg.arg for arg in (*a.posonlyargs, *a.args)]
    found = dict(zip(reversed(positional), reversed(a.defaults), strict=False))
    return found | {arg.arg: given for arg, given in zip(a.kwonlyargs, a.kw_defaults, strict=True) if given}
