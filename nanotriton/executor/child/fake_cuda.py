"""torch.cuda and its relatives, as they answer on a machine with one GPU. None of them initialises CUDA."""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch

from nanotriton.executor.child import fake_card, operators, streams
from nanotriton.executor.child.fake_torch import is_cuda
from nanotriton.executor.child.tape import CUDA, Tape
from nanotriton.executor.common.card import Card

Tensor = torch.Tensor


def _refuse(what: str) -> Callable:
    """A function that ends the recording, because `what` cannot be recorded."""

    def call(*args, **kwargs):
        if Tape.active is not None:
            Tape.active.unrecordable(f"{what} cannot be recorded; launch kernels in forward")
        raise RuntimeError(f"{what} cannot be recorded")

    return call


def _set_default_device(device) -> None:
    if Tape.active is not None:
        Tape.active.default_cuda = is_cuda(device) or type(device) is int


def _empty_strided_cuda(size, stride, dtype) -> Tensor:
    """Code that imitates torch.compile's output allocates with this."""
    return torch.empty_strided(size, stride, dtype=dtype, device=CUDA)


_enter_autocast = torch.autocast.__enter__


def _autocast(self):
    if Tape.active is not None and self.device == "cuda" and self._enabled:
        Tape.active.unrecordable("torch.autocast: the recorder does not see the casts; write them out")
    return _enter_autocast(self)


def _answering(value) -> Callable:
    """A new function that returns `value`, whatever its arguments are. (torch keys tables by functions.)"""

    def answer(*args, **kwargs):
        return value

    return answer


def _unchanged(kernel):
    """In place of wrap_triton: a kernel needs no wrapper here."""
    return kernel


_real_storage_address = torch.UntypedStorage.data_ptr


def _storage_address(self) -> int:
    """In place of UntypedStorage.data_ptr, which is 0 for every storage without data."""
    tape = Tape.active
    if tape is None or tape.building or self.device.type != "meta":
        return _real_storage_address(self)
    return tape.address(self)


def _as_it_is(function=None, *args, model=None, **options):
    """In place of torch.compile and torch.jit.script, as functions and as decorators.

    What they are given does the same without them, and its calls are recorded.
    """
    function = model if function is None else function
    return _as_it_is if function is None else function


def _compilers() -> list[tuple[object, str, Any]]:
    jit = ("script", "script_if_tracing", "trace", "trace_module", "freeze", "optimize_for_inference")
    return [(torch, "compile", _as_it_is), *[(torch.jit, name, _as_it_is) for name in jit]]


def _accelerator() -> list[tuple[object, str, Any]]:
    """torch.accelerator, where this torch has it, answers as torch.cuda does."""
    module = getattr(torch, "accelerator", None)
    if module is None:
        return []
    functions = {
        "is_available": _answering(True),
        "device_count": _answering(1),
        "current_accelerator": _answering(torch.device("cuda")),
        "current_device_index": _answering(0),
        "current_device_idx": _answering(0),
        "set_device_index": _answering(None),
        "current_stream": streams.current_stream,
        "synchronize": streams.synchronize,
    }
    return [(module, name, value) for name, value in functions.items() if hasattr(module, name)]


def _refused(module: ModuleType, answered: list[tuple[object, str, Any]]) -> list[tuple[object, str, Any]]:
    """The other public functions of torch.cuda, or of a module like it.

    They end the recording: without a GPU they would raise, and a candidate could tell by that.
    """
    known = {name for owner, name, _ in answered if owner is module}
    return [
        (module, name, _refuse(f"{module.__name__}.{name}"))
        for name, value in vars(module).items()
        if name not in known
        and name[0] != "_"
        and isinstance(value, FunctionType)
        and value.__module__.startswith(module.__name__)
    ]


def answers(card: Card) -> list[tuple[object, str, Any]]:
    """[(owner, name, new value)]: with these torch.cuda answers as on a machine with that one GPU.

    None of them initialises CUDA. What has no answer here ends the recording.
    """
    known = _answers(card)
    modules = [torch.cuda, getattr(torch, "accelerator", None)]
    return known + [found for module in modules if module for found in _refused(module, known)]


# Names of torch.cuda, by what stands in their place. Those of NOTHING do nothing, and answer None.
NOTHING = (
    "set_device",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "init",
    "_lazy_init",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "set_sync_debug_mode",
    "set_per_process_memory_fraction",
)
GUARDS = ("device", "device_of", "_DeviceGuard")
STREAMS = {
    "Stream": streams.Stream,
    "ExternalStream": streams.Stream,
    "Event": streams.Event,
    "stream": streams.stream_context,
    "StreamContext": streams.stream_context,
    "current_stream": streams.current_stream,
    "default_stream": streams.default_stream,
    "set_stream": streams.set_stream,
    "synchronize": streams.synchronize,
}
GRAPHS = ("CUDAGraph", "graph", "make_graphed_callables")


def _answers(card: Card) -> list[tuple[object, str, Any]]:
    """[(owner, name, new value)] of everything that has an answer."""
    cuda = torch.cuda
    constants = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "is_bf16_supported": True,
        "get_device_name": card.name,
        "get_device_capability": (card.major, card.minor),
        "is_current_stream_capturing": False,
        "get_arch_list": [card.sm],
    }
    return [
        *fake_card.answers(card),
        *[(cuda, name, _answering(value)) for name, value in constants.items()],
        *[(cuda, name, _answering(None)) for name in NOTHING if hasattr(cuda, name)],
        *[(cuda.nvtx, name, _answering(None)) for name in ("range_push", "range_pop", "mark")],
        *[(cuda, name, streams.Guard) for name in GUARDS],
        *[(cuda, name, value) for name, value in STREAMS.items()],
        *_accelerator(),
        *_compilers(),
        *[(cuda, name, _refuse("a CUDA graph")) for name in GRAPHS],
        (torch.library, "wrap_triton", _unchanged),
        (torch._library.triton, "wrap_triton", _unchanged),
        (torch, "set_default_device", _set_default_device),
        (torch.backends.cuda, "is_built", _answering(True)),
        (torch._C, "_cuda_getCurrentRawStream", _answering(0)),
        (torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided_cuda),
        (torch.autocast, "__enter__", _autocast),
        (torch.UntypedStorage, "data_ptr", _storage_address),
        (torch.library.Library, "impl", operators.library_impl),
    ]
