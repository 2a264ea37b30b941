"""Triton without a GPU: Triton's own front end lowers launches to TTIR, and they are recorded, never run.

`answers()` replaces three things. The active driver answers a candidate's questions about its GPU. `compile`
stops after the `ttir` stage. `Autotuner.run` records every configuration instead of timing it.
"""

import dataclasses
import functools
from operator import index
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.testing
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import _allocation, driver
from triton.runtime._allocation import NullAllocator
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from nanotriton.executor.child import addresses, fake_card
from nanotriton.executor.child.tape import CUDA, Tape
from nanotriton.executor.common.card import Card
from nanotriton.executor.common.construct import seed_from
from nanotriton.plan.plan import OPTIONS, Kernel, Tuning, digest
from nanotriton.plan.signature import signature

# Options that act in the front end alone. Their effect is in the TTIR, and later stages don't look at them.
FRONT_END = {"debug", "sanitize_overflow", "default_dot_input_precision", "max_num_imprecise_acc_default"}
# Options that say when a launch may begin. A plan's steps follow one another, so it has no use for them.
SCHEDULING = {"launch_pdl"}
UNKNOWN_ARGUMENT = "failed to specialize argument"  # Triton says so of a number of NumPy's, say
DESCRIPTOR = "tt.make_tensor_descriptor"  # that a kernel makes itself: Triton wants memory for it
NO_ALLOCATOR = (
    "a kernel that makes tensor descriptors needs memory at its launch: call triton.set_allocator before it"
)
INVALID = "error encountered during parsing"  # Triton's front end says so of IR that does not verify


def device_properties(card: Card) -> dict[str, int]:
    """The GPU's properties by the names that Triton's CUDA driver gives them."""
    fake_card.note_processors()
    return {
        "max_shared_mem": card.shared_memory_per_block_optin,
        "max_num_regs": card.regs_per_block,
        "multiprocessor_count": card.multi_processor_count,
        "warpSize": card.warp_size,
        "sm_clock_rate": card.clock_rate,
        "mem_clock_rate": card.memory_clock_rate,
        "mem_bus_width": card.memory_bus_width,
    }


class RecordingDriver:
    """Answers as Triton's CUDA driver would on a machine with that one GPU."""

    binary_ext = "cubin"

    def __init__(self, card: Card):
        self.card = card
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: device_properties(card), unload_module=lambda module: None
        )

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device) -> None:
        pass

    def get_current_stream(self, device=None) -> int:
        return 0

    def get_device_capability(self, device=None) -> tuple[int, int]:
        return self.card.major, self.card.minor

    def get_current_target(self) -> GPUTarget:
        return self.card.target

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_interface(self):
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def is_active(self) -> bool:
        return True

    def get_benchmarker(self):
        return _benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, device=CUDA)

    def clear_cache(self, cache) -> None:
        pass


def _benchmark(fn, quantiles=None, **options) -> list[float]:
    """Call a candidate's function once. Its time is always 1 ms."""
    fn()
    return [1.0] * len(quantiles or [0])


def _do_bench(fn, *args, quantiles=None, return_mode="mean", **options):
    """In place of triton.testing.do_bench: the candidate's function is called once, and takes 1 ms."""
    times = _benchmark(fn, quantiles)
    if quantiles is None:
        return times if return_mode == "all" else times[0]
    return times if len(times) > 1 else times[0]


