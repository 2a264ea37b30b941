"""A candidate's modules: they are built on the host, with real weights, which then go to the GPU as
`model.cuda()` sends them."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanotriton.executor.child.quiet import quiet
from nanotriton.executor.child.stages import stage
from nanotriton.executor.child.tape import Tape

Moved = tuple[dict, str, torch.Tensor]  # a module's table of weights, a name there, the weight on the host
# A context, for the seed of a module's weights, in which its constructor runs. It gives a function that is
# called with the module once it is built, and returns the module that runs.
Constructing = Callable[[int], AbstractContextManager[Callable[[Any], Any]]]


@dataclass(frozen=True)
class Builder:
    """Makes modules of a candidate's class, all with the same arguments."""

    tape: Tape
    cls: Callable
    arguments: list
    constructing: Constructing

    def build(self, seed: int) -> tuple[Any, list[Moved]]:
        """(a module, which of its weights went to the GPU). seed: of torch, NumPy and random before the
        constructor runs, as for the reference."""
        tape = self.tape
        tape.building = True
        with self.constructing(seed) as finish:
            made = stage(tape, "runtime_error", lambda: finish(self.construct(seed)))
        tape.building = False
        with quiet():
            return made, move_weights(tape, made)

    def construct(self, seed: int) -> Any:
        # torch.manual_seed also queues a seed for every kind of GPU, slowly
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        return self.cls(*self.arguments)


def train(model: Any, moved: list[Moved], between: Callable[[Any], None]) -> None:
    """Let `between` change the values that a module's weights have on the host."""
    on_gpu = [place[name] for place, name, _ in moved]
    for place, name, own in moved:
        place[name] = own
    with quiet():
        between(model)
    for (place, name, _), there in zip(moved, on_gpu, strict=True):
        place[name] = there


def move_weights(tape: Tape, model: Any) -> list[Moved]:
    """As `model.cuda()` does: every parameter and buffer goes to the GPU, and tied ones stay tied. Others
    that share memory are pulled apart."""
    moved: list[Moved] = []
    owners: dict[int, int] = {}  # address of a host storage -> id of the tensor that is moved with it

    def move(t: torch.Tensor, name: str) -> torch.Tensor:
        address = t.untyped_storage()._cdata
        if owners.setdefault(address, id(t)) != id(t) and address not in tape.cuda_storages:
            t = t.detach().clone()
        return tape.weight(t, name)

    if not isinstance(model, torch.nn.Module):
        return moved
    for prefix, module in model.named_modules():
        prefix = prefix and prefix + "."
        for name, p in module._parameters.items():
            if p is not None:
                tape.moved[id(p)] = p
                moved.append((module._parameters, name, p))
                module._parameters[name] = torch.nn.Parameter(move(p, prefix + name), requires_grad=False)
        for name, b in module._buffers.items():
            if b is not None:
                moved.append((module._buffers, name, b))
                module._buffers[name] = move(b, prefix + name)
        if isinstance(module, torch.nn.RNNBase):  # it lists its weights once more
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
    return moved
