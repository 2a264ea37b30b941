"""Draws of inputs and weights that a candidate can't foresee: the task's own, and the task's own under stress.

Stress happens inside the draw: torch's random factories are patched while `get_inputs` runs, so that what the task builds from
them (triangles, symmetric matrices, masks, sorted lists) keeps its structure. Integers and booleans are untouched, and so is a task that
draws with numpy or Python. Weights that a constructor sets to 0 or 1 (norms, biases) are moved off those values, in reference
and candidate alike, or a candidate that skips them would pass.
"""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

# plain: as the task draws. scaled: random signs, a scale, and factors along one dimension. heavy: random signs, heavy
# tails and an offset. positive: a scale and factors, signs kept (for tasks that take logarithms or roots).
KINDS = ("plain", "scaled", "heavy", "positive")
FACTORIES = ("rand", "randn", "rand_like", "randn_like", "normal")
FILLERS = ("uniform_", "normal_", "exponential_")


def seed_from(*parts: bytes | str | int) -> int:
    """A 62-bit seed that depends on every part."""
    text = b"\0".join(p if isinstance(p, bytes) else str(p).encode() for p in parts)
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 2


def stress_(t: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Distort a freshly drawn tensor in place; anything but floating point is left alone.

    What is drawn for each element is drawn where the tensor is: a CPU takes a second for what a GPU does in a millisecond.
    """
    if not t.is_floating_point() or not t.numel() or kind == "plain":
        return t
    local = generator
    if t.device.type != "cpu":
        local = torch.Generator(t.device).manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)))

    def number(low: float, high: float) -> float:
        return float(torch.empty((), device="cpu").uniform_(low, high, generator=generator))  # on the host: nothing waits for a GPU

    def drawn(*shape) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=t.device)

    with torch.no_grad():
        x = t.detach()
        if kind in ("scaled", "heavy"):
            x.mul_((drawn(*t.shape).uniform_(generator=local) < 0.5).to(t.dtype).mul_(-2).add_(1))
        if kind == "heavy":  # log-normal factors: a few elements are ten times the others
            x.mul_(drawn(*t.shape).normal_(0, 0.8, generator=local).exp_().to(t.dtype)).add_(number(-1.5, 1.5))
        else:  # a scale from 1/2 to 4 and factors from 1/2 to 2 along one dimension
            x.mul_(2.0 ** number(-1, 2))
            if t.dim():
                dim = int(number(0, 1) * t.dim()) % t.dim()
                shape = [1] * t.dim()
                shape[dim] = t.shape[dim]
                x.mul_(torch.exp2(drawn(*shape).uniform_(-1, 1, generator=local)).to(t.dtype))
    return t


@contextlib.contextmanager
def stressed(kind: str, seed: int) -> Iterator[None]:
    """Patch torch's random factories: what they draw comes out distorted. The task's own random stream is not consumed."""
    generator = torch.Generator().manual_seed(seed)
    depth = [0]  # a factory may use another, and so does stress_: distort once

    def wrap(original):
        def draw(*args, **kwargs):
            depth[0] += 1
            try:
                drawn = original(*args, **kwargs)
                return stress_(drawn, kind, generator) if depth[0] == 1 else drawn
            finally:
                depth[0] -= 1

        return draw

    raw = [(torch, name) for name in FACTORIES] + [(torch.Tensor, name) for name in FILLERS]
    with patched([(owner, name, wrap(getattr(owner, name))) for owner, name in (raw if kind != "plain" else [])]):
        yield


@contextlib.contextmanager
def patched(replacements: list[tuple[object, str, object]]) -> Iterator[None]:
    saved = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in replacements]
    try:
        for owner, name, new in replacements:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in saved:
            if old is None:  # inherited (torch.Tensor's methods live in its base class)
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def seed_everything(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.5 ms to queue a seed for a CUDA that may never start
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def moved_constants(seed: int) -> Iterator[Callable]:
    """While modules are constructed: parameters that would be all 0 or all 1 get noise of up to 0.25 added.

    Gives a function that does so for those that a finished module still has, and returns the module (`weight.data.fill_(1)` goes past the rest).

    The noise depends on the seed, the size and the value alone, and no random number is drawn from the usual stream: a candidate
    whose layers differ in number, order, kind or shape from the reference's still gets the same weights as the reference.
    """

    def move(t: torch.Tensor) -> None:
        if type(t) not in (torch.Tensor, nn.Parameter) or not t.is_floating_point() or not t.numel() or t.is_meta:
            return
        value = float(t.detach().reshape(-1)[0])
        if value in (0.0, 1.0) and bool((t.detach() == value).all()):
            generator = torch.Generator().manual_seed(seed_from("constant", seed, t.numel(), value))
            noise = torch.empty(t.shape, dtype=torch.float32, device="cpu").uniform_(-0.25, 0.25, generator=generator)
            t.detach().add_(noise.to(t.device, t.dtype))

    def filling(original):
        def fill(tensor, *args, **kwargs):
            result = original(tensor, *args, **kwargs)
            move(tensor)
            return result

        return fill

    register = nn.Module.register_parameter

    def register_parameter(self, name, param):
        if param is not None:
            move(param)
        register(self, name, param)

    def settled(model):
        for param in model.parameters() if isinstance(model, nn.Module) else ():
            move(param)
        return model

    fillers = [(nn.init, name, filling(getattr(nn.init, name))) for name in ("zeros_", "ones_", "constant_")]
    with patched([*fillers, (nn.Module, "register_parameter", register_parameter)]):
        yield settled


def mapped(tree, function: Callable[[torch.Tensor], torch.Tensor]):
    """The same tree with every tensor replaced by `function` of it."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(v, function) for v in tree)
    return {k: mapped(v, function) for k, v in tree.items()} if isinstance(tree, dict) else tree
