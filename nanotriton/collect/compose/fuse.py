"""Cuts an operator graph into stages: each stage becomes one kernel.

A stage is element-wise ("pointwise"), or combines rows ("rows": one or more reductions along the same
dimensions, with what is done to the elements before and after), or sums everything up ("total"), or has an
anchor with the element-wise operators after it as its epilogue. Nodes are taken in order. An element-wise
node joins the stage of its latest argument if it fits there; one whose arguments all lie in memory waits
("floats") until somebody needs it, so that it is computed where it is used.
"""

from dataclasses import dataclass, field

import torch

from nanotriton.collect.compose.ir import Graph, Node, Unfit

ALONE = ("total", "rank", "attention")  # kernels that nothing else is computed in


@dataclass(eq=False)
class Stage:
    kind: str  # "pointwise", "rows", "total" or an anchor's op
    full: tuple[int, ...]  # the shape that its elements range over
    number: int
    nodes: list[Node] = field(default_factory=list)  # computed in this order
    dims: tuple[int, ...] = ()  # of "rows": the dimensions that its reductions combine
    anchor: Node | None = None
    stored: list[Node] = field(default_factory=list)  # what it leaves in memory

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of a reduction's result, with the dimensions that it combined."""
        return tuple(1 if i in self.dims else n for i, n in enumerate(self.full))

    def is_statistic(self, node: Node) -> bool:
        """Whether a node of a rows stage has one value a row."""
        squeezed = tuple(n for i, n in enumerate(self.full) if i not in self.dims)
        return self.kind == "rows" and node.shape != self.full and node.shape in (self.kept, squeezed)

    def holds(self, node: Node) -> bool:
        """Whether this stage could compute and store a node of this shape."""
        return node.shape == self.full or self.is_statistic(node)

    def check_vectors(self) -> None:
        """Beside a square matrix [N, N] a vector [N] may be one of a row's statistics or, where it meets the
        matrix, a row itself. A shape doesn't tell which. Raises Unfit where it is the second.
        """
        for node in self.nodes:
            for a in node.args if node.op == "map" and node.shape == self.full else ():
                of_a_row = (1,) * (len(self.full) - a.rank) + tuple(a.shape)
                if a.rank < len(self.full) and self.is_statistic(a) and of_a_row != self.kept:
                    raise Unfit("a vector as long as both sides of a square matrix")


