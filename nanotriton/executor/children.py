"""What runs inside a sandboxed child: the candidate's Python. Nothing that comes out of here is trusted.

A target is called as target(report, fds, folder, args): `report` takes the answer, `fds` are memory files of the worker, `folder` holds the
candidate's file, `args` came from the worker. It may raise anything: a child without an answer has crashed.
"""

import errno
import importlib.util
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch
import triton
from torch.overrides import TorchFunctionMode

from nanotriton.executor import draws, wire
from nanotriton.executor.compare import mapped
from nanotriton.executor.recorder_torch import GETTERS, answers, is_cuda
from nanotriton.executor.recorder_triton import RecordingDriver
from nanotriton.executor.tape import CUDA
from nanotriton.executor.zygote import Report, receive, send

# What CUDA calls the errors that lose a context (driver.FATAL): as torch and Triton print them.
LOST = ("illegal memory access", "misaligned address", "unspecified launch failure", "illegal instruction", "invalid program counter",
        "global/shared address space", "device-side assert", "launch timed out", "hardware stack error")  # fmt: skip
SAYS = {getter: value for getter, value in GETTERS.items() if getter != torch.Tensor.is_meta.__get__}  # of a tensor, to a candidate that has no GPU
# For ptxas, which for each kernel touches 10 MB anew: of its 22 ms for an empty one 12 are page faults, with these 6.
LARGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432:glibc.malloc.mmap_threshold=1073741824"
NO_ROOM = "no_room"  # what a child says that finds no memory on the GPU for a context


def record_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Replay mode: record the candidate. args: inputs and init (descriptions), seed, known (hashes of weights that
    need not be sent), configs (of an autotuner, at most), defaults (Reference.defaults). The answer's payload is a plan."""
    from nanotriton.executor import recorder

    report.stage("record")
    source = Path(folder, "candidate.py").read_text(encoding="utf-8")
    inputs, init, defaults = wire.stand_ins(args["inputs"]), wire.stand_ins(args["init"]), args["defaults"]
    torch.set_default_dtype(getattr(torch, defaults["dtype"]))
    report.begin()
    try:
        with draws.moved_constants(args["seed"], frozenset(args["buffers"])) as settled:
            plan = recorder.record(
                source, init, inputs, seed=args["seed"], folder=folder, known=frozenset(args["known"]), max_configs=args["configs"],
                default_cuda=defaults["cuda"], finish=settled,
            )
        report.finish({}, plan.to_bytes())
    except recorder.RecordError as error:
        report.finish({"status": error.status, "message": error.message, "line": error.line, "recordable": error.recordable})