class RecordedKernel:
    """In place of Triton's CompiledKernel, which `kernel[grid](...)` and `kernel.warmup(...)` return."""

    # They are unknown before ptxas. These numbers do for code that computes an occupancy.
    n_regs, n_spills, n_max_threads = 32, 0, 1024
    function = packed_metadata = module = None

    def __init__(self, src, options, kernel: Kernel, target: GPUTarget):
        self.src, self.recorded, self.name = src, kernel, kernel.name
        self.hash = digest(kernel.ttir.encode())
        self.asm = {"ttir": kernel.ttir}
        fields = {**options.__dict__, "shared": 1024, "name": kernel.name, "target": target}
        self.metadata = SimpleNamespace(**fields)

    @functools.cached_property
    def parameters(self) -> list[str]:
        """TTIR types of the parameters."""
        return [ty for ty, _ in signature(self.recorded.ttir, self.name)]

    def _init_handles(self):
        pass

    def launch_metadata(self, grid, stream, *args):
        return None

    def __getitem__(self, grid):
        x, y, z = (*grid, 1, 1)[:3]

        def launch(*args, stream=None):
            return self.run(x, y, z, stream, None, None, None, None, None, *args)

        return launch

    def run(self, grid_x, grid_y, grid_z, stream, function, packed, metadata, enter, leave, *args):
        """Record a launch. args: the kernel's, constants included; the rest as in CompiledKernel.run."""
        tape = Tape.active
        if tape is None or tape.building:
            _tape().unrecordable(
                f"kernel {self.name} is launched while the module is imported or built; do it in forward"
            )
        if DESCRIPTOR in self.recorded.ttir and isinstance(_allocation._allocator.get(), NullAllocator):
            raise RuntimeError(NO_ALLOCATOR)
        flat: list = []
        types = list(self.src.signature.values())
        for i, (ty, value) in enumerate(zip(types, _with_constants(types, args), strict=True)):
            _flatten(tape, self, i, ty, value, flat)
        grid = index(grid_x), index(grid_y), index(grid_z)
        tape.launch(self.recorded, grid, flat)


def _with_constants(types: list, args: tuple) -> list:
    """The arguments of a launch of a compiled kernel, one for each parameter.

    Its constants are compiled in, so a launch may leave all of them out.
    """
    if len(args) == len(types):
        return list(args)
    if len(args) != sum(ty != "constexpr" for ty in types):
        raise TypeError(f"{len(args)} arguments for the {len(types)} parameters of a compiled kernel")
    given = iter(args)
    return [None if ty == "constexpr" else next(given) for ty in types]


def _tape() -> Tape:
    if Tape.active is None:
        raise RuntimeError("Triton is launched outside of a recording")
    return Tape.active


def _flatten(tape: Tape, kernel: RecordedKernel, index: int, ty, value, out: list) -> None:
    """Append (type, value) of an argument as the launcher would pass it.

    Constants are left out, and of a tuple every element is an argument. index: of the argument, for messages.
    """
    if ty == "constexpr":
        return
    if isinstance(ty, tuple):
        for inner, v in zip(ty, value, strict=True):
            _flatten(tape, kernel, index, inner, v, out)
    elif ty.startswith("tensordesc"):
        out += _descriptor(ty, _pointer(tape, index, value.base), value, kernel.parameters, len(out))
    elif ty.startswith("*"):
        out.append((ty, _pointer(tape, index, value)))
    elif ty.startswith(("fp", "bf")):
        number = float(value)
        out.append((ty, number if abs(number) < float("inf") else str(number)))
    else:
        out.append((ty, bool(value) if ty in ("i1", "u1") else int(value)))


def _descriptor(ty: str, base: int, value, parameters: list[str], at: int) -> list:
    """[(type, value)] of a host-side descriptor: itself, or its parts.

    GPUs before Hopper have no descriptors. There Triton's front end takes them apart: base, shape and
    strides, a flag or two, and then shape and strides once more, which follow a descriptor on any GPU.
    base: id of its tensor. parameters: the kernel's, of which this descriptor's begin at number `at`.
    """
    shape = [int(n) for n in value.shape]
    strides = [int(s) for s in value.strides]
    if any(p.startswith("!tt.tensordesc") for p in parameters):
        return [(ty, [base, shape, strides, value.padding])]
    element = ty.removeprefix("tensordesc<").split("[")[0]
    flags = [value.padding == "nan"]
    if parameters[at + 2 + 2 * len(shape)] == "i1":  # triton 3.6 has only one flag
        flags.append(value.round_f32_to_tf32)
    parts = [(f"*{element}", base)]
    parts += [("i64", n) for n in (*shape, *strides)]
    parts += [("i1", flag) for flag in flags]
    parts += [("i32", n) for n in shape]
    parts += [("i64", s) for s in strides]
    return parts


