"""Record a candidate: run its Python once, without data and without a GPU, and write its work down as a Plan.

`record` runs in an untrusted process, a sandboxed child of the zygote, in which `install` was called once
before the fork. The candidate's file is imported, `ModelNew` is built on the CPU with real weights, and
`forward` runs under no_grad on meta tensors that claim to be on a GPU. fake_torch.py and fake_triton.py put
ATen calls and Triton launches on a Tape (tape.py).
Nothing here is trusted afterwards: the worker validates the plan whose bytes it reads.
"""

import importlib.util
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from nanotriton.executor.child import fake_cuda, fake_torch, fake_triton
from nanotriton.executor.child.tape import RecordError, Tape, line_of, quiet
from nanotriton.executor.common.card import Card
from nanotriton.executor.common.construct import named_state, plain_attributes
from nanotriton.plan.aten import encode_tree
from nanotriton.plan.plan import Plan

MAX_MESSAGE = 600
SECOND = 1  # the number of the call that later ones may repeat: the first one may prepare things
UNWAITED = (
    "forward ends before the work on its stream is waited for: call "
    "torch.cuda.current_stream().wait_stream(stream), or launch on the current stream"
)
WARM_UP = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.exp(tl.load(x + at, mask=at < n)), mask=at < n)

class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, n)

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=32)
        return y * self.linear.weight[0]
