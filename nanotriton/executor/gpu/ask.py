"""Ask the driver which GPU there is, and Triton whether it compiles for it.

Candidates are recorded in processes in which CUDA must not be initialised. So this runs in a process of its
own, which `ask_driver` in processes.py starts.
"""

import ctypes
import json
from dataclasses import asdict

from nanotriton.executor.common.card import Card
from nanotriton.executor.gpu import driver

OLDEST = 8  # major version of the compute capability: bfloat16 and TF32 begin there
EMPTY_KERNEL = "module {\n  tt.func public @empty() {\n    tt.return\n  }\n}\n"
ATTRIBUTES = {  # a field of Card -> CUdevice_attribute
    "major": 75,
    "minor": 76,
    "multi_processor_count": 16,
    "max_threads_per_multi_processor": 39,
    "warp_size": 10,
    "regs_per_multiprocessor": 82,
    "regs_per_block": 12,
    "shared_memory_per_block": 8,
    "shared_memory_per_block_optin": 97,
    "shared_memory_per_multiprocessor": 81,
    "L2_cache_size": 38,
    "is_integrated": 18,
    "clock_rate": 13,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
}


def describe(index: int = 0) -> Card:
    """One of the GPUs that this process may see. CUDA is initialised, but no context is made.

    Raises OSError where there is no driver, DriverError where there is no such GPU.
    """
    device = ctypes.c_int()
    memory = ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), index)
    driver.call("cuDeviceGetName", name, len(name), device)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    found = {}
    for field, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        driver.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        found[field] = value.value
    return Card(name=name.value.decode("utf-8", "replace"), total_memory=memory.value, **found)


def check_served(card: Card) -> None:
    """Raise ValueError, one line, if `card` is too old or the installed Triton does not compile for it."""
    if card.major < OLDEST:
        raise ValueError(f"this machine's {card} is too old: candidates need sm_{OLDEST}0 or newer")
    import triton

    from nanotriton.executor.gpu.stages import compile_ttir

    try:
        compile_ttir(EMPTY_KERNEL, card.target, {})
    except Exception as error:
        cause, _, _ = str(error).partition("Repro command")
        text = " ".join(cause.split())[:200]
        version = f"Triton {triton.__version__}"
        raise ValueError(
            f"the installed {version} does not compile for this machine's {card}: {text}"
        ) from None


def main() -> None:
    """Print the GPU as JSON. If it cannot be used, end with one line on stderr that says why."""
    try:
        card = describe()
    except (OSError, driver.DriverError) as error:
        raise SystemExit(f"this machine has no usable CUDA GPU ({error})") from None
    try:
        check_served(card)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print(json.dumps(asdict(card)))
