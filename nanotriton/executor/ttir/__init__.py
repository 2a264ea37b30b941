"""TTIR on the CPU: `Evaluator` runs a kernel as Triton's front end prints it, `GlobalMemory` has the tensors.

Who runs here. A worker does, on a machine without a GPU: the evaluator stands for compiler and GPU. On a
GPU two questions about a kernel are answered here too: may its programs meet, and do they wait for each
other.

What it trusts. It trusts nothing in the text. TTIR comes out of a child and may be anything: faulty text
raises one of `TTIRError`'s children, its work is bounded by a budget, and every access is checked against
the buffers of `GlobalMemory`. The evaluator itself is trusted. It decides what a kernel computes, with the
rounding of each dtype and of TF32, and which races make the answer a matter of chance.

Who may import it. `replay` and `gpu` may. It imports no other wing: no plan, no task, no torch beyond the
tensors that it is given.

    types.py, parse.py               TTIR as data, read from text
    analysis.py                      facts of a kernel before it runs
    evaluator.py, flow.py, frames.py   a launch; functions, branches and loops; who runs together
    ops.py, access.py                the operations: by element, on memory
    tensor.py, shapes.py             the operations on whole tensors: those that compute, those that move
    assembly.py                      straight PTX in inline assembly
    scaled.py                        matrix products of scaled narrow floats
    memory.py                        global memory, and the checks of every access
    races.py, clocks.py              races between programs, and what atomics put in order
    waiting.py                       programs that wait for each other take turns
    promises.py                      promises to the compiler are checked
    numbers.py, libdevice.py         number formats and functions in NumPy
    fast.py, rounding.py             of libdevice: fast intrinsics, and directed rounding
"""

from .evaluator import BUDGET, Evaluator
from .flow import Budget, TooLarge
from .memory import GlobalMemory, OutOfBounds
from .ops import AssertionFailed
from .promises import FalsePromise
from .races import Race
from .types import ParseError, TTIRError, Type, Unsupported

__all__ = [
    "BUDGET",
    "AssertionFailed",
    "Budget",
    "Evaluator",
    "FalsePromise",
    "GlobalMemory",
    "OutOfBounds",
    "ParseError",
    "Race",
    "TTIRError",
    "TooLarge",
    "Type",
    "Unsupported",
]
