"""Whole files with tests of their own, the untrusted side: a file is recorded, or run for real on a GPU."""

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

from nanotriton.executor.sandbox.protocol import Report

NAMES = ("result", "test_results")  # a variable whose name begins so holds a file's answers
STDOUT = 1 << 16  # characters kept of what a file prints
# PyTorch's errors where it has no CUDA, or lacks an operator on the CPU. They are no fault of the file,
# which a GPU would run.
CPU_ONLY = ("ATen_cuda library", "not implemented on the CPU", "Torch not compiled with CUDA")


def script_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Record or run candidate.py in `folder`. args: how, "record" or "run".

    The answer's payload is a plan, or the bytes of the tensors that the header's tree describes.
    """
    from nanotriton.executor.child import recorder
    from nanotriton.executor.child.process import explain
    from nanotriton.plan import wire

    path, printed = str(Path(folder, "candidate.py")), io.StringIO()
    report.stage(args["how"])
    report.begin()
    try:
        with contextlib.redirect_stdout(printed):
            if args["how"] == "record":
                source = Path(path).read_text(encoding="utf-8")
                plan = recorder.record_script(source, seed=0, folder=folder, required=False)
                header, payload = {}, plan.to_bytes()
            else:
                description, tensors = wire.describe(run_file(path))
                header, payload = {"tree": description}, wire.raw(tensors)
        report.finish(header | {"stdout": printed.getvalue()[:STDOUT]}, payload)
    except recorder.RecordError as error:
        recordable = error.recordable and not any(text in error.message for text in CPU_ONLY)
        report.finish(
            {"status": error.status, "message": error.message, "line": error.line, "recordable": recordable}
        )
    except (Exception, SystemExit) as error:
        report.finish(explain(error, "runtime_error", path))


def run_file(path: str) -> Any:
    """Run a file for real, and return the value of its last variable named result... or test_results."""
    import torch

    from nanotriton.executor.child.process import load
    from nanotriton.plan.trees import without_numpy

    sys.dont_write_bytecode = True
    torch.manual_seed(0)
    module = load(path)
    names = [name for name in vars(module) if name.startswith(NAMES)]
    return without_numpy(vars(module)[names[-1]]) if names else None
