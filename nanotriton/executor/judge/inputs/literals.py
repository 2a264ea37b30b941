"""Numbers in a task's text at which its answer may jump: where `hardshrink(x, 0.3)` decides, at 0.3 itself.

No usual draw hits them, so a candidate that takes `>=` for `>` there was right on all. A trial for tasks that
decide at edges (kinds.ROUNDING) puts such numbers among the inputs.
"""

import ast
import math

import torch

from nanotriton.executor.judge.task.watching import Watching
from nanotriton.plan.aten import words

MOST = 16  # numbers of a text that are looked at
LARGEST = 64.0
LARGEST_INTEGER = 8  # larger ones are sizes more often than limits
# Operators that compare a tensor with a number of the text.
COMPARING = words("gt ge lt le eq ne hardshrink threshold heaviside bucketize")
LIMITING = "nan_to_num"  # the operator that puts the largest number of a dtype in infinity's place


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


class OwnNumbers(Watching):
    """A reference in float64 takes the numbers that its own dtype has.

    It compares with the float32 of a number where that is the task's dtype: 0.3 in float64 lies on one side
    of it, and what lies at the edge would be decided otherwise. And `nan_to_num` puts the largest number of
    the task's dtype in the place of infinity.

    dtype: of all floating inputs.
    """

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in COMPARING and self.dtype == torch.float32:
            args = tuple(single(value) for value in args)
        elif name.strip("_") == LIMITING:
            args, kwargs = within_limits(args, kwargs, self.dtype)
        return func(*args, **kwargs)


def single(value: object) -> object:
    if type(value) is not float or not math.isfinite(value):
        return value
    return float(torch.tensor(value, dtype=torch.float32, device="cpu"))


def within_limits(args: tuple, kwargs: dict, dtype: torch.dtype) -> tuple[tuple, dict]:
    """The arguments of a `nan_to_num` whose infinities become the largest numbers of a dtype, unless it says
    what else."""
    given = dict(zip(("nan", "posinf", "neginf"), args[1:], strict=False)) | kwargs
    for name, limit in (("posinf", torch.finfo(dtype).max), ("neginf", torch.finfo(dtype).min)):
        if given.get(name) is None:
            given[name] = limit
    return args[:1], given
