"""One of Inductor's kernels, rewritten towards how a person writes: a block of one axis, no helper where tl
has a function, no alias, no dead line, sizes and values by their names.
"""

import ast
import re

from nanotriton.collect.compile.lines import replace, statements, tidy
from nanotriton.collect.compile.names import renamed
from nanotriton.collect.compile.rewrite import Form, Plain, conjunction, conjuncts, names, parsed
from nanotriton.collect.compile.sizes import Parameter, Sizes, plan
from nanotriton.collect.compile.tiles import tiles
from nanotriton.collect.compose.ir import Unfit
from nanotriton.collect.compose.names import distinct

# What Inductor begins with, and what is written anew for the form.
HEADER = re.compile(r"rnumel|[RXYZ]\w*BLOCK|([xyzr]|r0_)(offset|index|mask|base|numel)")
BLOCKS = {"flat": 1024, "lane": 1024, "row": 1024}  # elements; a row that is held at once has its own
OWN = re.compile(r"triton_helpers\.\w+|tl_math\.\w+|\b[XYZR]\w*BLOCK\b|\b[xyz]\w*mask\b")
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
# What operators are called in a kernel's name, where it isn't as ATen calls them.
SAID = {
    "convolution": "conv",
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "max_pool2d_with_indices": "max_pool",
    "avg_pool2d": "avg_pool",
    "constant_pad_nd": "pad",
    "index_select": "gather",
    "unsafe_index": "gather",
    "linalg_vector_norm": "norm",
    "clone": "copy",
    "to_copy": "cast",
}
UNSAID = ("t", "view", "transpose", "unsqueeze", "squeeze", "expand", "permute", "slice", "select", "arange")
UNSAID += ("unsafe_view", "reshape", "scalar_tensor", "full", "lift_fresh_copy", "detach", "split", "alias")
HEADERS = {
    "flat": ("xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)", "xmask = xindex < xnumel"),
    "lane": ("xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)", "xmask = xindex < xnumel"),
    "row": ("xindex = tl.program_id(0)",),
    "tiles": (),
}
IN_ROW = ("r0_index = tl.arange(0, R0_BLOCK)", "r0_mask = r0_index < r0_numel")