"""
__all__ = ["RecordError", "install", "record", "record_script", "uninstall", "warm_up"]


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
    """Make one small recording before forking: torch and Triton import for seconds at their first use."""
    x = torch.empty(4, 8, device="meta")
    return record(WARM_UP, [8], [x], seed=0, folder=folder)[0]


@dataclass(frozen=True)
class Further:
    """What is recorded beside two calls of one module.

    evaluates: a third call is one in evaluation mode. another: seed of the weights of another module of the
    class, which is built and called before a last call of the first one; None: there is no such module.
    """

    evaluates: bool = False
    another: int | None = None


Moved = tuple[dict, str, torch.Tensor]  # a module's table of weights, a name there, the weight on the host
Built = AbstractContextManager[Callable[[Any], Any]]


def record(
    source: str,
    init_args: list,
    inputs: list,
    *,
    seed: int,
    folder: str | Path,
    entry: str = "ModelNew",
    known: frozenset[str] = frozenset(),
    max_configs: int = 64,
    drawn: int | None = None,
    default_cuda: bool = False,
    constructing: Callable[[int], Built] = lambda seed: nullcontext(lambda model: model),
    between: Callable[[Any], None] | None = None,
    attributes: bool = False,
    further: Further | None = None,
    asked: Callable[[], None] = lambda: None,
    calling: Callable[[], AbstractContextManager] = nullcontext,
) -> list[Plan]:
    """The plans of some calls of one module: `model = entry(*init_args)`, then `model(*inputs)` each time.

    Each call has inputs of its own, of the same shapes. From the second on a plan also names the state
    afterwards. There are at least two plans. `further` says what comes after these. As far as the last ones
    only repeat what the module did before, as they mostly do, they are left out.

    inputs: of tensors only shape, stride and dtype are used, so meta tensors will do. Other values are passed
    as they are.
    seed: of torch, numpy and random before the constructor runs, as for the reference.
    folder: a private folder. The source is written there, because Triton reads it back.
    known: hashes (plan.digest) of weights whose bytes need not be shipped. max_configs: of an autotuner.
    drawn: seed that draws those after the first one.
    default_cuda: torch's default device is CUDA. constructing: a context, for the seed of a module's weights,
    in which its constructor runs; it gives a function that is called with the module once it is built, and
    returns the module that runs. between: changes the module's weights in place, between the first call and
    the second. Plans hold the bytes from before; numbers that forward reads are those from after.
    attributes: tensors that are plain attributes of the module belong to the state too. asked: is called at
    the end if the candidate has asked for the card's number of multiprocessors. calling: a context of each
    call of forward.
    Raises RecordError with a verdict's status, a message and the candidate's line.
    """
    path = str(Path(folder) / "candidate.py")
    if not Path(path).exists():  # in the sandbox the folder is read-only, and the worker has written it
        Path(path).write_text(source, encoding="utf-8")
    tape = Tape.active = Tape(path, known, max_configs, drawn=drawn)
    tape.default_cuda = default_cuda
    tape.names_attributes = attributes
    tape.calling = calling
    try:
        functions, calls = fake_torch.Functions(tape), fake_torch.Calls(tape)
        with torch.no_grad(), functions, calls:
            module = _stage(tape, "import_error", lambda: _load(path))
            if not hasattr(module, entry):
                raise RecordError("import_error", f"the candidate does not define {entry}")

            def build(seed: int) -> tuple[Any, list[Moved]]:
                tape.building = True
                with constructing(seed) as finish:
                    made = _stage(
                        tape, "runtime_error", lambda: finish(_build(getattr(module, entry), init_args, seed))
                    )
                tape.building = False
                with quiet():
                    return made, _move_weights(tape, made)

            model, moved = build(seed)
            plans = [_call(tape, model, inputs)]
            train = None if between is None else lambda: _train(model, moved, between)
            plans.append(_call_again(tape, model, inputs, train))
            if further is not None:
                plans += _further_calls(tape, model, inputs, further, lambda seed: build(seed)[0])
        if tape.asks_processors:
            asked()
        return plans
    finally:
        Tape.active = None


def _call_again(tape: Tape, model: Any, inputs: list, before: Callable[[], None] | None = None) -> Plan:
    """Record another call of a module that was called, and the state afterwards. before: is called first."""
    tape.begin_next_call()
    _note_training(model)
    if before is not None:
        before()
    plan = _call(tape, model, inputs)
    plan.state = _state(tape, model)
    return plan


def _further_calls(
    tape: Tape, model: Any, inputs: list, further: Further, build: Callable[[int], Any]
) -> list[Plan]:
    """The plans of the calls that `further` asks for, without the last ones if these repeat earlier ones.

    build: makes another module, of a seed.
    """
    modes = _modes(model)
    evaluate = partial(_stage, tape, "runtime_error", lambda: _evaluate(model)) if further.evaluates else None
    plans, needed = [_call_again(tape, model, inputs, evaluate)], 0
    if not tape.repeats(SECOND):
        needed = len(plans)
    for module, mode in modes.items():
        module.training = mode
    if further.another is not None:
        tape.begin_next_call()
        tape.ships = False
        other = build(further.another)
        _age_alike(model, other)
        plans.append(_call(tape, other, inputs))
        tape.ships = True
        if not tape.repeats_first_elsewhere():
            needed = len(plans) + 1  # and what that does to the first one
    plans.append(_call_again(tape, model, inputs))
    if not tape.repeats(SECOND):
        needed = len(plans)
    if needed > 1 and further.another is not None:
        tape.ship_weights(plans[1])
    return plans[:needed]


def _age_alike(model: Any, other: Any) -> None:
    """Let the other module's parameters seem to be changed in place as often as this one's."""
    if isinstance(model, torch.nn.Module) and isinstance(other, torch.nn.Module):
        with quiet():
            for old, new in zip(model.parameters(), other.parameters(), strict=False):
                while new._version < old._version:
                    torch.autograd.graph.increment_version(new)


def _modes(model: Any) -> dict[torch.nn.Module, bool]:
    """Of each module whether it is in training mode."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return {module: module.training for module in modules}


def _evaluate(model: Any) -> None:
    if isinstance(model, torch.nn.Module):
        model.eval()


def _call(tape: Tape, model: Any, inputs: list) -> Plan:
    """Record one call of forward -> its plan."""
    with quiet():
        arguments = tree_map(lambda x: tape.input(x) if isinstance(x, torch.Tensor) else x, list(inputs))
    tape.plan.inputs = encode_tree(arguments, tape.tensor_id)
    with tape.calling():
        result = _stage(tape, "runtime_error", lambda: model(*arguments))
    if tape.streams.pending:
        raise RecordError("rule_violation", UNWAITED)
    tape.plan.outputs = _outputs(tape, result)
    return tape.plan


