"""What every emitter writes with: a kernel under construction, the places of its elements, and the body of
element-wise lines.

A Kernel collects pointers, sizes and lines. A Space says how the places in the output's shape are spelt in
the kernel (`row`, `col`, `offsets`), and from that how any operand that broadcasts against it is read. A
Body writes the element-wise nodes of a stage, loading what they need.
"""

import builtins
import re
from dataclasses import dataclass, field

import torch

from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node, Unfit
from nanotriton.collect.compose.names import distinct

HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Kernel:
    """A kernel's text while it is written. Sizes, numbers and constants are (name, what the host passes)."""

    name: str
    pointers: list[tuple[str, str]] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    grid: str = ""
    start: str = ""  # what its output must hold before it, where it adds to it
    taken: set[str] = field(default_factory=set)
    helpers: list[str] = field(default_factory=list)  # functions that it needs before it

    def fresh(self, base: str) -> str:
        name = distinct(base, self.taken)
        self.taken.add(name)
        return name

    def pointer(self, node: Node, host: str) -> str:
        """The parameter that points to a tensor, added on first use."""
        for name, text in self.pointers:
            if text == host:
                return name
        base = "x" if root(node).op not in ("input", "param", "out") else plain_name(node)
        name = self.fresh(f"{base}_ptr")
        self.pointers.append((name, host))
        return name

    def size(self, base: str, host: str) -> str:
        """The parameter that holds an integer or a number of the host, added on first use."""
        for name, text in self.sizes.items():
            if text == host:
                return name
        own = re.fullmatch(r"self(?:\.\w+)*\.(\w+)", host)  # a layer's number keeps its name
        name = self.fresh(own[1] if own else base)
        self.sizes[name] = host
        return name

    def constant(self, name: str, host: str) -> str:
        self.constants[name] = host
        return name

    def add(self, *lines: str) -> None:
        self.lines += lines

    def drop_unused(self) -> None:
        """Sizes that no line reads are no parameters."""
        text = "\n".join(self.lines)
        self.sizes = {n: host for n, host in self.sizes.items() if re.search(rf"\b{n}\b", text)}

    def widen(self) -> None:
        """Offsets of more than 32 bits, for tensors with more elements than those can count."""
        wide = r"\1.to(tl.int64)"
        self.lines = [re.sub(r"(tl\.program_id\(\d\))", wide, line) for line in self.lines]
        self.lines = [re.sub(r"(tl\.arange\(0, BLOCK_K\))", wide, line) for line in self.lines]

    def source(self) -> str:
        arguments = (
            [n for n, _ in self.pointers] + list(self.sizes) + [f"{n}: tl.constexpr" for n in self.constants]
        )
        head = f"@triton.jit\ndef {self.name}({', '.join(arguments)}):\n"
        return "\n\n\n".join(
            [*(h.rstrip() for h in self.helpers), head + "".join(f"    {line}\n" for line in self.lines)]
        )


@dataclass(frozen=True)
class Group:
    """Neighbouring dimensions of a shape that one index variable of the kernel counts together."""

    dims: tuple[int, ...]
    index: str
    size: str  # base name for the number of its elements
    mask: str = ""  # which of its places are inside


