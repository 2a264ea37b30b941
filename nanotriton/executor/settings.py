"""What all code of a process shares and a task's code may set: torch's defaults and flags, the environment, Python's own settings.

A worker runs one task after another. `Settings.active` surrounds all that runs a task's own code. What the task has set is active inside,
as if the process were the task's alone. It is undone outside, so neither the judge nor the next task meets it.

Some settings are undone for good: the default device, because the judge says where tensors are made, and those that no answer depends on.
What can't be undone: threads that were started, limits that were lowered, files that were written.
"""

import _signal  # signal.getsignal makes an enum member of every answer, which takes thirty times as long
import contextlib
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack, _pop_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

from nanotriton.executor.draws import seed_everything
from nanotriton.executor.patches import Patch, shared

UNREADABLE = object()  # in place of a setting whose getter refuses to answer
TINY = 5e-324  # the smallest float64 above 0: 0 to a processor that flushes such numbers


@dataclass(frozen=True)
class Setting:
    get: Callable[[], Any]
    set: Callable[[Any], None]
    kept: bool  # what a task sets is set again whenever its code runs; else it is undone for good


def _flag(owner: object, name: str) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), True)


def _fp32_precision(backend: str, op: str) -> Setting:
    """"tf32", "ieee" or "none", which means as the backend's, or all backends', is set."""
    return Setting(
        lambda: torch._C._get_fp32_precision_getter(backend, op),
        lambda value: torch._C._set_fp32_precision_setter(backend, op, value),
        True,
    )


def _autocast(device: str) -> Setting:
    def set_autocast(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return Setting(lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), set_autocast, True)


def _contents(container: dict | list, kept: bool = False) -> Setting:
    """The contents of a dictionary or a list that others hold too, so that the object itself has to stay."""

    def refill(value: dict | list) -> None:
        container.clear()
        if isinstance(container, dict):
            container.update(value)
        else:
            container.extend(value)

    return Setting(container.copy, refill, kept)


def _set_environment(value: dict[bytes, bytes]) -> None:
    for name in os.environb.keys() - value.keys():
        del os.environb[name]
    os.environb.update(value)


def _default_device() -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context and context.device


def _set_tensor_type(device: str) -> None:
    """Undo torch.set_default_tensor_type, which sets a device beside the default dtype."""
    dtype = torch.get_default_dtype()
    torch.set_default_tensor_type(torch.FloatTensor if device == "cpu" else torch.cuda.FloatTensor)
    torch.set_default_dtype(dtype)


