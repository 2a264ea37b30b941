"""What runs inside a sandboxed child: the candidate's Python. Nothing that comes out of here is trusted.

A target is called as target(report, fds, folder, args): `report` takes the answer, `fds` are memory files of the worker, `folder`
holds the candidate's file, `args` came from the worker. It may raise anything; a child without an answer has crashed.
"""

import torch

from nanotriton.executor import draws
from nanotriton.executor.aten import decode, encode_tree
from nanotriton.executor.zygote import Report

SIZES = ["shape", "stride", "dtype"]


def describe_arguments(arguments: list) -> list:
    """Arguments of forward as JSON that a child can make stand-ins from: tensors by shape, stride and dtype."""
    tensors: list[list] = []

    def number(t: torch.Tensor) -> int:
        tensors.append([list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")])
        return len(tensors) - 1

    return [encode_tree(list(arguments), number), tensors]


def stand_ins(description: list) -> list:
    """The inverse: the same arguments with meta tensors."""
    tree, tensors = description

    def make(i: int) -> torch.Tensor:
        shape, stride, dtype = tensors[i]
        return torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device="meta")

    return decode(tree, make, torch.device("cpu"))


def record_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Record the candidate; the answer's payload is a plan. args: inputs, init (both described), seed."""
    from nanotriton.executor import recorder

    report.stage("record")
    source = open(f"{folder}/candidate.py", encoding="utf-8").read()
    inputs, init = stand_ins(args["inputs"]), stand_ins(args["init"])
    try:
        with draws.moved_constants(args["seed"]):
            plan = recorder.record(source, init, inputs, seed=args["seed"], folder=folder)
        report.finish({}, plan.to_bytes())
    except recorder.RecordError as error:
        where = {"line": error.line, "recordable": error.recordable}
        report.finish({"status": error.status, "message": error.message, **where})
