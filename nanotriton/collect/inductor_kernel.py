"""One of Inductor's kernels, rewritten towards how a person writes: no heuristics around it, no helper where
tl has a function, no alias, no dead line.
"""

import ast
import inspect
import os
import re
import tempfile
import types

from torch._inductor.runtime import triton_heuristics

from nanotriton.collect.ir import Unfit

KINDS = (
    "pointwise",
    "reduction",
    "persistent_reduction",
    "split_scan",
    "cooperative_reduction",
    "foreach",
    "template",
)
# Helpers for which the language has a function of its own. They differ where an element is NaN, for which no
# answer is right.
HELPERS = {
    "maximum": "tl.maximum",
    "minimum": "tl.minimum",
    "max2": "tl.max",
    "min2": "tl.min",
    "promote_to_tensor": "",
    "sum": "tl.sum",
    "div_floor_integer": None,
}
FUNCTIONS = {
    "libdevice.exp": "tl.exp",
    "libdevice.rsqrt": "tl.rsqrt",
    "libdevice.sqrt": "tl.sqrt",
    "libdevice.log": "tl.log",
    "tl_math.exp": "tl.exp",
    "tl_math.log": "tl.log",
    "tl_math.abs": "tl.abs",
    "tl_math.sin": "tl.sin",
    "tl_math.cos": "tl.cos",
    "tl_math.exp2": "tl.exp2",
    "libdevice.floor": "tl.floor",
    "libdevice.ceil": "tl.ceil",
    "libdevice.erf": "tl.erf",
}
GRIDS = {
    "Grid1D": "x",
    "Grid2D": "xy",
    "Grid3D": "xyz",
    "Grid2DWithYZOverflow": "xy",
    "BatchMatmulGrid3D": "zyx",
}
LONGEST = 100  # characters of a line that expressions may grow to when they are put together


class Kernel:
    """A kernel's function, a configuration that Inductor would try, and its grid as text."""

    def __init__(self, name: str, source: str):
        self.name = name
        found = captured(name, source.replace("triton_helpers.set_driver_to_gpu()\n", ""))
        self.meta, self.config = found["inductor_meta"], found["configs"][0]
        tree = ast.parse(source)
        self.function = next(
            n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("triton_")
        )
        self.combine = [
            n for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("triton_")
        ]  # of scans
        constants = found["triton_meta"].get("constants") or {}
        self.sizes = {k: v for k, v in constants.items() if isinstance(v, int)}
        for node in self.function.body:  # static sizes are written over the parameters
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Constant)
                and ast.unparse(node.targets[0]).endswith("numel")
            ):
                self.sizes[node.targets[0].id] = node.value.value
        self.params = [a.arg for a in self.function.args.args]
        signature = found["triton_meta"]["signature"]
        self.constexprs = [p for p in self.params if signature.get(p) == "constexpr" or p in constants]
        for node in (self.function, *self.combine):
            node.decorator_list = []
        self.function = tidy(self.function)

    def grid(self, arguments: list[str]) -> str:
        """The launch grid in terms of what the launch passes."""
        kind = self.meta.get("grid_type", "")
        if kind not in GRIDS:
            raise Unfit(f"a grid of type {kind}")
        passed = dict(zip(self.params, arguments)) | {k: str(v) for k, v in self.sizes.items()}
        axes = []
        for axis in GRIDS[kind]:
            block = self.config.kwargs.get(f"{axis.upper()}BLOCK")
            size = passed.get(f"{axis}numel")
            if size is None:
                raise Unfit("a grid whose size isn't known")
            axes.append(size if block in (None, 1) else f"triton.cdiv({size}, {block})")
        return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"

    def options(self, passed: int) -> list[str]:
        """The constants of the launch, after `passed` positional arguments."""
        known = {**self.sizes, **self.config.kwargs}
        return [f"{p}={known[p]}" for p in self.params[passed:] if p in self.constexprs and p in known]


def captured(name: str, source: str) -> dict:
    """What the kernel's decorator was given, and the configurations that it would try."""
    found: dict = {}

    def replacement(real):
        def heuristic(**kwargs):
            found.update(kwargs)

            def decorate(function):
                try:
                    tuner = real(**kwargs)(function)
                except Exception as error:
                    raise Unfit(f"its heuristics: {type(error).__name__}: {error}") from None
                found["configs"] = list(tuner.configs)
                return tuner

            return decorate

        return heuristic

    saved = {k: f for k in KINDS if inspect.isfunction(f := getattr(triton_heuristics, k, None))}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"{name}.py")  # triton.jit reads a kernel's source from its file
        with open(path, "w") as f:
            f.write(source)
        module = types.ModuleType(name)
        module.__file__ = path
        try:
            for k, real in saved.items():
                setattr(triton_heuristics, k, replacement(real))
            exec(compile(source, path, "exec"), vars(module))  # Inductor's own text
        finally:
            for k, real in saved.items():
                setattr(triton_heuristics, k, real)
    if "configs" not in found:
        raise Unfit("a kernel of a kind that isn't known")
    return found


# ---- rewriting ----


def tidy(function: ast.FunctionDef) -> ast.FunctionDef:
    """All the rewriting, until nothing changes."""
    function = ast.fix_missing_locations(Plain().visit(function))
    masks = [
        n.targets[0].id
        for n in ast.walk(function)
        if isinstance(n, ast.Assign)
        and re.fullmatch(r"tl\.full\(\[.*\], True, tl\.int1\).*", ast.unparse(n.value))
    ]
    function = ast.fix_missing_locations(WithoutMasks(set(masks)).visit(function))
    before = ""
    while (text := ast.unparse(function)) != before:
        before = text
        function = inline(function)
        function = without_dead_lines(function)
    return function


