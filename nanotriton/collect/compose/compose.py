"""Route compose: a module in, a `ModelNew` in Triton out, as a person would write it.

The class keeps `Model`'s constructor, so that its parameters are the same; only forward changes. Sizes are
read from the inputs' shapes and hyperparameters from the layers; the only numbers in a kernel are those
that the task's own text has, those that define an operator (the 0.5 of GELU) and the sizes of blocks.
"""

import ast
import math
import re
from dataclasses import dataclass, field

import torch
from torch import nn

from nanotriton.collect.compose.emit import (
    attention,
    conv,
    flat,
    gather,
    matmul,
    pointwise,
    pool,
    rank,
    rows,
    scan,
)
from nanotriton.collect.compose.emit.kernel import Kernel
from nanotriton.collect.compose.fuse import Stage, fuse
from nanotriton.collect.compose.ir import Graph, Node, Unfit
from nanotriton.collect.compose.names import distinct, unpacked
from nanotriton.collect.compose.trace import trace
from nanotriton.tasks.task import Task

ANCHORS = {"matmul": matmul, "conv": conv, "pool": pool, "scan": scan, "rank": rank, "attention": attention}
UNSAID = (
    "view",
    "bias",
    "centred",
    "square",
    "affine",
    "scaled",
    "finite",
    "left",
    "shift",
    "shifted",
    "exp",
    "difference",
    "chosen",
    "product",
    "running",
    "unbiased",
)
WIDE = 2**31 - 2**20  # elements from which on an offset, with the rest of its block, may not fit in 32 bits
HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"


@dataclass
class Composed:
    """A solution with what is known of it: its stages are what the reasoning is told from."""

    source: str
    stages: list[Stage]
    graph: Graph
    kernels: list[Kernel] = field(default_factory=list)


def compose(task: Task) -> Composed:
    """Write `ModelNew` for a task. Raises Unfit, with one line that says why, for what it doesn't cover."""
    model_class(task)
    graph = graph_of(task)
    stages = fuse(graph)
    if not stages:
        raise Unfit("it computes nothing")
    return Assembly(task, graph, stages).write()


def model_class(task: Task) -> ast.ClassDef:
    """Model's class, which has a forward of its own and inherits from nn.Module alone."""
    tree = ast.parse(task.source)
    cls = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if cls is None or [ast.unparse(base).split(".")[-1] for base in cls.bases] != ["Module"]:
        raise Unfit("Model inherits from another class than nn.Module")
    if not any(isinstance(n, ast.FunctionDef) and n.name == "forward" for n in cls.body):
        raise Unfit("Model has no forward of its own")
    return cls


def graph_of(task: Task) -> Graph:
    """The operator graph of a task's Model, on its own inputs' shapes.

    Nothing is allocated: all is on the meta device.
    """
    names: dict = {"__name__": "task"}
    try:
        with torch.device("meta"):
            exec(compile(task.source, f"<task {task.name}>", "exec"), names)
            model: nn.Module = names["Model"](*names["get_init_inputs"]())
            inputs = list(names["get_inputs"]())
    except Exception as error:
        raise Unfit(f"it doesn't load: {type(error).__name__}: {error}".split("\n")[0]) from None
    return trace(model, inputs)


