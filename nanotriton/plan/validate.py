"""Is a plan well-formed? Every check that the replayer relies on, for a plan that a stranger wrote.

Each function raises PlanError, one line, for the first field that is not as it must be. Nothing here runs a
kernel or touches data: ATen calls are rehearsed on meta tensors.
"""

import math
import re
from typing import Any

import torch

from nanotriton.plan.aten import ALLOWED, check, check_value, rehearse, tensor_ids
from nanotriton.plan.parts import (
    DTYPES,
    GRID_LIMIT,
    KINDS,
    MAX_ALTERNATIVES,
    MAX_COUNT,
    MAX_DIMS,
    MAX_TTIR,
    OPTIONS,
    Aten,
    Choice,
    Kernel,
    Launch,
    Step,
    Storage,
    Tensor,
    digest,
)
from nanotriton.plan.signature import flatten, signature

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
OPERATOR = re.compile(r"\w+\.\w+")
HASH = re.compile(r"[0-9a-f]{32}")
MAX_RESULTS = 64  # of one ATen call


def check_fields(plan, max_memory: int) -> None:
    """Check a whole `Plan`. It also fills in `Kernel.signature`."""
    for name, limit in MAX_COUNT.items():
        count = len(getattr(plan, name))
        check(count <= limit, f"{count} {name}; the limit is {limit}")
    for key, data in plan.blobs.items():
        named = HASH.fullmatch(key) is not None and digest(data) == key
        check(named, "a blob's bytes don't have its hash")
    for i, storage in enumerate(plan.storages):
        _check_storage(i, storage, plan.blobs)
    total = sum(s.nbytes for s in plan.storages)
    check(total <= max_memory, f"{total} bytes of tensors; the limit is {max_memory}")
    for i, tensor in enumerate(plan.tensors):
        _check_tensor(i, tensor, plan.storages)
    for kernel in plan.kernels:
        _check_kernel(kernel)
    for weight in plan.weights:
        good = all(type(n) is str and len(n) < 1024 for n in weight.names)
        check(good, "a weight's names are strings")
        check(_kind(plan, weight.tensor) == "weight", "a weight is not in a weight storage")
    check_value(plan.inputs, len(plan.tensors), "inputs")
    check_value(plan.outputs, len(plan.tensors), "outputs")
    _check_inputs(plan)
    _check_carried(plan)
    check(
        type(plan.state) is dict and len(plan.state) <= MAX_COUNT["weights"], "the state is tensors by name"
    )
    for name, tensor in plan.state.items():
        check(len(name) < 1024 and _tensor(plan, tensor) is not None, "a name of the state is a short string")
    for step in plan.steps:
        _check_step(plan, step, nested=False)


# -- storages, tensors, kernels, inputs


def _check_storage(i: int, storage: Storage, blobs: dict[str, bytes]) -> None:
    known = storage.kind in KINDS and storage.dtype in DTYPES
    check(known and _is_size(storage.nbytes), f"storage {i} is malformed")
    may_have_bytes = storage.kind in ("weight", "const")
    check(storage.blob is None or may_have_bytes, f"storage {i}: a {storage.kind} has no initial bytes")
    given = storage.blob in blobs
    check(storage.kind != "const" or given, f"storage {i}: a constant without its bytes")
    same_size = not given or len(blobs[storage.blob]) == storage.nbytes
    check(same_size, f"storage {i}: bytes of another size")


def _check_tensor(i: int, t: Tensor, storages: list[Storage]) -> None:
    there = type(t.storage) is int and 0 <= t.storage < len(storages)
    check(there, f"tensor {i}: no storage {t.storage!r}")
    check(t.dtype in DTYPES, f"tensor {i}: unknown dtype {t.dtype!r}")
    check(len(t.shape) == len(t.stride) <= MAX_DIMS, f"tensor {i}: shape and stride of different length")
    sizes = all(_is_size(n) for n in (*t.shape, *t.stride, t.offset))
    check(sizes, f"tensor {i}: sizes are integers from 0 to 2**48")
    # torch multiplies all sizes, also where one is 0
    check(_is_size(math.prod(n or 1 for n in t.shape)), f"tensor {i}: more than 2**48 elements")
    last = t.offset
    for n, stride in zip(t.shape, t.stride, strict=True):
        last += (n - 1) * stride
    end = (last + 1) * DTYPES[t.dtype].itemsize if 0 not in t.shape else 0
    check(end <= storages[t.storage].nbytes, f"tensor {i} leaves its storage")


def _check_kernel(kernel: Kernel) -> None:
    name, options = kernel.name, kernel.options
    check(type(name) is str and NAME.fullmatch(name) is not None, "a kernel's name is an identifier")
    short = type(kernel.ttir) is str and len(kernel.ttir) <= MAX_TTIR
    check(short, f"{name}: the TTIR is text of at most {MAX_TTIR} bytes")
    known = type(options) is dict and options.keys() == OPTIONS.keys()
    check(known, f"{name}: options are {', '.join(OPTIONS)}")
    warps, ctas = options["num_warps"], options["num_ctas"]
    check(
        type(warps) is int and warps in (1, 2, 4, 8, 16, 32), f"{name}: num_warps is a power of two up to 32"
    )
    stages = options["num_stages"]
    check(type(stages) is int and 0 <= stages <= 64, f"{name}: num_stages is from 0 to 64")
    check(type(ctas) is int and ctas in (1, 2, 4, 8, 16), f"{name}: num_ctas is a power of two up to 16")
    registers = options["maxnreg"]
    good = registers is None or (type(registers) is int and 16 <= registers <= 255)
    check(good, f"{name}: maxnreg is from 16 to 255")
    for switch in ("launch_cooperative_grid", "enable_fp_fusion"):
        check(type(options[switch]) is bool, f"{name}: {switch} is a boolean")
    kernel.signature = signature(kernel.ttir, name)


