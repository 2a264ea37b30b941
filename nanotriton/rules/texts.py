"""The texts that an expression may be, as far as a candidate's source tells: literals and choices among
them.

With this a template or an attribute's name need not stand where it is used: a constant with a name, an
item of a table and a loop over names are as good.
"""

import ast
from collections.abc import Iterator

from nanotriton.rules.source import Source, last_name

MOST = 64  # texts of one expression; a larger set is none
DEVICES = frozenset({"cuda", "cpu"})  # what a device's type may be
DTYPES = frozenset({"float32", "float16", "bfloat16", "int32"})  # dtypes' names, which torch and Triton share


class Texts:
    """`of(node)` is the set of texts that an expression may be, or None if the source does not tell."""

    def __init__(self, source: Source):
        self.source = source
        self.hidden = set(_bound_otherwise(source))  # names that more than assignments bind
        self.loops: dict[str, list[ast.AST]] = {}  # name of a loop's variable -> what is gone through
        for node in [*source.nodes[ast.For], *source.nodes[ast.comprehension]]:
            if isinstance(node.target, ast.Name):
                self.loops.setdefault(node.target.id, []).append(node.iter)

    def of(self, node: ast.AST, depth: int = 0) -> frozenset[str] | None:
        if depth > 8:
            return None
        if isinstance(node, ast.Constant):
            return frozenset([node.value]) if isinstance(node.value, str) else None
        if isinstance(node, ast.Name | ast.Attribute):
            return self._of_name(node, depth)
        if isinstance(node, ast.IfExp):
            return self._any([node.body, node.orelse], depth)
        if isinstance(node, ast.BoolOp):
            return self._any(node.values, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._sum(node, depth)
        if isinstance(node, ast.Subscript | ast.Call):
            return DTYPES if _is_dtype_name(node) else self._of_item(node, depth)
        return None

    def _any(self, nodes: list[ast.AST], depth: int) -> frozenset[str] | None:
        """The texts that one of these expressions may be."""
        found: frozenset[str] = frozenset()
        for node in nodes:
            texts = self.of(node, depth + 1)
            if texts is None:
                return None
            found |= texts
        return found if 0 < len(found) <= MOST else None

    def _sum(self, node: ast.BinOp, depth: int) -> frozenset[str] | None:
        left, right = self.of(node.left, depth + 1), self.of(node.right, depth + 1)
        if left is None or right is None or len(left) * len(right) > MOST:
            return None
        return frozenset(a + b for a in left for b in right)

    def _of_name(self, node: ast.Name | ast.Attribute, depth: int) -> frozenset[str] | None:
        if isinstance(node, ast.Attribute) and node.attr == "type" and _names(node.value, "device"):
            return DEVICES
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in self.hidden:
            return None
        values = list(self.source.units.get(name, ()))
        for sequence in self.loops.get(name, ()):
            if not isinstance(sequence, ast.Tuple | ast.List):
                return None
            values += sequence.elts
        return self._any(values, depth)

    def _of_item(self, node: ast.Subscript | ast.Call, depth: int) -> frozenset[str] | None:
        """The texts in a table, for `table[key]` and `table.get(key, default)`."""
        defaults: list[ast.AST] = []
        table = node.value if isinstance(node, ast.Subscript) else node.func
        if isinstance(node, ast.Call):
            if not isinstance(table, ast.Attribute) or table.attr != "get" or len(node.args) != 2:
                return None
            table, defaults = table.value, node.args[1:]
        tables = [table]
        if isinstance(table, ast.Name) and table.id not in self.hidden | self.loops.keys():
            tables = self.source.units.get(table.id, [])
        if not tables or not all(isinstance(value, ast.Dict) for value in tables):
            return None
        return self._any([value for found in tables for value in found.values] + defaults, depth)


def _bound_otherwise(source: Source) -> Iterator[str]:
    """Names that arguments, `with`, `import` or anything but `=` and `for` bind."""
    for node in source.nodes[ast.arg]:
        yield node.arg
    yield from source.imports
    targets: list[ast.AST] = [node.target for node in source.nodes[ast.AugAssign]]
    targets += [node.target for node in source.nodes[ast.NamedExpr]]
    targets += [node.optional_vars for node in source.nodes[ast.withitem] if node.optional_vars]
    loops = [*source.nodes[ast.For], *source.nodes[ast.comprehension]]
    targets += [node.target for node in loops if not isinstance(node.target, ast.Name)]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id
    for kind in (ast.ExceptHandler, ast.MatchAs, ast.MatchStar):
        yield from (node.name for node in source.nodes[kind] if node.name)


def _names(node: ast.AST, word: str) -> bool:
    """Whether an expression is a name or an attribute that ends with a word."""
    return last_name(node).lower().endswith(word)


def _is_dtype_name(node: ast.Subscript | ast.Call) -> bool:
    """Whether an expression cuts "torch." off the text of a dtype: `str(x.dtype).split(".")[-1]`."""
    if isinstance(node, ast.Subscript):
        node = node.value
        methods = ("split", "rpartition", "rsplit", "partition")
    else:
        methods = ("removeprefix", "replace")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    text = node.func.value
    is_text = isinstance(text, ast.Call) and isinstance(text.func, ast.Name) and text.func.id == "str"
    return node.func.attr in methods and is_text and len(text.args) == 1 and _names(text.args[0], "dtype")
