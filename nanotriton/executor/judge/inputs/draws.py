"""Draws of inputs that a candidate cannot foresee: the task's own, and the task's own under stress.

Stress happens inside the draw. What a random operator of torch gives is distorted (stress.py) before the task
goes on with it, so what the task builds from it (triangles, symmetric matrices, masks, sorted lists) keeps
its structure. What is drawn in another way (by NumPy, or as integers that become floats) is distorted once it
is returned: `distorted_late`. Which draws those are, and what no draw varies (moves.py), is found out for
each task (reference/examination.py). A seed that the task sets becomes one of ours.
"""

import copy
from contextlib import contextmanager

import torch
from torch import Tensor

from nanotriton.executor.common.construct import patched
from nanotriton.executor.judge.inputs.seeds import reseeded
from nanotriton.executor.judge.inputs.stress import (
    CONSTANTS_TOO,
    ONCE,
    PADDED,
    Luck,
    distort,
    kind_of,
    soften,
)
from nanotriton.executor.judge.task.watching import Watching

NOISE = 0.25  # a constant float is moved by up to so much
# ATen operators that draw floats but only 0, 1 or counts. All others that the schema calls random are
# distorted.
COUNTS = frozenset(
    [
        "bernoulli",
        "bernoulli_",
        "binomial",
        "geometric",
        "geometric_",
        "multinomial",
        "native_dropout",
        "poisson",
        "random",
        "random_",
    ]
)
ZEROS_AND_ONES = frozenset(["zeros", "ones", "zeros_like", "ones_like", "new_zeros", "new_ones"])
# lift_fresh: torch.tensor, torch.as_tensor and torch.from_numpy
NUMBERS = frozenset(["full", "full_like", "new_full", "lift_fresh", "arange", "linspace", "logspace", "eye"])


def distorted_late(
    given: Tensor,
    kind: str,
    generator: torch.Generator,
    literals: tuple[float, ...] = (),
    faint: dict[int, set[int]] | None = None,
) -> Tensor:
    """A copy of what `get_inputs` has returned, distorted: the task may keep what it returned.

    Labels stay between 0 and 1.
    """
    x = copy.deepcopy(given.detach())  # which keeps its strides
    labels = kind not in ONCE | {"wild"} and bool(((x == 0) | (x == 1)).all())
    if not labels:
        distort(x, kind, generator, literals, faint)
    elif x.is_floating_point() and x.numel():
        with torch.no_grad():
            soften(x, Luck(generator, x.device))
    return x


class Stress(Watching):
    """While it is active, what torch draws is distorted, however it was called.

    The task's own random stream is the same as without it.
    """

    def __init__(self, kind: str, seed: int, literals: tuple[float, ...] = ()):
        super().__init__()
        self.kind = kind
        self.literals = literals
        self.generator = torch.Generator().manual_seed(seed)
        self.distorted = 0
        self.faint: dict[int, set[int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not isinstance(made, Tensor):
            return made
        if torch.Tag.nondeterministic_seeded in func.tags and name not in COUNTS:
            self.drawn(made)
        elif self.kind in CONSTANTS_TOO and name in ZEROS_AND_ONES:
            self.constant(made)
        elif self.kind in CONSTANTS_TOO and name in NUMBERS and made.is_floating_point():
            # never up: a float may become an index. Not in place: NumPy may own the memory
            return made * Luck(self.generator, made.device).number(0.75, 1)
        return made

    def drawn(self, x: Tensor) -> None:
        floats = x.is_floating_point() or x.is_complex()
        if not floats or (self.distorted and self.kind in ONCE):
            return
        distort(x, kind_of(self.kind, self.distorted), self.generator, self.literals, self.faint)
        self.distorted += 1

    def constant(self, x: Tensor) -> None:
        """Move zeros or ones."""
        padded = self.kind in PADDED
        if not x.is_floating_point() and not padded:
            return
        noise = torch.empty(x.shape, dtype=torch.float32, device="cpu")
        noise.uniform_(-NOISE, NOISE, generator=self.generator)
        rare = NOISE * 3 / 4  # one in eight is above
        if x.dtype == torch.bool:
            x.logical_xor_((noise > rare).to(x.device))
        elif not x.is_floating_point():  # a 0 may be an index, of which 1 is none
            x.mul_((noise <= rare).to(x.device))
        else:
            x.add_((noise.abs() if "positive" in self.kind else noise).to(x.device, x.dtype))


@contextmanager
def stressed(kind: str, seed: int, literals: tuple[float, ...] = ()):
    """A draw of this kind: under stress, and with the task's own seeds replaced."""
    with patched(reseeded(seed)):
        if kind == "plain":
            yield
        else:
            with Stress(kind, seed, literals):
                yield
