"""The rules on a candidate's source. Each refuses only certain cases, names the line, and runs nothing."""

import ast
import builtins

from nanotriton.rules import names
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
            message = f"assigning to {path} is not allowed: it changes the code of others; write your own"
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
        if not arguments & source.imports.keys():
            continue
        for node in walk(*function.body):
            if isinstance(node, ast.Name) and node.id in arguments:
                found.add(id(node))
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
    way = f"{entry or 'any function'}.forward"
    kernels = ", ".join(sorted(source.kernels)[:3])
    known = defined(source)
    for unit in source.reachable(start):
        if launch := launch_of_nothing(unit, known):
            what = f"{way} launches {launch.func.value.id}, which is defined nowhere"
            return Violation(launch.lineno, f"{what}; the kernels of this file: {kernels}")
    lines = []
    for name in source.kernels:
        lines += [getattr(unit, "lineno", 1) for unit in source.units[name]]
    return Violation(
        min(lines), f"no kernel is launched on the way from {way}, which must call {kernels}[grid](...)"
    )


def launch_of_nothing(unit: ast.AST, known: set[str]) -> ast.Call | None:
    """A call of the form name[grid](...) whose name is not among the known ones."""
    for node in walk(unit):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Subscript):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id not in known:
            return node
    return None


def defined(source: Source) -> set[str]:
    """The names that a file gives a meaning to, wherever in it."""
    found = {node.id for node in source.nodes[ast.Name] if isinstance(node.ctx, ast.Store)}
    found |= {node.name for kind in (ast.FunctionDef, ast.ClassDef) for node in source.nodes[kind]}
    found |= {node.arg for node in source.nodes[ast.arg]}
    return found | source.imports.keys() | set(dir(builtins))


def _own_decorator(source: Source, function: ast.FunctionDef) -> bool:
    """Whether a decorator is the candidate's own: it may have put the kernel anywhere."""
    for decorator in function.decorator_list:
        called = getattr(decorator, "func", decorator)
        if not (source.path(called) or "").startswith("triton."):
            return True
    return False
