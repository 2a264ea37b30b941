"""Replay mode, the untrusted side: the candidate is recorded in a sandboxed child.

A target is the function that a child runs, as target(report, fds, folder, args). `report` takes the answer,
`fds` are memory files of the worker, `folder` holds the candidate's file, and `args` came from the worker.
A target may raise anything: a child that leaves no answer has crashed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nanotriton.executor.child.effects import Effects
from nanotriton.executor.common import construct
from nanotriton.executor.common.asked import Asked
from nanotriton.executor.common.training import described, fits, parameters_of, train_
from nanotriton.executor.sandbox.protocol import Report
from nanotriton.plan import wire


def record_child(report: Report, fds: list[int], folder: str, args: dict) -> None:
    """Record the candidate. args: the fields of Asked.

    The answer's payload is the plans of its calls (`recorder.record`), whose lengths the header says. The
    header also says whether the module was trained, and the names of its parameters if they are those of the
    reference in shape, dtype and order. And it says whether the candidate has asked for the card's number of
    multiprocessors, and what it has left changed in the process (effects.Effects).
    """
    from nanotriton.executor.child import recorder

    report.stage("record")
    asked = Asked(**args)
    source = Path(folder, "candidate.py").read_text(encoding="utf-8")
    torch.set_default_dtype(getattr(torch, asked.defaults["dtype"]))
    if asked.processors is not None:
        recorder.install_processors(asked.processors)
    asks_processors: list[bool] = []
    effects = Effects()
    built = Built(asked, effects)
    around = recorder.Around(
        constructing=built.constructing,
        between=built.train if asked.between else None,
        asked=lambda: asks_processors.append(True),
        calling=effects.calling,
    )
    report.begin()
    try:
        with effects.watching():
            plans = recorded(source, folder, asked, around)
        data = [plan.to_bytes() for plan in plans]
        header = {
            "plans": [len(plan) for plan in data],
            "trained": built.trained,
            "parameters": built.names,
            "processors": bool(asks_processors),
            "effects": effects.left(),
        }
        report.finish(header, b"".join(data))
    except recorder.RecordError as error:
        report.finish(said_of(error))


def recorded(source: str, folder: str, asked: Asked, around) -> list:
    """The plans that are asked for. around: a recorder.Around."""
    from nanotriton.executor.child import recorder

    return recorder.record(
        source,
        wire.stand_ins(asked.init),
        wire.stand_ins(asked.inputs),
        seed=asked.seed,
        folder=folder,
        known=frozenset(asked.known),
        max_configs=asked.configs,
        drawn=asked.drawn,
        default_cuda=asked.defaults["cuda"],
        attributes=asked.attributes,
        further=None if asked.further is None else recorder.Further(**asked.further),
        around=around,
    )


def said_of(error) -> dict:
    """The header of an answer for a recorder.RecordError."""
    return {
        "status": error.status,
        "message": error.message,
        "line": error.line,
        "recordable": error.recordable,
    }


class Built:
    """The candidate's modules as they are built: constants are moved, and the one of the asked seed is
    trained.

    names: of its parameters, if they are those of the reference in shape, dtype and order. trained: whether
    training changes it as it changes the reference.
    """

    def __init__(self, asked: Asked, effects: Effects):
        self.asked, self.effects = asked, effects
        self.names: list[str] | None = None
        self.trained = False

    @contextmanager
    def constructing(self, seed: int) -> Iterator[Callable[[Any], Any]]:
        """The constructor of a module with weights of this seed runs inside."""
        moved = construct.moved_constants(seed, frozenset(self.asked.buffers))
        with self.effects.building(), moved as settled:
            if seed == self.asked.seed:
                yield lambda model: self.finish(settled(model))
            else:
                yield settled

    def finish(self, model: Any) -> Any:
        asked = self.asked
        if asked.parameters is not None and parameters_of(model) == asked.parameters:
            self.names = [name for name, _ in model.named_parameters()]
            self.trained = asked.training is not None and fits(model, asked.training["buffers"])
            if not asked.between:
                self.train(model)
        return model

    def train(self, model: Any) -> None:
        if self.trained:
            train_(model, self.asked.seed, described(self.asked.training))
