"""Names that mean something: tensors by what the host passes, sizes by the dimension, indices by the size
that they run over, values by what they are.

A value takes over the name of one that is not read again, as a person writes `x = tl.exp(x)`; but never a
name that another block has for something else, because Triton carries names through loops.
"""

import ast
import re
from collections import Counter

from nanotriton.collect.compile.lines import blocks, loaded, stored
from nanotriton.collect.compose.names import distinct

SHORT = {
    "width": "w",
    "height": "h",
    "depth": "d",
    "channels": "c",
    "out_channels": "c",
    "in_channels": "c",
    "batch": "b",
    "rows": "row",
    "cols": "col",
    "features": "feature",
    "out_features": "feature",
    "in_features": "k",
    "out_width": "w",
    "out_height": "h",
    "out_depth": "d",
}
SLOWER = {"w": "h", "h": "c", "d": "c", "c": "b", "col": "row", "row": "b", "feature": "row", "k": "row"}
LAYOUTS = {2: ("col", "row"), 3: ("col", "row", "b"), 4: ("w", "h", "c", "b"), 5: ("w", "h", "d", "c", "b")}
TAPS = ("kw", "kh", "kd")
FIXED = {
    "flat": {"xindex": "index", "xmask": "mask"},
    "lane": {"xindex": "index", "xmask": "mask", "r0_index": "k"},
    "row": {"xindex": "row", "r0_index": "col", "r0_mask": "mask"},
    "tiles": {"xindex": "col", "yindex": "row", "zindex": "b", "k": "k"},
}
BLOCKS = {
    "flat": {"XBLOCK": "BLOCK"},
    "lane": {"XBLOCK": "BLOCK"},
    "row": {"R0_BLOCK": "BLOCK"},
    "tiles": {"YBLOCK": "BLOCK_M", "XBLOCK": "BLOCK_N", "R0_BLOCK": "BLOCK_K"},
}
RESULTS = {
    "tl.sum": "total",
    "tl.max": "largest",
    "tl.min": "smallest",
    "tl.argmax": "place",
    "tl.argmin": "place",
    "tl.rsqrt": "scale",
    "tl.dot": "acc",
    "tl.zeros": "acc",
    "tl.full": "best",
    "tl.where": "chosen",
    "tl.cumsum": "running",
    "tl.cumprod": "running",
}


