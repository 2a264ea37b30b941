"""TTIR on the CPU: `Kernel` evaluates what Triton's front end made of a kernel, `Memory` holds the tensors. See kernel.py."""

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