def _pointer(tape: Tape, index: int, value) -> int:
    """The id of a tensor that a kernel gets. index: of the argument, for messages."""
    if not isinstance(value, torch.Tensor):
        value = getattr(value, "base", value)  # triton.reinterpret wraps a tensor
    if not isinstance(value, torch.Tensor):
        tape.unrecordable(
            f"argument {index} is a {type(value).__name__}, neither a number nor a tensor; pass its parts"
        )
    with torch._C.DisableTorchFunction():
        if not tape.on_cuda(value) and not value.untyped_storage().nbytes():
            return tape.tensor_id(tape.constant(value))  # without an address, any device's is a null pointer
        if not tape.on_cuda(value):
            raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")
    return tape.tensor_id(value)


@functools.cache
def dialects(target: GPUTarget):
    """An MLIR context with every dialect loaded.

    It takes 6 ms, once before the zygote forks. It has no threads, so forks may use it.
    """
    context = ir.context()
    ir.load_dialects(context)
    make_backend(target).load_dialects(context)
    return context


def compile_to_ttir(here: GPUTarget, src, target=None, options=None, _env_vars=None) -> RecordedKernel:
    """In place of triton.compile: Triton's front end and its passes over TTIR, and nothing after them.

    here: the GPU that kernels are compiled for, whatever `target` the candidate names.
    """
    if not hasattr(src, "fn"):
        _tape().fail(
            "rule_violation", "triton.compile of an IR file: only @triton.jit functions are launched"
        )
    backend = make_backend(here)
    options = backend.parse_options(dict(options or {}))
    _check_options(options, backend.parse_options({}))
    # Checks of integer overflow are assertions, which are kept with `debug` alone. They take more than half
    # of the front end's time.
    checked = options if options.debug else dataclasses.replace(options, sanitize_overflow=False)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    try:
        module = src.make_ir(here, checked, functions, modules, dialects(here))
    except RuntimeError as error:
        if str(error) != INVALID:
            raise
        hint = "is a tensor the condition of an if or a while? use tl.where"
        raise RuntimeError(
            f"kernel {src.fn.__name__}: {INVALID}: types or shapes do not fit ({hint})"
        ) from None
    stages: dict = {}
    backend.add_stages(stages, options, Language.TRITON)
    module = stages["ttir"](module, {})
    kept = {name: getattr(options, name) for name in OPTIONS}
    text = str(module).replace(_tape().path, "candidate.py")
    return RecordedKernel(src, options, Kernel(module.get_entry_func_name(), text, kept), here)


def _check_options(options, default) -> None:
    """End the recording if a launch option that no plan can hold differs from its default."""
    known = {*OPTIONS, *FRONT_END, *SCHEDULING}
    for name, value in options.__dict__.items():
        if name not in known and value != getattr(default, name):
            allowed = ", ".join(OPTIONS)
            _tape().fail(
                "rule_violation",
                f"launch option {name}={str(value)[:40]!r} is not allowed, leave it out; allowed: {allowed}",
            )


