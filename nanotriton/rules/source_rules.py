"""The rules on a candidate's source: what it may not say. Each refuses only what is certain, names the line, and runs nothing."""

import ast
import symtable
from collections import defaultdict
from collections.abc import Iterable, Iterator
from string import Formatter

from nanotriton.rules import names
from nanotriton.rules.constants import Constants
from nanotriton.rules.policy import Violation

_LEAVES = frozenset({"ctx", "op", "ops", "kind", "type_comment"})


def walk(*roots: ast.AST) -> list[ast.AST]:
    """The nodes below and including the roots, in order of the text. `ast.walk` at twice the speed: a candidate has thousands."""
    found, todo = [], list(reversed(roots))
    while todo:
        node = todo.pop()
        found.append(node)
        for name in reversed(node._fields):
            if name not in _LEAVES:
                value = getattr(node, name)
                if isinstance(value, ast.AST):
                    todo.append(value)
                elif isinstance(value, list):
                    todo += [item for item in reversed(value) if isinstance(item, ast.AST)]
    return found


def _without_main(tree: ast.Module) -> list[ast.stmt]:
    """The module without its `if __name__ == "__main__":` block: demonstration code that no executor runs."""

    def is_main(node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and not node.orelse and "id='__name__'" in ast.dump(node.test)

    if not any(is_main(node) for node in tree.body):
        return tree.body
    names_set = (n for n in walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    return (
        tree.body if any(n.id == "__name__" for n in names_set) else [n for n in tree.body if not is_main(n)]
    )


def _mentions(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name and attribute that stands in the nodes."""
    return {
        n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)
    }


class Source:
    """A parsed candidate with its imports, definitions and kernels looked up. Each rule returns a Violation or None."""

    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.nodes: dict[type, list] = defaultdict(list)  # every node by its type, in order of the text
        for node in walk(*_without_main(tree)):
            self.nodes[type(node)].append(node)
        self.imports: dict[str, str] = {}  # local name -> dotted path
        # name -> what it may stand for: functions, classes, assigned values
        self.units: dict[str, list[ast.AST]] = defaultdict(list)
        for node in self.nodes[ast.Import]:
            for alias in node.names:
                root = alias.name.split(".")[0]
                self.imports[alias.asname or root] = alias.name if alias.asname else root
        for node in self.nodes[ast.ImportFrom]:
            for alias in node.names:
                self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in self.nodes[ast.FunctionDef] + self.nodes[ast.ClassDef]:
            self.units[node.name].append(node)
        self.kernels = {n.name for n in self.nodes[ast.FunctionDef] if self.is_kernel(n)}
        in_kernels = {
            id(a)
            for n in self.nodes[ast.FunctionDef]
            if self.is_kernel(n)
            for a in walk(n)
            if isinstance(a, ast.Assign)
        }
        for node in self.nodes[ast.Assign] + self.nodes[ast.AnnAssign]:
            if node.value is None or id(node) in in_kernels:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in _mentions(walk(target)):  # also `ModelNew.forward = f` and `self.act = Act()`
                    self.units[name].append(node.value)
                    if any(isinstance(n, ast.Call) and self.is_jit(n) for n in walk(node.value)):
                        self.kernels.add(name)  # autotune(...)(triton.jit(f))

    def path(self, node: ast.AST) -> str | None:
        """The dotted path that an expression spells, through imports: `F.relu` -> "torch.nn.functional.relu"."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return None
        return ".".join([self.imports[node.id], *reversed(parts)])

    def is_jit(self, node: ast.AST) -> bool:
        """`triton.jit`, `@jit`, `@triton.jit(...)`: the expression or the function that it calls."""
        return self.path(node.func if isinstance(node, ast.Call) else node) in names.JIT

    def is_kernel(self, unit: ast.AST) -> bool:
        """A function decorated with triton.jit."""
        return isinstance(unit, ast.FunctionDef) and any(self.is_jit(d) for d in unit.decorator_list)

    def hidden_code(self) -> Violation | None:
        """No exec, no eval, no attribute whose name is computed, no way into frames, globals or other objects' insides."""
        banned = [n for n in self.nodes[ast.Name] if n.id in names.BANNED_NAMES and n.id not in self.imports]
        builtin = _builtins(self.tree, names.BANNED_NAMES) if banned else ()  # `vars` may be a variable
        for node in self.nodes[ast.Name]:
            if node.id in builtin and node.id not in self.imports:
                return Violation(node.lineno, f"{node.id} is not allowed: the code must say what it runs")
            if _is_dunder(node.id) and node.id not in names.DUNDER_NAMES:
                return Violation(node.lineno, f"{node.id} is not allowed")
        attributes = [(n, n.attr) for n in self.nodes[ast.Attribute]]
        # case Frame(f_back=x)
        attributes += [(n, name) for n in self.nodes[ast.MatchClass] for name in n.kwd_attrs]
        for node, name in attributes:
            if name in names.BANNED_ATTRIBUTES or (_is_dunder(name) and name not in names.DUNDER_ATTRIBUTES):
                return Violation(node.lineno, f".{name} is not allowed: it reaches into the interpreter")
            if name in ("format", "format_map") and not _plain_template(node):
                return Violation(
                    node.lineno,
                    f".{name} of this text is not allowed: its fields can reach attributes; use an f-string",
                )
        spelled = set()  # getattr(x, "name") is as good as x.name; any other use of getattr hides a name
        for node in self.nodes[ast.Call]:
            if isinstance(node.func, ast.Name) and node.func.id in names.REFLECTION and len(node.args) > 1:
                key = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
                if isinstance(key, str) and key not in names.BANNED_ATTRIBUTES and not _is_dunder(key):
                    spelled.add(id(node.func))
                elif key is None and self.path(node.args[0]) is None and not _banned(_start(node.args[1])):
                    spelled.add(id(node.func))  # layers are numbered; of a module, no name is computed
        for node in self.nodes[ast.Name]:
            if node.id in names.REFLECTION and id(node) not in spelled:
                return Violation(
                    node.lineno, f"{node.id} with a computed name is not allowed: write the attribute out"
                )
        return None

    def patched_module(self) -> Violation | None:
        """No assignment to what an imported module holds (`torch.allclose = ...`), save torch.backends' own switches."""
        written = [(n, self.path(n)) for n in self.nodes[ast.Attribute] if not isinstance(n.ctx, ast.Load)]
        for call in self.nodes[ast.Call]:
            if isinstance(call.func, ast.Name) and call.func.id in ("setattr", "delattr") and call.args:
                written.append((call, self.path(call.args[0])))
        for node, path in written:
            if path and not path.startswith(("torch.backends.", "os.environ")):
                return Violation(
                    node.lineno, f"assigning to {path} is not allowed: it changes the code of others"
                )
        return None

    def foreign_module(self) -> Violation | None:
        """Imports come from an allow-list, and parts of torch that load, compile or run code elsewhere are not used."""
        for node in self.nodes[ast.ImportFrom]:
            if node.level:
                return Violation(node.lineno, "a candidate is one file: no relative import")
            if node.names[0].name == "*" and node.module not in names.STAR_MODULES:
                return Violation(node.lineno, f"from {node.module} import *: name what you import")
        used = [(n, alias.name, True) for n in self.nodes[ast.Import] for alias in n.names]
        used += [
            (n, f"{n.module}.{alias.name}", True) for n in self.nodes[ast.ImportFrom] for alias in n.names
        ]
        inner = {id(n.value) for n in self.nodes[ast.Attribute]}  # of a.b.c only the whole is looked at
        used += [
            (n, path, False)
            for n in self.nodes[ast.Attribute]
            if id(n) not in inner and (path := self.path(n))
        ]
        whole = [
            n for n in self.nodes[ast.Name] if self.imports.get(n.id) in names.PARTS and id(n) not in inner
        ]
        used += [(n, f"{n.id}.(all of it)", False) for n in whole]
        for node, path, importing in used:
            if message := names.refused(path, importing):
                return Violation(node.lineno, message)
        return None

    def reachable(self, entry: str | None) -> Iterator[ast.AST]:
        """All units that can be reached by name from the entry, kernels left out. Generous: any mention of a name is a way."""
        seen: set[str] = set()
        todo = [entry] if entry else list(self.units)
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for unit in self.units.get(name, ()):
                if isinstance(unit, ast.FunctionDef) and self.is_kernel(unit):
                    continue
                yield unit
                todo += _mentions(walk(unit)) - seen

    def no_kernel(self, entry: str | None) -> Violation | None:
        """At least one kernel of the candidate's own is launched on a way from the entry."""
        if not self.kernels:
            return Violation(None, "no @triton.jit kernel: the candidate must define its own")
        # a decorator of the candidate's own may have put a kernel anywhere
        own = [
            n
            for n in self.nodes[ast.FunctionDef]
            if not all(
                (self.path(getattr(d, "func", d)) or "").startswith("triton.") for d in n.decorator_list
            )
        ]
        mentioned, launches = {n.name for n in own} & self.kernels, False
        for unit in self.reachable(entry):
            nodes = walk(unit)
            mentioned |= _mentions(nodes) & self.kernels
            launches = launches or any(self.is_launch(n) for n in nodes)
        if mentioned and launches:
            return None
        line = min(getattr(u, "lineno", 1) for name in self.kernels for u in self.units[name])
        return Violation(
            line,
            f"no kernel is launched (kernel[grid](...)) on the way from {entry or 'any function'}.forward",
        )

    def is_launch(self, node: ast.AST) -> bool:
        """`kernel[grid]`, whatever is done with it; `anything[grid](...)`; `kernel.run(...)`."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.ctx, ast.Load) and bool(_mentions([node.value]) & self.kernels)
        if not isinstance(node, ast.Call):
            return False
        return isinstance(node.func, ast.Subscript) or (
            isinstance(node.func, ast.Attribute) and node.func.attr == "run"
        )

    def torch_computes(self, entry: str | None) -> Violation | None:
        """Torch doesn't compute in a statement of `forward`, or of a function it calls, that is always executed."""
        if entry is None:
            return None
        seen: set[ast.AST] = set()
        todo = list(self.units[entry])
        while todo:
            unit = todo.pop()
            if unit in seen or not isinstance(unit, ast.FunctionDef | ast.ClassDef) or self.is_kernel(unit):
                continue
            seen.add(unit)
            if isinstance(unit, ast.ClassDef):  # calling a module or an autograd.Function runs its forward
                todo += [
                    n
                    for n in unit.body
                    if isinstance(n, ast.FunctionDef) and n.name in ("forward", "__call__")
                ]
                continue
            constants = None
            for node in always_executed(unit.body):
                if message := self.computing_call(node):
                    constants = constants or Constants(unit, self.path, self.units)
                    if constants.holds(node):
                        continue
                    return Violation(
                        node.lineno,
                        f"{message} computes in torch: under strict, your own Triton kernels compute",
                    )
                if isinstance(node, ast.Call):
                    todo += self.called(node.func)
        return None

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

    def computing_call(self, node: ast.AST) -> str | None:
        """The name of a torch function, a tensor method or an operator that is certain to compute, if `node` is such a call."""
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            return "the operator @"
        if not isinstance(node, ast.Call):
            return None
        path = self.path(node.func)
        if path is not None:
            return path if names.computes(path) else None
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in names.COMPUTING_METHODS:
                return f".{node.func.attr}()"
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "self":
                return self.computing_layer(node.func.attr)
        return None

    def computing_layer(self, attribute: str) -> str | None:
        """`self.attribute(...)` where every assignment to it is a torch.nn layer that computes."""
        values = self.units.get(attribute, [])
        paths = [self.path(v.func) if isinstance(v, ast.Call) else None for v in values]
        if paths and all(
            p and p.startswith("torch.nn.") and p.rsplit(".", 1)[1] in names.COMPUTING_LAYERS for p in paths
        ):
            return f"self.{attribute}, a {paths[0]},"
        return None


def _builtins(tree: ast.Module, wanted: frozenset[str]) -> set[str]:
    """Those of the wanted names that somewhere mean Python's own: no function around binds them."""
    found, tables = set(), [symtable.symtable(ast.unparse(tree), "candidate", "exec")]
    for table in tables:
        tables += table.get_children()
        used = {s.get_name(): s for s in table.get_symbols() if s.is_referenced()}
        found |= {
            name for name in wanted & used.keys() if table.get_type() != "function" or used[name].is_global()
        }
    return found


def _plain_template(node: ast.AST) -> bool:
    """`"...".format` of a literal whose fields name no attribute and no index, and are not nested."""
    text = (
        node.value.value if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Constant) else None
    )
    try:
        return isinstance(text, str) and all(
            not set(".[") & set(f or "") and "{" not in (spec or "")
            for _, f, spec, _ in Formatter().parse(text)
        )
    except ValueError:  # no template at all
        return False


def _start(key: ast.AST) -> str:
    """What a computed name certainly begins with: "weight_ih_l" of f"weight_ih_l{i}", "weight_ih_l" + str(i) and "weight_ih_l%d" % i."""
    if isinstance(key, ast.JoinedStr) and key.values:
        return _start(key.values[0])
    if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add):
        return _start(key.left)
    text = key.left if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Mod) else key
    whole = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
    return whole if text is key else whole.split("%")[0]


def _banned(start: str) -> bool:
    """Whether a name that begins like this may be one that nobody may use."""
    return not start[:1].isalpha() or any(name.startswith(start) for name in names.BANNED_ATTRIBUTES)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def always_executed(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a function's body that run on every call: not in a branch, a handler, a nested function or a lambda."""
    todo: list[ast.AST] = list(reversed(body))
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            children = [node.test]
        elif isinstance(node, ast.Try):
            children = [*node.body, *node.finalbody]
        elif isinstance(node, ast.BoolOp):
            children = node.values[:1]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.Match | ast.Assert):
            children = []
        else:
            children = list(ast.iter_child_nodes(node))
        todo += reversed(children)
