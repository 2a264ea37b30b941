"""Expressions of Inductor's kernels as a person writes them.

Inductor's blocks have an axis for the elements (x) and one for what is reduced (r0). A person gives one of
them to the program and keeps the other: `Form` says which. Its masks and axes then go from every expression.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Helpers for which the language has a function of its own. They differ where an element is NaN, for which no
# answer is right.
HELPERS = {
    "maximum": "tl.maximum",
    "minimum": "tl.minimum",
    "max2": "tl.max",
    "min2": "tl.min",
    "any": "tl.max",
    "div_floor_integer": "//",
    "promote_to_tensor": "",
}
FUNCTIONS = {
    "libdevice.exp": "tl.exp",
    "libdevice.rsqrt": "tl.rsqrt",
    "libdevice.sqrt": "tl.sqrt",
    "tl.sqrt_rn": "tl.sqrt",
    "libdevice.log": "tl.log",
    "libdevice.floor": "tl.floor",
    "libdevice.ceil": "tl.ceil",
    "libdevice.erf": "tl.erf",
    "libdevice.abs": "tl.abs",
    "libdevice.sin": "tl.sin",
    "libdevice.cos": "tl.cos",
    "tl_math.exp": "tl.exp",
    "tl_math.log": "tl.log",
    "tl_math.abs": "tl.abs",
    "tl_math.sin": "tl.sin",
    "tl_math.cos": "tl.cos",
    "tl_math.exp2": "tl.exp2",
    "tl_math.sqrt": "tl.sqrt",
}
REDUCTIONS = ("tl.sum", "tl.max", "tl.min", "tl.argmax", "tl.argmin", "tl.reduce", "tl.cumsum", "tl.cumprod")
INDEX = re.compile(r"[xyz]\d+|r0_\d+|[xyz]index|r0_index|row|col|k|batch|ks\d+|[xyz]numel|r0_numel")
SIZE = re.compile(r"ks\d+|[xyz]numel|r0_numel")
FARTHEST = (2147483647, 9223372036854775807)  # where Inductor's search for the largest element begins
BLOCKS = re.compile(r"(X|Y|Z|R0_)BLOCK")


@dataclass(frozen=True)
class Form:
    """How a kernel's work is laid out.

    flat: a block of elements, nothing is reduced. row: one program an element, a block of what is reduced.
    lane: a block of elements, each of which goes over what is reduced. tiles: a tile of a product of
    matrices.
    """

    kind: str
    looped: bool  # the reduced axis is gone over in a loop

    def always(self, mask: str) -> bool:
        """Whether a mask is always true in this form."""
        if self.kind == "row":
            return mask in ("xmask", "ymask", "zmask")
        return mask == ("r0_mask" if self.kind in ("flat", "lane") else "zmask")


TRUE = ast.Constant(True)


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def is_true(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value in (True, None))


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def integral(node: ast.expr) -> bool:
    """Whether an expression is of indices and sizes alone."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Name):
        return bool(INDEX.fullmatch(node.id))
    if isinstance(node, ast.UnaryOp):
        return integral(node.operand)
    return isinstance(node, ast.BinOp) and integral(node.left) and integral(node.right)


def of_sizes(node: ast.expr) -> bool:
    return integral(node) and all(SIZE.fullmatch(name) for name in names(node))