class Fuser:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.stages: list[Stage] = []
        self.inside: dict[Node, Stage] = {}  # where a node is computed, if it has been decided

    def run(self) -> list[Stage]:
        wanted = reachable(self.graph)
        for node in self.graph.nodes:
            if node in wanted and not node.materialised:
                {"map": self.map, "view": self.view, "reduce": self.reduce}.get(node.op, self.open_anchor)(
                    node
                )
        for node in (*self.graph.outputs, *self.graph.effects):
            self.settle(node)
        self.store(wanted)
        for stage in self.stages:
            stage.check_vectors()
        return self.stages

    # ---- what a node has to wait for ----

    def ready(self, node: Node) -> int:
        """The number of the last stage that must have run before a node that is in no stage can be read or
        computed; -1: none.
        """
        if node.materialised:
            return -1
        if node in self.inside:
            return self.inside[node].number
        return max((self.ready(a) for a in node.args), default=-1)

    def in_memory(self, node: Node) -> bool:
        """Whether a kernel that comes after `ready(node)` finds it in memory."""
        return node.materialised or node in self.inside or (node.op == "view" and not node.attrs["alias"])

    # ---- one method for each kind of node ----

    def open(self, kind: str, full: tuple[int, ...]) -> Stage:
        self.stages.append(Stage(kind, full, len(self.stages)))
        return self.stages[-1]

    def pull(self, node: Node, stage: Stage) -> None:
        """Put a floating node, and the floating ones that it is made of, into a stage."""
        if node in stage.nodes or self.in_memory(node):
            return
        for a in node.args:
            self.pull(a, stage)
        stage.nodes.append(node)
        if stage.holds(node):
            self.inside[node] = stage

    def join(self, node: Node) -> Stage | None:
        """The stage of the node's latest argument, if the node can be computed there."""
        stages = [self.inside[a] for a in self.leaves(node) if a in self.inside]
        if not stages:
            return None
        stage = max(stages, key=lambda s: s.number)
        others = [a for a in self.leaves(node) if self.inside.get(a) is not stage]
        if any(self.ready(a) >= stage.number for a in others) or stage.kind in ALONE:
            return None
        return stage

    def leaves(self, node: Node) -> list[Node]:
        """The node's arguments that are in memory or in a stage, looking through floating ones."""
        found = []
        for a in node.args:
            found += [a] if self.in_memory(a) else self.leaves(a)
        return found

    def map(self, node: Node) -> None:
        stage = self.join(node)
        if stage and stage.holds(node):
            self.pull(node, stage)

    def view(self, node: Node) -> None:
        if node.attrs["alias"]:
            stage = self.inside.get(node.args[0])
            if stage and stage.kind not in ALONE and stage.holds(node):
                self.pull(node, stage)
        else:
            self.settle(node.args[0])

    def reduce(self, node: Node) -> None:
        x, dims = node.args[0], node.attrs["dims"]
        if len(dims) == x.rank:
            self.total(node)
            return
        stage = self.inside.get(x)
        if all(x.shape[d] == 1 for d in dims) and node.text in ("sum", "mean", "max", "min", "prod"):
            # Of one element: it is that element.
            gone = [] if node.attrs["keepdim"] else sorted(dims, reverse=True)
            text = "{0}" + "".join(f".squeeze({d})" for d in gone)
            node.op = "view"
            node.text = text
            node.attrs = {"alias": True, "dims": ()}
            self.view(node)
            return
        if not (stage and x.shape == stage.full and self.takes(stage, dims)):
            stage = self.companion(node) or self.open("rows", x.shape)
        stage.kind, stage.dims = "rows", dims
        self.pull(x, stage)
        stage.nodes.append(node)
        self.inside[node] = stage

    def companion(self, node: Node) -> Stage | None:
        """A stage that goes over rows of this kind already, and begins when what is reduced lies
        in memory."""
        x = node.args[0]
        alike = [
            s for s in self.stages if s.kind == "rows" and s.full == x.shape and s.dims == node.attrs["dims"]
        ]
        return next((s for s in reversed(alike) if self.ready(x) < s.number), None)

    @staticmethod
    def takes(stage: Stage, dims: tuple[int, ...]) -> bool:
        return stage.kind == "pointwise" or (stage.kind == "rows" and stage.dims == dims)

    def total(self, node: Node) -> None:
        """A reduction of everything: a sum of all programs' sums."""
        x = node.args[0]
        if node.text not in ("sum", "mean", "max", "min") or node.dtype != torch.float32:
            raise Unfit(f"{node.text} of a whole tensor, in {node.dtype}")
        stage = self.inside.get(x)
        if not (stage and stage.kind == "pointwise"):
            stage = self.open("total", x.shape)
        stage.kind = "total"
        self.pull(x, stage)
        stage.nodes.append(node)
        self.inside[node] = stage

    def open_anchor(self, node: Node) -> None:
        """A scan computes what it scans itself; the other anchors read memory."""
        for a in node.args if node.op != "scan" else ():
            self.settle(a)
        stage = self.open(node.op, node.shape)
        if node.op == "scan":
            self.pull(node.args[0], stage)
        stage.anchor = node
        stage.nodes.append(node)
        self.inside[node] = stage

    def settle(self, node: Node) -> None:
        """Make sure that a node will be in memory: one that floats gets an element-wise stage of its own."""
        if node.op == "view" and node not in self.inside:
            self.settle(node.args[0])
        elif not self.in_memory(node):
            stage = self.open("pointwise", node.shape)
            self.pull(node, stage)

    def store(self, wanted: set[Node]) -> None:
        """Every stage stores what a later stage, a view on the host or the caller reads."""
        for stage in self.stages:
            for node in stage.nodes:
                if self.inside.get(node) is stage and self.read_outside(node, stage, wanted):
                    stage.stored.append(node)
            if not stage.stored:
                raise Unfit("a kernel that leaves nothing")

    def read_outside(self, node: Node, stage: Stage, wanted: set[Node]) -> bool:
        if node in self.graph.outputs or node in self.graph.effects:
            return True
        users = [u for u in wanted if node in u.args]
        return any(
            u not in stage.nodes or any(u in other.nodes for other in self.stages if other is not stage)
            for u in users
        )


def reachable(graph: Graph) -> set[Node]:
    """The nodes that the outputs are made of."""
    found, todo = set(), [*graph.outputs, *graph.effects]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.args
    return found


def fuse(graph: Graph) -> list[Stage]:
    """The graph's stages in the order in which they run. Raises Unfit."""
    return Fuser(graph).run()
