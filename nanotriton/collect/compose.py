"""Route compose: a module in, a `ModelNew` in Triton out, as a person would write it.

The class keeps `Model`'s constructor, so that its parameters are the same; only forward changes. Sizes are
read from the inputs' shapes and hyperparameters from the layers; the only numbers in a kernel are those
that the task's own text has, those that define an operator (the 0.5 of GELU) and the sizes of blocks.
"""

import ast
import re
from dataclasses import dataclass, field

import torch
from torch import nn

from nanotriton.collect.emit import attention, conv, gather, matmul, pointwise, pool, rank, rows, scan
from nanotriton.collect.emit.kernel import Kernel
from nanotriton.collect.fuse import Stage, fuse
from nanotriton.collect.ir import Graph, Node, Unfit
from nanotriton.collect.names import unpacked
from nanotriton.collect.trace import trace
from nanotriton.tasks.task import Task

ANCHORS = {"matmul": matmul, "conv": conv, "pool": pool, "scan": scan, "rank": rank, "attention": attention}
UNSAID = (
    "view",
    "bias",
    "centred",
    "square",
    "affine",
    "scaled",
    "shifted",
    "exp",
    "difference",
    "chosen",
    "product",
)
HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"


@dataclass
class Composed:
    """A solution with what is known of it: its stages are what the reasoning is told from."""

    source: str
    stages: list[Stage]
    graph: Graph
    kernels: list[Kernel] = field(default_factory=list)


def compose(task: Task, looped: bool | None = None) -> Composed:
    """Write `ModelNew` for a task. looped: go over rows block by block; None: where a row of the task's own
    size doesn't fit.

    Raises Unfit, with one line that says why, for what it doesn't cover.
    """
    graph = graph_of(task)
    stages = fuse(graph)
    return Assembly(task, graph, stages, looped).write()


def graph_of(task: Task) -> Graph:
    """The operator graph of a task's Model, on its own inputs' shapes. Nothing is allocated: all is on the
    meta device.
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

    def __init__(self, task: Task, graph: Graph, stages: list[Stage], looped: bool | None):
        self.task, self.graph, self.stages, self.looped = task, graph, stages, looped
        self.host: dict[Node, str] = {}  # what each tensor in memory is called in forward
        self.lines: list[str] = []
        self.taken = {n.name for n in graph.nodes if n.op == "input"} | {
            "self",
            "torch",
            "triton",
            "tl",
            "nn",
        }
        self.kernels: list[Kernel] = []
        self.bound: dict[str, str] = {}  # what forward has a name for: text -> name

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
        self.lines.append(
            f"return {', '.join(results)}" + ("," if self.graph.returns_tuple and len(results) == 1 else "")
        )
        kernels = [k.source() for k in self.kernels]
        head = HEAD + (
            "from triton.language.extra import libdevice\n" if "libdevice." in "".join(kernels) else ""
        )
        functions = dict.fromkeys(
            f.rstrip() for k in kernels for f in k.split("\n\n\n")
        )  # two kernels may need the same helper
        source = "\n\n\n".join([head.rstrip(), *functions, self.model()])
        return Composed(source, self.stages, self.graph, self.kernels)

    def views(self) -> None:
        """Host expressions of the views of what has come to lie in memory."""
        for node in self.graph.nodes:
            if node.op == "view" and node not in self.host and node.args[0] in self.host:
                text = self.host[node.args[0]]
                self.host[node] = node.text.replace("{0}", text)

    def fresh(self, base: str) -> str:
        name, number = base, 1
        while name in self.taken:
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return name

    # ---- one stage ----

    def stage(self, stage: Stage) -> None:
        kernel = Kernel(self.kernel_name(stage))
        texts = self.dims(stage)
        outs = {node: self.fresh("out" if node in self.graph.outputs else node.name) for node in stage.stored}
        for node, name in outs.items():
            view, like = self.only_view(node, stage)
            self.lines.append(
                f"{name} = " + (f"torch.empty_like({like})" if view else self.allocation(node, stage, texts))
            )
            if view:
                self.host[view] = name
        host = dict(self.host)
        if stage.kind == "pointwise":
            pointwise.emit(kernel, stage, host, outs, texts)
        elif stage.kind == "total":
            pointwise.emit_total(kernel, stage, host, outs, texts)
        elif stage.kind == "rows":
            rows.emit(kernel, stage, host, outs, texts, self.is_looped(stage))
        else:
            ANCHORS.get(stage.kind, gather).emit(kernel, stage, host, outs, texts)
        if kernel.zeroed:
            self.lines[-1] = self.lines[-1].replace("torch.empty", "torch.zeros")
        self.launch(kernel)
        self.kernels.append(kernel)
        self.host |= outs

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

    def is_looped(self, stage: Stage) -> bool:
        length = torch.Size([stage.full[d] for d in stage.dims]).numel()
        return length > rows.ONE_PASS if self.looped is None else self.looped

    def kernel_name(self, stage: Stage) -> str:
        """After its operators, at most three."""
        said = [n.said for n in stage.nodes if n.said not in UNSAID and n.op != "reduce"]
        said = said or [n.said for n in stage.nodes if n.op == "reduce"]
        words = list(dict.fromkeys(said or [n.said for n in stage.nodes]))
        name = "_".join(words if len(words) <= 3 else [words[0], "fused"])
        return self.fresh(f"{name}_kernel")

    def dims(self, stage: Stage) -> list[str]:
        """Each dimension of the stage's elements, on the host."""
        if stage.anchor is not None:
            return ANCHORS.get(stage.kind, gather).out_dims(stage, self.host)
        operands = [a for n in stage.nodes for a in n.args if a in self.host]
        found: list[str] = []
        for d, n in enumerate(stage.full):
            texts = [
                self.dim(a, d - len(stage.full)) for a in operands if self.has(a, d - len(stage.full), n)
            ]
            found.append(texts[0] if texts else "1")
        whole = [a for a in operands if tuple(a.shape) == stage.full and self.simple(a)]
        return [self.dim(whole[0], d - len(stage.full)) for d in range(len(stage.full))] if whole else found

    def simple(self, a: Node) -> bool:
        return self.host[a].isidentifier()

    def has(self, a: Node, d: int, n: int) -> bool:
        return a.rank >= -d and a.shape[d] == n and (n != 1 or a.rank == 0)

    def dim(self, a: Node, d: int) -> str:
        if a.op == "view" and a.attrs["dims"]:
            return a.attrs["dims"][a.rank + d].replace("{0}", self.host[a.args[0]])
        return f"{self.host[a]}.shape[{a.rank + d}]"

    def allocation(self, node: Node, stage: Stage, texts: list[str]) -> str:
        shape = node.shape
        operands = [
            a for n in stage.nodes if n is not stage.anchor for a in n.args
        ]  # what an anchor reads is like its result by chance only
        alike = [
            a
            for a in operands
            if a in self.host and a.shape == shape and a.dtype == node.dtype and self.simple(a)
        ]
        if alike and stage.kind != "total":
            return f"torch.empty_like({self.host[alike[0]]})"
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
        size = ", ".join(texts) if texts else "()"
        return f"torch.empty({size}, device={device}.device, dtype={dtype})"

    def launch(self, kernel: Kernel) -> None:
        """The sizes that are used twice, or are no names, get a name; then the call."""
        arguments = [text for _, text in kernel.pointers]
        grid = kernel.grid
        for name, text in kernel.sizes.items():
            if not re.fullmatch(r"self\.[\w.]+(\[\d\])?|[A-Za-z_]\w*", text):
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
        tree = ast.parse(self.task.source)
        cls = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model")
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