class Plain(ast.NodeTransformer):
    """Calls, masks and axes of one form."""

    def __init__(self, form: Form):
        self.form = form

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node = ast.Name({"rindex": "r0_index", "rnumel": "r0_numel"}.get(node.id, node.id), node.ctx)
        return TRUE if isinstance(node.ctx, ast.Load) and self.form.always(node.id) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.BitAnd):
            if is_true(node.left):
                return node.right
            if is_true(node.right):
                return node.left
        if isinstance(node.op, ast.Add) and integral(node):
            signed = [unsigned(*term) for term in terms(node)]
            return summed(sorted(signed, key=lambda term: number_of(term[1]) is not None))
        return clamped(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`x[:, None]` and the like: where the axes are the program's, nothing is to be broadcast."""
        self.generic_visit(node)
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        plain = lambda a: isinstance(a, ast.Slice) or (isinstance(a, ast.Constant) and a.value is None)
        return node.value if all(map(plain, axes)) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name == "tl.broadcast_to":
            return node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "broadcast_to"):
            return self.converted(node, node.func.value)
        if name.startswith("triton_helpers."):
            return self.helper(node, name.split(".")[1])
        node.func = parsed(FUNCTIONS.get(name, name))
        say = {"tl.full": self.full, "tl.where": self.where, "tl.sum": self.reduced}
        say |= dict.fromkeys(("tl.load", "tl.store", "tl.atomic_add"), self.memory)
        return say[name](node) if name in say else node

    def converted(self, node: ast.Call, value: ast.expr) -> ast.expr:
        """`value.to(dtype)`: of a number, the number; of an index that stays whole, or a size, nothing."""
        dtype = ast.unparse(node.args[0]) if node.args else ""
        if node.func.attr == "broadcast_to":
            return value
        if isinstance(value, ast.Constant) and type(value.value) in (int, float):
            return ast.Constant(float(value.value) if "float" in dtype else value.value)
        if of_sizes(value) or (integral(value) and "int" in dtype):
            return value
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("tl.sum", "tl.max", "tl.min"):
            return value if dtype == "tl.float32" else node
        return node

    def full(self, node: ast.Call) -> ast.expr:
        """A block of one number; a block of one element is the number."""
        shape = [ast.unparse(n) for n in getattr(node.args[0], "elts", [])]
        blocks = [s for s in shape if BLOCKS.fullmatch(s)]
        value, dtype = node.args[1], ast.unparse(node.args[2])
        if is_true(value) and dtype == "tl.int1":
            return TRUE
        if self.form.kind == "tiles" and len(blocks) == 2:
            blocks = ["YBLOCK", "XBLOCK"]
        else:
            blocks = [b for b in blocks if b == ("R0_BLOCK" if self.form.kind == "row" else "XBLOCK")]
        if not blocks:
            floating = "float" in dtype and isinstance(value, ast.Constant) and type(value.value) is int
            return ast.Constant(float(value.value)) if floating else value
        shape = f"[{', '.join(blocks)}]"
        if isinstance(value, ast.Constant) and value.value in FARTHEST:
            value = ast.Constant(0)  # a place that every element replaces
        if isinstance(value, ast.Constant) and value.value == 0 and type(value.value) in (int, float):
            return parsed(f"tl.zeros({shape}, dtype={dtype})")
        return parsed(f"tl.full({shape}, {ast.unparse(value)}, dtype={dtype})")

    def memory(self, node: ast.Call) -> ast.expr:
        """A load or a store with its mask by keyword."""
        place = 1 if ast.unparse(node.func) == "tl.load" else 2
        mask = node.args[place] if len(node.args) > place else None
        other = next((k.value for k in node.keywords if k.arg == "other"), None)
        sem = [k for k in node.keywords if k.arg == "sem"]
        mask = next((k.value for k in node.keywords if k.arg == "mask"), mask)
        node.args, node.keywords = node.args[:place], sem
        if not is_true(mask):
            node.keywords = [ast.keyword("mask", mask), *sem]
            if other is not None and names(mask) - {"xmask", "ymask", "zmask"}:
                node.keywords.insert(1, ast.keyword("other", other))
        pointer = node.args[0]
        if isinstance(pointer, ast.BinOp):
            if isinstance(pointer.right, ast.Constant) and pointer.right.value == 0:
                node.args[0] = pointer.left
            else:
                node.args[0] = summed([(1, pointer.left), *terms(offset(pointer.right))])
        return node

    def helper(self, node: ast.Call, name: str) -> ast.expr:
        if name == "promote_to_tensor":
            return node.args[0]
        if name == "div_floor_integer":
            return ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1])
        if name in ("max2", "min2", "any"):
            node.func = parsed(HELPERS[name])
            value = node.args[0]
            if name == "any" and self.form.kind != "lane":
                value = ast.Call(ast.Attribute(value, "to", ast.Load()), [parsed("tl.int32")], [])
            return self.reduced(node, value)
        if name in HELPERS:
            node.func = parsed(HELPERS[name])
        return node

    def where(self, node: ast.Call) -> ast.expr:
        """A choice by nothing but a mask of whole programs or lanes is no choice: what is masked is never
        stored.
        """
        condition = node.args[0]
        if is_true(condition) or names(condition) <= {"xmask", "ymask", "zmask"}:
            return node.args[1]
        otherwise = node.args[2]
        zero = isinstance(otherwise, ast.Constant) and type(otherwise.value) is int and otherwise.value == 0
        if zero and "mask" in ast.unparse(condition):
            node.args[2] = ast.Constant(0.0)
        if self.form.kind == "row" and isinstance(condition, ast.BinOp):
            kept = [side for side in conjuncts(condition) if ast.unparse(side) not in ("xmask",)]
            node.args[0] = conjunction(kept)
        return node

    def reduced(self, node: ast.Call, value: ast.expr | None = None) -> ast.expr:
        """A sum over the block; of a lane, which has added up already, the lane."""
        value = node.args[0] if value is None else value
        if self.form.kind == "lane":
            return value
        node.args, node.keywords = [value], [ast.keyword("axis", ast.Constant(0))]
        return node


def conjuncts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return conjuncts(node.left) + conjuncts(node.right)
    return [node]


def conjunction(parts: list[ast.expr]) -> ast.expr:
    found = parts[0]
    for part in parts[1:]:
        found = ast.BinOp(found, ast.BitAnd(), part)
    return found