def autotune(self: Autotuner, *args, **kwargs):
    """In place of Autotuner.run: every pruned configuration becomes an alternative of one choice.

    While the tuner benchmarks, it also resets and restores tensors (reset_to_zero, restore_value). That is no
    part of a call, and is recorded apart from it: the judge tunes on copies, and asks whether the answer is
    right after a tuner's runs as well.
    """
    tape = _tape()
    self.nargs = dict(zip(self.arg_names, args))
    configs = list(self.prune_configs(kwargs)) if len(self.configs) > 1 else self.configs
    key = _tuning_key(self, kwargs)
    tunes = len(configs) > 1 and not tape.is_tuned(key)
    if (pinned := tape.pinned.get(id(self))) is not None:
        configs = [config for config in configs if config is pinned] or configs[:1]
    if tape.drawn is not None:
        order = {id(config): seed_from(tape.drawn, number) for number, config in enumerate(self.configs)}
        configs = configs[:1] + sorted(configs[1:], key=lambda config: order.get(id(config), 0))
    alternatives, recorded, refused, result = [], [], None, None
    for config in configs:
        if conflicts := kwargs.keys() & config.kwargs.keys():
            raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}")
        with tape.alternative() as steps:
            try:
                if config.pre_hook is not None:
                    config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
                result = self.fn.run(*args, **kwargs, **config.all_kwargs())
            except (OutOfResources, CompileTimeAssertionFailure, PTXASError) as error:
                refused = error  # the real tuner passes over such a configuration too
                continue
        alternatives.append(steps)
        recorded.append(config)
        if len(alternatives) == tape.max_configs:
            break
    if not alternatives:
        raise refused
    tuning = _tuning(self, tape, {**self.nargs, **kwargs, **recorded[0].all_kwargs()}) if tunes else None
    tape.choose(key, alternatives, tuning)
    self._recorded = recorded[0]
    self.nargs = None
    return result


def _tuning(self: Autotuner, tape: Tape, arguments: dict) -> Tuning:
    """Record what the tuner does around its runs."""
    with tape.alternative() as before:
        self.pre_hook(arguments)
    with tape.alternative() as after:
        self.post_hook(arguments, exception=None)
    with tape.alternative() as end:
        self.pre_hook(arguments, reset_only=True)
    return Tuning(before, after, end)


def _tuning_key(self: Autotuner, kwargs: dict) -> tuple:
    """Calls with an equal key have the same configuration, as the real tuner's cache decides it."""
    values = {**self.nargs, **kwargs}
    named = tuple(str(values[name]) for name in self.keys if name in values)
    dtypes = tuple(str(value.dtype) for value in values.values() if hasattr(value, "dtype"))
    return id(self), named, dtypes


_jit_run = JITFunction.run


def _run(self: JITFunction, *args, **kwargs):
    """In place of JITFunction.run: what no kernel can be given is refused in words that say what to give."""
    tape = _tape()
    if tape.addresses.among(args, kwargs):
        tape.unrecordable(addresses.ARGUMENT)
    try:
        return _jit_run(self, *args, **kwargs)
    except TypeError as error:
        if UNKNOWN_ARGUMENT not in str(error):
            raise
        raise TypeError(
            f"{error}: give a kernel tensors and Python's own numbers, int(n) or float(x)"
        ) from None


def _best_config(self: Autotuner):
    """The configuration that was recorded first. A candidate that asks for the best one gets it everywhere:
    what it makes of the answer must fit what ran."""
    if not hasattr(self, "_recorded"):
        raise AttributeError("best_config: the autotuner has chosen nothing before its first launch")
    tape = _tape()
    if len(self.configs) > 1 and id(self) not in tape.pinned:
        tape.pin(id(self), self._recorded)
    return self._recorded


def answers(card: Card) -> list[tuple[object, str, Any]]:
    """[(owner, name, new value)]: with these Triton records, as on a machine with that one GPU."""
    compiles = functools.partial(compile_to_ttir, card.target)
    return [
        (driver, "_active", RecordingDriver(card)),
        (triton.compiler, "compile", compiles),
        (triton, "compile", compiles),
        (JITFunction, "run", _run),
        (Autotuner, "run", autotune),
        (triton.testing, "do_bench", _do_bench),
        (triton.testing, "do_bench_cudagraph", _do_bench),
        (Autotuner, "best_config", property(_best_config)),
    ]
