"""The operator graph of a module: what every kernel is written from.

A graph has few kinds of node. `input` and `param` are tensors that exist before any kernel runs. `map`
computes each element from the elements of its arguments at the same place, after broadcasting. `reduce`
combines the elements along some dimensions. `view` gives a tensor another shape and moves nothing.
Everything else (a matmul, a convolution, a pooling, a gather) is an anchor, which is the heart of a kernel
of its own. Softmax, the norms and the losses are no nodes: lower.py spells them as maps and reductions.
"""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from nanotriton.collect.compose.names import distinct


class Unfit(Exception):
    """This route can't do this module; the message is one line that says why."""


class NamedFloat(float):
    """A float that knows what it is called on the host, such as `self.scale`: kernels get it as
    an argument."""

    def __new__(cls, value: float, text: str):
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __neg__(self) -> "NamedFloat":
        return NamedFloat(-float(self), f"-{self.text}")

    def combined(self, sign: str, other: object, swapped: bool) -> "NamedFloat":
        """The result of an operator with another number, named after the formula."""
        if not isinstance(other, int | float):
            return NotImplemented
        first, second = (other, self) if swapped else (self, other)
        value = FORMULAS[sign](float(first), float(second))
        texts = (f"({t})" if " " in (t := text_of(n)) else t for n in (first, second))
        return NamedFloat(value, f" {sign} ".join(texts))

    def __add__(self, other):
        return self.combined("+", other, False)

    def __radd__(self, other):
        return self.combined("+", other, True)

    def __sub__(self, other):
        return self.combined("-", other, False)

    def __rsub__(self, other):
        return self.combined("-", other, True)

    def __mul__(self, other):
        return self.combined("*", other, False)

    def __rmul__(self, other):
        return self.combined("*", other, True)

    def __truediv__(self, other):
        return self.combined("/", other, False)

    def __rtruediv__(self, other):
        return self.combined("/", other, True)


FORMULAS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class NamedInt(int):
    """An int that knows what it is called on the host, such as `x.shape[0]`."""

    def __new__(cls, value: int, text: str):
        made = super().__new__(cls, value)
        made.text = text
        return made


class Scalar(float):
    """`torch.tensor(0.5)`: a number that is no dimension, where an operator takes either."""


def text_of(number: object) -> str:
    """How a number is written on the host: by its name if it has one."""
    return getattr(number, "text", None) or repr(number)


@dataclass(eq=False)
class Node:
    """A tensor of the graph and how it is made."""

    name: str  # a Python identifier: its variable's name
    op: str  # "input", "param", "map", "reduce", "view" or an anchor's name
    args: tuple["Node", ...]
    shape: tuple[int, ...]  # of the example; kernels never contain it
    dtype: torch.dtype
    text: str = ""  # map: Triton, arguments as {0}, {1}; reduce: its kind; the others: Python on the host
    # numbers of the operator; reduce: "dims", the dimensions that it combines
    attrs: dict = field(default_factory=dict)
    said: str = ""  # the operator's name for people

    @property
    def materialised(self) -> bool:
        """Whether it exists before any kernel runs."""
        return self.op in ("input", "param") or (self.op == "view" and self.args[0].materialised)

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Graph:
    """Nodes in an order in which each follows its arguments, and what forward returns."""

    nodes: list[Node]
    outputs: list[Node]
    returns_tuple: bool = False
    effects: list[Node] = field(default_factory=list)  # what is written into the module: attrs["into"]

    def users(self, node: Node) -> list[Node]:
        return [n for n in self.nodes if node in n.args]


def views_last(graph: Graph) -> None:
    """Takes maps of one tensor before the view that they are of: act(view(y)) becomes view(act(y)).

    What follows a group norm, whose rows are a view of [groups, channels / groups], is then computed in the
    norm's own kernel.
    """
    for node in list(graph.nodes):
        if node.op != "map" or len(set(node.args)) != 1 or "{row}" in node.text or "{col}" in node.text:
            continue
        view = node.args[0]
        if view.op != "view" or view.attrs["alias"] or view.materialised:
            continue
        source = view.args[0]
        again = Node(
            f"{node.name}_view", "view", (node,), node.shape, node.dtype, view.text, view.attrs, "view"
        )
        for user in graph.nodes:
            user.args = tuple(again if a is node else a for a in user.args)
        graph.outputs = [again if n is node else n for n in graph.outputs]
        node.args, node.shape = tuple(source for _ in node.args), source.shape
        graph.nodes.insert(graph.nodes.index(node) + 1, again)


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TRITON_TYPE = {
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.bool: "tl.int1",
}


