"""Training between two calls: other values for a module's weights, in the reference and a candidate alike."""

from dataclasses import dataclass, replace

import torch

from nanotriton.executor.judge.inputs.kinds import untrained
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.reference.twin import State


@dataclass(frozen=True)
class Training:
    """What training makes of a reference's weights (training.train_).

    weights: the seed of the trained ones. before, after: the values of those that it changes, by name, on the
    CPU.
    """

    weights: int
    before: State
    after: State

    def apply(self, state: State) -> None:
        """Train a module's state in place."""
        for name, trained in self.after.items():
            if name in state:
                state[name].copy_(trained)

    def without(self, names: frozenset[str]) -> "Training":
        """The same without the weights of these names."""
        kept = {name: t for name, t in self.after.items() if name not in names}
        return replace(self, after=kept)


def training_of(reference: Reference, weights: int) -> Training:
    """weights: seed of the trained ones."""
    before = reference.modules.weights(untrained(weights))
    after = reference.modules.weights(weights)
    names = [name for name in before if not torch.equal(before[name], after[name])]
    return Training(weights, {n: before[n] for n in names}, {n: after[n] for n in names})
