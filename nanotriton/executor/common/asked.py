"""What a candidate's child is asked to record: the judge writes it and the child reads it, as JSON."""

from dataclasses import dataclass, fields

from nanotriton.executor.common.training import Parameters


@dataclass(frozen=True)
class Asked:
    """One recording.

    inputs, init: descriptions (wire.describe) of the arguments of forward and of the constructor.
    seed: of the weights. parameters: of the reference, training.parameters_of. training: None, or what to
    train of a module that has such parameters (training.describe).
    between: whether it is trained between the first call and the second, and not before.
    further: None, or the fields of recorder.Further.
    attributes: whether tensors that are plain attributes belong to the state that calls leave.
    buffers: names of those whose constants are moved. known: hashes of weights that need not be sent.
    configs: the most of an autotuner that are recorded. drawn: a seed that draws which, beside the first;
    None: they are those that come first.
    defaults: Reference.defaults. processors: of the card; None: as many as it has.
    """

    inputs: list
    init: list
    seed: int
    parameters: Parameters | None
    training: dict | None
    between: bool
    further: dict | None
    attributes: bool
    buffers: list[str]
    known: list[str]
    configs: int
    drawn: int | None
    defaults: dict
    processors: int | None

    def to_json(self) -> dict:
        return {field.name: getattr(self, field.name) for field in fields(self)}
