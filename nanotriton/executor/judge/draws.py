"""Draws of inputs and weights that a candidate can't foresee: the task's own, and the task's own under stress.

Stress happens inside the draw: torch's random factories are patched while `get_inputs` runs, so that what the task builds from
them (triangles, symmetric matrices, masks, sorted lists) keeps its structure. Integers and booleans are untouched, and so is what a task
draws with Python. A seed that the task sets becomes one of ours. Weights that a constructor sets to a constant (norms, biases, gates) or leaves tiny are moved off those values,
in reference and candidate alike, or a candidate that skips them would pass. So are inputs that are all 0 or all 1.
"""

import contextlib
import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from nanotriton.executor.common.construct import patched, seed_from

# plain: as the task draws. scaled: random signs, a scale, and factors along one dimension. heavy: random
# signs, heavy
# tails and an offset. positive: a scale and factors, signs kept (for tasks that take logarithms or roots).
# uneven: as heavy, and what lies last
# is large in the outer dimensions, another slice of each small: exponentials overflow unless the maximum is
# subtracted, an epsilon counts, a tail that is left out shows.
# padded: as uneven, and one slice is zeros, where norms divide by nothing, signs vanish and all elements tie.
# In the last three, what a task makes of
# zeros or ones alone (a first state, a mask to be) is drawn too: floats up to 0.25 off; when padded, one
# truth value in eight is the other one, and
# one integer 1 in eight is 0. What it makes of other numbers is scaled as a whole, which keeps its order.
# edges: of what lies between 0 and 1 one element in eight is 0 and one is 1 (for tasks that take
# probabilities and nothing else). holes, infinite: one element in 16 is not finite.
KINDS = (
    "plain",
    "scaled",
    "heavy",
    "positive",
    "uneven",
    "uneven positive",
    "padded",
    "edges",
    "holes",
    "infinite",
)
FACTORIES = ("rand", "randn", "rand_like", "randn_like", "normal")
CONSTANTS = ("zeros", "ones", "zeros_like", "ones_like")
NUMBERS = ("full", "full_like", "tensor", "from_numpy", "arange", "linspace")
HOLES = {"holes": math.nan, "infinite": math.inf}
LARGE, SMALL = 64.0, 1 / 64
FILLERS = ("uniform_", "normal_", "exponential_")


