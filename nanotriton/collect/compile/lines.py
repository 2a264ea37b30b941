"""A kernel's lines as a person orders them: what is read once stands where it is read, loads come just
before they are needed, sums are added up with `+=`, and nothing is left that nobody reads.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from nanotriton.collect.compile.rewrite import of_sizes

LONGEST = 76  # characters of a line that expressions may grow to when they are put together
DEEPEST = 7  # operators of a line that they may grow to
MEMORY = re.compile(r"tl\.(load|store|atomic\w*|program_id)\(")
PLACE = re.compile(r"[xyz]\d+|r0_\d+|[xyz]index|r0_index|\w*mask")  # indices and masks stand first
BIG = re.compile(r"tl\.(associative_scan|cumsum|cumprod|arange)\(")


def tidy(function: ast.FunctionDef, floats: set[str]) -> None:
    """Rewrites in place, until nothing changes. floats: the pointers to fp32."""
    before = ""
    while (text := ast.unparse(function)) != before:
        before = text
        merge(function)
        Settle(floats_of(function, floats)).visit(function)
        drop_dead(function)
    sink(function)
    accumulate(function)
    while merge(function):
        pass
    accumulate(function)
    drop_dead(function)
    ast.fix_missing_locations(function)


class Settle(ast.NodeTransformer):
    """Conversions that change nothing go, of a size and of fp32 to fp32; a number is a second operand."""

    def __init__(self, floats: set[str]):
        self.floats = floats

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        one = lambda n: isinstance(n, ast.Constant) and n.value == 1.0 and type(n.value) is float
        if isinstance(node.op, ast.Mult):
            if divisor := inverse(node.right):
                return ast.BinOp(node.left, ast.Div(), ast.Constant(divisor))
            return node.left if one(node.right) else node.right if one(node.left) else node
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) in ("tl.maximum", "tl.minimum") and isinstance(node.args[0], ast.Constant):
            node.args.reverse()
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "to":
            return node
        value = node.func.value
        same = isinstance(value, ast.Name) and value.id in self.floats
        return value if of_sizes(value) or (same and ast.unparse(node.args[0]) == "tl.float32") else node


def inverse(node: ast.expr) -> int:
    """6 of 0.16666666666666666, which Inductor multiplies by where the module divides by 6; else 0."""
    value = node.value if isinstance(node, ast.Constant) else None
    if type(value) is not float or not 0 < value < 1 or len(repr(value)) < 12:
        return 0
    whole = round(1 / value)
    return whole if whole and 1 / whole == value else 0


def floats_of(function: ast.FunctionDef, pointers: set[str]) -> set[str]:
    """The names of values that are loaded as fp32, or made of such by arithmetic."""
    found: set[str] = set()
    for lines in blocks(function):
        for line in lines:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                call = line.value
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "tl.load":
                    base = call.args[0]
                    while isinstance(base, ast.BinOp):
                        base = base.left
                    if ast.unparse(base) in pointers:
                        found.add(line.targets[0].id)
                elif isinstance(call, ast.BinOp) and loaded(call) and loaded(call) <= found:
                    found.add(line.targets[0].id)
    return found


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements of a function, outermost first."""
    lines = getattr(node, "body", None)
    if isinstance(lines, list):
        yield lines
        for line in lines:
            yield from blocks(line)


def stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def counts(function: ast.FunctionDef) -> tuple[Counter, Counter]:
    """How often each name is assigned and read."""
    stores: Counter = Counter(a.arg for a in function.args.args)
    loads: Counter = Counter()
    for n in ast.walk(function):
        if isinstance(n, ast.Name):
            (loads if isinstance(n.ctx, ast.Load) else stores)[n.id] += 1
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
            loads[n.target.id] += 1
    return stores, loads


# ---- putting expressions where they are read


def merge(function: ast.FunctionDef) -> bool:
    """Put one value where its name is read: a number or another name always, an expression that is read once
    if the line stays short. Returns whether there was one.
    """
    stores, loads = counts(function)
    for lines in blocks(function):
        for at, line in enumerate(lines):
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                continue
            name, value = line.targets[0].id, line.value
            if stores[name] != 1:
                continue
            bare = trivial(value) and not any(changes(other, value) for other in lines[at + 1 :])
            if bare and (isinstance(value, ast.Name) or name not in receivers(function)):
                replace(function, name, value)
                lines.remove(line)
                return True
            if loads[name] == 1 and not MEMORY.search(ast.unparse(value)) and fits(lines, at, name, value):
                lines.remove(line)
                return True
    return False