def _note_training(model: Any) -> None:
    """Let the module's parameters seem to be changed in place, as an optimizer does: the judge may change
    their values between two calls."""
    if isinstance(model, torch.nn.Module):
        with quiet():
            for parameter in model.parameters():
                torch.autograd.graph.increment_version(parameter)


def _state(tape: Tape, model: Any) -> dict[str, int]:
    """The tensor of each parameter and buffer that a step may have written to, and of attributes. Those on
    the host are no part of a plan."""
    with quiet():
        named = named_state(model).items()
        changed = {name: t for name, t in named if tape.on_cuda(t) and tape.may_have_changed(t)}
        if tape.names_attributes:
            changed |= {name: t for name, t in plain_attributes(model).items() if t.is_meta and tape.knows(t)}
    return {name: tape.tensor_id(t) for name, t in changed.items()}


def record_script(source: str, *, seed: int, folder: str | Path, required: bool = True) -> Plan:
    """The plan of a whole file that calls its own kernels, as TritonBench's files do.

    Random tensors are constants of the plan. Its outputs are the value of the file's last variable named
    result... or test_results. Without such a variable they are None, or an error if it is `required`.
    Raises RecordError.
    """
    path = str(Path(folder) / "candidate.py")
    if not Path(path).exists():  # as in `record`
        Path(path).write_text(source, encoding="utf-8")
    tape = Tape.active = Tape(path, max_configs=1, max_bytes=1 << 31)
    tape.building, tape.draws = False, True
    try:
        with fake_torch.Functions(tape), fake_torch.Calls(tape):
            torch.manual_seed(seed)
            module = _stage(tape, "runtime_error", lambda: _load(path))
        names = [name for name in vars(module) if name.startswith(("result", "test_results"))]
        if not names and required:
            raise RecordError(
                "runtime_error",
                "the script leaves its answers in no variable named result... or test_results",
            )
        found = getattr(module, names[-1]) if names else None
        tape.plan.inputs = []
        tape.plan.outputs = _outputs(
            tape, tree_map(lambda x: _uploaded(tape, x) if isinstance(x, torch.Tensor) else x, found)
        )
        return tape.plan
    finally:
        Tape.active = None


def _uploaded(tape: Tape, t: torch.Tensor) -> torch.Tensor:
    """An answer as a constant of the plan, if the script has computed it on the host."""
    with quiet():
        return t.detach() if tape.on_cuda(t) else tape.constant(t)


def _stage(tape: Tape, status: str, run: Callable[[], Any]) -> Any:
    """Run some of the candidate's code. Any error in it becomes a RecordError that names its line."""
    try:
        result = run()
    except RecordError:
        raise tape.trouble from None
    except MemoryError as error:
        raise RecordError("memory_limit", _message(tape, error), line_of(error, tape.path)) from None
    except OutOfResources as error:
        raise RecordError("out_of_resources", _message(tape, error), line_of(error, tape.path)) from None
    except SyntaxError as error:
        raise RecordError("syntax_error", f"{error.msg} (line {error.lineno})", error.lineno or 0) from None
    except CompilationError as error:
        raise _compile_error(tape, error) from None
    except (Exception, SystemExit) as error:
        if (
            "PassManager" in str(error)
            or fake_triton.INVALID in str(error)
            or type(error).__module__.startswith("triton.compiler")
        ):
            status = "compile_error"
        raise (
            tape.trouble or RecordError(status, _message(tape, error), line_of(error, tape.path))
        ) from None
    if tape.trouble is not None:
        raise tape.trouble
    return result


def _load(path: str):
    name = "candidate"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with open(path, "rb") as file:  # not exec_module, which would look for a cached .pyc and try to write one
        code = spec.loader.source_to_code(file.read(), path)
    exec(code, module.__dict__)
    return module


