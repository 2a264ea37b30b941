"""Record a candidate: run its Python once, without data and without a GPU, and write its work down as a Plan.

`record` runs in an untrusted process, a sandboxed child of the zygote, in which `install` was called once
before the fork. The candidate's file is imported, `ModelNew` is built on the CPU with real weights, and
`forward` runs under no_grad on meta tensors that claim to be on a GPU. fake_torch.py and fake_triton.py put
ATen calls and Triton launches on a Tape (tape.py).
Nothing here is trusted afterwards: the worker validates the plan whose bytes it reads.
"""

import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from nanotriton.executor.child import fake_cuda, fake_torch, fake_triton
from nanotriton.executor.child.calls import Calls, Further, outputs
from nanotriton.executor.child.modules import Builder, Constructing, train
from nanotriton.executor.child.quiet import quiet
from nanotriton.executor.child.stages import stage
from nanotriton.executor.child.tape import RecordError, Tape
from nanotriton.executor.common.card import Card
from nanotriton.plan.plan import Plan

WARM_UP = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < n
    value = 2 * tl.sigmoid(tl.load(x + tl.program_id(0) * n + at, mask=mask, other=0.0)) - 1
    value = tl.where(mask, tl.maximum(value, 0.5), -float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + tl.program_id(0) * n + at, value / tl.sum(value, axis=0), mask=mask)

class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, n)

    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty_like(x)
        kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
        return y * self.linear.weight[0]
