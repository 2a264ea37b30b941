"""A candidate's source with its imports, definitions and kernels looked up. Nothing is run."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from nanotriton.rules import names
from nanotriton.rules.standard import STANDARD, public

_LEAVES = frozenset({"ctx", "op", "ops", "kind", "type_comment"})


def walk(*roots: ast.AST) -> list[ast.AST]:
    """The nodes below and including the roots, in order of the text.

    It is `ast.walk` at several times the speed: a candidate has thousands of nodes, and they are walked some
    fifty times. So each node keeps its children.
    """
    found, todo = [], list(reversed(roots))
    while todo:
        node = todo.pop()
        found.append(node)
        try:
            todo += node.children_from_the_last
        except AttributeError:
            todo += _note_children(node)
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, in order of the text. Names of operators and contexts are none."""
    try:
        return node.children_from_the_last[::-1]
    except AttributeError:
        return _note_children(node)[::-1]


def _note_children(node: ast.AST) -> list[ast.AST]:
    """The children of a node, the last first. It keeps them as an attribute."""
    children = []
    for name in node._fields:
        if name in _LEAVES:
            continue
        value = getattr(node, name)
        if isinstance(value, ast.AST):
            children.append(value)
        elif isinstance(value, list):
            children += [item for item in value if isinstance(item, ast.AST)]
    children.reverse()
    node.children_from_the_last = children
    return children


def last_name(node: ast.AST | None) -> str:
    """What an expression is called in the end: `x` of x, `y` of self.y; "" if it is no name.

    >>> last_name(ast.parse("self.fc.weight", mode="eval").body)
    'weight'
    """
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def arguments(call: ast.Call) -> list[ast.AST]:
    """All that a call is given, by place and by keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def mentions(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name and attribute that stands in the nodes."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def _is_main(node: ast.stmt) -> bool:
    """Whether a statement is an `if __name__ == "__main__":` block: demonstration that no executor runs."""
    return isinstance(node, ast.If) and not node.orelse and "id='__name__'" in ast.dump(node.test)


def _without_main(tree: ast.Module) -> list[ast.stmt]:
    """The module's statements without its main block, unless the module sets `__name__` itself."""
    if not any(_is_main(node) for node in tree.body):
        return tree.body
    for node in walk(tree):
        if isinstance(node, ast.Name) and node.id == "__name__" and not isinstance(node.ctx, ast.Load):
            return tree.body
    return [node for node in tree.body if not _is_main(node)]


class Source:
    """A parsed candidate.

    nodes: every node by its type, in order of the text. imports: local name -> dotted path.
    units: name -> the definitions and assigned values that it may stand for. kernels: names of kernels.
    """

    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.nodes: dict[type, list] = defaultdict(list)
        for node in walk(*_without_main(tree)):
            self.nodes[type(node)].append(node)
        self.imports: dict[str, str] = {}
        self._look_up_imports()
        self.units: dict[str, list[ast.AST]] = defaultdict(list)
        for node in self.nodes[ast.FunctionDef] + self.nodes[ast.ClassDef]:
            self.units[node.name].append(node)
        self.kernels = {node.name for node in self.nodes[ast.FunctionDef] if self.is_kernel(node)}
        self._look_up_assignments()
        self._look_up_other_bindings()

    def _look_up_imports(self) -> None:
        for node in self.nodes[ast.Import]:
            for alias in node.names:
                root = alias.name.split(".")[0]
                if alias.asname:
                    self.imports[alias.asname] = alias.name
                else:
                    self.imports[root] = root
        for node in self.nodes[ast.ImportFrom]:
            for alias in node.names:
                self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            if node.names[0].name == "*" and node.module in STANDARD:
                offered = public(node.module) or frozenset()
                self.imports |= {name: f"{node.module}.{name}" for name in offered}

    def _look_up_assignments(self) -> None:
        """Add assigned values to the units, also those of `ModelNew.forward = f` and `self.act = Act()`."""
        in_kernels = set()
        for function in self.nodes[ast.FunctionDef]:
            if self.is_kernel(function):
                in_kernels |= {id(node) for node in walk(function) if isinstance(node, ast.Assign)}
        for node in self.nodes[ast.Assign] + self.nodes[ast.AnnAssign]:
            if node.value is None or id(node) in in_kernels:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            jitted = self._calls_jit(node.value)
            for target in targets:
                for name in mentions(walk(target)):
                    self.units[name].append(node.value)
                    if jitted:
                        self.kernels.add(name)

    def _look_up_other_bindings(self) -> None:
        """Add to the units what `with way() as act` and `setattr(self, "act", Act())` bind."""
        for item in self.nodes[ast.withitem]:
            for name in mentions(walk(item.optional_vars)) if item.optional_vars else ():
                self.units[name].append(item.context_expr)
        for call in self.nodes[ast.Call]:
            if getattr(call.func, "id", "") == "setattr" and len(call.args) == 3:
                name = getattr(call.args[1], "value", None)
                if isinstance(name, str):
                    self.units[name].append(call.args[2])

    def _calls_jit(self, value: ast.AST) -> bool:
        """Whether an expression makes a kernel, as `autotune(...)(triton.jit(f))` does."""
        return any(isinstance(node, ast.Call) and self.is_jit(node) for node in walk(value))

    def path(self, node: ast.AST) -> str | None:
        """The dotted path that an expression spells: `F.relu` -> "torch.nn.functional.relu", or None."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return None
        return ".".join([self.imports[node.id], *reversed(parts)])

    def uses(self, module: str) -> bool:
        """Whether an expression spells a path in a module, or a name that was imported from it."""
        below = module + "."
        spelled = (self.path(node) or "" for node in self.nodes[ast.Attribute])
        return any((path + ".").startswith(below) for path in [*self.imports.values(), *spelled])

    def is_jit(self, node: ast.AST) -> bool:
        """Whether an expression, or the function that it calls, is triton.jit: `@jit`, `@triton.jit(...)`."""
        function = node.func if isinstance(node, ast.Call) else node
        return self.path(function) in names.JIT

    def is_kernel(self, unit: ast.AST) -> bool:
        """Whether a unit is a function decorated with triton.jit."""
        return isinstance(unit, ast.FunctionDef) and any(self.is_jit(d) for d in unit.decorator_list)

    def is_launch(self, node: ast.AST) -> bool:
        """`kernel[grid]`, whatever is done with it; `anything[grid](...)`; `kernel.run(...)`."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.ctx, ast.Load) and bool(mentions([node.value]) & self.kernels)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Subscript):
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr == "run"

    def reachable(self, entry: str | None) -> Iterator[ast.AST]:
        """All units but kernels that can be reached by name from the entry, or from anywhere if it is None.

        This is generous: any mention of a name is a way to it.
        """
        seen: set[str] = set()
        todo = [entry] if entry else list(self.units)
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for unit in self.units.get(name, ()):
                if self.is_kernel(unit):
                    continue
                yield unit
                todo += mentions(walk(unit)) - seen

    def called(self, function: ast.AST) -> list[ast.AST]:
        """The definitions that a call may run: a local function or class, `Class.apply`, a method of self."""
        if isinstance(function, ast.Name):
            return self.units.get(function.id, [])
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            owner, attribute = function.value.id, function.attr
            if owner == "self":
                return self.units.get(attribute, [])
            if attribute == "apply":
                return self.units.get(owner, [])
        return []
