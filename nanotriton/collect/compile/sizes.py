"""Sizes: what Inductor calls s28 is the height of an input, and a kernel takes it under that name."""

import ast
from collections import Counter
from dataclasses import dataclass, field

from nanotriton.collect.compile.rewrite import factors, parsed, product
from nanotriton.collect.compose.names import DIMENSIONS

WEIGHTS = {
    1: ("features",),
    2: ("out_features", "in_features"),
    3: ("out_channels", "in_channels", "kernel_size"),
    4: ("out_channels", "in_channels", "kernel_height", "kernel_width"),
    5: ("out_channels", "in_channels", "kernel_depth", "kernel_height", "kernel_width"),
}


@dataclass
class Symbol:
    """A size of a tensor of the module. name: what it is called, on the host and in kernels."""

    tensor: str
    dim: int
    rank: int
    value: int
    name: str


@dataclass
class Sizes:
    """The symbols of one module, and the expressions that Inductor computes of them on the host."""

    taken: Counter = field(default_factory=Counter)
    symbols: dict[str, Symbol] = field(default_factory=dict)  # Inductor's name -> what it is
    expressions: dict[str, ast.expr] = field(default_factory=dict)  # ps0 and the like, in symbols

    def add(self, symbol: str, tensor: str, dim: int, rank: int, value: int) -> None:
        usual = (WEIGHTS if tensor.startswith("self.") else DIMENSIONS).get(rank)
        base = usual[dim] if usual else "size" if rank == 1 else f"size{dim}"
        name, number = base, 1
        while self.taken[name]:
            name, number = f"{base}_{number}", number + 1
        self.taken[name] += 1
        self.symbols[symbol] = Symbol(tensor, dim, rank, value, name)

    def expand(self, node: ast.expr) -> ast.expr:
        """An expression in symbols alone, and without what only guards against sizes of 0."""
        return Expand(self.expressions).visit(node)

    def said(self, node: ast.expr) -> ast.expr:
        """An expression in symbols, in their names."""
        names = {symbol: s.name for symbol, s in self.symbols.items()}
        return Said(names).visit(parsed(ast.unparse(node)))

    def value(self, node: ast.expr):
        """An expression's value in the example."""
        values = {symbol: s.value for symbol, s in self.symbols.items()}
        return eval(ast.unparse(node), {"__builtins__": {"max": max, "min": min}}, values)


class Expand(ast.NodeTransformer):
    def __init__(self, expressions: dict[str, ast.expr]):
        self.expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.AST:
        known = self.expressions.get(node.id)
        return node if known is None else parsed(ast.unparse(known))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "max" and len(node.args) == 2:
            rest = [a for a in node.args if not (isinstance(a, ast.Constant) and a.value == 1)]
            return rest[0] if len(rest) == 1 else node
        return node


class Said(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


# ---- a kernel's sizes


@dataclass
class Parameter:
    """A size that a kernel takes. inner: its name while the kernel is rewritten, such as ks1028."""

    inner: str
    name: str
    texts: list[ast.expr]  # of each launch, in symbols


def plan(
    sizes: Sizes, launches: list[dict[str, ast.expr]], wanted: list[str]
) -> tuple[dict[str, ast.expr], list[Parameter]]:
    """(what stands for each of `wanted` in the kernel, the sizes that the kernel takes).

    launches: parameter -> expression, of each launch. A size that is a number in all of them is one in the
    kernel, a product of sizes is written out, and two that are always the same are one.
    """
    found: dict[str, Parameter] = {}
    stands: dict[str, ast.expr] = {}

    def leaf(name: str, texts: list[ast.expr]) -> ast.expr:
        key = " | ".join(map(ast.unparse, texts))
        if key not in found:
            symbol = ast.unparse(texts[0])
            known = sizes.symbols.get(symbol)
            inner = f"ks{1000 + int(symbol[1:])}" if known else f"ks{5000 + len(found)}"
            if any(p.inner == inner for p in found.values()):
                inner = f"ks{5000 + len(found)}"
            found[key] = Parameter(inner, known.name if known else name, texts)
        return ast.Name(found[key].inner, ast.Load())

    for parameter in wanted:
        texts = [launch[parameter] for launch in launches]
        numbers = {t.value if isinstance(t, ast.Constant) else None for t in texts}
        parts = list(factors(texts[0]))
        if len(numbers) == 1 and None not in numbers:
            stands[parameter] = texts[0]
        elif len(launches) == 1 and len(parts) > 1:
            stands[parameter] = product(
                [p if isinstance(p, ast.Constant) else leaf(derived(p, sizes), [p]) for p in parts]
            )
        else:
            stands[parameter] = leaf(derived(texts[0], sizes), texts)
    return stands, list(found.values())


def derived(node: ast.expr, sizes: Sizes) -> str:
    """A name for a size that is computed of another: of the height, out_height."""
    symbols = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in sizes.symbols]
    kinds = list(dict.fromkeys(sizes.symbols[s].name for s in symbols))
    return f"out_{kinds[0]}" if len(kinds) == 1 else "stride" if kinds else "size"