class Assembly:
    """Joins the kernels of a graph's stages to one file."""

    def __init__(self, task: Task, graph: Graph, stages: list[Stage]):
        self.task, self.graph, self.stages = task, graph, stages
        self.host: dict[Node, str] = {}  # what each tensor in memory is called in forward
        self.lines: list[str] = []
        self.taken = {"self", "torch", "triton", "tl", "nn"}
        self.taken |= {n.name for n in graph.nodes if n.op == "input"}
        self.kernels: list[Kernel] = []
        self.bound: dict[str, str] = {}  # what forward has a name for: text -> name
        self.shapes: dict[str, list[str]] = {}  # the dimensions of forward's own tensors, by their names

    def write(self) -> Composed:
        for node in self.graph.nodes:
            if node.op in ("input", "param"):
                self.host[node] = node.text
            if node.op == "input" and not node.attrs["contiguous"]:
                self.lines.append(f"{node.name} = {node.name}.contiguous()")
        for stage in self.stages:
            self.views()
            self.stage(stage)
        self.views()
        results = [self.host[n] for n in self.graph.outputs]
        comma = "," if self.graph.returns_tuple and len(results) == 1 else ""
        self.lines.append(f"return {', '.join(results)}{comma}")
        kernels = [k.source() for k in self.kernels]
        head = HEAD
        if any("libdevice." in kernel for kernel in kernels):
            head += "from triton.language.extra import libdevice\n"
        # two kernels may need the same helper
        functions = dict.fromkeys(f.rstrip() for k in kernels for f in k.split("\n\n\n"))
        source = "\n\n\n".join([head.rstrip(), *functions, self.model()])
        return Composed(source, self.stages, self.graph, self.kernels)

    def views(self) -> None:
        """Host expressions of the views of what has come to lie in memory."""
        for node in self.graph.nodes:
            if node.op == "view" and node not in self.host and node.args[0] in self.host:
                text = self.host[node.args[0]]
                self.host[node] = self.short(node.text.replace("{0}", text))

    def fresh(self, base: str) -> str:
        name = distinct(base, self.taken)
        self.taken.add(name)
        return name

    # ---- one stage ----

    def stage(self, stage: Stage) -> None:
        kernel = Kernel(self.kernel_name(stage))
        texts = self.dims(stage)
        outs = {node: self.fresh("out" if self.returned(node) else "hidden") for node in stage.stored}
        for node, name in outs.items():
            if node in self.graph.effects:
                outs[node] = node.attrs["into"]
                continue
            view, like = self.only_view(node, stage)
            if view:
                self.lines.append(f"{name} = torch.empty_like({like})")
                self.shapes[name] = [self.short(f"{like}.shape[{i}]") for i in range(view.rank)]
                self.host[view] = name
            else:
                self.lines.append(f"{name} = {self.allocation(name, node, stage, texts)}")
        host = dict(self.host)
        if stage.kind == "pointwise":
            pointwise.emit(kernel, stage, host, outs, texts)
        elif stage.kind == "total":
            pointwise.emit_total(kernel, stage, host, outs, texts)
        elif stage.kind == "rows":
            rows.emit(kernel, stage, host, outs, texts)
        else:
            ANCHORS.get(stage.kind, gather).emit(kernel, stage, host, outs, texts)
        if kernel.start == "0.0":
            self.lines[-1] = self.lines[-1].replace("torch.empty", "torch.zeros")
        elif kernel.start:
            self.lines[-1] = re.sub(
                r"torch\.empty\((.*), device", rf"torch.full((\1,), {kernel.start}, device", self.lines[-1]
            ).replace("((),)", "()")
        kernel.drop_unused()
        if any(math.prod(n.shape) > WIDE for node in stage.nodes for n in (node, *node.args)):
            kernel.widen()
        self.launch(kernel)
        self.kernels.append(kernel)
        self.host |= outs

    def returned(self, node: Node) -> bool:
        """Whether a node is a result of forward, or a view of it is."""
        results = self.graph.outputs
        return node in results or any(n.op == "view" and node in n.args for n in results)

    def only_view(self, node: Node, stage: Stage) -> tuple[Node | None, str]:
        """Where a result is only read in another shape, which something in memory has too: that view, and
        what it is like.
        """
        users = [u for u in self.graph.users(node) if u not in stage.nodes]
        if len(users) != 1 or users[0].op != "view" or node in self.graph.outputs:
            return None, ""
        found = [
            a
            for n in stage.nodes
            for v in n.args
            if v.op == "view"
            for a in v.args
            if a in self.host and self.simple(a)
        ]
        like = next((self.host[a] for a in found if a.shape == users[0].shape and a.dtype == node.dtype), "")
        return (users[0], like) if like else (None, "")

    def kernel_name(self, stage: Stage) -> str:
        """After its operators, at most three."""
        said = [
            n.said for n in stage.nodes if n.said not in UNSAID and (n.op != "reduce" or n.attrs.get("asked"))
        ]
        said = said or [n.said for n in stage.nodes if n.op == "reduce"]
        words = list(dict.fromkeys(said or [n.said for n in stage.nodes]))
        name = "_".join(words if len(words) <= 3 else [words[0], "fused"])
        return self.fresh(f"{name}_kernel")

    def dims(self, stage: Stage) -> list[str]:
        """Each dimension of the stage's elements, on the host."""
        if stage.kind in ("conv", "pool"):
            return self.pictures(stage)
        if stage.kind == "matmul":
            return self.matrices(stage)
        if stage.anchor is not None and stage.kind != "scan":
            return [self.short(t) for t in ANCHORS.get(stage.kind, gather).out_dims(stage, self.host)]
        operands = [a for n in stage.nodes for a in n.args if a in self.host]
        found: list[str] = []
        for d, n in enumerate(stage.full):
            texts = [
                self.dim(a, d - len(stage.full)) for a in operands if self.has(a, d - len(stage.full), n)
            ]
            found.append(texts[0] if texts else "1")
        whole = [a for a in operands if tuple(a.shape) == stage.full and self.simple(a)]
        return [self.dim(whole[0], d - len(stage.full)) for d in range(len(stage.full))] if whole else found

    def pictures(self, stage: Stage) -> list[str]:
        """The dimensions of a convolution's or a pooling's result, after lines of forward that compute
        them."""
        x = stage.anchor.args[0]
        shape = [self.short(f"{self.host[x]}.shape[{i}]") for i in range(x.rank)]
        if any(".shape[" in text for text in shape):
            shape = [self.fresh(name) for name in ("batch", "C")]
            shape += [self.fresh(i.upper()) for i in flat.LETTERS[x.rank - 2]]
            self.lines.append(f"{', '.join(shape)} = {self.host[x]}.shape")
            self.shapes[self.host[x]] = shape
        lines, texts = ANCHORS[stage.kind].prepare(stage, self.host, shape, self.fresh)
        self.lines += [self.short(line) for line in lines]
        return [self.short(text) for text in texts]

    def matrices(self, stage: Stage) -> list[str]:
        """The dimensions of a product's result, after lines of forward that name them M, N and K."""
        a, b = stage.anchor.args
        if self.host[a] not in self.shapes:
            inner = ("K", "M") if stage.anchor.attrs["trans_a"] else ("M", "K")
            leading = ("batch", "heads", "depth")[: a.rank - 2]
            if b.rank == 2 and a.rank > 2:
                inner = ("rows" if a.rank == 3 else "cols", "K")
                leading = ("batch", "rows", "depth")[: a.rank - 2]
            shape = [self.fresh(name) for name in (*leading, *inner)]
            self.lines.append(f"{', '.join(shape)} = {self.host[a]}.shape")
            self.shapes[self.host[a]] = shape
        texts = [self.short(t) for t in matmul.out_dims(stage, self.host)]
        if not texts[-1].isidentifier():
            name = self.fresh("N")
            self.lines.append(f"{name} = {texts[-1]}")
            self.bound[texts[-1]] = texts[-1] = name
        return texts

    def short(self, text: str) -> str:
        """A text of the host in which dimensions that have names are called by them.

        `@name@` stands for a node of the graph.
        """
        for name in re.findall(r"@(\w+)@", text):
            node = next(n for n in self.graph.nodes if n.name == name)
            if node not in self.host:
                raise Unfit("the shape of what is in no memory")
            text = text.replace(f"@{name}@", self.host[node])
        for tensor, names in self.shapes.items():
            pattern = rf"(?<![\w.]){re.escape(tensor)}\.shape\[(\d+)\]"
            text = re.sub(pattern, lambda m, names=names: names[int(m[1])], text)
        return text

    def simple(self, a: Node) -> bool:
        return self.host[a].isidentifier()

    def has(self, a: Node, d: int, n: int) -> bool:
        return a.rank >= -d and a.shape[d] == n and (n != 1 or a.rank == 0)

    def dim(self, a: Node, d: int) -> str:
        if a.op == "view" and a.attrs["dims"]:
            return self.short(a.attrs["dims"][a.rank + d].replace("{0}", self.host[a.args[0]]))
        return self.short(f"{self.host[a]}.shape[{a.rank + d}]")

    def allocation(self, name: str, node: Node, stage: Stage, texts: list[str]) -> str:
        """The expression that makes the tensor `name`, whose dimensions are known from then on."""
        shape = node.shape
        # what an anchor reads is like its result by chance only
        readers = [n for n in stage.nodes if n is not stage.anchor or n.op == "scan"]
        operands = [a for n in readers for a in n.args if a in self.host and self.simple(a)]
        alike = [a for a in operands if a.shape == shape and a.dtype == node.dtype]
        if alike and stage.kind != "total":
            like = self.host[alike[0]]
            self.shapes[name] = [self.short(f"{like}.shape[{i}]") for i in range(node.rank)]
            return f"torch.empty_like({like})"
        if stage.is_statistic(node):
            kept = ["1" if i in stage.dims else t for i, t in enumerate(texts)]
            texts = kept if shape == stage.kept else [t for i, t in enumerate(texts) if i not in stage.dims]
        elif stage.kind == "total":
            texts = ["1"] * len(shape)
        if len(texts) != len(shape):
            raise Unfit("a result whose shape isn't known on the host")
        device = next(n.text for n in self.graph.nodes if n.op == "input")
        known = [a for n in stage.nodes for a in n.args if a in self.host] + [
            n for n in self.graph.nodes if n.op == "input"
        ]
        dtype = next(
            (f"{self.host[a]}.dtype" for a in known if a.dtype == node.dtype and self.simple(a)),
            str(node.dtype),
        )
        texts = self.named(texts)
        self.shapes[name] = texts
        size = ", ".join(texts) if texts else "()"
        return f"torch.empty({size}, device={device}.device, dtype={dtype})"

    def named(self, texts: list[str]) -> list[str]:
        """Dimensions that are formulas get a name first."""
        found = []
        for text in texts:
            if not re.fullmatch(r"[\w.]+(\[\d\])?", text):
                name = self.bound.get(text) or self.fresh("size")
                if text not in self.bound:
                    self.lines.append(f"{name} = {text}")
                self.bound[text] = text = name
            found.append(text)
        return found

    def launch(self, kernel: Kernel) -> None:
        """The sizes that are used twice, or are no names, get a name; then the call."""
        arguments = [text for _, text in kernel.pointers]
        grid = self.short(kernel.grid)
        kernel.constants = {n: self.short(t) for n, t in kernel.constants.items()}
        for name, text in kernel.sizes.items():
            text = self.short(text)
            if not re.fullmatch(r"self\.[\w.]+(\[\d\])?|[A-Za-z_]\w*|\d+", text):
                known = self.bound.get(text)
                if known is None:
                    known = self.bound[text] = self.fresh(name)
                    self.lines.append(f"{known} = {text}")
                grid = grid.replace(text, known)
                kernel.constants = {n: t.replace(text, known) for n, t in kernel.constants.items()}
                text = known
            arguments.append(text)
        arguments += [f"{n}={t}" for n, t in kernel.constants.items()]
        self.lines.append(f"{kernel.name}[{grid}]({', '.join(arguments)})")

    # ---- the class ----

    def model(self) -> str:
        """Model's class with the new forward, named ModelNew."""
        cls = model_class(self.task)
        methods = {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}
        parts = ["class ModelNew(nn.Module):"]
        if "__init__" in methods:
            text = ast.unparse(without_docstrings(methods["__init__"])).replace(
                "super(Model, self)", "super()"
            )
            parts += [indent(text), ""]
        arguments = ast.unparse(without_annotations(methods["forward"].args))
        ranks = {
            text: node.rank
            for node, text in self.host.items()
            if self.simple(node) or text.endswith(".weight")
        }
        lines = unpacked(self.lines, ranks, self.taken)
        parts += [f"    def forward({arguments}):", *(f"        {line}" for line in lines)]
        return "\n".join(parts) + "\n"


def indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def without_docstrings(function: ast.FunctionDef) -> ast.FunctionDef:
    body = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    function.body = body or [ast.Pass()]
    without_annotations(function.args)
    function.returns = None
    return function


def without_annotations(arguments: ast.arguments) -> ast.arguments:
    for a in (*arguments.args, *arguments.kwonlyargs):
        a.annotation = None
    return arguments
