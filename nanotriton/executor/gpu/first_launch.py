"""What Triton does before its first launch in a process, done once where that process is forked from.

It builds and loads its driver, for which a C compiler runs, and its first compilation imports and sets up
much of the compiler. In every child of process mode that took 0.3 and 0.6 s of CPU time (Triton 3.6 and 3.8,
one core of a server). CUDA is not initialised here: a fork could not use it.
"""

import triton
import triton.language as tl
from triton.backends.nvidia.driver import CudaDriver
from triton.compiler import ASTSource

from nanotriton.executor.common.card import Card


@triton.jit
def row_sums(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Something of what most kernels have: a loop, masks, a reduction."""
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.exp(tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0))
    tl.store(y_ptr + row, tl.sum(total))


def prepare(card: Card) -> None:
    """Raises what Triton raises where it can't build its driver: no kernel would run there."""
    triton.runtime.driver.set_active(CudaDriver())
    compile_one(card)


def compile_one(card: Card) -> None:
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(row_sums, signature=types, constexprs={"BLOCK": 128})
    triton.compile(source, target=card.target)
