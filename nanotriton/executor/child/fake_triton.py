"""Triton without a GPU: launches are lowered to TTIR by Triton's own front end and recorded, never run.

`answers()` makes three things ours: the active driver (what a candidate asks about its GPU), `compile`
(stops after the `ttir` stage), and `Autotuner.run` (records every configuration instead of timing it).
"""

import dataclasses
import functools
from operator import index
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError

from nanotriton.executor.child.tape import CUDA, Tape
from nanotriton.executor.common.card import Card
from nanotriton.plan.plan import OPTIONS, Kernel, digest
from nanotriton.plan.signature import signature

# These act in the front end alone: their effect is in the TTIR, later stages don't look at them.
FRONT_END = {"debug", "sanitize_overflow", "default_dot_input_precision", "max_num_imprecise_acc_default"}
INVALID = "error encountered during parsing"  # what Triton's front end says of IR that does not verify


def device_properties(card: Card) -> dict[str, int]:
    """As triton's CUDA driver names them."""
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
    """Answers as triton's CUDA driver would on a machine with that one GPU."""

    binary_ext = "cubin"

    def __init__(self, card: Card):
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: device_properties(card), unload_module=lambda module: None
        )
        self.get_current_device = lambda: 0
        self.set_current_device = lambda device: None
        self.get_current_stream = lambda device=None: 0
        self.get_device_capability = lambda device=None: (card.major, card.minor)
        self.get_current_target = lambda: card.target
        self.get_active_torch_device = lambda: CUDA
        self.get_device_interface = lambda: torch.cuda
        self.map_python_to_cpp_type = lambda ty: ty
        self.is_active = lambda: True
        # A candidate that benchmarks on its own gets its function called once, and a constant.
        self.get_benchmarker = lambda: (
            lambda fn, quantiles=None, **kw: (fn(), [1.0] * len(quantiles or [0]))[1]
        )
        self.get_empty_cache_for_benchmark = lambda: torch.empty(1, device=CUDA)
        self.clear_cache = lambda cache: None


class RecordedKernel:
    """What `kernel[grid](...)` and `kernel.warmup(...)` return: looks like triton's CompiledKernel, runs nothing."""

    # unknown before ptxas; enough for code that computes an occupancy
    n_regs, n_spills, n_max_threads = 32, 0, 1024
    function = packed_metadata = module = None

    def __init__(self, src, options, kernel: Kernel, target: GPUTarget):
        self.src, self.recorded, self.name = src, kernel, kernel.name
        self.hash = digest(kernel.ttir.encode())
        self.asm = {"ttir": kernel.ttir}
        self.metadata = SimpleNamespace(
            **{**options.__dict__, "shared": 1024, "name": kernel.name, "target": target}
        )

    @functools.cached_property
    def parameters(self) -> list[str]:
        """The TTIR's types of what a launch passes."""
        return [ty for ty, _ in signature(self.recorded.ttir, self.name)]

    def _init_handles(self):
        pass

    def launch_metadata(self, grid, stream, *args):
        return None

    def __getitem__(self, grid):
        grid = (*grid, 1, 1)[:3]
        return lambda *args, stream=None: self.run(*grid, None, None, None, None, None, None, *args)

    def run(self, grid_x, grid_y, grid_z, stream, function, packed, metadata, enter, leave, *args):
        tape = Tape.active
        if tape is None or tape.building:
            _tape().unrecordable(f"kernel {self.name} is launched while the module is imported or built")
        flat: list = []
        for i, (ty, value) in enumerate(zip(self.src.signature.values(), args, strict=True)):
            _flatten(tape, self, i, ty, value, flat)
        tape.launch(self.recorded, tuple(index(n) for n in (grid_x, grid_y, grid_z)), flat)


def _tape() -> Tape:
    if Tape.active is None:
        raise RuntimeError("Triton is launched outside of a recording")
    return Tape.active


def _flatten(tape: Tape, kernel: RecordedKernel, index: int, ty, value, out: list) -> None:
    """Append (type, value) of one argument as the launcher would pass it: constants drop out, tuples are spelled out."""
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
    """[(type, value)] of a host-side descriptor: itself, or its parts if the kernel's parameters from `at` on are those.

    GPUs before Hopper have no descriptors. Triton's front end takes them apart there: base, shape and strides, a
    flag or two, and then shape and strides once more, which follow a descriptor on any GPU.
    """
    shape, strides = [int(n) for n in value.shape], [int(s) for s in value.strides]
    if any(p.startswith("!tt.tensordesc") for p in parameters):
        return [(ty, [base, shape, strides, value.padding])]
    element = ty.removeprefix("tensordesc<").split("[")[0]
    flags = [value.padding == "nan"]
    if parameters[at + 2 + 2 * len(shape)] == "i1":  # not in triton 3.6
        flags.append(value.round_f32_to_tf32)
    wide = [("i64", n) for n in (*shape, *strides)]
    again = [("i32", n) for n in shape] + [("i64", s) for s in strides]
    return [(f"*{element}", base), *wide, *[("i1", flag) for flag in flags], *again]


