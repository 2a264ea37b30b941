"""The rules on a candidate's source. Each refuses only certain cases, names the line, and runs nothing."""

import ast
from collections.abc import Iterator

from nanotriton.rules import names
from nanotriton.rules.constants import Constants
from nanotriton.rules.faces import Tells, executed
from nanotriton.rules.policy import Violation
from nanotriton.rules.source import Source, mentions, walk

SWITCHES = ("torch.backends.", "torch._dynamo.config.", "os.environ")


def patched_module(source: Source) -> Violation | None:
    """No assignment to a member of an imported module (`torch.allclose = ...`).

    Switches that others have may be set: torch.backends', torch._dynamo.config's, os.environ's.
    """
    written = []
    for node in source.nodes[ast.Attribute]:
        if not isinstance(node.ctx, ast.Load):
            written.append((node, source.path(node)))
    for call in source.nodes[ast.Call]:
        sets = isinstance(call.func, ast.Name) and call.func.id in ("setattr", "delattr")
        if sets and call.args:
            written.append((call, source.path(call.args[0])))
    for node, path in written:
        if path and not path.startswith(SWITCHES):
            message = f"assigning to {path} is not allowed: it changes the code of others"
            return Violation(node.lineno, message)
    return None


def foreign_module(source: Source) -> Violation | None:
    """Imports come from an allow-list, and no part of torch is used that loads, compiles or hides code."""
    for node in source.nodes[ast.ImportFrom]:
        if node.level:
            return Violation(node.lineno, "a candidate is one file: no relative import")
        if node.names[0].name == "*" and node.module not in names.STAR_MODULES:
            return Violation(node.lineno, f"from {node.module} import *: name what you import")
    for node, path in _imported(source):
        if message := names.refused(path, importing=True):
            return Violation(node.lineno, message)
    for node, path in _used(source):
        if message := names.refused(path, importing=False):
            return Violation(node.lineno, message)
    return None


