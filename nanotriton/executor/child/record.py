"""Replay mode, the untrusted side: the candidate is recorded in a sandboxed child.

A target is the function that a child runs, as target(report, fds, folder, args). `report` takes the answer,
`fds` are memory files of the worker, `folder` holds the candidate's file, and `args` came from the worker.
A target may raise anything: a child that leaves no answer has crashed.
"""

from pathlib import Path

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.sandbox.protocol import Report
from nanotriton.plan import wire


def record_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Record the candidate. The answer's payload is the plans of its calls (`recorder.record`), whose lengths
    the header says. The header also says whether the module was trained, and the names of its parameters if
    they are those of the reference in shape, dtype and order.

    args:
        inputs, init: descriptions of the arguments of forward and of the constructor.
        seed: of the weights. trained: whether to train the module, if its parameters are those of the
            reference (`parameters`).
        buffers: names of those whose constants are moved.
        known: hashes of weights that need not be sent.
        configs: the most of an autotuner that are recorded.
        defaults: Reference.defaults.
    """
    from nanotriton.executor.child import recorder

    report.stage("record")
    source = Path(folder, "candidate.py").read_text(encoding="utf-8")
    inputs, init = wire.stand_ins(args["inputs"]), wire.stand_ins(args["init"])
    torch.set_default_dtype(getattr(torch, args["defaults"]["dtype"]))
    names = None

    def finish(model):
        nonlocal names
        model = settled(model)
        if args["parameters"] is not None and construct.parameters_of(model) == args["parameters"]:
            names = [name for name, _ in model.named_parameters()]
            if args["trained"]:
                construct.train_(model, args["seed"])
        return model

    report.begin()
    try:
        with construct.moved_constants(args["seed"], frozenset(args["buffers"])) as settled:
            plans = recorder.record(
                source,
                init,
                inputs,
                seed=args["seed"],
                folder=folder,
                known=frozenset(args["known"]),
                max_configs=args["configs"],
                default_cuda=args["defaults"]["cuda"],
                finish=finish,
            )
        data = [plan.to_bytes() for plan in plans]
        trained = args["trained"] and names is not None
        lengths = [len(plan) for plan in data]
        report.finish({"plans": lengths, "trained": trained, "parameters": names}, b"".join(data))
    except recorder.RecordError as error:
        report.finish(
            {
                "status": error.status,
                "message": error.message,
                "line": error.line,
                "recordable": error.recordable,
            }
        )
