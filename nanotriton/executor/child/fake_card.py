"""What torch says of a GPU and of its memory in a recording: as on a card that is in use.

No answer may be one that a card never gives, because a candidate could tell the recording by it. So memory
is in use from the start (a card's context has a workspace), and grows with the tensors of the recording.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch

from nanotriton.executor.child.tape import Tape
from nanotriton.executor.common.card import Card

WORKSPACE = 8_519_680  # bytes that cuBLAS takes with its first call
CONTEXT = 530 << 20  # bytes that a context takes beside the allocator
GRAIN = 512  # bytes: the allocator gives out multiples of it
SEGMENT = 2 << 20  # bytes: it takes multiples of it from the driver
# of an idle-looking but busy card: percent, percent, degrees Celsius, milliwatts
USE, MEMORY_USE, TEMPERATURE, POWER = 37, 11, 46, 214_300


class _CudaDeviceProperties(SimpleNamespace):
    """A GPU's properties under the name that torch's own class has, which its repr shows.

    It is noted who asks for the number of multiprocessors: the judge records such a candidate once more, for
    a card with fewer.
    """

    def __getattribute__(self, name: str):
        if name in ("multi_processor_count", "__dict__"):  # a repr reads all of them
            note_processors()
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        note_processors()
        return super().__repr__()


def note_processors() -> None:
    """Somebody asks how many multiprocessors the card has."""
    if Tape.active is not None:
        Tape.active.asks_processors = True


def properties(card: Card) -> _CudaDeviceProperties:
    """Everything that torch says of a CUDA device; on CUDA builds gcnArchName repeats the name."""
    return _CudaDeviceProperties(
        **asdict(card),
        is_multi_gpu_board=0,
        max_threads_per_block=1024,
        gcnArchName=card.name,
        uuid="5e1c9c1c-6f0e-5d0b-9a43-2f4b3d1e8a77",
        pci_bus_id=27,
        pci_device_id=0,
        pci_domain_id=0,
    )


def allocated() -> int:
    """Bytes that the recording's tensors would have by now, in the allocator's grains. None is ever freed."""
    sizes = Tape.active.sizes() if Tape.active is not None else []
    return WORKSPACE + sum(-(-size // GRAIN) * GRAIN for size in sizes)


def reserved() -> int:
    return -(-allocated() // SEGMENT) * SEGMENT + SEGMENT


def statistics() -> OrderedDict[str, int]:
    """torch.cuda.memory_stats(), as far as anything of it is known."""
    tensors = len(Tape.active.sizes()) if Tape.active is not None else 0
    amounts = {
        "allocated_bytes": allocated(),
        "active_bytes": allocated(),
        "requested_bytes": allocated(),
        "reserved_bytes": reserved(),
        "inactive_split_bytes": reserved() - allocated(),
        "allocation": tensors + 1,
        "active": tensors + 1,
        "segment": reserved() // SEGMENT,
        "inactive_split": 1,
    }
    found: dict[str, int] = {"num_alloc_retries": 0, "num_ooms": 0, "max_split_size": -1}
    for name, amount in amounts.items():
        for pool in ("all", "large_pool", "small_pool"):
            share = 0 if pool == "large_pool" else amount
            found |= {f"{name}.{pool}.{kind}": share for kind in ("current", "peak", "allocated")}
            found[f"{name}.{pool}.freed"] = 0
    return OrderedDict(sorted(found.items()))


def _asked(answer: Callable[[], Any]) -> Callable:
    """A function that gives this answer, whatever device it is asked about."""

    def ask(*args, **kwargs):
        return answer()

    return ask


def answers(card: Card) -> list[tuple[object, str, Any]]:
    """[(owner, name, new value)]: with these torch.cuda speaks of a card in use, and of its memory."""
    cuda, whole = torch.cuda, properties(card)
    told: dict[str, Callable[[], Any]] = {
        "get_device_properties": lambda: whole,
        "memory_allocated": allocated,
        "max_memory_allocated": allocated,
        "memory_reserved": reserved,
        "max_memory_reserved": reserved,
        "memory_cached": reserved,
        "max_memory_cached": reserved,
        "memory_stats": statistics,
        "mem_get_info": lambda: (card.total_memory - CONTEXT - reserved(), card.total_memory),
        "device_memory_used": lambda: CONTEXT + reserved(),
        "memory_usage": lambda: MEMORY_USE,
        "utilization": lambda: USE,
        "temperature": lambda: TEMPERATURE,
        "power_draw": lambda: POWER,
        "clock_rate": lambda: card.clock_rate // 1000,
        "is_tf32_supported": lambda: True,
    }
    return [(cuda, name, _asked(answer)) for name, answer in told.items() if hasattr(cuda, name)]
