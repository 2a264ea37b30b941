"""Kernels with tl.dot: Inductor's blocks of three axes as two tiles that are loaded as tl.dot takes them.

Inductor loads [y, 1, r] and [1, x, r], reshapes both and transposes the second. A person loads [M, K] and
[K, N]: the index k is a row in what leads to one operand and a column in what leads to the other.
"""

import ast
import re

from nanotriton.collect.compile.lines import loaded, replace, stored
from nanotriton.collect.compile.rewrite import names, parsed
from nanotriton.collect.compose.ir import Unfit

LEFT, RIGHT = "k[None, :]", "k[:, None]"


def tiles(function: ast.FunctionDef, stands: dict[str, ast.expr]) -> None:
    """Rewrite in place. Raises Unfit for what isn't a single loop around one product."""
    loops = [line for line in function.body if isinstance(line, ast.For)]
    if len(loops) != 1:
        raise Unfit("more than one loop around a product of matrices")
    loop = loops[0]
    m, n, k = (ast.unparse(stands[p]) for p in ("ynumel", "xnumel", "r0_numel"))
    batched = bool(names(function) & {"zindex"})
    axes = (1, 2) if batched else (1, 0)
    head = [f"yindex = tl.program_id({axes[0]}) * YBLOCK + tl.arange(0, YBLOCK)[:, None]"]
    head += [f"xindex = tl.program_id({axes[1]}) * XBLOCK + tl.arange(0, XBLOCK)[None, :]"]
    head += ["zindex = tl.program_id(0)"] if batched else []
    function.body = [*ast.parse("\n".join(head)).body, *function.body]
    loop.target = ast.Name("start", ast.Store())
    loop.iter = parsed(f"range(0, {k}, R0_BLOCK)")
    shared(loop)
    left, right = sides(loop)
    for line in loop.body:
        mine = stored(line)
        if mine & left & right:
            raise Unfit("a value in both operands of a product")
        if mine & (left | right):
            Place(LEFT if mine <= left else RIGHT, k).visit(line)
    loop.body = [*ast.parse("k = start + tl.arange(0, R0_BLOCK)").body, *map(undone, loop.body)]
    whole = Masks({"ymask": f"(yindex < {m})", "xmask": f"(xindex < {n})"})
    function.body = [whole.visit(line) for line in function.body]
    ast.fix_missing_locations(function)


def shared(loop: ast.For) -> None:
    """Indices that both operands read stand in each of them as what they are."""
    for line in list(loop.body):
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        if isinstance(target, ast.Name) and re.fullmatch(r"r0_\d+", target.id):
            loop.body.remove(line)
            replace(loop, target.id, line.value)


def sides(loop: ast.For) -> tuple[set[str], set[str]]:
    """The names that lead to first operands of tl.dot, and those that lead to second ones."""
    dots = [n for n in ast.walk(loop) if isinstance(n, ast.Call) and ast.unparse(n.func) == "tl.dot"]
    found: tuple[set[str], set[str]] = (set(), set())
    for dot in dots:
        for mine, operand in zip(found, dot.args[:2]):
            known = names(operand)
            for line in reversed(loop.body):
                if stored(line) & known:
                    known |= loaded(line)
            mine |= known & {name for line in loop.body for name in stored(line)}
    return found


class Place(ast.NodeTransformer):
    """The index along k in the place that an operand has it."""

    def __init__(self, k: str, size: str):
        self.k, self.size = k, size

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            return node
        if node.id == "r0_index":
            return parsed(self.k)
        return parsed(f"({self.k} < {self.size})") if node.id == "r0_mask" else node


class Masks(ast.NodeTransformer):
    def __init__(self, said: dict[str, str]):
        self.said = said

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return parsed(self.said[node.id]) if node.id in self.said else node


def undone(line: ast.stmt) -> ast.stmt:
    """Without the reshapes and the transposition that made matrices of Inductor's blocks."""

    class Undo(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            return node.args[0] if ast.unparse(node.func) in ("tl.reshape", "tl.trans") else node

    return Undo().visit(line)
