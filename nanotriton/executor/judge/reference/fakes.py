"""Answers that compute nothing.

A task that one of them would pass can't tell right from wrong (weak_task).
"""

from collections.abc import Callable

import torch

from nanotriton.executor.judge.comparison.compare import Answer, passes
from nanotriton.plan.trees import mapped, tensors

OTHERS = "the answer to other inputs"


class Fakes:
    """Answers that compute nothing. `passing`: those, by name, that have passed on every draw so far."""

    def __init__(self, inputs: Callable[[str, int], list], run: Callable[[list, int], object] | None):
        self.inputs, self.run = inputs, run  # the reference's; no `run`: it is asked nothing but draws
        # Functions of (self, inputs, the right answer, seed of the weights). Closures would be a cycle, which
        # keeps tensors of gigabytes until the garbage collector comes.
        self.passing: dict[str, Callable] = {}
        self.first = None  # the first draw's answer

    def look(self, kind: str, seed: int, answer: Answer, weights: int) -> None:
        """Forget those that don't pass on this draw; the first draw invents them."""
        first = self.first is None
        if first:
            self._invent(answer.own)
        for name, fake in list(self.passing.items()):
            if first and name == OTHERS:
                continue  # its own draw says nothing
            try:
                right = passes(fake(self, self.inputs(kind, seed), answer.own, weights), answer)
            except Exception:  # the reference cannot take what this one gives it
                right = False
            if not right:
                del self.passing[name]

    def _invent(self, own) -> None:
        self.first, inputs = own, self.inputs("plain", 0)
        means = [t.mean(dtype=torch.float64).item() for t in tensors(own) if not t.is_complex()] or [0.0]
        zero = lambda t: torch.zeros_like(t) if t.is_floating_point() else t
        self.passing = {
            "an answer of zeros": lambda self, inputs, own, weights: mapped(own, torch.zeros_like),
            "an answer of ones": lambda self, inputs, own, weights: mapped(own, torch.ones_like),
            "one constant": lambda self, inputs, own, weights: mapped(
                own, lambda t: torch.full_like(t, means[0])
            ),
            OTHERS: lambda self, inputs, own, weights: self.first,
        }
        for i in range(len(inputs)):
            self.passing[f"input {i} returned as it is"] = lambda self, inputs, own, weights, i=i: (
                inputs[i] if isinstance(own, torch.Tensor) else (inputs[i],)
            )
        if self.run and any(t.is_floating_point() for t in tensors(inputs)):
            self.passing["the answer to zeros"] = lambda self, inputs, own, weights: self.run(
                mapped(inputs, zero), weights
            )