def _check_inputs(plan) -> None:
    """Every input has an input storage of its own, and every input storage has its input."""
    ids = tensor_ids(plan.inputs)
    check(all(_kind(plan, i) == "input" for i in ids), "an input is not in an input storage")
    filled = {plan.tensors[i].storage for i in ids}
    check(len(filled) == len(ids), "two inputs share a storage")
    storages = sum(s.kind == "input" for s in plan.storages)
    check(len(ids) == storages, "an input storage that no input fills")


def _check_carried(plan) -> None:
    """Every carried storage comes from exactly one storage of the plan of the call before.

    Whether that storage is there, and of the same size, `check_follows` says, which knows both plans.
    """
    here = [index for index, _ in plan.carried]
    wanted = [i for i, s in enumerate(plan.storages) if s.kind == "carried"]
    check(sorted(here) == wanted, "a carried storage comes from one storage of the call before")
    check(
        all(_is_size(source) for _, source in plan.carried), "a carried storage comes from a storage's number"
    )


def check_follows(later, earlier) -> None:
    """Check that the plan of a call can take over what the plan of the call before it leaves behind."""
    for here, source in later.carried:
        check(source < len(earlier.storages), f"the call before has no storage {source}")
        same = earlier.storages[source].nbytes == later.storages[here].nbytes
        check(same, f"storage {here} is carried over from one of another size")


# -- steps


def _check_step(plan, step: Step, nested: bool) -> None:
    check(_is_size(step.line), "a step's line is a number")
    if isinstance(step, Aten):
        _check_aten(plan, step)
    elif isinstance(step, Launch):
        _check_launch(plan, step)
    else:
        check(not nested, "a choice inside a choice")
        _check_choice(plan, step)


def _check_choice(plan, choice: Choice) -> None:
    some = 0 < len(choice.alternatives) <= MAX_ALTERNATIVES
    check(_is_size(choice.key) and some, "a choice needs a key and alternatives")
    tuning = [] if choice.tuning is None else choice.tuning.calls
    check(len(tuning) <= MAX_COUNT["steps"], f"{len(tuning)} steps to tune with")
    for calls in (*choice.alternatives, tuning):
        for step in calls:
            _check_step(plan, step, nested=True)


def _check_aten(plan, call: Aten) -> None:
    allowed = type(call.op) is str and call.name in ALLOWED
    check(allowed, f"operator {str(call.op)[:80]!r} is not in the list")
    check(OPERATOR.fullmatch(call.op) is not None, "an operator is name.overload")
    check_value(call.args, len(plan.tensors), call.op)
    named = type(call.kwargs) is dict and all(NAME.fullmatch(k) for k in call.kwargs)
    check(named, "keyword arguments have names")
    for value in call.kwargs.values():
        check_value(value, len(plan.tensors), call.op)
    check(len(call.outs) <= MAX_RESULTS, f"{call.op} has too many results")
    results = rehearse(call.op, call.args, call.kwargs, plan.meta)
    check(len(call.outs) == len(results), f"{call.op} has {len(results)} results")
    for out, result in zip(call.outs, results):
        if out is not None:
            _check_result(plan, call.op, out, result)


def _check_result(plan, op: str, out: int, result: torch.Tensor | None) -> None:
    """out: the tensor that the plan says the result is. result: the rehearsed one."""
    check(_kind(plan, out) == "temp", f"{op}: a result goes to a temporary")
    wanted = plan.tensors[out]
    same = (
        isinstance(result, torch.Tensor)
        and result.shape == wanted.shape
        and result.dtype == DTYPES[wanted.dtype]
    )
    check(same, f"{op}: the result is not of the tensor's shape and dtype")


def _check_launch(plan, launch: Launch) -> None:
    there = type(launch.kernel) is int and 0 <= launch.kernel < len(plan.kernels)
    check(there, f"no kernel {launch.kernel!r}")
    kernel = plan.kernels[launch.kernel]
    name = kernel.name
    check(len(launch.grid) == 3, "a grid has three sizes")
    for n, limit in zip(launch.grid, GRID_LIMIT, strict=True):
        fits = type(n) is int and 0 <= n <= limit
        check(fits, f"{name}: grid {tuple(launch.grid)} is outside the GPU's limits")

    def place(tensor: Any) -> tuple[int, int, int]:
        return _place(plan, tensor)

    given: list[tuple[str, int]] = []
    for ty, value in launch.args:
        given += flatten(name, ty, value, place)
    wanted = kernel.signature
    check(len(given) == len(wanted), f"{name}: {len(given)} arguments for {len(wanted)} parameters")
    for i, ((ty, number), (wanted_ty, divisor)) in enumerate(zip(given, wanted, strict=True)):
        check(ty == wanted_ty, f"{name}: argument {i} is {ty}, the kernel wants {wanted_ty}")
        divides = number % divisor == 0
        check(divides, f"{name}: argument {i} is not a multiple of {divisor} as the kernel assumes")


def _tensor(plan, index: Any) -> Tensor:
    check(type(index) is int and 0 <= index < len(plan.tensors), f"no tensor {index!r}")
    return plan.tensors[index]


def _kind(plan, index: Any) -> str:
    return plan.storages[_tensor(plan, index).storage].kind


def _place(plan, index: Any) -> tuple[int, int, int]:
    """(bytes from the storage's start to the first element, bytes an element, bytes of the storage)."""
    t = _tensor(plan, index)
    size = DTYPES[t.dtype].itemsize
    return t.offset * size, size, plan.storages[t.storage].nbytes


def _is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < 2**48
