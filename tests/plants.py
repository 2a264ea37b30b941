"""A module in other clothes: the ways in which a benchmark's problem could slip into training data."""

import ast
import re


def reformatted(source: str) -> str:
    """Without comments and docstrings, in another layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(getattr(getattr(first, "value", None), "value", None), str):
            node.body = body[1:] or [ast.Pass()]
    return ast.unparse(tree).replace("    ", "  ")


def renamed(source: str) -> str:
    """Every name that the module binds is another one: arguments, variables, attributes, helper classes."""
    tree = ast.parse(source)
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    attributes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    kept = {"self"} | {k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords}
    names = sorted((bound | {n.attr for n in attributes}) - kept)
    for number, name in enumerate(names):
        # a name of its own, or an attribute of the module: torch's functions keep theirs
        source = re.sub(rf"(?:(?<=self\.)|(?<![\w'\".])){name}\b", f"thing_{number}", source)
    return source


def other_constants(source: str) -> str:
    """Every number with a fraction is another one; sizes stay."""
    changed = lambda m: m[0] if float(m[0]) == 0 else str(float(m[0]) * 1.5 + 0.25)
    return re.sub(r"(?<![\w.])\d+\.\d+(e-?\d+)?(?![\w.])", changed, source)


def split(source: str) -> str:
    """The first half of forward in a module of its own, which another one calls; where forward can't be cut,
    all of it.
    """
    tree = ast.parse(source)
    model = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model")
    forward = next(n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    rest = second_half(forward)
    inner = ast.unparse(tree).replace("class Model(", "class Part(")
    inner = re.sub(r"super\(Model,", "super(Part,", inner)
    arguments = ", ".join(a.arg for a in forward.args.args[1:])
    outer = ["class Model(nn.Module):", "    def __init__(self, *sizes):", "        super().__init__()"]
    outer += ["        self.part = Part(*sizes)", "", f"    def forward(self, {arguments}):"]
    outer += [
        f"        x = self.part({arguments})",
        *(f"        {line}" for line in rest),
        "        return x",
    ]
    return inner + "\n\n\n" + "\n".join(outer) + "\n"


def second_half(forward: ast.FunctionDef) -> list[str]:
    """Cut the lines `x = f(x)` at the end of forward off, and return them; none where they need anything else."""
    names = lambda node: {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    body, last = forward.body[:-1], forward.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Name) or last.value.id != "x":
        return []
    cut: list[str] = []
    while len(body) > 1 and isinstance(body[-1], ast.Assign) and ast.unparse(body[-1].targets[0]) == "x":
        if not names(body[-1].value) <= {"x", "torch", "F", "nn"}:
            break
        cut.insert(0, ast.unparse(body.pop()))
    forward.body = [*body, last]
    return cut


def other_shapes(source: str) -> str:
    """Each size of an input is another one: assigned at module level, or written in get_inputs; what the
    constructor takes stays.
    """
    tree = ast.parse(source)
    inputs = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "get_inputs")
    init = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "get_init_inputs")
    used = lambda node: {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    free = used(inputs) - used(init)
    for node in tree.body:
        if isinstance(node, ast.Assign) and {ast.unparse(t) for t in node.targets} & free:
            node.value = Larger().visit(node.value)
    if not free & {t for n in tree.body if isinstance(n, ast.Assign) for t in map(ast.unparse, n.targets)}:
        Larger().visit(inputs)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class Larger(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(node.value * 2) if type(node.value) is int and node.value > 3 else node


COPIES = {"renamed": renamed, "reformatted": reformatted, "other constants": other_constants, "split": split}