def compile_server(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Compile one kernel after another: our code, hostile TTIR. fds[0]: a socket that brings (job, result) memory files until it closes.

    A job: name, ttir, options, of a validated plan, and seconds: an alarm ends the server if the compiler takes longer, also while
    its worker is busy. The answer's payload is a Binary.
    """
    from nanotriton.executor import libdevice

    libdevice.install()
    triton.knobs.compilation.disable_line_info = True  # which nobody reads here; the machine code is the same without
    os.environ["GLIBC_TUNABLES"] = LARGE_PAGES
    report.begin()
    sock = socket.socket(fileno=fds[0])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        message, files = receive(sock)
        if message is None:
            return
        with open(files[0], "rb") as file:
            job = json.load(file)
        began = cpu_seconds()
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        compile_one(Report(files[1]), job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.close(files[1])
        send(sock, {"cpu": cpu_seconds() - began})


def cpu_seconds() -> float:
    """Of this process and of those that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def compile_one(report: Report, job: dict) -> None:
    from nanotriton.executor.compiler import CompileError, compile_kernel
    from nanotriton.executor.plan import Kernel
    from nanotriton.executor.signature import signature

    report.stage("compile")
    try:
        binary = compile_kernel(Kernel(job["name"], job["ttir"], job["options"], signature(job["ttir"], job["name"])))
        report.finish({}, binary.to_bytes())
    except CompileError as error:
        report.finish({"status": error.status, "message": error.message})
    except (MemoryError, OSError) as error:  # this ends the server: what kernels before left may be to blame, so a fresh one is asked again
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            report.finish({"status": "memory_limit", "message": f"kernel {job['name']}: to compile it takes more memory than the limit"})
        raise


def process_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Process mode: run the candidate for real. args: init (description), device, defaults, trials (inputs and state described, seed).

    fds[0] holds the bytes of all trials. The answer: per trial the outputs and the inputs afterwards, described, and their bytes.
    """
    path, device = str(Path(folder, "candidate.py")), torch.device(args["device"])
    data = memoryview(mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)) if args["bytes"] else memoryview(b"")
    described, tensors, stage = [], [], "import_error"
    if device.type == "cpu":
        cuda_means_cpu()
    else:
        time.sleep(args["wait"])
        try:
            torch.empty(1, device=device)  # a context, while only our code has run
        except RuntimeError as error:
            return report.finish({"status": NO_ROOM, "message": str(error).split("\n")[0]})
        # scratch memory for kernels that make descriptors, as a replay gives it
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=device))
        torch.set_default_device(device if args["defaults"]["cuda"] else None)
    torch.set_default_dtype(getattr(torch, args["defaults"]["dtype"]))
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
            report.stage("build")
            model = build(module.ModelNew, wire.stand_ins(args["init"]), trial["seed"], state, device, frozenset(args["buffers"]))
            inputs = mapped(inputs, lambda t: t.to(device))
            report.stage("run")
            with torch.no_grad():
                outputs = model(*inputs)
            description, found = wire.describe([outputs, inputs])
            described.append(description)
            tensors += [t.cpu() for t in found]
        report.finish({"trials": described}, wire.raw(tensors))
    except (Exception, SystemExit) as error:
        report.finish(explain(error, stage, path))


class CudaMeansCpu(TorchFunctionMode):
    """Candidates are written for "cuda"; here that is the CPU, which says that it is "cuda"."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in SAYS:
            return SAYS[func]
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = args[0], CUDA, *args[2:]
        swap = lambda x: torch.device("cpu") if is_cuda(x) else x
        return func(*map(swap, args), **{name: swap(value) for name, value in (kwargs or {}).items()})


def cuda_means_cpu() -> None:
    """For good: this process has one candidate. torch.cuda and Triton's driver answer as in a recording."""
    for owner, name, value in answers():
        setattr(owner, name, value)
    triton.runtime.driver._active = RecordingDriver()
    custom_op = torch.library.custom_op
    torch.library.custom_op = lambda *args, device_types=None, **kwargs: custom_op(*args, **kwargs)
    CudaMeansCpu().__enter__()


def load(path: str):
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(cls, init: list, seed: int, state: dict, device: torch.device, buffers: frozenset[str]):
    """Construct as the reference was; if names and shapes are its own but the values differ (another order of draws), load them."""
    with draws.moved_constants(seed, buffers) as settled:
        draws.seed_everything(seed)
        model = settled(cls(*init))
    if isinstance(model, torch.nn.Module):
        own = model.state_dict()
        alike = own.keys() == state.keys() and all(own[n].shape == t.shape and own[n].dtype == t.dtype for n, t in state.items())
        if alike and any(not torch.equal(own[n].cpu(), t) for n, t in state.items()):
            model.load_state_dict(state)
        model = model.to(device)
    return model


def explain(error: BaseException, status: str, path: str) -> dict:
    """Status, message and line of what a candidate's code raised."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    from nanotriton.executor import interpreter

    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    cause = interpreter.cause(error)
    statuses = {
        interpreter.OutOfBounds: "out_of_bounds", interpreter.Race: "nondeterministic", interpreter.Unsupported: "unsupported",
        MemoryError: "memory_limit", torch.OutOfMemoryError: "memory_limit", OutOfResources: "out_of_resources",
        CompilationError: "compile_error", SyntaxError: "syntax_error",
    }  # fmt: skip
    status = next((s for kind, s in statuses.items() if isinstance(cause, kind)), status)
    if isinstance(cause, PermissionError) and "torchinductor" in str(cause):  # torch._dynamo makes a folder as it is imported
        status = "unsupported"
    if any(text in str(cause) for text in ("allocate memory", "out of memory")):
        status = "memory_limit"
    elif any(text in str(cause) for text in LOST):
        status = "illegal_memory"
    text = " ".join(str(cause).split())[:600]
    return {"status": status, "message": f"{type(cause).__name__}: {text}", "line": line}