def _build(cls: Callable, init_args: list, seed: int):
    # torch.manual_seed also queues a seed for every kind of GPU, slowly
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    return cls(*init_args)


def _train(model: Any, moved: list[Moved], between: Callable[[Any], None]) -> None:
    """Let `between` change the values that a module's weights have on the host."""
    on_gpu = [place[name] for place, name, _ in moved]
    for place, name, own in moved:
        place[name] = own
    with quiet():
        between(model)
    for (place, name, _), there in zip(moved, on_gpu, strict=True):
        place[name] = there


def _move_weights(tape: Tape, model: Any) -> list[Moved]:
    """As `model.cuda()` does: every parameter and buffer goes to the GPU, and tied ones stay tied. Others
    that share memory are pulled apart."""
    moved: list[Moved] = []
    owners: dict[int, int] = {}  # address of a host storage -> id of the tensor that is moved with it

    def move(t: torch.Tensor, name: str) -> torch.Tensor:
        address = t.untyped_storage()._cdata
        if owners.setdefault(address, id(t)) != id(t) and address not in tape.cuda_storages:
            t = t.detach().clone()
        return tape.weight(t, name)

    if not isinstance(model, torch.nn.Module):
        return moved
    for prefix, module in model.named_modules():
        prefix = prefix and prefix + "."
        for name, p in module._parameters.items():
            if p is not None:
                tape.moved[id(p)] = p
                moved.append((module._parameters, name, p))
                module._parameters[name] = torch.nn.Parameter(move(p, prefix + name), requires_grad=False)
        for name, b in module._buffers.items():
            if b is not None:
                moved.append((module._buffers, name, b))
                module._buffers[name] = move(b, prefix + name)
        if isinstance(module, torch.nn.RNNBase):  # it lists its weights once more
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
    return moved


def _outputs(tape: Tape, result: Any) -> Any:
    with quiet():
        for t in tree_leaves(result):
            if isinstance(t, torch.Tensor) and not tape.on_cuda(t):
                raise RecordError(
                    "runtime_error", "forward returned a tensor on the CPU; its inputs are on the GPU"
                )
    try:
        return encode_tree(result, tape.tensor_id)
    except TypeError as error:
        raise RecordError(
            "runtime_error", f"forward returned a {error}, which is no tensor, number, string or container"
        ) from None


def _message(tape: Tape, error: BaseException) -> str:
    """One short line: type, text, the candidate's line."""
    text = " ".join(str(error).split())[:MAX_MESSAGE]
    return f"{type(error).__name__}: {text}" + _where(tape, line_of(error, tape.path))


def _where(tape: Tape, line: int) -> str:
    if not line:
        return ""
    lines = Path(tape.path).read_text(encoding="utf-8").splitlines()
    return f" (line {line}: {lines[line - 1].strip()[:120]})" if line <= len(lines) else f" (line {line})"


def _compile_error(tape: Tape, error: CompilationError) -> RecordError:
    """Triton's front end names a node of the kernel's source; the innermost one is the cause."""
    line, source, chain = line_of(error, tape.path), Path(tape.path).read_text(encoding="utf-8"), [error]
    while isinstance(chain[-1].__cause__, CompilationError):
        chain.append(chain[-1].__cause__)
    # the last of them in the candidate's file gives the line, because Triton's own functions aren't there
    for inner in chain:
        # the source without its decorators
        start = source.find(inner.src.strip("\n")) if inner.src is not None else -1
        if start >= 0 and getattr(inner.node, "lineno", None):
            line = source[:start].count("\n") + inner.node.lineno
    cause = inner.error_message or (str(inner.__cause__) if inner.__cause__ is not None else str(inner))
    text = " ".join(str(cause).split())[:MAX_MESSAGE]
    return RecordError("compile_error", f"{type(inner).__name__}: {text}" + _where(tape, line), line)
