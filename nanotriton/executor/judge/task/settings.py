"""What all code of a process shares and a task's code may set: torch's flags, the environment, Python's
options.

A worker runs one task after another. `Settings.active` surrounds all that runs a task's own code. What the
task has set is active inside, as if the process were the task's alone. It is undone outside, so neither the
judge nor the next task meets it.

Some settings are undone for good: the default device, because the judge says where tensors are made, and
those that no answer depends on. What can't be undone: threads that were started, limits that were lowered,
files that were written.
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

from nanotriton.executor.common.construct import seed_everything
from nanotriton.executor.judge.task.patches import Patch, shared

UNREADABLE = object()  # in place of a setting whose getter refuses to answer
TINY = 5e-324  # the smallest float64 above 0: 0 to a processor that flushes such numbers


@dataclass(frozen=True)
class Setting:
    get: Callable[[], Any]
    set: Callable[[Any], None]
    kept: bool = True  # what a task sets is set again whenever its code runs; else it is undone for good


# ---- settings of one kind ----


def _flags(owner: object, *names: str) -> dict[str, Setting]:
    """Attributes of a module of torch.backends, by its name and theirs."""

    def flag(name: str) -> Setting:
        return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))

    where = getattr(owner, "__name__", "torch.backends.cuda.matmul")
    return {f"{where}.{name}": flag(name) for name in names}


def _fp32_precision(backend: str, op: str) -> Setting:
    """The precision is "tf32", "ieee", or "none": as it is set for the backend or for all of them."""
    return Setting(
        lambda: torch._C._get_fp32_precision_getter(backend, op),
        lambda value: torch._C._set_fp32_precision_setter(backend, op, value),
    )


def _autocast(device: str) -> Setting:
    def get() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def put(value: tuple[bool, torch.dtype]) -> None:
        enabled, dtype = value
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)

    return Setting(get, put)


def _unwound(stack: Callable[[], list], pop: Callable[[], Any]) -> Setting:
    """A stack of modes, of which some may have been entered and never left."""

    def put(value: list) -> None:
        while len(stack()) > len(value):
            pop()

    return Setting(stack, put, kept=False)


def _contents(container: dict | list, kept: bool) -> Setting:
    """The contents of a dictionary or a list that others hold too, so that the object itself has to stay."""

    def put(value: dict | list) -> None:
        container.clear()
        if isinstance(container, dict):
            container.update(value)
        else:
            container.extend(value)

    return Setting(container.copy, put, kept)


# ---- single ones that take more than a getter and a setter ----


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context and context.device


def _set_tensor_type(device: str) -> None:
    """Undo torch.set_default_tensor_type, which sets a device beside the default dtype."""
    dtype = torch.get_default_dtype()
    torch.set_default_tensor_type(torch.FloatTensor if device == "cpu" else torch.cuda.FloatTensor)
    torch.set_default_dtype(dtype)


def _deterministic() -> tuple[bool, bool, bool]:
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return enabled, warn_only, torch.utils.deterministic.fill_uninitialized_memory


def _set_deterministic(value: tuple[bool, bool, bool]) -> None:
    enabled, warn_only, fill = value
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


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


def _set_environment(value: dict[bytes, bytes]) -> None:
    for name in os.environb.keys() - value.keys():
        del os.environb[name]
    os.environb.update(value)


def _set_warnings(value: list) -> None:
    warnings.filters[:] = value
    warnings._filters_mutated()  # what was shown once may be shown again


def _logging() -> tuple[int, int, list]:
    return logging.root.manager.disable, logging.root.level, logging.root.handlers.copy()


def _set_logging(value: tuple[int, int, list]) -> None:
    logging.root.manager.disable, logging.root.level, logging.root.handlers[:] = value
    logging.root.manager._clear_cache()


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


# ---- all of them ----


def _of_torch() -> dict[str, Setting]:
    """What results depend on."""
    backends, cuda = torch.backends, torch.backends.cuda
    found = {
        "default device": Setting(_default_device, torch.set_default_device, kept=False),
        "default tensor type": Setting(torch._C._get_default_device, _set_tensor_type, kept=False),
        "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
        "fp32 precision": _fp32_precision("generic", "all"),
    }
    for backend in ("cuda", "mkldnn"):
        for op in ("all", "matmul", "conv", "rnn"):
            found[f"fp32 precision of {backend}, {op}"] = _fp32_precision(backend, op)
    # torch's older flags of precision can be read only once the newer ones agree with them again
    found["matmul precision"] = Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    )
    found |= _flags(cuda.matmul, "allow_tf32", "allow_fp16_accumulation")
    found |= _flags(
        cuda.matmul, "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"
    )
    found |= _flags(backends.cudnn, "enabled", "benchmark", "deterministic", "allow_tf32")
    found |= _flags(backends.mkldnn, "enabled", "deterministic")
    return found | {
        "flash attention": Setting(cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        "efficient attention": Setting(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        "cuDNN's attention": Setting(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        "plain attention": Setting(cuda.math_sdp_enabled, cuda.enable_math_sdp),
        "fast paths": Setting(backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled),
        "linear algebra": Setting(cuda.preferred_linalg_library, cuda.preferred_linalg_library),
        "matrix products": Setting(cuda.preferred_blas_library, cuda.preferred_blas_library),
        "deterministic algorithms": Setting(_deterministic, _set_deterministic),
        "autocast on the CPU": _autocast("cpu"),
        "autocast on the GPU": _autocast("cuda"),
        "subnormal numbers": Setting(lambda: TINY * 1.0 == 0.0, torch.set_flush_denormal),
        "threads": Setting(torch.get_num_threads, torch.set_num_threads),
        "gradients": Setting(torch.is_grad_enabled, torch._C._set_grad_enabled, kept=False),
        "anomalies": Setting(_anomalies, lambda value: torch.set_anomaly_enabled(*value), kept=False),
        "function modes": _unwound(_get_current_function_mode_stack, _pop_mode),
        "dispatch modes": _unwound(_get_current_dispatch_mode_stack, _pop_dispatch_mode),
        "device and stream": Setting(_cuda_place, _set_cuda_place, kept=False),
    }


def _hooks() -> dict[str, Setting]:
    """Hooks that run with every module."""
    found = {}
    for name, hooks in vars(module_hooks).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            found[name] = _contents(hooks, kept=False)
    return found


def _of_python() -> dict[str, Setting]:
    return {
        "environment": Setting(os.environ._data.copy, _set_environment),
        "folder": Setting(os.getcwd, os.chdir),
        "sys.path": _contents(sys.path, kept=True),
        "warnings": Setting(lambda: list(warnings.filters), _set_warnings, kept=False),
        "logging": Setting(_logging, _set_logging, kept=False),
        "signals": Setting(_signals, _set_signals, kept=False),
        "rights of new files": Setting(_file_rights, os.umask, kept=False),
        "collecting": Setting(gc.isenabled, lambda value: gc.enable() if value else gc.disable(), kept=False),
        "when to collect": Setting(gc.get_threshold, lambda value: gc.set_threshold(*value), kept=False),
        "depth of recursion": Setting(sys.getrecursionlimit, sys.setrecursionlimit, kept=False),
        "trace": Setting(sys.gettrace, sys.settrace, kept=False),
        "profile": Setting(sys.getprofile, sys.setprofile, kept=False),
    }


def _of_printing() -> dict[str, Setting]:
    options = torch._tensor_str.PRINT_OPTS
    warn_always = Setting(torch.is_warn_always_enabled, torch.set_warn_always, kept=False)
    return {
        "torch's printing": Setting(vars(options).copy, vars(options).update, kept=False),
        "torch's warnings": warn_always,
        "NumPy's printing": Setting(
            np.get_printoptions, lambda value: np.set_printoptions(**value), kept=False
        ),
        "NumPy's errors": Setting(np.geterr, lambda value: np.seterr(**value), kept=False),
    }


SETTINGS = _of_torch() | _hooks() | _of_python() | _of_printing()  # in the order in which they are put back


def take_place() -> bool:
    """Undo where tensors are made by default, which is for the judge to say. Returns whether it was a GPU."""
    device = _default_device()
    was_cuda = "cuda" in (device and device.type, torch._C._get_default_device())
    restore({"default device": None, "default tensor type": "cpu"})
    return was_cuda


def _read(setting: Setting) -> Any:
    try:
        return setting.get()
    except RuntimeError:
        return UNREADABLE


def snapshot() -> dict[str, Any]:
    """All settings as they are."""
    return {name: _read(setting) for name, setting in SETTINGS.items()}


def restore(values: dict[str, Any]) -> None:
    """Put settings back, in the order of SETTINGS: those that differ from `values` when their turn comes."""
    if not values:  # most tasks set nothing
        return
    for name, setting in SETTINGS.items():
        value = values.get(name, UNREADABLE)
        if value is not UNREADABLE and _read(setting) != value:
            setting.set(value)


def reset(neutral: dict[str, Any]) -> None:
    """Between two steps of a worker: everything as in `neutral`, and the generators at a constant seed.

    Also if an alarm went off while something was undone.
    """
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
        """While a task is loaded and run for the first time: find out what it sets, and undo it."""
        before = snapshot()
        shared.watch()
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
            self.patches = shared.undo()
            for name, value in snapshot().items():
                if value is not UNREADABLE and value != before[name]:
                    self.own[name] = value
            restore(before)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Run the task's own code with what it has set, and undo that.

        Nested, or where the task sets nothing, this does nothing.
        """
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
