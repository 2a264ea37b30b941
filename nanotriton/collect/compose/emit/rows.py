"""Reductions along some dimensions, with the element-wise operators before and after them: softmax, norms,
sums of rows.

Two ways to go over a row, both right at any length. `looped`: a program goes over its row block by block,
once for each reduction that needs the one before, and once more for what is stored. `lanes`: where the row
isn't contiguous (the sum over dimension 1 of [batch, channels, pixels]), each lane has a row of its own and
goes over it element by element.

What a reduction gathers has the name of its result from the start: `total` is a block of partial sums in
the loop, and their sum after it.
"""

from collections import Counter

import torch

from nanotriton.collect.compose.emit.kernel import Body, Group, Kernel, Space, last_uses
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import FLOATS, Node, Unfit

BLOCK = 1024
IDENTITY = {
    "sum": "0.0",
    "mean": "0.0",
    "prod": "1.0",
    "max": '-float("inf")',
    "min": 'float("inf")',
    "any": "0",
    "all": "1",
    "argmax": '-float("inf")',
    "argmin": 'float("inf")',
}
ACROSS = {
    "sum": "tl.sum({0}, axis=0)",
    "mean": "tl.sum({0}, axis=0)",
    "prod": "tl.reduce({0}, 0, multiply)",
    "max": "tl.max({0}, axis=0)",
    "min": "tl.min({0}, axis=0)",
    "any": "tl.max({0}, axis=0) != 0",
    "all": "tl.min({0}, axis=0) != 0",
}
UPDATE = {
    "sum": "{1} += {0}",
    "mean": "{1} += {0}",
    "prod": "{1} *= {0}",
    "max": "{1} = tl.maximum({1}, {0})",
    "min": "{1} = tl.minimum({1}, {0})",
    "any": "{1} = tl.maximum({1}, {0}.to(tl.int32))",
    "all": "{1} = tl.minimum({1}, {0}.to(tl.int32))",
}
POSITIONS = {"argmax": ("max", ">"), "argmin": ("min", "<")}
MULTIPLY = "@triton.jit\ndef multiply(a, b):\n    return a * b\n"
INTEGER_IDENTITY = {"max": "-2147483648", "min": "2147483647", "sum": "0", "mean": "0", "prod": "1"}


def identity(node: Node) -> str:
    """What doesn't change the reduction, of the type that is reduced."""
    if node.args[0].dtype in FLOATS or node.args[0].dtype == torch.bool or node.text not in INTEGER_IDENTITY:
        return IDENTITY[node.text]
    return INTEGER_IDENTITY[node.text]


def gathered_type(r: Node) -> str:
    """Of the partial results of a reduction."""
    if r.text in ("any", "all"):
        return "tl.int32"
    if r.args[0].dtype in FLOATS:
        return "tl.float32"
    return "tl.int64" if r.dtype == torch.int64 and r.text not in POSITIONS else "tl.int32"


def tail(node: Node, known: dict[Node, str]) -> str | None:
    """What the lanes past the end of the row hold of a node, if it is certain: -inf stays -inf under a shift,
    exp makes 0 of it.
    """
    if node in known:
        return known[node]
    if node.op != "map":
        return None
    first = tail(node.args[0], known)
    if first == '-float("inf")' and node.text in ("tl.exp({0} - {1})", "tl.exp({0})"):
        return "0.0"
    if first == '-float("inf")' and node.text == "{0} - {1}":
        return first
    if first == "0.0" and node.text in ("{0} * {0}", "tl.abs({0})", "-{0}"):
        return first
    if first == "0.0" and node.text == "{0} * {1}" and tail(node.args[1], known) == "0.0":
        return first  # 0 times what isn't known may be NaN
    return None


def emit(
    kernel: Kernel,
    stage: Stage,
    host: dict[Node, str],
    outs: dict[Node, str],
    dim_texts: list[str],
) -> None:
    _, after = split_dims(stage)
    (Lanes if after else Looped)(kernel, stage, host, outs, dim_texts).write()