class Names:
    """Chooses a name for each of a kernel's variables. form: its kind; given: parameters' names."""

    def __init__(self, function: ast.FunctionDef, form: str, given: dict[str, str], conv: bool):
        self.function, self.form, self.conv = function, form, conv
        self.names = dict(given)
        self.taken: set[str] = set(given.values())
        self.owner: dict[str, int] = {}  # a variable's name -> the block that has it
        self.bound: dict[str, str] = {}  # new name -> old name that has it now
        self.parameters: set[str] = set()  # values that were loaded from the module's parameters
        self.written = stores_of(function)

    def fresh(self, base: str) -> str:
        name = distinct(base, self.taken)
        self.taken.add(name)
        return name

    def choose(self) -> dict[str, str]:
        """old name -> new name, of everything."""
        self.names |= {old: self.fresh(new) for old, new in BLOCKS[self.form].items()}
        used = loaded(self.function) | stored(self.function)
        for old, new in FIXED[self.form].items():
            if old in used and old not in self.names:
                looped = old == "r0_index" and self.form == "lane"
                self.names[old] = self.fresh(self.lane() if looped else new)
        self.places()
        for number, lines in enumerate(blocks(self.function)):
            self.block(number, lines)
        for old in sorted(stored(self.function) - set(self.names)):
            self.names[old] = self.fresh("value")
        return self.names

    def lane(self) -> str:
        """The index of a lane's loop: after the size that it runs over."""
        sizes = [ast.unparse(n.iter.args[1]) for n in ast.walk(self.function) if isinstance(n, ast.For)]
        return SHORT.get(self.names.get(sizes[0], ""), "k") if sizes else "k"

    # ---- indices

    def places(self) -> None:
        """Parts of an index: `x1 = xindex // width % height` is h."""
        found: list[tuple[int, str, str | None]] = []  # (how much it is divided by, name, over what it runs)
        for lines in blocks(self.function):
            for line in lines:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    old = line.targets[0].id
                    if re.fullmatch(r"[xyz]\d+|r0_\d+", old):
                        found.append((divisor(line.value), old, modulus(line.value)))
        order = sorted(found)
        mine = [old for _, old, over in order if old[0] == "x" and (over is None or "*" not in over)]
        usual = dict(zip(mine, LAYOUTS.get(len(mine), ())))
        taps, last = list(TAPS), {"x": "", "r": ""}
        for _, old, over in order:
            tap = self.conv and old[0] == "r" and over is not None and over.isdigit()
            base = taps.pop(0) if tap and taps else self.place(old, over, usual, last)
            if base != "place":
                last[old[0]] = base
            self.names[old] = self.fresh(base)

    def place(self, old: str, over: str | None, usual: dict[str, str], last: dict[str, str]) -> str:
        """The name of a part of an index that runs over a size; None: over what is left."""
        name = self.names.get(over or "", over)
        if self.conv and old[0] == "r" and over is None:
            return "c"
        if over is not None and "*" in over:
            return "place"
        if name in SHORT:
            return SHORT[name]
        if over is None and last.get(old[0]) in SLOWER:
            base = SLOWER[last[old[0]]]
            while base in self.taken and base in SLOWER:
                base = SLOWER[base]
            return base
        return usual.get(old, "i" if old[0] == "x" else "j")

    # ---- values

    def block(self, number: int, lines: list[ast.stmt]) -> None:
        for at, line in enumerate(lines):
            if isinstance(line, ast.For):
                for name in stored(line.target):
                    if name not in self.names:
                        self.names[name] = self.fresh("start" if name == "start" else name)
                continue
            if not isinstance(line, ast.Assign):
                continue
            targets = sorted(stored(line.targets[0]))
            for old in targets:
                if old not in self.names:
                    self.name(number, lines, at, old, line.value)

    def name(self, number: int, lines: list[ast.stmt], at: int, old: str, value: ast.expr) -> None:
        heir = self.heir(number, lines, at, old, value)
        if heir:
            self.names[old] = self.names[heir]
        else:
            self.names[old] = self.fresh(self.base(value))
        if function_of(value) == "tl.load" and re.search(r"(weight|bias|mean|var)(_\d+)?$", self.names[old]):
            self.parameters.add(old)
        self.owner[old] = number

    def heir(self, number: int, lines: list[ast.stmt], at: int, old: str, value: ast.expr) -> str | None:
        """A variable of the same block that this line reads last, and whose name the new one takes over."""
        called = function_of(value)
        if self.written[old] > 1 or called in RESULTS or called == "tl.load" or reduces(value):
            return None
        if isinstance(value, ast.Compare) or is_logical(value):
            return None
        later = set().union(*(loaded(line) for line in lines[at + 1 :])) if lines[at + 1 :] else set()
        # a value takes the name of what it is made of, rather than that of a parameter
        candidates = sorted(read_in_order(value), key=lambda name: name in self.parameters)
        for name in candidates:
            if self.owner.get(name) != number or not self.settled(name, lines[at:]):
                continue
            alive = name in later or self.read_elsewhere(name, lines)
            shared = any(
                self.names[other] == self.names[name] and other != name and other in later
                for other in self.owner
                if other in self.names
            )
            if not alive and not shared:
                return name
        return None

    def settled(self, name: str, lines: list[ast.stmt]) -> bool:
        """Whether a name is not assigned any more: always so of what is assigned once, and of an accumulator
        behind its loop.
        """
        return self.written[name] == 1 or not any(name in stored(line) for line in lines)

    def read_elsewhere(self, name: str, lines: list[ast.stmt]) -> bool:
        """Whether a block that is not inside these lines reads a name."""
        inside = sum(name in names_loaded(line) for line in walk(lines))
        return inside < sum(name in names_loaded(line) for line in walk(self.function.body))

    def base(self, value: ast.expr) -> str:
        called = function_of(value)
        if called == "tl.load":
            pointer = value.args[0]
            while isinstance(pointer, ast.BinOp):
                pointer = pointer.left
            return self.names.get(ast.unparse(pointer), "value_ptr").removesuffix("_ptr")
        if called == "tl.zeros" and "int" in ast.unparse(value):
            return "place"
        if called in RESULTS:
            return RESULTS[called]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) and self.is_total(value.left):
            return "variance" if self.squares(value.left) else "mean"
        if isinstance(value, ast.Compare) or is_logical(value):
            return "inside"
        if re.fullmatch(r"(tl|libdevice)\.\w+", called):
            return called.split(".")[1]
        return self.base_of_sum(value)

    def base_of_sum(self, value: ast.expr) -> str:
        """The name of what arithmetic makes."""
        if integral_of(value):
            tap = next((self.names[n][1] for n in read_in_order(value) if self.names.get(n) in TAPS), "")
            return f"i{tap}" if tap else "position"
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
            return "centred" if reduces(value) or "mean" in self.read_names(value) else "difference"
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            same = ast.unparse(value.left) == ast.unparse(value.right)
            return "square" if same else "product"
        return "value"

    def read_names(self, value: ast.expr) -> list[str]:
        return [self.names.get(name, name) for name in read_in_order(value)]

    def squares(self, value: ast.expr) -> bool:
        """Whether a sum is one of squares."""
        products = (n for n in ast.walk(value) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult))
        return any(ast.unparse(n.left) == ast.unparse(n.right) for n in products) or "square" in " ".join(
            self.read_names(value)
        )

    def is_total(self, node: ast.expr) -> bool:
        named = isinstance(node, ast.Name) and self.names.get(node.id, "").startswith(("total", "acc"))
        return named or function_of(node) == "tl.sum"


