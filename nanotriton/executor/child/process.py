"""Process mode, the untrusted side: the candidate runs for real, on a GPU, in a process that is used once."""

import contextlib
import importlib.util
import mmap
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from nanotriton.executor.common import construct
from nanotriton.executor.sandbox.protocol import Report
from nanotriton.plan import wire
from nanotriton.plan.trees import identical, mapped, tensors

# CUDA's names of the errors that lose a context (driver.FATAL), as torch and Triton print them
LOST = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "invalid program counter",
    "global/shared address space",
    "device-side assert",
    "launch timed out",
    "hardware stack error",
)
EMPTY = 0, 1, 1  # a grid of no programs
NO_ROOM = "no_room"  # status of a child that finds no memory on the GPU for a context


def process_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Process mode: run the candidate for real, on every trial.

    fds[0] holds the bytes of all trials, described as in plan/wire.py.

    args:
        trials: descriptions of the arguments of forward (`inputs`), of those of the constructor (`init`) and
            of the `state`; the `seed` of the weights. The first may have `further` calls: see Further.
        bytes: of fds[0].
        buffers: names of those whose constants are moved.
        attributes: whether tensors that are plain attributes belong to a module's state.
        device, defaults (Reference.defaults), wait (seconds before it begins).
        launches: False gives every launch an empty grid: is the answer another one without them?

    The answer has a description for each call, of the outputs and of the inputs afterwards (of the last
    further call also of the module's state), and their bytes. It also says whether the module was `trained`,
    and which answers a later call has `overwritten`.
    """
    path, device = str(Path(folder, "candidate.py")), torch.device(args["device"])
    given = Given(memoryview(mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)) if args["bytes"] else b"")
    time.sleep(args["wait"])
    try:
        torch.empty(1, device=device)  # makes the CUDA context, while only our code has run
    except RuntimeError as error:
        return report.finish({"status": NO_ROOM, "message": str(error).split("\n")[0]})
    prepare(device, args["defaults"])
    if not args["launches"]:
        launch_nothing()
    report.begin()
    failure = "import_error"  # the status, if an error is of no kind of its own
    try:
        report.stage("import")
        module = load(path)
        if not hasattr(module, "ModelNew"):
            raise AttributeError("the candidate does not define ModelNew")
        failure = "runtime_error"
        run = Run(report, module.ModelNew, given, device, args)
        for trial in args["trials"]:
            run.trial(trial)
        report.finish(run.header(), wire.raw(run.tensors))
    except (Exception, SystemExit) as error:
        report.finish(explain(error, failure, path))


class Given:
    """What the worker has written, read piece by piece."""

    def __init__(self, data: memoryview | bytes):
        self.data = memoryview(data)

    def take(self, description: list):
        tree, used = wire.rebuild(description, self.data)
        self.data = self.data[used:]
        return tree


@dataclass(frozen=True)
class Further:
    """More calls of the first trial's module, as far as JSON tells.

    inputs: descriptions, of each call's. evaluation, another: numbers among these of the call in evaluation
    mode, and of that of another module of the class, or None. trained: description of the weights, by name,
    that are put in between the first call and the next, or None. module: of the other module (init, state,
    seed), or None.
    """

    inputs: list
    evaluation: int | None
    another: int | None
    trained: list | None
    module: dict | None


class Run:
    """One candidate's calls. tensors: of all that was described, on the host."""

    def __init__(self, report: Report, cls, given: Given, device: torch.device, args: dict):
        self.report, self.cls, self.given, self.device = report, cls, given, device
        self.buffers, self.attributes = frozenset(args["buffers"]), args["attributes"]
        self.described: list = []
        self.tensors: list[torch.Tensor] = []
        self.trained = False
        self.prepares_numbers = False  # of weights, in the constructor, which knows of no training
        self.overwritten: list[list[int]] = []

    def header(self) -> dict:
        return {"calls": self.described, "trained": self.trained, "overwritten": self.overwritten}

    def trial(self, trial: dict) -> None:
        inputs = self.given.take(trial["inputs"])
        further = None if trial.get("further") is None else Further(**trial["further"])
        numbers = None if further is None or further.trained is None else self.numbers_of_another(trial)
        model = self.build(trial)
        if numbers is not None and numbers != numbers_of(model):
            self.prepares_numbers = True
        before = snapshot(model) if further is not None else {}
        first = self.call(model, inputs)
        if further is not None:
            self.further(model, further, before, first)

    def build(self, described: dict):
        """The candidate's module. described: init, state and seed of it."""
        self.report.stage("build")
        state, init = self.given.take(described["state"]), wire.stand_ins(described["init"])
        return build(self.cls, init, described["seed"], state, self.device, self.buffers)

    def numbers_of_another(self, described: dict) -> list:
        """The numbers that the constructor leaves with other weights."""
        self.report.stage("build")
        init = wire.stand_ins(described["init"])
        return numbers_of(build(self.cls, init, described["seed"] + 1, {}, self.device, self.buffers))

    def call(self, model, inputs: list, state_of: object = None) -> list[torch.Tensor]:
        """One call of a module, written down. state_of: a module whose state is part of it.

        Returns the tensors of its answer where they are.
        """
        self.report.stage("run")
        inputs = mapped(inputs, lambda t: t.to(self.device))
        with torch.no_grad():
            outputs = model(*inputs)
        left = [] if state_of is None else [self.state(state_of)]
        description, found = wire.describe([outputs, inputs, *left])
        self.described.append(description)
        self.tensors += [t.to("cpu", copy=True) for t in found]
        return tensors(outputs)

    def state(self, model) -> dict[str, torch.Tensor]:
        named = construct.named_state(model)
        if self.attributes:
            named |= construct.plain_attributes(model)
        return {name: t.detach() for name, t in named.items()}

    def further(self, model, wanted: Further, before: dict, first: list[torch.Tensor]) -> None:
        """More calls of a module that was called. before: its state before that. first: its answer."""
        inputs = [self.given.take(description) for description in wanted.inputs]
        if wanted.trained is not None:
            weights = self.given.take(wanted.trained)
            self.trained = not self.prepares_numbers and put_in(model, weights, before)
        answers = {0: (first, clones(first))}
        for number, drawn in enumerate(inputs):
            state_of = model if number == len(inputs) - 1 else None
            if number == wanted.another:
                other = self.build(wanted.module)
                construct.age_alike(model, other)
                self.call(other, drawn)
                continue
            with construct.evaluating(model) if number == wanted.evaluation else contextlib.nullcontext():
                outputs = self.call(model, drawn, state_of)
            answers[number + 1] = outputs, clones(outputs)
        for number, (now, then) in answers.items():
            changed = [i for i, (t, copy) in enumerate(zip(now, then, strict=True)) if not identical(t, copy)]
            self.overwritten += [[number, i] for i in changed]


def numbers_of(model) -> list:
    """Python's numbers in the attributes of a module and its parts, such as a `weight.mean().item()`."""
    if not isinstance(model, torch.nn.Module):
        return []
    found = []
    seen = set()
    waiting = [vars(part) for part in model.modules()]
    while waiting:
        value = waiting.pop()
        if type(value) in (bool, int, float, complex):
            found.append(value)
        elif type(value) in (dict, list, tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if type(value) is dict else value
    return found


def snapshot(model) -> dict[str, torch.Tensor]:
    return {name: t.detach().clone() for name, t in construct.named_state(model).items()}


def clones(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.clone() for t in given]


def put_in(model, weights: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> bool:
    """Put trained weights into a module, as an optimizer does. False: it lacks one of these names.

    What forward has changed itself is its own matter. before: the state as it was before that.
    """
    own = construct.named_state(model)
    for name, t in weights.items():
        if name not in own or (own[name].shape, own[name].dtype) != (t.shape, t.dtype):
            return False
    with torch.no_grad():
        for name, t in weights.items():
            if identical(own[name].detach(), before[name]):
                own[name].copy_(t)
    return True


def prepare(device: torch.device, defaults: dict) -> None:
    """Give kernels that make descriptors scratch memory, as a replay does, and torch the task's defaults."""

    def allocate(size: int, align: int, stream) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)
    torch.set_default_dtype(getattr(torch, defaults["dtype"]))
    torch.set_default_device(device if defaults["cuda"] else None)


def launch_nothing() -> None:
    """Let every kernel be compiled and launched on an empty grid, which Triton passes over."""
    run, launcher = JITFunction.run, CompiledKernel.__getitem__

    def run_empty(self, *args, grid, warmup, **options):
        return run(self, *args, grid=EMPTY, warmup=warmup, **options)

    JITFunction.run = run_empty
    CompiledKernel.__getitem__ = lambda self, grid: launcher(self, EMPTY)


def load(path: str):
    """Import a candidate's file."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(cls, init: list, seed: int, state: dict, device: torch.device, buffers: frozenset[str]):
    """Construct the candidate's module as the reference was constructed, with the reference's weights.

    state: these weights. They are loaded if the module's own have the same names, shapes and dtypes but other
    values, which it drew in another order.
    """
    with construct.moved_constants(seed, buffers) as settled:
        construct.seed_everything(seed)
        model = settled(cls(*init))
    if isinstance(model, torch.nn.Module):
        if _differs_in_values_alone(model.state_dict(), state):
            model.load_state_dict(state)
        model = model.to(device)
    return model


def _differs_in_values_alone(own: dict, state: dict) -> bool:
    if own.keys() != state.keys():
        return False
    for name, t in state.items():
        if own[name].shape != t.shape or own[name].dtype != t.dtype:
            return False
    return any(not torch.equal(own[name].cpu(), t) for name, t in state.items())


def explain(error: BaseException, status: str, path: str) -> dict:
    """{status, message, line} of an error that a candidate's code raised.

    status: of an error whose kind has no status of its own.
    """
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    statuses = {
        MemoryError: "memory_limit",
        torch.OutOfMemoryError: "memory_limit",
        OutOfResources: "out_of_resources",
        CompilationError: "compile_error",
        SyntaxError: "syntax_error",
    }
    status = next((own for kind, own in statuses.items() if isinstance(error, kind)), status)
    message = str(error)
    # torch._dynamo makes a folder as it is imported, which the sandbox refuses
    if isinstance(error, PermissionError) and "torchinductor" in message:
        status = "unsupported"
    if "allocate memory" in message or "out of memory" in message:
        status = "memory_limit"
    elif any(text in message for text in LOST):
        status = "illegal_memory"
    text = " ".join(message.split())[:600]
    return {"status": status, "message": f"{type(error).__name__}: {text}", "line": line}