class Kernel:
    """A kernel's function. Raises Unfit for a kind that isn't known.

    comment: Inductor's line about the operators that it comes from.
    """

    def __init__(self, name: str, source: str, comment: str):
        tree = ast.parse(source)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        self.name = name
        self.function = next(f for f in functions if f.name == name)
        self.helpers = [f for f in functions if f.name != name]
        decorator = next(d for d in self.function.decorator_list if isinstance(d, ast.Call))
        given = {k.arg: k.value for k in decorator.keywords}
        signature = entries(entries(given["triton_meta"])["signature"])
        self.parameters = [a.arg for a in self.function.args.args]
        kinds = {p: ast.literal_eval(signature[p]) for p in self.parameters}
        self.pointers = [p for p in self.parameters if kinds[p].startswith("*")]
        self.floats = {p for p in self.pointers if kinds[p] == "*fp32"}
        self.form = self.choose_form(ast.unparse(decorator.func), given)
        self.operators = operators_of(comment)
        self.numels: dict[str, int] = {}
        self.text = ""
        self.sizes: list[Parameter] = []  # what it takes after the pointers, in order
        self.row: ast.expr | None = None  # the size of a row that is held at once

    def choose_form(self, decorator: str, given: dict[str, ast.expr]) -> Form:
        kind = decorator.rsplit(".", 1)[-1]
        if kind not in ("pointwise", "reduction", "persistent_reduction"):
            raise Unfit(f"a kernel of the kind {kind}")
        looped = any(isinstance(n, ast.For) for n in ast.walk(self.function))
        if "tl.dot(" in ast.unparse(self.function):
            return Form("tiles", looped)
        if kind == "pointwise":
            return Form("flat", False)
        inner = ast.unparse(given["reduction_hint"]).endswith("INNER")
        return Form("row" if inner or not looped else "lane", looped)

    @property
    def said(self) -> str:
        """A name from the operators, at most three."""
        return "_".join(self.operators[:3]) or "copy"

    # ---- writing

    def write(self, name: str, sizes: Sizes, launches: list[dict], tensors: dict[str, str]) -> None:
        """Make the text. name: the kernel's; launches: parameter -> size, as an expression in symbols, of
        each launch; tensors: parameter -> what its pointer is called.
        """
        function = self.function
        function.decorator_list = []
        lines = spoken(unaliased(self.without_header(function.body)), self)
        flat = self.form.kind in ("flat", "lane")
        wanted = [p for p in self.parameters if p not in self.pointers and p in launches[0]]
        wanted = [p for p in wanted if not (flat and p == "xnumel")]
        stands, self.sizes = plan(sizes, launches, wanted)
        lines = [Stand(stands).visit(line) for line in lines]
        lines = [Plain(self.form).visit(line) for line in lines]
        head = ast.parse("\n".join(self.head())).body
        function.body = [*(Stand(stands).visit(line) for line in head), *lines]
        if self.form.kind == "tiles":
            tiles(function, stands)
        elif self.form.looped:
            for loop in [line for line in function.body if isinstance(line, ast.For)]:
                self.enter(loop, stands)
        self.row = launches[0].get("r0_numel") if self.form.kind == "row" and not self.form.looped else None
        if flat:
            count = [launch["xnumel"] for launch in launches]
            self.sizes.append(Parameter("xnumel", "n", count))
        ast.fix_missing_locations(function)
        mask_all(function, self.form.kind)
        tidy(function, self.floats)
        self.finish(name, tensors)

    def without_header(self, lines: list[ast.stmt]) -> list[ast.stmt]:
        kept = []
        for line in lines:
            if isinstance(line, ast.For):
                line.body = self.without_header(line.body)
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            header = isinstance(target, ast.Name) and HEADER.fullmatch(target.id)
            if isinstance(line, ast.For) or not header:
                kept.append(line)
        return kept

    def head(self) -> tuple[str, ...]:
        one_pass = self.form.kind == "row" and not self.form.looped
        return HEADERS[self.form.kind] + (IN_ROW if one_pass else ())

    def enter(self, loop: ast.For, stands: dict[str, ast.expr]) -> None:
        """The head of a loop over what is reduced."""
        size = ast.unparse(stands["r0_numel"])
        if self.form.kind == "lane":
            loop.target = ast.Name("r0_index", ast.Store())
            loop.iter = parsed(f"range(0, {size})")
            return
        loop.target = ast.Name("start", ast.Store())
        loop.iter = parsed(f"range(0, {size}, R0_BLOCK)")
        first = f"r0_index = start + tl.arange(0, R0_BLOCK)\nr0_mask = r0_index < {size}"
        loop.body = [*ast.parse(first).body, *loop.body]

    def finish(self, name: str, tensors: dict[str, str]) -> None:
        """Parameters and names, and then the text."""
        function = self.function
        used = names(function)
        self.sizes = [p for p in self.sizes if p.inner in used]
        given = {p: tensors[p] for p in self.pointers}
        for parameter in self.sizes:
            given[parameter.inner] = distinct(parameter.name, given.values())
        function.name = name
        renamed(function, self.form.kind, given, "conv" in self.operators[:1])
        arguments = [given[p] for p in self.pointers] + [given[p.inner] for p in self.sizes]
        constants = ", ".join(f"{block}: tl.constexpr" for block in self.constants())
        function.args = ast.parse(f"def f({', '.join(arguments)}, {constants}): pass").body[0].args
        self.text = "@triton.jit\n" + ast.unparse(ast.fix_missing_locations(function))
        if found := OWN.search(self.text):
            raise Unfit(f"something of Inductor's own is left: {found[0]}")

    def constants(self) -> dict[str, int | None]:
        """Sizes of blocks by name; None: of a row, which the host knows."""
        if self.form.kind == "tiles":
            return dict(TILE)
        text = ast.unparse(self.function)
        if not re.search(r"\bBLOCK\b", text):
            return {}
        return {"BLOCK": None if self.row is not None else BLOCKS[self.form.kind]}


def unaliased(lines: list[ast.stmt]) -> list[ast.stmt]:
    """Without second names for an index, which two loops may share."""
    kept: list[ast.stmt] = []
    for at, line in enumerate(lines):
        if isinstance(line, ast.For):
            line.body = unaliased(line.body)
        alias = isinstance(line, ast.Assign) and isinstance(line.value, ast.Name)
        if alias and re.fullmatch(r"[xyz]index|r0?_?index", line.value.id):
            for later in lines[at + 1 :]:
                replace(later, ast.unparse(line.targets[0]), line.value)
        else:
            kept.append(line)
    return kept


def spoken(lines: list[ast.stmt], kernel: "Kernel") -> list[ast.stmt]:
    """Statements of several targets as plain ones: scans, and the largest element with its place."""
    found: list[ast.stmt] = []
    for line in lines:
        if isinstance(line, ast.For):
            line.body = spoken(line.body, kernel)
        if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Tuple):
            found.append(line)
            continue
        targets = [ast.unparse(t) for t in line.targets[0].elts]
        called = ast.unparse(line.value.func)
        arguments = [ast.unparse(a) for a in line.value.args]
        if called == "tl.associative_scan" and len(targets) == 1:
            found += ast.parse(f"{targets[0]} = {scan(arguments, kernel)}").body
        elif found_words := re.fullmatch(r"triton_helpers\.(max|min)(imum)?_with_index", called):
            word = found_words[1]
            if found_words[2]:  # inside a loop: (best, its place, value, place)
                best, place, value, index = arguments
                sign = ">" if word == "max" else "<"
                found += ast.parse(f"{targets[0]} = tl.{word}imum({value}, {best})").body
                found += ast.parse(f"{targets[1]} = tl.where({value} {sign} {best}, {index}, {place})").body
            elif kernel.form.kind == "lane":
                found += ast.parse(f"{targets[0]} = {arguments[0]}\n{targets[1]} = {arguments[1]}").body
            elif kernel.form.looped:
                raise Unfit("the place of the largest element of a long row")
            else:
                found += ast.parse(f"{targets[0]} = triton_helpers.{word}2({arguments[0]}, 1)").body
                found += ast.parse(f"{targets[1]} = tl.arg{word}({arguments[0]}, axis=0)").body
        else:
            raise Unfit(f"a call with several results: {called}")
    return found