"""
WARM_UPS = 6
__all__ = ["Around", "Further", "RecordError", "install", "record", "record_script", "uninstall", "warm_up"]


_replaced: list[tuple[object, str, Any]] = []
_cards: list[Card] = []  # that it is recorded for: one, or none
_MISSING = object()


def install(card: Card) -> None:
    """Make torch and Triton record in this process, for that GPU. It is called once, before forking.

    CUDA must not have been initialised.
    """
    if not _replaced:
        _cards.append(card)
        for owner, name, value in [*fake_cuda.answers(card), *fake_triton.answers(card)]:
            _replaced.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)


def uninstall() -> None:
    """Undo `install`: a process that has forked its recording children may use the GPU from here on."""
    _cards.clear()
    while _replaced:
        owner, name, value = _replaced.pop()
        delattr(owner, name) if value is _MISSING else setattr(owner, name, value)


def install_processors(count: int) -> None:
    """Record for the same GPU with so many multiprocessors from here on."""
    card = replace(_cards[0], multi_processor_count=count)
    uninstall()
    install(card)


def warm_up(folder: str | Path) -> Plan:
    """Make some small recordings before forking.

    At their first use torch and Triton import for seconds. The others are for Python's interpreter, which
    replaces what has run a few times by quicker code: each fork would do that anew, and copy the code's
    memory.
    """
    x = torch.empty(4, 8, device="meta")
    further = Further(evaluates=True, another=1)
    for _ in range(WARM_UPS):
        plans = record(WARM_UP, [8], [x], seed=0, folder=folder, further=further)
    return plans[0]


@dataclass(frozen=True)
class Around:
    """What whoever asks for a recording does around it.

    constructing: see modules.Constructing. between: changes the module's weights in place, between the first
    call and the second. Plans hold the bytes from before; numbers that forward reads are those from after.
    asked: is called at the end if the candidate has asked for the card's number of multiprocessors. calling:
    a context of each call of forward.
    """

    constructing: Constructing = lambda seed: nullcontext(lambda model: model)
    between: Callable[[Any], None] | None = None
    asked: Callable[[], None] = lambda: None
    calling: Callable[[], AbstractContextManager] = nullcontext


NOTHING = Around()


def record(
    source: str,
    init_args: list,
    inputs: list,
    *,
    seed: int,
    folder: str | Path,
    known: frozenset[str] = frozenset(),
    max_configs: int = 64,
    drawn: int | None = None,
    default_cuda: bool = False,
    attributes: bool = False,
    further: Further | None = None,
    around: Around = NOTHING,
) -> list[Plan]:
    """The plans of some calls of one module: `model = ModelNew(*init_args)`, then `model(*inputs)` each time.

    Each call has inputs of its own, of the same shapes. From the second on a plan also names the state
    afterwards. There are at least two plans. `further` says what comes after these. As far as the last ones
    only repeat what the module did before, as they mostly do, they are left out.

    inputs: of tensors only shape, stride and dtype are used, so meta tensors will do. Other values are passed
    as they are. seed: of the module's weights.
    folder: a private folder. The source is written there, because Triton reads it back.
    known: hashes (plan.digest) of weights whose bytes need not be shipped. max_configs: of an autotuner.
    drawn: seed that draws those after the first one. default_cuda: torch's default device is CUDA.
    attributes: tensors that are plain attributes of the module belong to the state too.
    Raises RecordError with a verdict's status, a message and the candidate's line.
    """
    tape = Tape.active = Tape(_written(source, folder), known, max_configs, drawn=drawn)
    tape.default_cuda, tape.names_attributes, tape.calling = default_cuda, attributes, around.calling
    try:
        functions, operators = fake_torch.Functions(tape), fake_torch.Calls(tape)
        with torch.no_grad(), functions, operators:
            cls = _imported(tape, "ModelNew")
            builder = Builder(tape, cls, init_args, around.constructing)
            plans = _calls(builder, inputs, seed, around.between, further)
        if tape.asks_processors:
            around.asked()
        return plans
    finally:
        Tape.active = None


def _calls(
    builder: Builder,
    inputs: list,
    seed: int,
    between: Callable[[Any], None] | None,
    further: Further | None,
) -> list[Plan]:
    model, moved = builder.build(seed)
    calls = Calls(builder.tape, model, inputs)
    plans = [calls.first(), calls.again(None if between is None else lambda: train(model, moved, between))]
    if further is not None:
        plans += calls.further(further, lambda seed: builder.build(seed)[0])
    return plans


def _written(source: str, folder: str | Path) -> str:
    """The path of the candidate's file.

    In the sandbox the folder is read-only, and the worker has written it.
    """
    path = Path(folder) / "candidate.py"
    if not path.exists():
        path.write_text(source, encoding="utf-8")
    return str(path)


def _imported(tape: Tape, entry: str) -> Any:
    module = stage(tape, "import_error", lambda: _load(tape.path))
    if not hasattr(module, entry):
        raise RecordError("import_error", f"the candidate does not define {entry}")
    return getattr(module, entry)


def record_script(source: str, *, seed: int, folder: str | Path, required: bool = True) -> Plan:
    """The plan of a whole file that calls its own kernels, as TritonBench's files do.

    Random tensors are constants of the plan. Its outputs are the value of the file's last variable named
    result... or test_results. Without such a variable they are None, or an error if it is `required`.
    Raises RecordError.
    """
    tape = Tape.active = Tape(_written(source, folder), max_configs=1, max_bytes=1 << 31)
    tape.building, tape.draws = False, True
    try:
        with fake_torch.Functions(tape), fake_torch.Calls(tape):
            torch.manual_seed(seed)
            module = stage(tape, "runtime_error", lambda: _load(tape.path))
        names = [name for name in vars(module) if name.startswith(("result", "test_results"))]
        if not names and required:
            raise RecordError(
                "runtime_error",
                "the script leaves its answers in no variable named result... or test_results",
            )
        found = getattr(module, names[-1]) if names else None
        tape.plan.inputs = []
        tape.plan.outputs = outputs(
            tape, tree_map(lambda x: _uploaded(tape, x) if isinstance(x, torch.Tensor) else x, found)
        )
        return tape.plan
    finally:
        Tape.active = None


def _uploaded(tape: Tape, t: torch.Tensor) -> torch.Tensor:
    """An answer as a constant of the plan, if the script has computed it on the host."""
    with quiet():
        return t.detach() if tape.on_cuda(t) else tape.constant(t)


def _load(path: str):
    name = "candidate"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with open(path, "rb") as file:  # not exec_module, which would look for a cached .pyc and try to write one
        code = spec.loader.source_to_code(file.read(), path)
    exec(code, module.__dict__)
    return module