class Plain(ast.NodeTransformer):
    """Calls as a person writes them."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        node.keywords = [k for k in node.keywords if k.arg != "eviction_policy"]
        if (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Constant)
            and name.endswith(".to")
        ):
            number = node.func.value.value  # 128 .to(tl.float32)
            return ast.Constant(float(number) if "float" in ast.unparse(node.args[0]) else number)
        if name.startswith("triton_helpers."):
            short = HELPERS.get(name.split(".")[1])
            if short == "":
                return node.args[0]
            if short:
                node.func = ast.parse(short, mode="eval").body
        elif name in FUNCTIONS:
            node.func = ast.parse(FUNCTIONS[name], mode="eval").body
        elif (name == "tl.load" and len(node.args) == 2 and isinstance(node.args[1], ast.Constant)) or (
            name == "tl.store" and len(node.args) == 3 and isinstance(node.args[2], ast.Constant)
        ):
            node.args.pop()
        elif (
            name == "tl.full"
            and ast.unparse(node.args[0]) in ("[1]", "[1, 1]", "[1, 1, 1]")
            and isinstance(node.args[1], ast.Constant | ast.UnaryOp)
        ):
            return node.args[1]
        elif name == "tl.range":
            node.func = ast.Name("range", ast.Load())
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return node.value if ast.unparse(node.slice) == ":" else node


class WithoutMasks(ast.NodeTransformer):
    """Masks that are always true go."""

    def __init__(self, names: set[str]):
        self.names = names

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.BitAnd):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(side, ast.Name) and side.id in self.names:
                    return other
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        place = {"tl.load": 1, "tl.store": 2, "tl.atomic_add": 2}.get(name)
        if (
            place
            and len(node.args) > place
            and isinstance(node.args[place], ast.Name)
            and node.args[place].id in self.names
        ):
            del node.args[place]
            node.keywords = [k for k in node.keywords if k.arg != "other"]
        elif name == "tl.where" and isinstance(node.args[0], ast.Name) and node.args[0].id in self.names:
            return node.args[1]
        return node


def blocks(node: ast.AST):
    """Every list of statements in a function, innermost last."""
    for field in ("body", "orelse"):
        statements = getattr(node, field, None)
        if isinstance(statements, list):
            yield statements
            for statement in statements:
                yield from blocks(statement)


def inline(function: ast.FunctionDef) -> ast.FunctionDef:
    """A name that is assigned once and is another name or a constant is replaced; so is one that is read
    once, in the next lines of the same block.
    """
    stores: dict[str, int] = {}
    loads: dict[str, int] = {}
    for n in ast.walk(function):
        if isinstance(n, ast.Name):
            counts = loads if isinstance(n.ctx, ast.Load) else stores
            counts[n.id] = counts.get(n.id, 0) + 1
    for statements in blocks(function):
        for at, statement in enumerate(statements):
            if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                continue
            name, value = statement.targets[0].id, statement.value
            if stores.get(name) != 1 or name in {a.arg for a in function.args.args}:
                continue
            if trivial(value, stores) and (isinstance(value, ast.Name) or name not in receivers(function)):
                replace(function, name, value)
                del statements[at]
                return function
            if loads.get(name) == 1 and pure(value) and fits(statements, at, name, value, stores):
                del statements[at]
                return function
    return function


def receivers(function: ast.FunctionDef) -> set[str]:
    """Names of which a method is called: a number can't take their place."""
    found = (n.value for n in ast.walk(function) if isinstance(n, ast.Attribute))
    return {v.id for v in found if isinstance(v, ast.Name)}


def trivial(value: ast.expr, stores: dict[str, int]) -> bool:
    """A constant, or a name that never changes."""
    text = ast.unparse(value)
    return bool(re.fullmatch(r"-?[\d.]+(e-?\d+)?|float\('-?inf'\)", text)) or (
        isinstance(value, ast.Name) and stores.get(value.id, 0) <= 1
    )


def pure(value: ast.expr) -> bool:
    text = ast.unparse(value)
    return not re.search(
        r"tl\.(load|atomic|dot|sum|max\(|min\(|reduce|associative_scan|cumsum|arange|program_id)", text
    )


def fits(statements: list[ast.stmt], at: int, name: str, value: ast.expr, stores: dict[str, int]) -> bool:
    """Put a value where its name is read, if that is in the same block, the line stays short, and nothing
    that it reads changes in between.
    """
    inside = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    if any(stores.get(n, 0) > 1 for n in inside):
        return False
    for statement in statements[at + 1 :]:
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(statement)):
            if (
                isinstance(statement, ast.For)
                or len(ast.unparse(statement)) + len(ast.unparse(value)) > LONGEST
            ):
                return False
            replace(statement, name, value)
            return True
    return False


def replace(root: ast.AST, name: str, value: ast.expr) -> None:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return value if node.id == name and isinstance(node.ctx, ast.Load) else node

    ast.fix_missing_locations(Replace().visit(root))


def without_dead_lines(function: ast.FunctionDef) -> ast.FunctionDef:
    """Assignments that nobody reads go, and parameters' own overwriting with a constant stays."""
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for statements in blocks(function):
        for statement in list(statements):
            target = (
                statement.targets[0]
                if isinstance(statement, ast.Assign)
                else getattr(statement, "target", None)
                if isinstance(statement, ast.AnnAssign)
                else None
            )
            if (
                isinstance(target, ast.Name)
                and target.id not in read
                and "atomic" not in ast.unparse(statement)
            ):
                statements.remove(statement)
    return function