def scan(arguments: list[str], kernel: "Kernel") -> str:
    """A scan with a function of its own, as the language's where it has one."""
    helper = next(f for f in kernel.helpers if f.name == arguments[2])
    operators = {type(n.op) for n in ast.walk(helper) if isinstance(n, ast.BinOp)}
    value = arguments[0].strip("(),")
    if kernel.form.kind != "row" or kernel.form.looped or len(operators) != 1:
        raise Unfit("a scan that is no sum or product of a row")
    (operator,) = operators
    if operator not in (ast.Add, ast.Mult):
        raise Unfit("a scan that is no sum or product of a row")
    return f"tl.{'cumsum' if operator is ast.Add else 'cumprod'}({value}, axis=0)"


class Stand(ast.NodeTransformer):
    """Puts expressions where Inductor's sizes are named."""

    def __init__(self, stands: dict[str, ast.expr]):
        self.stands = stands

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = {"rnumel": "r0_numel"}.get(node.id, node.id)
        known = self.stands.get(name) if isinstance(node.ctx, ast.Load) else None
        return node if known is None else parsed(ast.unparse(known))


def entries(node: ast.expr) -> dict[str, ast.expr]:
    """A dict display as a dict."""
    return {ast.literal_eval(k): v for k, v in zip(node.keys, node.values)}


def operators_of(comment: str) -> list[str]:
    """What "Original ATen: [aten.convolution, aten.relu]" calls, in a person's words."""
    found = [re.sub(r"^_+|_$", "", word) for word in re.findall(r"aten\.(\w+)", comment)]
    found = [re.sub(r"^native_(batch_norm|layer_norm|group_norm).*", r"\1", word) for word in found]
    found = [SAID.get(word, word) for word in found if word not in UNSAID]
    return list(dict.fromkeys(found))


# ---- masks


def mask_all(function: ast.FunctionDef, kind: str) -> None:
    """Inductor leaves a mask out where its own block divides the size, and ours may not.

    A load of one element takes no mask.
    """
    axis = {"flat": "x", "lane": "x", "row": "r0_"}.get(kind)
    known: dict[str, set[str]] = {"xindex": {"x"}, "r0_index": {"r0_"} if kind == "row" else set()}
    known |= {"xmask": {"x"}, "r0_mask": {"r0_"}}
    for line in statements(function.body, ast.For) if axis else ():
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call):
            line.value = one_element(line.value, known)
        for call in (n for n in ast.walk(line) if isinstance(n, ast.Call)):
            if ast.unparse(call.func) in ("tl.load", "tl.store", "tl.atomic_add"):
                masked = {m for k in call.keywords if k.arg == "mask" for m in names(k.value)}
                if axis in reach(call.args[0], known) and f"{axis}mask" not in masked:
                    add_mask(call, f"{axis}mask")
        if isinstance(line, ast.Assign):
            found = reach(line.value, known)
            for name in (name for target in line.targets for name in names(target)):
                known[name] = known.get(name, set()) | found


def one_element(call: ast.Call, known: dict[str, set[str]]) -> ast.expr:
    """A load of one element with a mask for a block: what the mask chose is chosen afterwards."""
    mask = next((k.value for k in call.keywords if k.arg == "mask"), None)
    if ast.unparse(call.func) != "tl.load" or mask is None or reach(call.args[0], known):
        return call
    if not reach(mask, known):
        return call
    other = next((k.value for k in call.keywords if k.arg == "other"), None)
    call.keywords = [k for k in call.keywords if k.arg not in ("mask", "other")]
    parts = [part for part in conjuncts(mask) if ast.unparse(part) not in ("xmask", "r0_mask")]
    if not parts or other is None:
        return call
    return ast.Call(parsed("tl.where"), [conjunction(parts), call, other], [])


def add_mask(call: ast.Call, name: str) -> None:
    given = next((k for k in call.keywords if k.arg == "mask"), None)
    mask = ast.Name(name, ast.Load())
    if given is None:
        call.keywords.insert(0, ast.keyword("mask", mask))
    else:
        given.value = ast.BinOp(given.value, ast.BitAnd(), mask)


def reach(node: ast.AST, known: dict[str, set[str]]) -> set[str]:
    """Along which axes a value varies; a reduction takes one away."""
    if isinstance(node, ast.Name):
        return known.get(node.id, set())
    found = set().union(*(reach(child, known) for child in ast.iter_child_nodes(node)), set())
    reduced = isinstance(node, ast.Call) and any(k.arg == "axis" for k in node.keywords)
    return found - {"r0_"} if reduced and "cum" not in ast.unparse(node.func) else found