def stores_of(function: ast.FunctionDef) -> Counter:
    found = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return Counter(found)


def walk(lines: list[ast.stmt]):
    """Simple statements and loops' heads."""
    for line in lines:
        if isinstance(line, ast.For):
            yield ast.Expr(line.iter)
            yield from walk(line.body)
        else:
            yield line


def names_loaded(line: ast.stmt) -> set[str]:
    added = isinstance(line, ast.AugAssign) and isinstance(line.target, ast.Name)
    return loaded(line) | ({line.target.id} if added else set())


def read_in_order(value: ast.AST) -> list[str]:
    """The names that a value reads, as they come in the text."""
    if isinstance(value, ast.Name):
        return [value.id] if isinstance(value.ctx, ast.Load) else []
    found = (name for child in ast.iter_child_nodes(value) for name in read_in_order(child))
    return list(dict.fromkeys(found))


def function_of(value: ast.expr) -> str:
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def integral_of(value: ast.expr) -> bool:
    """Whether a value is a sum of indices."""
    places = re.compile(r"[xyz]\d+|r0_\d+|[xyz]index|r0_index|ks\d+")
    read = read_in_order(value)
    return isinstance(value, ast.BinOp) and bool(read) and all(places.fullmatch(n) for n in read)


def reduces(value: ast.expr) -> bool:
    """Whether a value is made by a reduction: it has another shape than what it is made of."""
    calls = (n for n in ast.walk(value) if isinstance(n, ast.Call))
    return any(k.arg == "axis" for call in calls for k in call.keywords)


def is_logical(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitAnd | ast.BitOr)


def divisor(value: ast.expr) -> int:
    """How many sizes an index is divided by before its remainder is taken: the order of the dimensions."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        value = value.left
        extra = 0
    else:
        extra = 1000  # the slowest comes last
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.FloorDiv):
        sizes = [n for n in ast.walk(value.right) if isinstance(n, ast.Name)]
        numbers = [n.value for n in ast.walk(value.right) if isinstance(n, ast.Constant)]
        return extra + 100 * len(sizes) + min(sum(numbers), 99)
    return extra


def modulus(value: ast.expr) -> str | None:
    """Over what an index runs: the text of its modulus."""
    mod = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod)
    return ast.unparse(value.right) if mod else None


class Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def renamed(function: ast.FunctionDef, form: str, given: dict[str, str], conv: bool) -> dict[str, str]:
    """Rename a kernel's variables in place; old name -> new name. given: of its parameters."""
    names = Names(function, form, given, conv).choose()
    Rename(names).visit(function)
    for lines in blocks(function):
        for line in list(lines):
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == ast.unparse(line.value):
                lines.remove(line)
    ast.fix_missing_locations(function)
    return names
