"""TTIR on the CPU: `Kernel` evaluates what Triton's front end made of a kernel, `Memory` holds the tensors.

Who runs here. A worker does, on a machine without a GPU: the evaluator stands for compiler and GPU. On a
GPU two questions about a kernel are answered here too: may its programs meet, and do they wait for each
other.

What it trusts. It trusts nothing in the text. TTIR comes out of a child and may be anything; whatever is
wrong with it raises one of `TTIRError`'s children, its work is bounded by a budget, and every access is
checked against the buffers of `Memory`. The evaluator itself is trusted: it decides what a kernel computes,
with the rounding of each dtype and of TF32, and which races make the answer a matter of chance.

Who may import it. `replay` and `gpu` may. It imports no other wing: no plan, no task, no torch beyond the
tensors that it is given.

    parse.py, types.py      text to operations
    kernel.py               a launch: all programs at once, or one by one where they wait for each other
    flow.py                 ifs, loops, calls, and the budget
    ops.py, tensor.py       what each operation computes
    numbers.py, libdevice.py   dtypes and their rounding; CUDA's math functions
    memory.py, access.py    buffers, bounds and races; contiguous accesses fast
    analysis.py             which pointers a kernel loads from and stores to
"""

from .flow import Budget, TooLarge
from .kernel import BUDGET, Kernel
from .memory import Memory, OutOfBounds, Race
from .ops import AssertionFailed
from .types import ParseError, TTIRError, Type, Unsupported

__all__ = [
    "BUDGET",
    "AssertionFailed",
    "Budget",
    "Kernel",
    "Memory",
    "OutOfBounds",
    "ParseError",
    "Race",
    "TTIRError",
    "TooLarge",
    "Type",
    "Unsupported",
]
