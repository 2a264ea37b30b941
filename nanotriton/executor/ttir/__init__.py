"""TTIR on the CPU: a trusted evaluator of the text that Triton's front end makes of a kernel.

`Evaluator` runs one kernel, and `GlobalMemory` holds the tensors that it loads and stores. The text is
hostile, and the evaluator believes nothing of it. This wing imports no other part of the project. The
replayer runs it, and gpu/halves.py reads kernels with its parser.

    types.py, parse.py               TTIR as data, read from text
    analysis.py                      facts of a kernel before it runs
    evaluator.py, flow.py            a launch; functions, branches and loops
    ops.py, tensor.py, access.py     the operations: by element, on whole tensors, on memory
    memory.py                        global memory, and the checks of every access
    numbers.py, libdevice.py         number formats and functions in NumPy
"""

from .evaluator import BUDGET, Evaluator
from .flow import Budget, TooLarge
from .memory import GlobalMemory, OutOfBounds, Race
from .ops import AssertionFailed
from .types import ParseError, TTIRError, Type, Unsupported

__all__ = [
    "BUDGET",
    "AssertionFailed",
    "Budget",
    "Evaluator",
    "GlobalMemory",
    "OutOfBounds",
    "ParseError",
    "Race",
    "TTIRError",
    "TooLarge",
    "Type",
    "Unsupported",
]
