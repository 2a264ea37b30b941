"""What a module is, whatever it is called and however it is written: its operators in order, and its inputs'
shapes.

The operators come from torch.fx, which sees through helper modules and functions, so that a module that
was renamed, reformatted or split in two has the same ones. `x.relu()`, `torch.relu(x)`, `F.relu(x)` and
`nn.ReLU()` are all "relu". Where fx can't follow, the calls in the text stand in.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.fx

from nanotriton.collect.compose.operators import ALIASES, OPS
from nanotriton.collect.compose.trace import IDENTITY, MODULES, NAMES, symbolic_trace

SILENT = (
    *IDENTITY,
    "getattr",
    "getitem",
    "size",
    "view",
    "reshape",
    "flatten",
    "unsqueeze",
    "squeeze",
    "getitem",
    "dim",
    "dropout",
)
NGRAM = 16  # tokens; a copy shares long runs of them with its original
PLAIN = {name.replace("_", ""): name for name in OPS}


@dataclass(frozen=True)
class Fingerprint:
    operators: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    ngrams: frozenset[int]  # of the normalised text: names and constants don't count


def fingerprint(source: str) -> Fingerprint:
    """The fingerprint of a task's source.

    Never raises: a module that doesn't load has no shapes, and the calls of its text.
    """
    operators, shapes = loaded(source)
    return Fingerprint(operators or calls(source), shapes, ngrams(source))


def loaded(source: str) -> tuple[tuple[str, ...], tuple]:
    """(operators, shapes) of a task that is run on the meta device; empty where that fails."""
    names: dict = {"__name__": "task"}
    shapes: tuple = ()
    try:
        with torch.device("meta"):
            exec(compile(source, "<task>", "exec"), names)
            inputs = names["get_inputs"]()
            shapes = tuple(tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor))
            traced = symbolic_trace(names["Model"](*names["get_init_inputs"]()))
    except Exception:  # whatever a stranger's code raises: its text is what is left to go by
        return (), shapes
    return tuple(
        said for node in traced.graph.nodes if (said := operator(node, traced)) and said not in SILENT
    ), shapes


def operator(node: torch.fx.Node, traced: torch.fx.GraphModule) -> str:
    """A node's operator under its canonical name, "" for what is none."""
    if node.op == "call_module":
        kind = type(traced.get_submodule(node.target)).__name__
        return canonical(MODULES[kind][0] if kind in MODULES else kind)
    if node.op == "call_function":
        return canonical(NAMES.get(node.target) or getattr(node.target, "__name__", ""))
    return canonical(node.target) if node.op == "call_method" else ""


def canonical(name: str) -> str:
    name = name.strip("_").lower()
    name = ALIASES.get(name, name)
    name = re.sub(r"(conv|pool|norm)(_transpose)?\d?d$", r"\1\2", name)
    name = {
        "mm": "matmul",
        "bmm": "matmul",
        "linear": "matmul",
        "pow": "square",
        "special_logsumexp": "logsumexp",
    }.get(name, name)
    return PLAIN.get(name.replace("_", ""), name)


def calls(source: str) -> tuple[str, ...]:
    """The names of what a text's forward calls, in order."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    forward = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    found = [n.func for f in forward for n in ast.walk(f) if isinstance(n, ast.Call)]
    said = [canonical(f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")) for f in found]
    return tuple(s for s in said if s and s not in SILENT)


def normalised(source: str) -> list[str]:
    """A text's code without comments, docstrings and layout; every name that it binds is v, every number 0,
    every string s.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source.split()
    return re.findall(r"\w+|[^\w\s]", ast.unparse(Normaliser(tree).visit(tree)))


class Normaliser(ast.NodeTransformer):
    """Renames what the code binds, and levels constants."""

    def __init__(self, tree: ast.AST):
        stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        kept = {
            n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load)
        }
        self.bound = stored | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} - {"self"}
        self.attributes = kept

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("v", node.ctx) if node.id in self.bound else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        if (
            node.attr in self.attributes
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "v")
        ):
            node.attr = "a"
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg("self" if node.arg == "self" else "v")

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(
            "s"
            if isinstance(node.value, str)
            else 0
            if isinstance(node.value, int | float) and not isinstance(node.value, bool)
            else node.value
        )

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        if isinstance(node.value, ast.Constant):
            return ast.Expr(ast.Constant(...))
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        return node


def ngrams(source: str) -> frozenset[int]:
    tokens = normalised(source)
    texts = (" ".join(tokens[i : i + NGRAM]) for i in range(max(len(tokens) - NGRAM + 1, 1)))
    return frozenset(
        int.from_bytes(hashlib.blake2b(t.encode(), digest_size=8).digest(), "big") for t in texts
    )


def exact(source: str) -> str:
    """A hash that two texts share if they differ in names, comments and layout alone. Constants count."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return hashlib.sha256(source.encode()).hexdigest()
    normaliser = Normaliser(tree)
    normaliser.visit_Constant = lambda node: node
    return hashlib.sha256(ast.unparse(normaliser.visit(tree)).encode()).hexdigest()


def digest(text: str) -> str:
    """The sha256 of a text, in hex: what a manifest knows it by."""
    return hashlib.sha256(text.encode()).hexdigest()


def share(part: Iterable[int], whole: frozenset[int]) -> float:
    """How much of `part` is in `whole`."""
    part = frozenset(part)
    return len(part & whole) / len(part) if part else 0.0
