"""A reference's answer, and one tensor of a candidate's answer beside it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

from nanotriton.executor.judge.comparison.values import (
    FULL,
    Errors,
    Precision,
    Scale,
    Usual,
    chunks,
    measure,
    scale_of,
)
from nanotriton.verdict import ValueFault


@dataclass(frozen=True)
class Answer:
    """A reference's answer in the task's dtype and in float64 (None: there is none).

    inputs, inputs_exact: its inputs as each left them, if they were kept.
    """

    own: object
    exact: object | None
    inputs_exact: list | None
    inputs: list | None
    precision: Precision = FULL
    seconds: float = 0.0  # that it took to compute
    usual_inputs: bool = False  # drawn as the task draws
    # by the name of an output that was compared with something
    scales: dict[str, Scale] = field(default_factory=dict, repr=False)
    # by the name of an output of few values, if other draws were asked
    usual: dict[str, Usual] = field(default_factory=dict, repr=False)
    # by the name of an output, if it was asked: Moments.ee where each input is off by one rounding
    rounding: dict[str, float] = field(default_factory=dict, repr=False)


@dataclass
class Output:
    """One tensor of a candidate's answer beside the reference's. hurry: nobody reads the message."""

    name: str
    got: torch.Tensor
    own: torch.Tensor
    exact: torch.Tensor | None
    answer: Answer
    hurry: bool

    @property
    def scale(self) -> Scale:
        return self.measured[0]

    @property
    def errors(self) -> Errors:
        return self.measured[1]

    @cached_property
    def measured(self) -> tuple[Scale, Errors]:
        """Both together, because the errors decide whether the scale is a masked one."""
        scales, usual = self.answer.scales, self.answer.usual.get(self.name)
        if self.name not in scales:
            scales[self.name] = scale_of(self.own, self.exact, False, self.answer.precision, usual)
        found = measure(self.got, self.own, self.exact, scales[self.name], self.hurry)
        if not found.clean and not scales[self.name].masked:
            scales[self.name] = scale_of(self.own, self.exact, True, self.answer.precision, usual)
            found = measure(self.got, self.own, self.exact, scales[self.name], self.hurry)
        return scales[self.name], found

    def count(self, wrong: Callable) -> int:
        """How many elements are wrong, as a function of their (got, own, exact) in float64."""
        pieces = chunks(self.got, self.own, self.exact, self.scale.masked)
        return sum(int(wrong(g, o, w).sum()) for _, g, o, w, _ in pieces)

    def places(self, wrong: Callable) -> torch.Tensor:
        """Flat indices of the elements that are wrong, as a function of (got, own, exact) in float64."""
        pieces = chunks(self.got, self.own, self.exact, self.scale.masked)
        return torch.cat([start + wrong(g, o, w).nonzero()[:, 0] for start, g, o, w, _ in pieces])

    def fault(self, message: str) -> ValueFault:
        return ValueFault(f"{self.name}: {message}", self.errors.worst)