def split_dims(stage: Stage) -> tuple[tuple | None, tuple]:
    """The dimensions before and after those that are reduced. before is None if the reduced ones lie around
    the kept ones.
    """
    dims, rank = stage.dims, len(stage.full)
    others = tuple(d for d in range(rank) if d not in dims)
    if dims == tuple(range(dims[0], dims[-1] + 1)):
        after = tuple(d for d in others if d > dims[-1])
        if all(stage.full[d] == 1 for d in after):  # each row is contiguous all the same
            return tuple(d for d in others if d < dims[0]), ()
        return tuple(d for d in others if d < dims[0]), after
    if others != tuple(range(others[0], others[-1] + 1)):
        raise Unfit("a reduction along dimensions that are mixed with others")
    return None, ()


class Row:
    """What both ways share: the reductions in order, and the body."""

    def __init__(self, kernel: Kernel, stage: Stage, host, outs, dim_texts: list[str]):
        self.kernel, self.stage, self.host, self.outs, self.dim_texts = kernel, stage, host, outs, dim_texts
        self.last = last_uses(stage)
        readers = Counter(a for n in stage.nodes for a in n.args)
        self.only = {a: user for a, user in self.last.items() if readers[a] == 1}  # of a row's statistics
        self.reductions = [n for n in stage.nodes if n.op == "reduce"]
        self.best: dict[Node, str] = {}  # of argmax and argmin: the variable of the value itself
        kernel.taken |= {"row", "col", "mask", "BLOCK"}
        self.space = self.make_space()
        matrix = {"{row}": "row"} if len(stage.full) == 2 else {}
        places = {} if isinstance(self, Lanes) else {"{col}": "col"} | matrix
        self.body = Body(kernel, self.space, stage, host, places)

    def per_row(self, node: Node) -> bool:
        """Whether a node has one value a row: a statistic, or a map of nothing but those."""
        if node in self.reductions:
            return True
        shape = self.body.expanded(node)
        shape = (1,) * (len(self.stage.full) - len(shape)) + tuple(shape)
        return all(shape[d] == 1 for d in self.stage.dims) and self.stage.full != shape

    def size(self) -> str:
        """The number of elements of a row, in the kernel."""
        return self.kernel.size("cols", self.space.length(self.stage.dims))

    def result(self, node: Node, value: str) -> str:
        return f"{value} / {self.size()}" if node.text == "mean" else value

    def store_row(self, node: Node) -> None:
        place, mask = self.space.place(self.stage.kept)
        self.body.store(node, self.outs[node], place, mask)

    def store_full(self, node: Node) -> None:
        place, mask = self.space.place(self.stage.full)
        self.body.store(node, self.outs[node], place, mask)

    def choose_tails(self, reductions: list[Node]) -> None:
        """A load fills its lanes past the end with what the first reduction of it ignores."""
        for node in reductions:
            source = node.args[0]
            while (
                source.op == "map"
                and source.args
                and source.text in ("{0} * {0}", "tl.abs({0})", "{0} * {1}")
            ):
                source = source.args[0]
            if source not in self.stage.nodes and node.args[0].dtype in FLOATS:
                self.body.other.setdefault(source, identity(node) if source is node.args[0] else "0.0")

    def ending(self, r: Node) -> str:
        """The variable that a reduction reads, with the lanes past the end of the row made harmless where
        they aren't.
        """
        x = self.body.value(r.args[0])
        return x if tail(r.args[0], self.body.other) == identity(r) else f"tl.where(mask, {x}, {identity(r)})"


