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
    """Record the candidate. The answer's payload is the plan of a first call, whose length the header
    says, and the plan of a second. The header also says whether the module was trained.

    args:
        inputs, init: descriptions of the arguments of forward and of the constructor.
        seed: of the weights. trained: whether to train the module, if its parameters are those of the
            reference (`parameters`).
        buffers: names of those whose constants are moved.
        known: hashes of weights that need not be sent.
        configs: the most of an autotuner that are recorded. drawn: a seed that draws which, beside the first;
            None: they are those that come first.
        defaults: Reference.defaults.
    """
    from nanotriton.executor.child import recorder

    report.stage("record")
    source = Path(folder, "candidate.py").read_text(encoding="utf-8")
    inputs, init = wire.stand_ins(args["inputs"]), wire.stand_ins(args["init"])
    torch.set_default_dtype(getattr(torch, args["defaults"]["dtype"]))
    trained = False

    def finish(model):
        nonlocal trained
        model = settled(model)
        trained = args["trained"] and construct.parameters_of(model) == args["parameters"]
        if trained:
            construct.train_(model, args["seed"])
        return model

    report.begin()
    try:
        with construct.moved_constants(args["seed"], frozenset(args["buffers"])) as settled:
            first, second = recorder.record(
                source,
                init,
                inputs,
                seed=args["seed"],
                folder=folder,
                known=frozenset(args["known"]),
                max_configs=args["configs"],
                drawn=args["drawn"],
                default_cuda=args["defaults"]["cuda"],
                finish=finish,
            )
        data = first.to_bytes()
        report.finish({"first": len(data), "trained": trained}, data + second.to_bytes())
    except recorder.RecordError as error:
        report.finish(
            {
                "status": error.status,
                "message": error.message,
                "line": error.line,
                "recordable": error.recordable,
            }
        )
