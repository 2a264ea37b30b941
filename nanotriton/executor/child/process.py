"""Process mode, the untrusted side: the candidate runs for real, on a GPU, in a process that is used once."""

import importlib.util
import mmap
import sys
import time
import traceback
from pathlib import Path

import torch
import triton

from nanotriton.executor.common import construct
from nanotriton.executor.sandbox.protocol import Report
from nanotriton.plan import wire
from nanotriton.plan.trees import mapped

# What CUDA calls the errors that lose a context (driver.FATAL): as torch and Triton print them.
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
NO_ROOM = "no_room"  # what a child says that finds no memory on the GPU for a context


def process_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Process mode: run the candidate for real. args: device, defaults (Reference.defaults),
    trials (arguments of forward and of the constructor, and state, described; seed; the first also has the inputs of a second call, `more`).

    fds[0] holds the bytes of all trials. The answer: per trial the outputs and the inputs afterwards, described, then
    those of the second call with the module's state, and the bytes of all of them.
    """
    path, device = str(Path(folder, "candidate.py")), torch.device(args["device"])
    data = memoryview(mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)) if args["bytes"] else memoryview(b"")
    described, tensors, stage = [], [], "import_error"
    time.sleep(args["wait"])
    try:
        torch.empty(1, device=device)  # a context, while only our code has run
    except RuntimeError as error:
        return report.finish({"status": NO_ROOM, "message": str(error).split("\n")[0]})
    # scratch memory for kernels that make descriptors, as a replay gives it
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=device))
    torch.set_default_dtype(getattr(torch, args["defaults"]["dtype"]))
    torch.set_default_device(device if args["defaults"]["cuda"] else None)
    report.begin()
    try:
        report.stage("import")
        module = load(path)
        if not hasattr(module, "ModelNew"):
            raise AttributeError("the candidate does not define ModelNew")
        stage = "runtime_error"
        for trial in args["trials"]:
            inputs, used = wire.rebuild(trial["inputs"], data)
            state, more = wire.rebuild(trial["state"], data[used:])
            data = data[used + more :]
            again = None
            if "more" in trial:
                again, used = wire.rebuild(trial["more"], data)
                data = data[used:]
            report.stage("build")
            model = build(
                module.ModelNew,
                wire.stand_ins(trial["init"]),
                trial["seed"],
                state,
                device,
                frozenset(args["buffers"]),
            )
            inputs = mapped(inputs, lambda t: t.to(device))
            report.stage("run")
            with torch.no_grad():
                outputs = model(*inputs)
            described.append(keep([outputs, inputs], tensors))
            if again is not None:
                again = mapped(again, lambda t: t.to(device))
                with torch.no_grad():
                    outputs = model(*again)
                described.append(keep([outputs, again, state_of(model)], tensors))
        report.finish({"calls": described}, wire.raw(tensors))
    except (Exception, SystemExit) as error:
        report.finish(explain(error, stage, path))


def keep(tree: list, tensors: list[torch.Tensor]) -> list:
    """Add a tree's tensors to `tensors`, on the host -> its description."""
    description, found = wire.describe(tree)
    tensors += [t.cpu() for t in found]
    return description


def state_of(model) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name."""
    if not isinstance(model, torch.nn.Module):
        return {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: t.detach() for name, t in named}


def load(path: str):
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(cls, init: list, seed: int, state: dict, device: torch.device, buffers: frozenset[str]):
    """Construct as the reference was; if names and shapes are its own but the values differ (another order of draws), load them."""
    with construct.moved_constants(seed, buffers) as settled:
        construct.seed_everything(seed)
        model = settled(cls(*init))
    if isinstance(model, torch.nn.Module):
        own = model.state_dict()
        alike = own.keys() == state.keys() and all(
            own[n].shape == t.shape and own[n].dtype == t.dtype for n, t in state.items()
        )
        if alike and any(not torch.equal(own[n].cpu(), t) for n, t in state.items()):
            model.load_state_dict(state)
        model = model.to(device)
    return model


def explain(error: BaseException, status: str, path: str) -> dict:
    """Status, message and line of what a candidate's code raised."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    statuses = {
        MemoryError: "memory_limit",
        torch.OutOfMemoryError: "memory_limit",
        OutOfResources: "out_of_resources",
        CompilationError: "compile_error",
        SyntaxError: "syntax_error",
    }
    status = next((s for kind, s in statuses.items() if isinstance(error, kind)), status)
    # torch._dynamo makes a folder as it is imported
    if isinstance(error, PermissionError) and "torchinductor" in str(error):
        status = "unsupported"
    if any(text in str(error) for text in ("allocate memory", "out of memory")):
        status = "memory_limit"
    elif any(text in str(error) for text in LOST):
        status = "illegal_memory"
    text = " ".join(str(error).split())[:600]
    return {"status": status, "message": f"{type(error).__name__}: {text}", "line": line}