class Space:
    """How the places of a shape are spelt in a kernel. dim_texts: each dimension's length, on the host."""

    def __init__(
        self,
        shape: tuple[int, ...],
        groups: list[Group],
        dim_texts: list[str],
        kernel: Kernel,
        whole: str = "",
    ):
        self.shape, self.groups, self.dim_texts, self.kernel = shape, groups, dim_texts, kernel
        self.whole = whole  # the name of the mask of all groups together

    def length(self, dims) -> str:
        """The number of elements along some dimensions, on the host."""
        texts = [self.dim_texts[d] for d in dims]
        tensor = texts[0].removesuffix(".shape[0]") if texts else ""
        if len(texts) == len(self.shape) > 1 and texts == [f"{tensor}.shape[{d}]" for d in dims]:
            return f"{tensor}.numel()"
        return product(texts)

    def place(self, shape: tuple[int, ...], own: bool = False) -> tuple[str, str]:
        """(offset, mask) of an operand that broadcasts against this space, at the places that the kernel is
        at. own: it is the kernel's result, which is stored at all of them.
        """
        shape = (1,) * (len(self.shape) - len(shape)) + tuple(shape)
        if len(shape) != len(self.shape) or any(n not in (1, m) for n, m in zip(shape, self.shape)):
            raise Unfit(f"an operand of shape {shape} where {self.shape} is expected")
        parts, masks = [], []  # parts: (index, group's name, dimensions)
        for group in self.groups:
            runs = self.runs(group, shape, own)
            if runs and group.mask:
                masks.append(group.mask)
            parts += runs
        if self.whole and len(masks) == sum(bool(g.mask) for g in self.groups):
            masks = [self.whole]
        text = ""
        for index, base, dims in parts:
            text = f"({text}) * {self.kernel.size(base, self.length(dims))} + {index}" if text else index
        return tidy(text), " & ".join(f"({m})" if len(masks) > 1 else m for m in masks)

    def runs(self, group: Group, shape: tuple[int, ...], own: bool) -> list[tuple[str, str, tuple[int, ...]]]:
        """The parts of a group that an operand has, in order: the whole group, or stretches of its
        dimensions.
        """
        present = [d for d in group.dims if shape[d] != 1 or own]
        if not present:
            return []
        if all(d in present or self.shape[d] == 1 for d in group.dims):
            return [(group.index, group.size, group.dims)]
        stretches, found = [], []
        for d in present:
            if stretches and all(self.shape[e] == 1 for e in range(stretches[-1][-1] + 1, d)):
                stretches[-1].append(d)
            else:
                stretches.append([d])
        for stretch in stretches:
            after = [d for d in group.dims if d > stretch[-1] and self.shape[d] != 1]
            before = [d for d in group.dims if d < stretch[0] and self.shape[d] != 1]
            index = group.index
            if after:
                index = f"{wrapped(index)} // {self.kernel.size(self.name(after), self.length(after))}"
            if before:
                length = self.kernel.size(self.name(stretch), self.length(stretch))
                index = f"{index if after else wrapped(index)} % {length}"
            found.append((index, self.name(stretch), tuple(stretch)))
        return found

    def name(self, dims: list[int]) -> str:
        """What a stretch of dimensions is called."""
        last = len(self.shape) - 1
        if dims[-1] == last:
            return "cols" if len(dims) == 1 else "inner"
        return "channels" if dims == [1] else "rows" if dims[0] == 0 else "middle"


def wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def product(texts: list[str]) -> str:
    """`x.shape[0] * x.shape[1]`."""
    texts = [t for t in texts if t != "1"]
    if len(texts) == 1:
        return texts[0]
    return " * ".join(t if re.fullmatch(r"[\w.\[\]-]+", t) else f"({t})" for t in texts) or "1"


def tidy(text: str) -> str:
    """Without parentheses around a single name or a product at the start."""
    text = re.sub(r"(?<!\w)\((\w+)\)", r"\1", text)
    text = re.sub(r"\(\((\w+ // \w+)\)\)", r"(\1)", text)
    return re.sub(r"^\((\w+ \* \w+)\) \*", r"\1 *", text)