def trivial(value: ast.expr) -> bool:
    """A number or a name."""
    return isinstance(value, ast.Name) or bool(
        re.fullmatch(r"-?[\d.]+(e-?\d+)?|float\('-?inf'\)", ast.unparse(value))
    )


def receivers(function: ast.FunctionDef) -> set[str]:
    """Names of which a method is called: a number can't take their place."""
    found = (n.value for n in ast.walk(function) if isinstance(n, ast.Attribute))
    return {v.id for v in found if isinstance(v, ast.Name)}


def changes(line: ast.stmt, value: ast.expr) -> bool:
    """Whether a line assigns to what a value reads."""
    return bool(stored(line) & loaded(value))


def fits(lines: list[ast.stmt], at: int, name: str, value: ast.expr) -> bool:
    """Put a value where its name is read, if that is in the same block, nothing that it reads changes in
    between, and the line stays one that can be read.
    """
    for line in lines[at + 1 :]:
        if name in loaded(line):
            if isinstance(line, ast.For) or not readable(line, value):
                return False
            replace(line, name, value)
            return True
        if changes(line, value):
            return False
    return False


def readable(line: ast.stmt, value: ast.expr) -> bool:
    """Whether a line can still be read with a value put in."""
    text, inner = ast.unparse(line), ast.unparse(value)
    if BIG.search(inner):
        return False
    if MEMORY.search(text) and not re.fullmatch(r"[\w\s+*/%()-]+", inner):
        return False  # what is loaded and stored has a name
    if len(text) + len(inner) > LONGEST:
        return False
    deep = lambda node: sum(isinstance(n, ast.BinOp | ast.Compare | ast.Call) for n in ast.walk(node))
    return deep(line) + deep(value) <= DEEPEST


def replace(root: ast.AST, name: str, value: ast.expr) -> None:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return value if node.id == name and isinstance(node.ctx, ast.Load) else node

    ast.fix_missing_locations(Replace().visit(root))


# ---- order


def sink(function: ast.FunctionDef) -> None:
    """Each assignment moves down to just before the first line of its block that reads it. Loads may, too: a
    kernel never writes what it reads.
    """
    for lines in blocks(function):
        reader: dict[int, ast.stmt] = {}  # a line that has moved -> the line that it moved to
        for line in reversed(list(lines)):
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                continue
            at = lines.index(line)
            name = line.targets[0].id
            if PLACE.fullmatch(name):
                continue
            to = at + 1
            while to < len(lines) and not (
                name in loaded(lines[to]) or name in stored(lines[to]) or changes(lines[to], line.value)
            ):
                to += 1
            if to == len(lines):
                continue
            goal = lines[to]
            # those that are read by the same line keep their order
            while to > at + 1 and reader.get(id(lines[to - 1])) is goal:
                to -= 1
            reader[id(line)] = goal
            if to > at + 1:
                lines.insert(to, line)
                del lines[at]


def accumulate(function: ast.FunctionDef) -> None:
    """`acc = acc + x` and `acc = tl.where(mask, acc + x, acc)` as `acc += ...`."""
    for lines in blocks(function):
        for at, line in enumerate(lines):
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                continue
            name, value, mask = line.targets[0].id, line.value, None
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "tl.where":
                mask, value, otherwise = value.args
                if ast.unparse(otherwise) != name:
                    continue
            if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
                continue
            if ast.unparse(value.left) != name or name in loaded(value.right):
                continue
            added = value.right
            if mask is not None:
                added = ast.Call(line.value.func, [mask, added, ast.Constant(0.0)], [])
            lines[at] = ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), added)
    ast.fix_missing_locations(function)


def drop_dead(function: ast.FunctionDef) -> None:
    """Assignments that nobody reads go."""
    read = loaded(function)
    for lines in blocks(function):
        for line in list(lines):
            plain = isinstance(line, ast.Assign) and "atomic" not in ast.unparse(line)
            if plain and isinstance(line.targets[0], ast.Name) and not stored(line) & read:
                lines.remove(line)


def statements(body: list[ast.stmt], block: type[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, in order of the text. In place of each block of this kind come those in it."""
    for node in body:
        if isinstance(node, block):
            yield from statements(node.body, block)
        else:
            yield node