def clamped(node: ast.BinOp) -> ast.expr:
    """`1 * (1 >= n) + n * (n > 1)` is how the larger of 1 and a size n is said: where n is 0 there is nothing
    to compute, so it is n.
    """
    found = re.fullmatch(r"1 \* \(1 >= (.+)\) \+ (.+) \* \((.+) > 1\)", ast.unparse(node))
    bare = lambda text: text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return parsed(bare(found[1])) if found and len({bare(g) for g in found.groups()}) == 1 else node


# ---- sums and products of indices


def terms(node: ast.expr, sign: int = 1) -> Iterator[tuple[int, ast.expr]]:
    """The terms of a sum with their signs."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from terms(node.left, sign)
        yield from terms(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from terms(node.operand, -sign)
    else:
        yield sign, node


def unsigned(sign: int, node: ast.expr) -> tuple[int, ast.expr]:
    """A term whose number is not negative."""
    number, rest = 1, []
    for factor in factors(node):
        if (n := number_of(factor)) is not None:
            number *= n
        else:
            rest.append(factor)
    if number >= 0:
        return sign, node
    return -sign, product([*rest, *([ast.Constant(-number)] if number != -1 or not rest else [])])


def factors(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from factors(node.left)
        yield from factors(node.right)
    else:
        yield node


def number_of(node: ast.expr) -> int | None:
    """The value of a whole number, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number_of(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def is_size(node: ast.expr) -> bool:
    return number_of(node) is not None or (isinstance(node, ast.Name) and bool(SIZE.fullmatch(node.id)))


def product(parts: list[ast.expr]) -> ast.expr:
    found = parts[0]
    for part in parts[1:]:
        found = ast.BinOp(found, ast.Mult(), part)
    return found


def summed(signed: list[tuple[int, ast.expr]]) -> ast.expr:
    """A sum whose first term has no sign if any has none."""
    signed = sorted(signed, key=lambda term: term[0] < 0)
    sign, found = signed[0]
    found = found if sign > 0 else ast.UnaryOp(ast.USub(), found)
    for sign, term in signed[1:]:
        found = ast.BinOp(found, ast.Add() if sign > 0 else ast.Sub(), term)
    return found


def split_term(sign: int, node: ast.expr) -> tuple[int, int, tuple[str, ...], ast.expr | None]:
    """(sign, number, names of sizes, the rest) of a term."""
    number, sizes, rest = 1, [], []
    for factor in factors(node):
        if (n := number_of(factor)) is not None:
            number *= n
        elif is_size(factor):
            sizes.append(factor.id)
        else:
            rest.append(factor)
    sign = sign if number > 0 else -sign
    return sign, abs(number), tuple(sorted(sizes)), product(rest) if rest else None


def offset(node: ast.expr) -> ast.expr:
    """An offset as a person writes it: slower dimensions first, `(row * height + h) * width + w`."""
    groups: dict[tuple[str, ...], list[tuple[int, ast.expr]]] = {}
    for sign, term in terms(node):
        sign, number, sizes, rest = split_term(sign, term)
        if number == 0:
            return node
        if rest is None and sizes and number == 1:
            groups.setdefault(sizes, []).append((sign, ast.Constant(1)))
        else:
            groups.setdefault(sizes, []).append((sign, said(number, [], rest)))
    found = sorted(groups.items(), key=lambda group: -len(group[0]))
    sizes, inner = list(found[0][0]), found[0][1]
    done: list[tuple[int, ast.expr]] = []
    for others, signed in found[1:]:
        extra = list(sizes)
        if others and all(extra.count(s) >= list(others).count(s) for s in others):  # Horner's rule
            for s in others:
                extra.remove(s)
            inner, sizes = [times(inner, extra), *signed], list(others)
        else:
            done.append(times(inner, sizes))
            inner, sizes = signed, list(others)
    return summed([*done, *([times(inner, sizes)] if sizes else slow_first(inner))])


def slow_first(signed: list[tuple[int, ast.expr]]) -> list[tuple[int, ast.expr]]:
    """Terms with a larger number first, and a bare number last."""

    def key(term: tuple[int, ast.expr]) -> tuple:
        numbers = [number_of(f) for f in factors(term[1]) if number_of(f) is not None]
        return (number_of(term[1]) is not None, -max(numbers, default=1))

    return sorted(signed, key=key)


def times(signed: list[tuple[int, ast.expr]], sizes: list[str]) -> tuple[int, ast.expr]:
    """A sum times sizes, as a term."""
    parts = [ast.Name(s, ast.Load()) for s in sizes]
    if len(signed) == 1:
        sign, only = signed[0]
        return sign, product([*parts] if number_of(only) == 1 and parts else [only, *parts])
    return 1, product([summed(slow_first(signed)), *parts])


def said(number: int, sizes: list[str], rest: ast.expr | None) -> ast.expr:
    parts = [rest] if rest is not None else []
    parts += [ast.Name(s, ast.Load()) for s in sizes]
    if number != 1 or not parts:
        parts.append(ast.Constant(number))
    return product(parts)
