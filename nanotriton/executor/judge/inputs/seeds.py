"""Seeds that a task sets itself, while it draws: each becomes one of ours."""

import random

import numpy as np
import torch

from nanotriton.executor.common.construct import seed_from


def reseeded(seed: int) -> list[tuple[object, str, object]]:
    """What sets a seed, patched: (owner, name, new).

    A task that sets the same seed for every draw would draw the same, and a candidate could foresee it.
    """

    def mixed(given) -> int:
        return seed_from("task", seed, str(given)) % 2**32

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(mixed(seed))

    def calls(function):
        def call(given=None, *args, **kwargs):
            return function(mixed(given), *args, **kwargs)

        return call

    def makes(cls):
        def __init__(self, given=None):
            cls.__init__(self, mixed(given))

        return type(cls.__name__, (cls,), {"__init__": __init__})

    found: list[tuple[object, str, object]] = [(torch, "Generator", Generator)]
    for owner, name in (
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
        (np.random, "seed"),
        (np.random, "default_rng"),
        (random, "seed"),
    ):
        found.append((owner, name, calls(getattr(owner, name))))
    for owner, name in ((np.random, "RandomState"), (random, "Random")):
        found.append((owner, name, makes(getattr(owner, name))))
    return found
