"""Replay mode, the untrusted side: the candidate is recorded in a sandboxed child.

A target is the function that a child runs, as target(report, fds, folder, args). `report` takes the answer,
`fds` are memory files of the worker, `folder` holds the candidate's file, and `args` came from the worker.
A target may raise anything: a child that leaves no answer has crashed.
"""

import contextlib
from pathlib import Path

import torch

from nanotriton.executor.child.effects import Effects
from nanotriton.executor.common import construct
from nanotriton.executor.common.training import Table, Trained, fits, parameters_of, train_
from nanotriton.executor.sandbox.protocol import Report
from nanotriton.plan import wire


def record_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Record the candidate. The answer's payload is the plans of its calls (`recorder.record`), whose lengths
    the header says. The header also says whether the module was trained, and the names of its parameters if
    they are those of the reference in shape, dtype and order. And it says whether the candidate has asked for
    the card's number of multiprocessors, and what it has left changed in the process (effects.Effects).

    args:
        inputs, init: descriptions of the arguments of forward and of the constructor.
        seed: of the weights. parameters: of the reference, training.parameters_of. training: None, or what
            to train of a module that has such parameters: their numbers, [name, shape, dtype] of buffers, and
            how (training.Trained).
        between: whether it is trained between the first call and the second, and not before.
        attributes: whether tensors that are plain attributes belong to the state that calls leave.
        further: None, or the fields of recorder.Further.
        buffers: names of those whose constants are moved.
        known: hashes of weights that need not be sent.
        configs: the most of an autotuner that are recorded. drawn: a seed that draws which, beside the first;
            None: they are those that come first.
        defaults: Reference.defaults.
        processors: of the card; None: as many as it has.
    """
    from nanotriton.executor.child import recorder

    report.stage("record")
    source = Path(folder, "candidate.py").read_text(encoding="utf-8")
    inputs, init = wire.stand_ins(args["inputs"]), wire.stand_ins(args["init"])
    torch.set_default_dtype(getattr(torch, args["defaults"]["dtype"]))
    names, trained, asked, effects = None, False, [], Effects()
    if args["processors"] is not None:
        recorder.install_processors(args["processors"])

    @contextlib.contextmanager
    def constructing(seed):
        moved = construct.moved_constants(seed, frozenset(args["buffers"]))
        with effects.building(), moved as settled:
            yield lambda model: finish(settled(model)) if seed == args["seed"] else settled(model)

    def finish(model):
        nonlocal names, trained
        training = args["training"]
        if args["parameters"] is not None and parameters_of(model) == args["parameters"]:
            names = [name for name, _ in model.named_parameters()]
            trained = training is not None and fits(model, training["buffers"])
            if not args["between"]:
                train(model)
        return model

    def train(model):
        if trained:
            training = args["training"]
            buffers = tuple(name for name, _, _ in training["buffers"])
            tables = tuple(Table(*table) for table in training["tables"])
            what = Trained(
                tuple(training["parameters"]), buffers, tables, training["flips"], training["grows"]
            )
            train_(model, args["seed"], what)

    report.begin()
    try:
        with effects.watching():
            plans = recorder.record(
                source,
                init,
                inputs,
                seed=args["seed"],
                folder=folder,
                known=frozenset(args["known"]),
                max_configs=args["configs"],
                drawn=args["drawn"],
                default_cuda=args["defaults"]["cuda"],
                constructing=constructing,
                between=train if args["between"] else None,
                attributes=args["attributes"],
                further=args["further"] and recorder.Further(**args["further"]),
                asked=lambda: asked.append(True),
                calling=effects.calling,
            )
        data = [plan.to_bytes() for plan in plans]
        lengths = [len(plan) for plan in data]
        header = {"plans": lengths, "trained": trained, "parameters": names, "processors": bool(asked)}
        header["effects"] = effects.left()
        report.finish(header, b"".join(data))
    except recorder.RecordError as error:
        report.finish(
            {
                "status": error.status,
                "message": error.message,
                "line": error.line,
                "recordable": error.recordable,
            }
        )