def _imported(source: Source) -> list[tuple[ast.AST, str]]:
    """(node, dotted path) of everything that import statements name."""
    found = []
    for node in source.nodes[ast.Import]:
        found += [(node, alias.name) for alias in node.names]
    for node in source.nodes[ast.ImportFrom]:
        found += [(node, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def _used(source: Source) -> list[tuple[ast.AST, str]]:
    """(node, dotted path) of every expression that spells one. Of `a.b.c` only the whole is looked at."""
    inner = {id(node.value) for node in source.nodes[ast.Attribute]}
    shadowed = _arguments_uses(source)
    found = []
    for node in source.nodes[ast.Attribute]:
        path = source.path(node)
        if path and id(node) not in inner:
            found.append((node, path))
    for node in source.nodes[ast.Name]:
        path = source.imports.get(node.id, "")
        starred = "." in path and path.split(".")[0] in names.STAR_MODULES  # no import statement names it
        if (path in names.PARTS or starred) and id(node) not in inner | shadowed:
            found.append((node, path))
    return found


def _arguments_uses(source: Source) -> set[int]:
    """The uses, by id, of names that are arguments of the function around them, and no modules there."""
    found = set()
    for function in source.nodes[ast.FunctionDef]:
        arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        if arguments & source.imports.keys():
            found |= {
                id(node)
                for node in walk(*function.body)
                if isinstance(node, ast.Name) and node.id in arguments
            }
    return found


def no_kernel(source: Source, entry: str | None) -> Violation | None:
    """At least one kernel of the candidate's own is launched on a way from the entry."""
    if not source.kernels:
        return Violation(None, "no @triton.jit kernel: the candidate must define its own")
    decorated = {node.name for node in source.nodes[ast.FunctionDef] if _own_decorator(source, node)}
    mentioned = decorated & source.kernels
    launches = False
    # an operator that is registered with torch.library is called by another name than its function's
    start = None if source.uses("torch.library") else entry
    for unit in source.reachable(start):
        nodes = walk(unit)
        mentioned |= mentions(nodes) & source.kernels
        launches = launches or any(source.is_launch(node) for node in nodes)
    if mentioned and launches:
        return None
    lines = []
    for name in source.kernels:
        lines += [getattr(unit, "lineno", 1) for unit in source.units[name]]
    way = f"{entry or 'any function'}.forward"
    return Violation(min(lines), f"no kernel is launched (kernel[grid](...)) on the way from {way}")


def _own_decorator(source: Source, function: ast.FunctionDef) -> bool:
    """Whether a decorator is the candidate's own: it may have put the kernel anywhere."""
    for decorator in function.decorator_list:
        called = getattr(decorator, "func", decorator)
        if not (source.path(called) or "").startswith("triton."):
            return True
    return False


def torch_computes(source: Source, entry: str | None) -> Violation | None:
    """Torch doesn't compute in a statement that every call of `forward` executes, nor behind a tell."""
    if entry is None:
        return None
    tells = Tells(source)
    seen: set[tuple[ast.AST, bool]] = set()
    todo = [(unit, False) for unit in source.units[entry]]
    while todo:
        unit, behind = todo.pop()
        if (unit, behind) in seen or source.is_kernel(unit):
            continue
        seen.add((unit, behind))
        if isinstance(unit, ast.ClassDef):
            todo += [(method, behind) for method in _forwards(unit)]
            continue
        if violation := _computation(source, unit, tells, behind):
            return violation
        todo += _ways_on(source, unit, tells, behind)
    return None


def _forwards(unit: ast.ClassDef) -> list[ast.FunctionDef]:
    """The methods that run when a module is called, or an autograd.Function is applied."""
    methods = [node for node in unit.body if isinstance(node, ast.FunctionDef)]
    return [method for method in methods if method.name in ("forward", "__call__")]


def _nodes(unit: ast.AST, tells: Tells, behind: bool) -> Iterator[tuple[ast.AST, bool]]:
    """(node, whether it stands behind a tell) of a function's body, or of a value that a name has.

    Of a value nothing runs by itself; if the name itself stands behind a tell, all of it counts.
    """
    if isinstance(unit, ast.FunctionDef):
        yield from executed(unit.body, tells)
        return
    for node, inside in executed([unit], tells):
        yield node, behind or inside


def _ways_on(source: Source, unit: ast.AST, tells: Tells, behind: bool) -> list[tuple[ast.AST, bool]]:
    """The definitions that run with a unit: those that it calls, and those that a tell may choose."""
    found = []
    value = not isinstance(unit, ast.FunctionDef)
    for node, inside in _nodes(unit, tells, behind):
        if inside and isinstance(node, ast.Name | ast.Attribute):
            found += [(other, True) for other in source.called(node)]
        elif isinstance(node, ast.Call) and not value and _computing_call(source, node, unit) is None:
            chosen = tells.depends(node.func)
            found += [(other, chosen) for other in source.called(node.func)]
    return found


def _computation(source: Source, unit: ast.AST, tells: Tells, behind: bool) -> Violation | None:
    """The first expression of a unit that is executed, or stands behind a tell, and in which torch computes
    with data."""
    constants, callees = None, set()
    function = isinstance(unit, ast.FunctionDef)
    for node, inside in _nodes(unit, tells, behind):
        if isinstance(node, ast.Call):
            callees.add(node.func)
        called = _computing_call(source, node, unit) if function else None
        if called:
            constants = constants or Constants(unit, source.path, source.units)
            if constants.holds(node):
                continue
        elif inside:
            called = _chosen(source, node, is_called=node in callees)
        if called:
            hidden = ", behind a condition that may tell the judge from a card" if inside or behind else ""
            message = f"{called} computes in torch{hidden}: under strict, your own Triton kernels compute"
            return Violation(node.lineno, message)
    return None


def _chosen(source: Source, node: ast.AST, is_called: bool) -> str | None:
    """The path of a torch function that computes and is named, not called; or of a layer that is made."""
    path = source.path(node) if isinstance(node, ast.Name | ast.Attribute) else None
    computes = path and (_is_computing_layer(path) or (names.computes(path) and not is_called))
    return path if computes else None


def _computing_call(source: Source, node: ast.AST, unit: ast.AST) -> str | None:
    """The name of a torch function, tensor method or operator that is certain to compute, or None.

    unit: the function that the node stands in.
    """
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return "the operator @"
    if not isinstance(node, ast.Call):
        return None
    path = source.path(node.func)
    if path is not None:
        return path if names.computes(path) else None
    if not isinstance(node.func, ast.Attribute):
        return None
    attribute = node.func.attr
    of_self = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
    if attribute in names.COMPUTING_METHODS:
        own = of_self and attribute in source.units and _is_method(source, unit)
        if not own:
            return f".{attribute}()"
    return _computing_layer(source, attribute) if of_self else None


def _is_method(source: Source, unit: ast.AST) -> bool:
    """Whether a function's `self` is no tensor: a method of a class that is called as self.name(...) only."""
    if not any(unit in owner.body for owner in source.nodes[ast.ClassDef]):
        return False
    if any(
        isinstance(n, ast.Name) and n.id == "self" and not isinstance(n.ctx, ast.Load) for n in walk(unit)
    ):
        return False
    for node in source.nodes[ast.Attribute]:
        of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        if node.attr == unit.name and not of_self:
            return False
    return all(node.id != unit.name for node in source.nodes[ast.Name])


def _computing_layer(source: Source, attribute: str) -> str | None:
    """`self.attribute(...)` where every assignment to it is a torch.nn layer that computes."""
    values = source.units.get(attribute, [])
    paths = [source.path(value.func) if isinstance(value, ast.Call) else None for value in values]
    if paths and all(_is_computing_layer(path) for path in paths):
        return f"self.{attribute}, a {paths[0]},"
    return None


def _is_computing_layer(path: str | None) -> bool:
    if not path or not path.startswith("torch.nn."):
        return False
    return path.rsplit(".", 1)[1] in names.COMPUTING_LAYERS
