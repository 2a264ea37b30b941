"""Numbers in a task's text at which its answer may jump: where `hardshrink(x, 0.3)` decides, at 0.3 itself.

No usual draw hits them, so a candidate that takes `>=` for `>` there was right on all. A trial for tasks that
decide at edges (kinds.ROUNDING) puts such numbers among the inputs.
"""

import ast
import math

import torch

from nanotriton.executor.judge.watching import Watching
from nanotriton.plan.aten import words

MOST = 16  # numbers of a text that are looked at
LARGEST = 64.0
LARGEST_INTEGER = 8  # larger ones are sizes more often than limits
# Operators that compare a tensor with a number of the text.
COMPARING = words("gt ge lt le eq ne hardshrink threshold heaviside bucketize")


def literals(source: str) -> tuple[float, ...]:
    """The numbers that the functions and classes of a task name, without signs, in the order in which they
    stand there. A text that is no Python has none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # what the import of the file will say too
        return ()
    found: dict[float, None] = {}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) else None
        if type(value) is int and 0 < value <= LARGEST_INTEGER:
            found[float(value)] = None
        elif type(value) is float and math.isfinite(value) and 0 < value <= LARGEST:
            found[value] = None
    return tuple(found)[:MOST]


class SingleNumbers(Watching):
    """A reference in float64 compares with the float32 of a number, as the task does: 0.3 in float64 lies
    on one side of it, and what lies at the edge would be decided otherwise."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in COMPARING:
            args = tuple(single(value) for value in args)
        return func(*args, **(kwargs or {}))


def single(value: object) -> object:
    if type(value) is not float or not math.isfinite(value):
        return value
    return float(torch.tensor(value, dtype=torch.float32, device="cpu"))
