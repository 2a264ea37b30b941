"""Process mode, the untrusted side: the candidate runs for real, on a GPU, in a process that is used once."""

import importlib.util
import mmap
import sys
import time
import traceback
from pathlib import Path

import torch
import triton
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from nanotriton.executor.common import construct
from nanotriton.executor.sandbox.protocol import Report
from nanotriton.plan import wire
from nanotriton.plan.trees import mapped

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

    fds[0] holds the bytes of all trials, described as in wire.py.

    args:
        trials: descriptions of the arguments of forward (`inputs`), of those of the constructor (`init`) and
            of the state; the seed of the weights. The first has the inputs of a second call too (`more`).
        bytes: of fds[0].
        buffers: names of those whose constants are moved.
        device, defaults (Reference.defaults), wait (seconds before it begins).
        launches: False gives every launch an empty grid: is the answer another one without them?

    The answer has a description for each call, of the outputs and of the inputs afterwards (of a second call
    also of the module's state), and their bytes.
    """
    path, device = str(Path(folder, "candidate.py")), torch.device(args["device"])
    data = memoryview(mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)) if args["bytes"] else memoryview(b"")
    time.sleep(args["wait"])
    try:
        torch.empty(1, device=device)  # makes the CUDA context, while only our code has run
    except RuntimeError as error:
        return report.finish({"status": NO_ROOM, "message": str(error).split("\n")[0]})
    prepare(device, args["defaults"])
    if not args["launches"]:
        launch_nothing()
    report.begin()
    described: list = []
    tensors: list[torch.Tensor] = []
    failure = "import_error"  # the status, if an error is of no kind of its own
    try:
        report.stage("import")
        module = load(path)
        if not hasattr(module, "ModelNew"):
            raise AttributeError("the candidate does not define ModelNew")
        failure = "runtime_error"
        for trial in args["trials"]:
            inputs, used = wire.rebuild(trial["inputs"], data)
            state, more = wire.rebuild(trial["state"], data[used:])
            data = data[used + more :]
            again = None
            if "more" in trial:
                again, used = wire.rebuild(trial["more"], data)
                data = data[used:]
            report.stage("build")
            init, buffers = wire.stand_ins(trial["init"]), frozenset(args["buffers"])
            model = build(module.ModelNew, init, trial["seed"], state, device, buffers)
            inputs = mapped(inputs, lambda t: t.to(device))
            report.stage("run")
            with torch.no_grad():
                outputs = model(*inputs)
            described.append(keep([outputs, inputs], tensors))
            if again is not None:
                again = mapped(again, lambda t: t.to(device))
                with torch.no_grad():
                    outputs = model(*again)
                left = {name: t.detach() for name, t in construct.named_state(model).items()}
                described.append(keep([outputs, again, left], tensors))
        report.finish({"calls": described}, wire.raw(tensors))
    except (Exception, SystemExit) as error:
        report.finish(explain(error, failure, path))


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


def keep(tree: list, tensors: list[torch.Tensor]) -> list:
    """Add a tree's tensors to `tensors`, on the host -> its description."""
    description, found = wire.describe(tree)
    tensors += [t.cpu() for t in found]
    return description


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
