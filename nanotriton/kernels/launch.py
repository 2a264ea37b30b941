"""What our kernels' launches have in common: the limits of a card, and two ways to save time between them.

When one kernel ends and the next begins, a card is idle for microseconds. A decode step has hundreds of small
kernels, so that on Hopper its kernels (decode.py, layers.py, place.py) use both of these:

- *early*: a kernel is set up while the one before it still runs. CUDA calls it programmatic dependent launch.
- *reading ahead*: while a norm or SwiGLU runs on few tokens, the memory has little to do. So a few programs
  more ask for the beginning of the weight that the next matrix product reads to be brought into the L2 cache.

Neither changes what a kernel computes.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

AHEAD = 12 * 2**20  # bytes of an upcoming weight that are read ahead, at most
CHUNK = tl.constexpr(512)  # bytes that one thread asks for


def device_limits(x: Tensor) -> tuple[int, int]:
    """Multiprocessors of the device that x is on, and the shared memory in bytes that a program may fill."""
    if not x.is_cuda:  # the interpreter
        return 4, 2**16
    properties = torch.cuda.get_device_properties(x.device)
    return properties.multi_processor_count, properties.shared_memory_per_multiprocessor - 2**13


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Whether it is an NVIDIA card of compute capability 9.0 or more."""
    on_cuda = device.type == "cuda" and torch.version.cuda is not None
    return on_cuda and torch.cuda.get_device_capability(device) >= (9, 0)


# ---- early


def early(x: Tensor) -> dict[str, bool]:
    """The launch options, and the constant EARLY, of a kernel that is set up while the one before it still
    runs, where x's card can do so. The kernel calls wait_for_previous before it reads or writes anything."""
    return {"EARLY": True, "launch_pdl": True} if is_hopper(x.device) else {"EARLY": False}


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Wait until the kernel before has ended, and let the one after this be set up: it waits as well."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


# ---- reading ahead


def programs_ahead(upcoming: Tensor | None, threads: int) -> int:
    """How many programs of so many threads read the weight `upcoming` ahead. The kernel's grid has so many
    more. 0 without such a weight, and on cards before Hopper, which lack the instruction."""
    if upcoming is None or not is_hopper(upcoming.device):
        return 0
    return min(upcoming.nbytes, AHEAD) // (threads * CHUNK.value)


@triton.jit
def read_ahead(upcoming_ptr, PROGRAMS: tl.constexpr, THREADS: tl.constexpr):
    """The last PROGRAMS of a grid ask for the beginning of a weight to be brought into the L2 cache.

    Nothing waits for it. What else these programs do is masked: they are past the end of the work. It may
    come before wait_for_previous, as it writes to the cache alone, which stays right whoever writes.
    """
    if PROGRAMS:
        program = tl.program_id(0) - (tl.num_programs(0) - PROGRAMS)
        if program >= 0:
            at = (program * THREADS + tl.arange(0, THREADS)).to(tl.int64) * CHUNK
            tl.inline_asm_elementwise(
                "{ mov.u32 $0, 0; cp.async.bulk.prefetch.L2.global [$1], 512; }",  # CHUNK
                "=r,l",
                [upcoming_ptr.to(tl.int64) + at],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
