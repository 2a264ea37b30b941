"""What Triton does before its first launch in a process, done once where that process is forked from.

It builds and loads its driver (a C compiler runs for that), and the first compilation imports and sets up
much of the compiler. In a child of process mode that is about a second of CPU time, each time. CUDA is not
initialised here: a fork could not use it.
"""

import triton
import triton.language as tl
from triton.backends.nvidia.driver import CudaDriver
from triton.compiler import ASTSource

from nanotriton.executor.common.card import Card

SIZE = 16  # the least that tl.dot takes


@triton.jit
def any_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Something of what most kernels have: a matrix product, a reduction, a loop, masks."""
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + rows * n + start + columns, mask=start + columns < n, other=0.0)
        total += tl.dot(x, tl.trans(x))
    best = tl.max(total, axis=1)
    tl.store(y_ptr + rows * BLOCK + columns, tl.exp(total - best[:, None]))


def prepare(card: Card) -> None:
    """Raises what Triton raises where it can't build its driver: no kernel would run there."""
    triton.runtime.driver.set_active(CudaDriver())
    compile_one(card)


def compile_one(card: Card) -> None:
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(any_kernel, signature=types, constexprs={"BLOCK": SIZE})
    triton.compile(source, target=card.target)