def _pointer(tape: Tape, index: int, value) -> int:
    # triton.reinterpret
    value = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
    if not isinstance(value, torch.Tensor):
        tape.unrecordable(f"argument {index} is a {type(value).__name__}, neither a number nor a tensor")
    with torch._C.DisableTorchFunction():
        if not tape.on_cuda(value):
            raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")
    return tape.tensor_id(value)


@functools.cache
def dialects(target: GPUTarget):
    """An MLIR context with every dialect loaded: 6 ms, paid once before the zygote forks. It has no threads, so forks may use it."""
    context = ir.context()
    ir.load_dialects(context)
    make_backend(target).load_dialects(context)
    return context


def compile_to_ttir(here: GPUTarget, src, target=None, options=None, _env_vars=None) -> RecordedKernel:
    """Stands in for triton.compile: the front end and the ttir passes, for any candidate's kernel, and no further.

    here: the GPU that it compiles for, whatever the candidate says.
    """
    if not hasattr(src, "fn"):
        _tape().fail(
            "rule_violation", "triton.compile of an IR file: only @triton.jit functions are launched"
        )
    backend = make_backend(here)
    options = backend.parse_options(dict(options or {}))
    default = backend.parse_options({})
    for name, value in options.__dict__.items():
        if name not in OPTIONS and name not in FRONT_END and value != getattr(default, name):
            _tape().fail(
                "rule_violation",
                f"launch option {name}={str(value)[:40]!r} is not allowed; allowed: {', '.join(OPTIONS)}",
            )
    # Checks of integer overflow are assertions, which nothing but debug keeps, and take more than half of the
    # front end's time.
    checked = options if options.debug else dataclasses.replace(options, sanitize_overflow=False)
    context = dialects(here)
    try:
        module = src.make_ir(
            here, checked, backend.get_codegen_implementation(options), backend.get_module_map(), context
        )
    except RuntimeError as error:
        if str(error) != INVALID:
            raise
        raise RuntimeError(
            f"kernel {src.fn.__name__}: {INVALID}: types or shapes do not fit (is a tensor the condition of an if or a while? use tl.where)"
        ) from None
    stages: dict = {}
    backend.add_stages(stages, options, Language.TRITON)
    module = stages["ttir"](module, {})
    kept = {name: getattr(options, name) for name in OPTIONS}
    text = str(module).replace(_tape().path, "candidate.py")
    return RecordedKernel(src, options, Kernel(module.get_entry_func_name(), text, kept), here)


def autotune(self: Autotuner, *args, **kwargs):
    """Stands in for Autotuner.run: every pruned configuration becomes an alternative of one choice.

    What the tuner does only while it benchmarks (reset_to_zero, restore_value) is not part of a call and not recorded:
    tuning happens later, on copies.
    """
    tape = _tape()
    self.nargs = dict(zip(self.arg_names, args))
    configs = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
    alternatives, refused, result = [], None, None
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
        if len(alternatives) == tape.max_configs:
            break
    if not alternatives:
        raise refused
    values = {**self.nargs, **kwargs}
    key = tuple(str(values[k]) for k in self.keys if k in values)
    dtypes = tuple(str(v.dtype) for v in values.values() if hasattr(v, "dtype"))
    tape.choose((id(self), key, dtypes), alternatives)
    self.nargs = None
    return result


def _best_config(self: Autotuner):
    if len(self.configs) > 1:
        _tape().unrecordable("best_config is known only after tuning")
    return self.configs[0]


def answers(card: Card) -> list[tuple[object, str, Any]]:
    """(owner, name, value): what makes Triton record in this process, as on a machine with that one GPU."""
    compiles = functools.partial(compile_to_ttir, card.target)
    return [
        (driver, "_active", RecordingDriver(card)),
        (triton.compiler, "compile", compiles),
        (triton, "compile", compiles),
        (Autotuner, "run", autotune),
        (Autotuner, "best_config", property(_best_config)),
    ]