class Builder:
    """Grows a graph. Every method returns the new node."""

    def __init__(self):
        self.nodes: list[Node] = []
        self.taken: set[str] = set()
        self.attributes: dict[str, Node] = {}  # host text -> param node
        self.effects: list[Node] = []

    def fresh(self, base: str) -> str:
        """An identifier that no node has yet."""
        base = re.sub(r"\W+", "_", base).strip("_").lower() or "x"
        name = distinct(base, self.taken)
        self.taken.add(name)
        return name

    def add(
        self, name: str, op: str, args: Sequence[Node], shape, dtype, text="", attrs=None, said=""
    ) -> Node:
        node = Node(self.fresh(name), op, tuple(args), tuple(shape), dtype, text, attrs or {}, said)
        self.nodes.append(node)
        return node

    def param(self, text: str, tensor: torch.Tensor) -> Node:
        """A tensor that lives on the module; `text` is `self.` and its path."""
        if text not in self.attributes:
            name = "_".join(re.sub(r"\[(\d+)\]", r".\1", text).split(".")[-1:])
            self.attributes[text] = self.add(name, "param", (), tensor.shape, tensor.dtype, text)
        return self.attributes[text]

    def map(self, name: str, text: str, *args, dtype: torch.dtype | None = None) -> Node:
        """An element-wise node. `text` says {0}, {1}, ... for its arguments, which are nodes and numbers;
        {count} is the length of what the next reduction before it combined.
        """
        nodes = [a for a in args if isinstance(a, Node)]
        numbers = {f"{{{i}}}": a for i, a in enumerate(args) if not isinstance(a, Node)}
        places = {f"{{{i}}}": f"{{{nodes.index(a)}}}" for i, a in enumerate(args) if isinstance(a, Node)}
        attrs = {}
        for place, number in numbers.items():
            if hasattr(number, "text"):
                key = f"#{number.text}"
                attrs[key], places[place] = number, "{" + key + "}"
            else:
                places[place] = literal(number)
        text = re.sub(r"\{\d+\}", lambda m: places[m[0]], text)
        shape = torch.broadcast_shapes(*(n.shape for n in nodes))
        return self.add(
            name, "map", nodes, shape, dtype or promoted(nodes, numbers.values()), text, attrs, name
        )

    def reduce(
        self,
        kind: str,
        x: Node,
        dims: Sequence[int] | int | None,
        keepdim: bool = True,
        dtype=None,
        name: str = "",
    ) -> Node:
        """kind: sum, mean, max, min, prod, any, all, argmax, argmin. name: of the variable, if not the usual
        one.
        """
        dims = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
        dims = tuple(sorted(d % x.rank for d in dims)) if x.rank else ()
        shape = [1 if i in dims else n for i, n in enumerate(x.shape)]
        shape = shape if keepdim else [n for i, n in enumerate(x.shape) if i not in dims]
        kinds = {"argmax": torch.int64, "argmin": torch.int64, "any": torch.bool, "all": torch.bool}
        dtype = (
            dtype
            or kinds.get(kind)
            or (torch.int64 if kind in ("sum", "prod") and x.dtype not in FLOATS else x.dtype)
        )
        name = name or {"sum": "total", "max": "top", "min": "bottom", "any": "some", "all": "every"}.get(
            kind, kind
        )
        return self.add(name, "reduce", [x], shape, dtype, kind, {"dims": dims, "keepdim": keepdim}, kind)

    def view(
        self, x: Node, shape: Sequence[int], text: str, alias: bool = False, dims: Sequence[str] = ()
    ) -> Node:
        """The same elements in another shape. alias: only dimensions of length 1 come or go, so that kernels
        see no difference. dims: each dimension's length on the host, with {0} for x, where that is shorter
        than asking the view for it.
        """
        return self.add(
            x.name, "view", [x], shape, x.dtype, text, {"alias": alias, "dims": tuple(dims)}, "view"
        )

    def effect(self, node: Node, target: Node) -> None:
        """The node's value goes into a tensor of the module, as training's running statistics do."""
        node.attrs["into"] = target.text
        self.effects.append(node)

    def anchor(self, op: str, args: Sequence[Node], shape, dtype=None, **attrs) -> Node:
        return self.add(op, op, args, shape, dtype or args[0].dtype, "", attrs, op)


def per_dimension(value, rank: int) -> tuple:
    """A number that stands for all dimensions, as one for each."""
    return tuple(value) if isinstance(value, tuple | list) else (value,) * rank


def literal(number: object) -> str:
    """A number as Triton source."""
    if isinstance(number, float) and number in (float("inf"), float("-inf")):
        return 'float("inf")' if number > 0 else '-float("inf")'
    return repr(number)


def promoted(nodes: Sequence[Node], numbers) -> torch.dtype:
    """PyTorch's dtype of an arithmetic result."""
    # a 0-d tensor yields to the others
    dtypes = [n.dtype for n in nodes if n.rank] or [n.dtype for n in nodes]
    result = dtypes[0]
    for other in dtypes[1:]:
        result = torch.promote_types(result, other)
    if any(isinstance(n, float) for n in numbers) and result not in FLOATS:
        return torch.float32
    return result