class Looped(Row):
    """Passes over the row. Each computes what its reductions need, again from what lies in memory."""

    header = "for start in range(0, {cols}, BLOCK):"
    index = "col"  # an element's place in its row

    def make_space(self) -> Space:
        before, _ = split_dims(self.stage)
        self.kernel.taken |= {"start"}
        if before is not None:
            groups = [Group(before, "row", "rows"), Group(self.stage.dims, "col", "cols", "mask")]
        else:  # the reduced dimensions lie around the kept ones: one index counts them, and is taken apart
            kept = [d for d in range(len(self.stage.full)) if d not in self.stage.dims]
            left = tuple(range(kept[0]))
            right = tuple(range(kept[-1] + 1, len(self.stage.full)))
            inner = self.kernel.size(
                "inner", Space(self.stage.full, [], self.dim_texts, self.kernel).length(right)
            )
            before = tuple(kept)
            groups = [
                Group(left, f"(col // {inner})", "batch", "mask"),
                Group(before, "row", "rows"),
                Group(right, f"col % {inner}", "inner", "mask"),
            ]
        space = Space(self.stage.full, groups, self.dim_texts, self.kernel, "mask")
        self.kernel.grid = f"({space.length(before)},)"
        return space

    def write(self) -> None:
        self.kernel.constant("BLOCK", str(BLOCK))
        if len(self.stage.full) > len(self.stage.dims):
            self.kernel.add("row = tl.program_id(0)")
        self.passes()

    def passes(self) -> None:
        done: set[Node] = set()
        self.statistics(done)
        while waiting := [r for r in self.reductions if r not in done]:
            now = [r for r in waiting if not self.unknown(r.args[0], done)]
            self.one_pass(now)
            done |= set(now)
            self.statistics(done)
        for node in self.stage.stored:
            if self.per_row(node):
                self.store_row(node)
        self.last_pass()

    def statistics(self, done: set[Node]) -> None:
        """What has one value a row and is made of what is known by now."""
        for node in self.stage.nodes:
            if self.per_row(node) and node.op != "reduce" and not self.unknown(node, done):
                self.body.compute(node, self.only)

    def unknown(self, node: Node, done: set[Node]) -> bool:
        """Whether a node depends on a reduction that hasn't been computed."""
        if node not in self.stage.nodes:
            return False
        if node.op == "reduce":
            return node not in done
        return any(self.unknown(a, done) for a in node.args)

    def needed(self, nodes: list[Node]) -> list[Node]:
        """The element-wise nodes that these are made of, in order, without what has one value a row."""
        found, todo = set(), list(nodes)
        while todo:
            node = todo.pop()
            if node in self.stage.nodes and node not in found and not self.per_row(node):
                found.add(node)
                todo += node.args
        return [n for n in self.stage.nodes if n in found]

    def one_pass(self, reductions: list[Node]) -> None:
        for node in self.preloaded(reductions):
            self.body.value(node)
        names = {r: self.body.name(r) for r in reductions}
        for r, name in names.items():
            self.start(r, name)
        self.open_loop()
        self.choose_tails(reductions)
        for node in self.needed([r.args[0] for r in reductions]):
            self.body.compute(node, self.last_within(reductions))
        for r, name in names.items():
            self.update(r, name)
        self.close_loop()
        self.body.other.clear()
        for r, name in names.items():
            self.body.variable[r] = name
            self.finish(r, name)

    def preloaded(self, targets: list[Node]) -> list[Node]:
        """What is read in the loop and has one value a row is loaded before it."""
        found = []
        for node in self.needed([t.args[0] if t.op == "reduce" else t for t in targets]):
            for a in node.args if node.op != "view" else ():
                if a not in self.stage.nodes and self.per_row(a):
                    found.append(a)
        return found

    def last_within(self, reductions: list[Node]) -> dict[Node, Node]:
        """Variables are free in this pass only if its own reductions don't read them any more."""
        read = {r.args[0] for r in reductions}
        return {a: user for a, user in self.last.items() if a not in read and not self.per_row(a)}

    def start(self, r: Node, name: str) -> None:
        """The lines before the loop: what is gathered begins with what changes nothing."""
        block = f"tl.full([BLOCK], {identity(r)}, dtype={gathered_type(r)})"
        if identity(r) in ("0.0", "0"):
            block = f"tl.zeros([BLOCK], dtype={gathered_type(r)})"
        if r.text in POSITIONS:
            best = self.kernel.fresh("best")
            self.best[r] = best
            self.kernel.add(f"{best} = {block}", f"{name} = tl.zeros([BLOCK], dtype=tl.int32)")
        else:
            self.kernel.add(f"{name} = {block}")

    def open_loop(self) -> None:
        self.kernel.add(self.header.format(cols=self.size()))
        self.outer, self.kernel.lines = self.kernel.lines, []
        self.kernel.add("col = start + tl.arange(0, BLOCK)", f"mask = col < {self.size()}")

    def close_loop(self) -> None:
        self.kernel.lines = self.outer + [f"    {line}" for line in self.kernel.lines]
        for node in list(self.body.variable):
            if not self.per_row(node):
                del self.body.variable[node]

    def update(self, r: Node, name: str) -> None:
        """The lines in the loop."""
        if r.text not in POSITIONS:
            self.kernel.add(UPDATE[r.text].format(self.ending(r), name))
            return
        value, (_, sign), best = self.ending(r), POSITIONS[r.text], self.best[r]
        self.kernel.add(
            f"{name} = tl.where({value} {sign} {best}, {self.index}, {name})",
            f"{best} = tl.where({value} {sign} {best}, {value}, {best})",
        )

    def finish(self, r: Node, name: str) -> None:
        """The lines after the loop: one value a row. Of equal ones the first one's place counts."""
        if r.text in POSITIONS:
            kind, best = POSITIONS[r.text][0], self.best[r]
            first = f"tl.where({best} == tl.{kind}({best}, axis=0), {name}, {self.size()})"
            self.kernel.add(f"{name} = tl.min({first}, axis=0)")
            return
        if r.text == "prod":
            self.kernel.helpers.append(MULTIPLY)
        self.kernel.add(f"{name} = {self.result(r, ACROSS[r.text].format(name))}")

    def last_pass(self) -> None:
        full = [n for n in self.stage.stored if not self.per_row(n)]
        if not full:
            return
        for node in self.preloaded(full):
            self.body.value(node)
        self.open_loop()
        last = {a: user for a, user in self.last.items() if not self.per_row(a)}
        for node in self.needed(full):
            self.body.compute(node, last)
        for node in full:
            self.store_full(node)
        self.close_loop()


