"""Integers that stand for "none" among ids: an `ignore_index`, a padding id, -1 for nothing.

A task names them and often draws none, so a candidate that takes them for usual ids was right on all. Here
they are found: what the task's constructor is given, and what its text compares with or passes by such a
name. A default that no text names (-100 of `cross_entropy`) is none. Whether the reference takes one is found
out by trying (reference/constants.py).
"""

import ast

import torch
from torch import Tensor

from nanotriton.plan.aten import words

MARK = "mark "  # begins the way of integers of which some become this one
MOST = 4  # marks of one argument that are tried
LARGEST = 1 << 31
NAMES = ("index", "idx", "id", "value", "token")  # endings of the names of arguments that are marks
# These take a negative index for one from the end, so that no reference refuses it.
WRAPPING = words("index index_put _unsafe_index _unsafe_index_put take put")


def named(source: str) -> list[int]:
    """The integers that a task's text compares something with, or passes as an index by name. Of what is
    compared by `<` or `>=` the one below is named too."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # what the import of the file will say too
        return []
    found: dict[int, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            by_size = any(isinstance(op, ast.Lt | ast.GtE) for op in node.ops)
            for value in map(integer, (node.left, *node.comparators)):
                if value is not None:
                    found |= dict.fromkeys((value, value - 1) if by_size else (value,))
        elif isinstance(node, ast.keyword) and (node.arg or "").lower().endswith(NAMES):
            value = integer(node.value)
            found |= {} if value is None else {value: None}
    return list(found)


def integer(node: ast.AST) -> int | None:
    """The integer that an expression is, with its sign."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
    value = node.value if isinstance(node, ast.Constant) else None
    return sign * value if type(value) is int and value < LARGEST else None


def marks(draws: list[Tensor], given: list[int], source: str, called: set[str]) -> list[int]:
    """The integers that may stand for none among ids that were drawn so, which never come by themselves.

    given: the constructor's integers. called: the names of what the reference calls.
    """
    if not draws[0].numel():
        return []
    low, high = min(int(d.min()) for d in draws), max(int(d.max()) for d in draws)
    found = dict.fromkeys([*given, *named(source)])
    wraps = bool(called & WRAPPING)
    return [m for m in found if not low <= m <= high and not (wraps and m < 0)][:MOST]


def put(x: Tensor, mark: int, generator: torch.Generator) -> None:
    """One element in eight, one at least, becomes the mark."""
    chance = torch.rand(x.shape, generator=generator)
    x.masked_fill_((chance <= max(1 / 8, float(chance.min()))).to(x.device), mark)