class Body:
    """Writes a stage's element-wise lines into a kernel.

    `host`: node -> its expression on the host, for what lies in memory.
    """

    def __init__(
        self,
        kernel: Kernel,
        space: Space,
        stage: Stage,
        host: dict[Node, str],
        places: dict[str, str] | None = None,
    ):
        self.kernel, self.space, self.stage, self.host = kernel, space, stage, host
        self.variable: dict[Node, str] = {}
        # a node computed again, in a second pass over its row, has its old name
        self.names: dict[Node, str] = {}
        self.other: dict[Node, str] = {}  # what lanes outside of the mask hold after a load, where it matters
        self.places = places or {}  # {row} and {col} of a matrix
        self.aligned = aligned(stage)

    def name(self, node: Node) -> str:
        if node not in self.names:
            self.names[node] = self.kernel.fresh(plain_name(node))
        return self.names[node]

    def value(self, node: Node) -> str:
        """The variable that holds a node's elements; loads it if it lies in memory."""
        if node in self.variable:
            return self.variable[node]
        if node.op == "view" and node.attrs["alias"] and node not in self.host:
            return self.value(node.args[0])
        if node not in self.host:
            raise Unfit(f"{node.name} is not there yet")
        made_before = root(node).op not in ("input", "param")  # by another kernel
        if made_before and node not in self.names:
            self.names[node] = self.kernel.fresh("x")
        self.variable[node] = self.name(node)
        self.kernel.add(f"{self.variable[node]} = {self.load(node)}")
        return self.variable[node]

    def load(self, node: Node) -> str:
        place, mask = self.space.place(self.expanded(node))
        other = f", other={self.other[node]}" if node in self.other and mask else ""
        # a view of contiguous memory begins where that does
        while node.op == "view" and node.args[0] in self.host:
            node = node.args[0]
        pointer = self.kernel.pointer(node, self.host[node])
        address = f"{pointer} + {place}" if place else pointer
        text = f"tl.load({address}, mask={mask}{other})" if mask else f"tl.load({address})"
        return text + (".to(tl.float32)" if node.dtype in HALVES else "")

    def expanded(self, node: Node) -> tuple[int, ...]:
        """A node's shape in the rank of the space; a row's statistic gets back the dimensions that were
        combined.
        """
        if self.stage.is_statistic(node):
            return self.stage.kept
        return self.aligned.get(node, node.shape)

    def compute(self, node: Node, last: dict[Node, Node]) -> None:
        """One element-wise node. last: for each node, the last one that reads it; its variable is free for
        the result.
        """
        if node in self.variable:
            return
        if node.op == "view":
            source = node
            while source.op == "view" and source.attrs["alias"]:
                source = source.args[0]
            if source in self.variable or source in self.stage.nodes or node not in self.host:
                self.variable[node] = self.value(source)
            return  # else it is loaded where it is read, in its own shape
        values = {f"{{{i}}}": self.value(a) for i, a in enumerate(node.args)}
        for key, number in node.attrs.items():
            if key.startswith("#"):
                values["{" + key + "}"] = self.kernel.size(base_name(number.text), number.text)
        text = node.text
        for place, name in (values | {"{count}": self.count(node)} | self.places).items():
            text = text.replace(place, name)
        if re.search(r"\{\w+\}", text):
            raise Unfit(f"{node.name} needs places that this kernel doesn't have")
        free = next((self.variable.get(a) for a in node.args if self.is_free(a, node, last)), None)
        if free:
            self.names.setdefault(node, free)
        self.variable[node] = self.name(node)
        self.kernel.add(f"{self.variable[node]} = {text}")

    def is_free(self, a: Node, node: Node, last: dict[Node, Node]) -> bool:
        return (
            last.get(a) is node
            and a in self.variable
            and a.op != "view"
            and a.rank == node.rank
            and a.shape == node.shape
        )

    def count(self, node: Node) -> str:
        if "{count}" not in node.text:
            return ""
        return self.kernel.size("cols", self.space.length(self.stage.dims))

    def store(self, node: Node, out: str, place: str, mask: str) -> None:
        pointer = self.kernel.pointer(Node("out", "out", (), (), torch.float32), out)
        tail = f", mask={mask}" if mask else ""
        self.kernel.add(
            f"tl.store({pointer} + {place}, {self.value(node)}{tail})"
            if place
            else f"tl.store({pointer}, {self.value(node)}{tail})"
        )


def aligned(stage: Stage) -> dict[Node, tuple[int, ...]]:
    """Operands of statistics whose combined dimensions are gone, in the rank of the stage: an operand of
    [channels] belongs to the dimension of the channels and not to the last.
    """
    squeezed = tuple(n for i, n in enumerate(stage.full) if i not in stage.dims)
    found: dict[Node, tuple[int, ...]] = {}
    todo = [n for n in stage.nodes if n.op == "map" and stage.is_statistic(n) and n.shape == squeezed]
    while todo:
        for a in todo.pop().args:
            if stage.is_statistic(a) or a.rank > len(squeezed) or a in found:
                continue
            sizes = iter((1,) * (len(squeezed) - a.rank) + tuple(a.shape))
            found[a] = tuple(1 if i in stage.dims else next(sizes) for i in range(len(stage.full)))
            if a in stage.nodes:
                todo.append(a)
    return found


def root(node: Node) -> Node:
    """What a view is of."""
    while node.op == "view":
        node = node.args[0]
    return node


def plain_name(node: Node) -> str:
    """A node's name without the number that tells it from others of the graph, and none of Python's own
    (`abs`, `pow`).
    """
    node = root(node)
    name = re.sub(r"_\d+$", "", node.name) if node.op != "input" else node.name
    return "x" if name in vars(builtins) else name


def base_name(text: str) -> str:
    """`self.act.negative_slope` -> `negative_slope`."""
    found = re.findall(r"[A-Za-z_]\w*", text)
    last = found[-1] if found else "value"
    return {"shape": "factor", "max": "largest"}.get(last, last)  # `max` is Python's


def last_uses(stage: Stage) -> dict[Node, Node]:
    """For each node that the stage reads, the last node that reads it; none for what it stores, which must
    live to the end.
    """
    last: dict[Node, Node] = {}
    for node in stage.nodes:
        for a in node.args:
            while a is not None:
                last[a] = node
                a = a.args[0] if a.op == "view" and a.attrs["alias"] else None
    return {a: user for a, user in last.items() if a not in stage.stored}
