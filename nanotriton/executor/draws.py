"""Draws of inputs and weights that a candidate can't foresee: the task's own, and the task's own under stress.

Stress happens inside the draw: torch's random factories are patched while `get_inputs` runs, so that what the task builds from
them (triangles, symmetric matrices, masks, sorted lists) keeps its structure. Integers and booleans are untouched, and so is what a task
draws with Python. A seed that the task sets becomes one of ours. Weights that a constructor sets to a constant (norms, biases, gates) or leaves tiny are moved off those values,
in reference and candidate alike, or a candidate that skips them would pass. So are inputs that are all 0 or all 1.
"""

import contextlib
import hashlib
import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.utils._device import _device_constructors

# plain: as the task draws. scaled: random signs, a scale, and factors along one dimension. heavy: random signs, heavy
# tails and an offset. positive: a scale and factors, signs kept (for tasks that take logarithms or roots). uneven: as heavy, and what lies last
# is large in the outer dimensions, another slice of each small: exponentials overflow unless the maximum is subtracted, an epsilon counts, a tail that is left out shows.
# padded: as uneven, and one slice is zeros, where norms divide by nothing, signs vanish and all elements tie. In the last three, what a task makes of
# zeros or ones alone (a first state, a mask to be) is drawn too: floats up to 0.25 off; when padded, one truth value in eight is the other one, and
# one integer 1 in eight is 0. What it makes of other numbers is scaled as a whole, which keeps its order. edges: of what lies between 0 and 1 one element
# in eight is 0 and one is 1 (for tasks that take probabilities and nothing else). holes, infinite: one element in 16 is not finite.
KINDS = ("plain", "scaled", "heavy", "positive", "uneven", "uneven positive", "padded", "edges", "holes", "infinite")
FACTORIES = ("rand", "randn", "rand_like", "randn_like", "normal")
CONSTANTS = ("zeros", "ones", "zeros_like", "ones_like")
NUMBERS = ("full", "full_like", "tensor", "from_numpy", "arange", "linspace")
HOLES = {"holes": math.nan, "infinite": math.inf}
LARGE, SMALL = 64.0, 1 / 64
BLANK = 1 << 20  # bytes of fresh memory that are not looked at before they are filled: it takes seconds for gigabytes
FILLERS = ("uniform_", "normal_", "exponential_")
_device_constructors()  # torch keeps the first answer: which functions a default device is for. It must not be one of what is patched below


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
        if kind in ("heavy", "uneven", "padded"):  # log-normal factors: a few elements are ten times the others
            x.mul_(drawn(*t.shape).normal_(0, 0.8, generator=local).exp_().to(t.dtype)).add_(number(-1.5, 1.5))
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
                    for outer in {0, t.dim() - 1} - {dim}:  # small as a whole, for norms over all dimensions but this one: without what is large
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
                noise = torch.empty(made.shape, dtype=torch.float32, device="cpu").uniform_(-0.25, 0.25, generator=generator)
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
            factor = float(torch.empty((), device="cpu").uniform_(0.75, 1, generator=generator))  # never up: a float may become an index
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
        return type(cls.__name__, (cls,), {"__init__": lambda self, given=None: cls.__init__(self, mixed(given))})

    functions = [(torch, "manual_seed"), (torch.random, "manual_seed"), (np.random, "seed"), (np.random, "default_rng"), (random, "seed")]
    new = [(owner, name, calls(getattr(owner, name))) for owner, name in functions]
    return [*new, (torch, "Generator", Generator), *((owner, name, makes(getattr(owner, name))) for owner, name in ((np.random, "RandomState"), (random, "Random")))]


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