def stress_(t: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Distort a freshly drawn tensor in place; anything but floating point is left alone.

    What is drawn for each element is drawn where the tensor is: a CPU takes a second for what a GPU does in a millisecond.
    """
    if not t.is_floating_point() or not t.numel() or kind == "plain":
        return t
    local = generator
    if t.device.type != "cpu":
        local = torch.Generator(t.device).manual_seed(
            int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))
        )

    def number(low: float, high: float) -> float:
        # on the host: nothing waits for a GPU
        return float(torch.empty((), device="cpu").uniform_(low, high, generator=generator))

    def drawn(*shape) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=t.device)

    with torch.no_grad():
        x = t.detach()
        if kind in HOLES:
            x.masked_fill_(drawn(*t.shape).uniform_(generator=local) < 1 / 16, HOLES[kind])
            return t
        if kind == "edges":
            if bool(((x >= 0) & (x <= 1)).all()):
                chance = drawn(*t.shape).uniform_(generator=local)
                x.masked_fill_(chance < 1 / 8, 0).masked_fill_(chance > 7 / 8, 1)
            return t
        if kind in ("scaled", "heavy", "uneven", "padded"):
            x.mul_((drawn(*t.shape).uniform_(generator=local) < 0.5).to(t.dtype).mul_(-2).add_(1))
        # log-normal factors: a few elements are ten times the others
        if kind in ("heavy", "uneven", "padded"):
            x.mul_(drawn(*t.shape).normal_(0, 0.8, generator=local).exp_().to(t.dtype)).add_(
                number(-1.5, 1.5)
            )
        else:  # a scale from 1/2 to 4 and factors from 1/2 to 2 along one dimension
            x.mul_(2.0 ** number(-1, 2))
            if t.dim():
                dim = int(number(0, 1) * t.dim()) % t.dim()
                shape = [1] * t.dim()
                shape[dim] = t.shape[dim]
                x.mul_(torch.exp2(drawn(*shape).uniform_(-1, 1, generator=local)).to(t.dtype))
        if kind.startswith("uneven") or kind == "padded":
            for dim in range(t.dim()):
                n = t.shape[dim]
                if n > 1:
                    small = int(number(0, 1) * (n - 1))
                    part = x.select(dim, small).mul_(SMALL)
                    if dim in (0, t.dim() - 1):
                        x.select(dim, n - 1).mul_(LARGE)
                    # small as a whole, for norms over all dimensions but this one: without what is
                    # large
                    for outer in {0, t.dim() - 1} - {dim}:
                        last = part.select(outer - (outer > dim), t.shape[outer] - 1)
                        last.div_(LARGE if t.shape[outer] > 1 else 1)
                if n > 2 and kind == "padded":
                    x.select(dim, (small + 1) % (n - 1)).fill_(0)
    return t


@contextlib.contextmanager
def stressed(kind: str, seed: int) -> Iterator[None]:
    """Patch torch's random factories: what they draw comes out distorted. The task's own random stream is not consumed."""
    generator = torch.Generator().manual_seed(seed)
    depth, count = [0], [0]  # a factory may use another, and so does stress_: distort once

    def wrap(original):
        def draw(*args, **kwargs):
            depth[0] += 1
            try:
                drawn = original(*args, **kwargs)
                if depth[0] > 1 or (count[0] and kind in HOLES):  # of several inputs one may have holes
                    return drawn
                count[0] += 1
                return stress_(drawn, kind, generator)
            finally:
                depth[0] -= 1

        return draw

    def constant(original):
        def make(*args, **kwargs):
            made = original(*args, **kwargs)
            if depth[0] == 0 and (made.is_floating_point() or kind == "padded"):
                depth[0] += 1
                noise = torch.empty(made.shape, dtype=torch.float32, device="cpu").uniform_(
                    -0.25, 0.25, generator=generator
                )
                depth[0] -= 1
                if made.dtype == torch.bool:
                    made.logical_xor_((noise > 0.1875).to(made.device))
                elif not made.is_floating_point():  # a 0 may be an index, of which 1 is none
                    made.mul_((noise <= 0.1875).to(made.device))
                else:
                    made.add_((noise.abs() if "positive" in kind else noise).to(made.device, made.dtype))
            return made

        return make

    def scaled(original):
        def make(*args, **kwargs):
            made = original(*args, **kwargs)
            if depth[0] or not made.is_floating_point():
                return made
            depth[0] += 1
            # never up: a float may become an index
            factor = float(torch.empty((), device="cpu").uniform_(0.75, 1, generator=generator))
            depth[0] -= 1
            return made * factor

        return make

    raw = [(torch, name, wrap) for name in FACTORIES] + [(torch.Tensor, name, wrap) for name in FILLERS]
    if kind.startswith("uneven") or kind == "padded":
        raw += [(torch, name, constant) for name in CONSTANTS] + [(torch, name, scaled) for name in NUMBERS]
    raw = [(owner, name, how(getattr(owner, name))) for owner, name, how in (raw if kind != "plain" else [])]
    with patched(raw + reseeded(seed)):
        yield


def reseeded(seed: int) -> list[tuple[object, str, object]]:
    """What sets a seed, patched: a task that sets the same one for every draw would draw the same, and a candidate could foresee it."""
    mixed = lambda given: seed_from("task", seed, str(given)) % 2**32

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(mixed(seed))

    def calls(function):
        return lambda given=None, *args, **kwargs: function(mixed(given), *args, **kwargs)

    def makes(cls):
        return type(
            cls.__name__, (cls,), {"__init__": lambda self, given=None: cls.__init__(self, mixed(given))}
        )

    functions = [
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
        (np.random, "seed"),
        (np.random, "default_rng"),
        (random, "seed"),
    ]
    new = [(owner, name, calls(getattr(owner, name))) for owner, name in functions]
    return [
        *new,
        (torch, "Generator", Generator),
        *(
            (owner, name, makes(getattr(owner, name)))
            for owner, name in ((np.random, "RandomState"), (random, "Random"))
        ),
    ]


def train_(model: nn.Module, seed: int) -> None:
    """Change parameters as training may: each element by a factor of its own up to 4/3, and no tensor of several has one sign alone.

    What a constructor makes of another parameter (a copy, a norm) is no longer that of it. Factors below 1, so that no recurrence explodes.
    """
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        if param.is_floating_point() and param.numel() > 1:
            factor = torch.empty(param.shape, dtype=torch.float32, device="cpu").uniform_(
                0.75, 1, generator=generator
            )
            if bool((param > 0).all()) or bool((param < 0).all()):
                factor *= torch.empty_like(factor).uniform_(-1, 1, generator=generator).sign()
            param.detach().mul_(factor.to(param.dtype))