class Lanes(Looped):
    """Each lane goes over a row of its own: `lane` says which, `k` where in the row."""

    header = "for k in range({cols}):"
    index = "k"
    LANES = 256

    def make_space(self) -> Space:
        before, after = split_dims(self.stage)
        self.kernel.taken |= {"lane", "k"}
        groups = [
            Group(before, "row", "rows"),
            Group(self.stage.dims, "k", "cols"),
            Group(after, "lane", "inner", "mask"),
        ]
        return Space(self.stage.full, [g for g in groups if g.dims], self.dim_texts, self.kernel, "mask")

    def write(self) -> None:
        before, after = split_dims(self.stage)
        inner = self.kernel.size("inner", self.space.length(after))
        blocks = f"triton.cdiv({self.space.length(after)}, {self.LANES})"
        self.kernel.constant("BLOCK", str(self.LANES))
        if before:
            self.kernel.grid = f"({self.space.length(before)}, {blocks})"
            self.kernel.add("row = tl.program_id(0)")
        else:
            self.kernel.grid = f"({blocks},)"
        self.kernel.add(
            f"lane = tl.program_id({1 if before else 0}) * BLOCK + tl.arange(0, BLOCK)",
            f"mask = lane < {inner}",
        )
        self.passes()

    def open_loop(self) -> None:
        self.kernel.add(self.header.format(cols=self.size()))
        self.outer, self.kernel.lines = self.kernel.lines, []

    def update(self, r: Node, name: str) -> None:
        value = self.body.value(r.args[0])
        if r.text in POSITIONS:
            super().update(r, name)
        else:
            self.kernel.add(UPDATE[r.text].format(value, name))

    def ending(self, r: Node) -> str:
        return self.body.value(r.args[0])  # a lane is a whole row: none has an end within it

    def finish(self, r: Node, name: str) -> None:
        if r.text == "mean":
            self.kernel.add(f"{name} = {self.result(r, name)}")
        elif r.text in ("any", "all"):
            self.kernel.add(f"{name} = {name} != 0")