def generator_states() -> list:
    """The states of all generators that seed_everything seeds, to compare."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    _, numbers, *rest = np.random.get_state()
    return [g.get_state().numpy().tobytes() for g in generators] + [numbers.tobytes(), rest, random.getstate()]


@contextlib.contextmanager
def moved_constants(seed: int, buffers: set[str] | frozenset[str] = frozenset(), found: set[str] | None = None) -> Iterator[Callable]:
    """While modules are constructed: parameters that would be one constant, or next to nothing, get noise of up to 0.25 added.

    Gives a function that does so for those that a finished module still has, and returns the module (`weight.data = torch.ones(8)` goes past the
    rest). Buffers too, if their names are among `buffers`, or else if `found` is given: the reference's names are collected there, for a candidate
    may keep constants of its own that must stay what they are. The noise depends on the seed, the size and the value alone, and no random number is
    drawn from the usual stream: a candidate whose layers differ in number, order, kind or shape from the reference's still gets the same weights.
    """
    registered: dict[int, tuple[object, bool]] = {}  # address of a storage: who keeps it alive, whether it is a buffer's
    moved: dict[int, torch.Tensor] = {}  # by address, and kept alive, so that no other takes its place
    blank: dict[int, object] = {}  # large storages that torch.empty made, likewise: zeros as often as not, and no constant that anybody chose
    finished = False

    def empty(*args, **kwargs):
        t = make(*args, **kwargs)
        if not finished and t.nbytes >= BLANK:
            blank[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    def move(t: torch.Tensor, buffer: bool = False) -> bool:
        if type(t) not in (torch.Tensor, nn.Parameter) or not t.is_floating_point() or not t.numel() or t.is_meta:
            return False
        value = constant(t.detach())
        if value is None or (buffer and not bool((t.detach() == value).all() and value in (0.0, 1.0))):
            return False
        generator = torch.Generator().manual_seed(seed_from("constant", seed, t.numel(), value))
        noise = make(t.shape, dtype=torch.float32, device="cpu").uniform_(-0.25, 0.25, generator=generator)
        if value not in (0.0, 1.0):  # a scale, a slope, a temperature: it keeps its sign
            noise = noise * value if abs(value) > 0.25 else noise.abs() * (1 if value > 0 else -1)
        with torch.no_grad():
            t.detach().add_(noise.to(t.device, t.dtype))
        moved[t.data_ptr()] = t
        return True

    def initialising(original):
        def initialise(tensor, *args, **kwargs):
            result = original(tensor, *args, **kwargs)
            move(tensor)
            return result

        return initialise

    def filling(original):  # weight.data.zero_(), running_var.fill_(1)
        def fill(tensor, *args, **kwargs):
            result = original(tensor, *args, **kwargs)
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                blank.pop(storage.data_ptr(), None)
                _, buffer = registered.get(storage.data_ptr(), (None, None))
                if buffer is not None and storage.nbytes() == tensor.nbytes:
                    move(tensor, buffer)
            return result

        return fill

    register, keep, make = nn.Module.register_parameter, nn.Module.register_buffer, torch.empty

    def register_parameter(self, name, param):
        if param is not None:
            if param.untyped_storage().data_ptr() not in blank:
                move(param)
            registered[param.data_ptr()] = param, False
        register(self, name, param)

    def register_buffer(self, name, tensor, *args, **kwargs):
        if isinstance(tensor, torch.Tensor) and (found is not None or name in buffers):
            if move(tensor, True) and found is not None:
                found.add(name)
            registered[tensor.data_ptr()] = tensor, True
        keep(self, name, tensor, *args, **kwargs)

    def settled(model):
        nonlocal finished
        finished = True
        blank.clear()
        for param in model.parameters() if isinstance(model, nn.Module) else ():
            if param.data_ptr() not in moved or constant(param.detach()) in (0.0, 1.0):
                move(param)
        return model

    fillers = [(nn.init, name, initialising(getattr(nn.init, name))) for name in ("zeros_", "ones_", "constant_", "eye_", "dirac_")]
    fillers += [(torch.Tensor, name, filling(getattr(torch.Tensor, name))) for name in ("zero_", "fill_")]
    with patched([*fillers, (torch, "empty", empty), (nn.Module, "register_parameter", register_parameter), (nn.Module, "register_buffer", register_buffer)]):
        yield settled


def train_(model: nn.Module, seed: int) -> None:
    """Change parameters as training may: each element by a factor of its own up to 4/3, and no tensor of several has one sign alone.

    What a constructor makes of another parameter (a copy, a norm) is no longer that of it. Factors below 1, so that no recurrence explodes.
    """
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        if param.is_floating_point() and param.numel() > 1:
            factor = torch.empty(param.shape, dtype=torch.float32, device="cpu").uniform_(0.75, 1, generator=generator)
            if bool((param > 0).all()) or bool((param < 0).all()):
                factor *= torch.empty_like(factor).uniform_(-1, 1, generator=generator).sign()
            param.detach().mul_(factor.to(param.dtype))


def constant(t: torch.Tensor) -> float | None:
    """The value that all elements have, 0 if none is larger than a thousandth, 1 if all are 0 or 1 (an identity); None for anything else."""
    flat = t.reshape(-1)
    some = flat[:: max(1, flat.numel() // 16)]  # most are none of these, and need no second look
    for x in (some, flat):
        same, tiny, binary = bool((x == x[0]).all()), bool((x.abs() < 1e-3).all()), bool(((x == 0) | (x == 1)).all())
        if not same and not tiny and not binary:
            return None
    return float(flat[0]) if same else 0.0 if tiny else 1.0