def _set_deterministic(value: tuple[bool, bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    torch.utils.deterministic.fill_uninitialized_memory = value[2]


def _deterministic() -> tuple[bool, bool, bool]:
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return *modes, torch.utils.deterministic.fill_uninitialized_memory


def _unwind(stack: Callable[[], list], pop: Callable[[], Any]) -> Setting:
    """A stack of modes, of which some were entered and never left."""

    def leave(value: list) -> None:
        while len(stack()) > len(value):
            pop()

    return Setting(stack, leave, False)


def _signals() -> list:
    return [_signal.getsignal(number) for number in range(1, _signal.NSIG)]


def _set_signals(value: list) -> None:
    for number, (handler, now) in enumerate(zip(value, _signals(), strict=True), start=1):
        if handler is not None and now != handler:  # None: nobody's in Python
            _signal.signal(number, handler)


def _file_rights() -> int:
    rights = os.umask(0o077)
    os.umask(rights)
    return rights


def _cuda_place() -> tuple[int, Any] | None:
    """(device, stream) that CUDA calls go to."""
    if not torch.cuda._initialized:  # torch.cuda.is_initialized says what a recorder makes it say
        return None
    return torch.cuda.current_device(), torch.cuda.current_stream()


def _set_cuda_place(value: tuple[int, Any] | None) -> None:
    if value is not None:
        with contextlib.suppress(RuntimeError):  # the context is lost, and the process about to end
            torch.cuda.set_device(value[0])
            torch.cuda.set_stream(value[1])


def _set_warnings(value: list) -> None:
    warnings.filters[:] = value
    warnings._filters_mutated()  # what was shown once may be shown again


def _set_logging(value: tuple[int, int, list]) -> None:
    logging.root.manager.disable, logging.root.level, logging.root.handlers[:] = value
    logging.root.manager._clear_cache()  # of what is logged


_BACKENDS = [("generic", "all")] + [(b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]
_CUDA = torch.backends.cuda
# In the order in which they are put back: a precision that is set for an operation must be there before torch's older flags can be read.
SETTINGS: dict[str, Setting] = {
    # ---- what results depend on ----
    "default device": Setting(_default_device, torch.set_default_device, False),
    "default tensor type": Setting(torch._C._get_default_device, _set_tensor_type, False),
    "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype, True),
    **{f"fp32 precision of {b}, {op}": _fp32_precision(b, op) for b, op in _BACKENDS},
    "float32 matmul precision": Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, True),
    **{name: _flag(_CUDA.matmul, name) for name in ("allow_tf32", "allow_fp16_reduced_precision_reduction")},
    **{name: _flag(_CUDA.matmul, name) for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation")},
    **{f"cudnn {name}": _flag(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")},
    **{f"mkldnn {name}": _flag(torch.backends.mkldnn, name) for name in ("enabled", "deterministic")},
    "flash attention": Setting(_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp, True),
    "memory-efficient attention": Setting(_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp, True),
    "cuDNN's attention": Setting(_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp, True),
    "attention step by step": Setting(_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp, True),
    "fast paths of transformers": Setting(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, True),
    "linear algebra's library": Setting(_CUDA.preferred_linalg_library, _CUDA.preferred_linalg_library, True),
    "matrix products' library": Setting(_CUDA.preferred_blas_library, _CUDA.preferred_blas_library, True),
    "deterministic algorithms": Setting(_deterministic, _set_deterministic, True),
    "autocast on the CPU": _autocast("cpu"),
    "autocast on the GPU": _autocast("cuda"),
    "subnormal numbers": Setting(lambda: TINY * 1.0 == 0.0, torch.set_flush_denormal, True),
    "threads": Setting(torch.get_num_threads, torch.set_num_threads, True),
    "gradients": Setting(torch.is_grad_enabled, torch._C._set_grad_enabled, False),
    "anomalies": Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), lambda value: torch.set_anomaly_enabled(*value), False
    ),
    "function modes": _unwind(_get_current_function_mode_stack, _pop_mode),
    "dispatch modes": _unwind(_get_current_dispatch_mode_stack, _pop_dispatch_mode),
    "device and stream": Setting(_cuda_place, _set_cuda_place, False),
    **{name: _contents(hooks) for name, hooks in vars(module_hooks).items() if name.startswith("_global_") and isinstance(hooks, dict)},
    "environment": Setting(os.environ._data.copy, _set_environment, True),
    "folder": Setting(os.getcwd, os.chdir, True),
    "sys.path": _contents(sys.path, kept=True),
    # ---- what is printed and how, and Python's own ----
    "torch's printing": Setting(lambda: dict(vars(torch._tensor_str.PRINT_OPTS)), lambda value: vars(torch._tensor_str.PRINT_OPTS).update(value), False),
    "torch's warnings": Setting(torch.is_warn_always_enabled, torch.set_warn_always, False),
    "NumPy's printing": Setting(np.get_printoptions, lambda value: np.set_printoptions(**value), False),
    "NumPy's errors": Setting(np.geterr, lambda value: np.seterr(**value), False),
    "warnings": Setting(lambda: list(warnings.filters), _set_warnings, False),
    "logging": Setting(lambda: (logging.root.manager.disable, logging.root.level, logging.root.handlers.copy()), _set_logging, False),
    "signals": Setting(_signals, _set_signals, False),
    "rights of new files": Setting(_file_rights, os.umask, False),
    "garbage collection": Setting(gc.isenabled, lambda value: gc.enable() if value else gc.disable(), False),
    "when to collect garbage": Setting(gc.get_threshold, lambda value: gc.set_threshold(*value), False),
    "depth of recursion": Setting(sys.getrecursionlimit, sys.setrecursionlimit, False),
    "trace": Setting(sys.gettrace, sys.settrace, False),
    "profile": Setting(sys.getprofile, sys.setprofile, False),
}



def take_place() -> bool:
    """Undo where tensors are made by default, which is for the judge to say. Returns whether it was a GPU."""
    device = _default_device()
    was_cuda = "cuda" in (device and device.type, torch._C._get_default_device())
    restore({"default device": None, "default tensor type": "cpu"})
    return was_cuda


def _read(setting: Setting) -> Any:
    try:
        return setting.get()
    except RuntimeError:  # torch's older flags of precision refuse to answer where its newer ones contradict them
        return UNREADABLE


def snapshot() -> dict[str, Any]:
    """All settings as they are."""
    return {name: _read(setting) for name, setting in SETTINGS.items()}


def restore(values: dict[str, Any]) -> None:
    """Put settings back, in the order of SETTINGS: those that differ from `values` when their turn comes."""
    for name, setting in SETTINGS.items():
        value = values.get(name, UNREADABLE)
        if value is not UNREADABLE and _read(setting) != value:
            setting.set(value)


def reset(neutral: dict[str, Any]) -> None:
    """Between two steps of a worker: everything as in `neutral`, and the generators at a constant seed, whatever was set or interrupted."""
    shared.undo()
    if snapshot() != neutral:
        restore(neutral)
    seed_everything(0)


class Settings:
    """What one task has set, and put in place of what others use."""

    def __init__(self):
        self.own: dict[str, Any] = {}  # settings, by name in SETTINGS
        self.patches: list[Patch] = []
        self.inside = False

    @contextlib.contextmanager
    def learned(self) -> Iterator[None]:
        """While a task is loaded and run for the first time: find out what it sets, and undo it. It takes some milliseconds."""
        before = snapshot()
        shared.watch()
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
            self.patches = shared.undo()
            after = snapshot()
            self.own = {name: value for name, value in after.items() if value != before[name] and value is not UNREADABLE}
            restore(before)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Run the task's own code with what it has set, and undo that. Nested, or where the task sets nothing, this does nothing."""
        if self.inside or not (self.own or self.patches):
            yield
            return
        kept = {name: value for name, value in self.own.items() if SETTINGS[name].kept}
        before = {name: _read(SETTINGS[name]) for name in self.own}
        undone = [patch.undone() for patch in self.patches]
        self.inside = True
        try:
            restore(kept)
            for patch in self.patches:
                patch.put()
            yield
        finally:
            self.inside = False
            for patch in undone:
                patch.put()
            restore(before)
