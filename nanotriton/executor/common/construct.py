"""How a module is constructed, the same in the judge and in the candidate's child: seeds, and constants that are moved."""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

# bytes of fresh memory that are not looked at before they are filled: it takes seconds for
# gigabytes
BLANK = 1 << 20


def seed_from(*parts: bytes | str | int) -> int:
    """A 62-bit seed that depends on every part."""
    text = b"\0".join(p if isinstance(p, bytes) else str(p).encode() for p in parts)
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 2


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
    # torch.manual_seed takes 0.5 ms to queue a seed for a CUDA that may never start
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def moved_constants(
    seed: int, buffers: set[str] | frozenset[str] = frozenset(), found: set[str] | None = None
) -> Iterator[Callable]:
    """While modules are constructed: parameters that would be one constant, or next to nothing, get noise of up to 0.25 added.

    Gives a function that does so for those that a finished module still has, and returns the module (`weight.data = torch.ones(8)` goes past the
    rest). Buffers too, if their names are among `buffers`, or else if `found` is given: the reference's names are collected there, for a candidate
    may keep constants of its own that must stay what they are. The noise depends on the seed, the size and the value alone, and no random number is
    drawn from the usual stream: a candidate whose layers differ in number, order, kind or shape from the reference's still gets the same weights.
    """
    # address of a storage: who keeps it alive, whether it is a buffer's
    registered: dict[int, tuple[object, bool]] = {}
    moved: dict[int, torch.Tensor] = {}  # by address, and kept alive, so that no other takes its place
    # large storages that torch.empty made, likewise: zeros as often as not, and no constant that
    # anybody chose
    blank: dict[int, object] = {}
    finished = False

    def empty(*args, **kwargs):
        t = make(*args, **kwargs)
        if not finished and t.nbytes >= BLANK:
            blank[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    def move(t: torch.Tensor, buffer: bool = False) -> bool:
        if (
            type(t) not in (torch.Tensor, nn.Parameter)
            or not t.is_floating_point()
            or not t.numel()
            or t.is_meta
        ):
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

    fillers = [
        (nn.init, name, initialising(getattr(nn.init, name)))
        for name in ("zeros_", "ones_", "constant_", "eye_", "dirac_")
    ]
    fillers += [(torch.Tensor, name, filling(getattr(torch.Tensor, name))) for name in ("zero_", "fill_")]
    with patched(
        [
            *fillers,
            (torch, "empty", empty),
            (nn.Module, "register_parameter", register_parameter),
            (nn.Module, "register_buffer", register_buffer),
        ]
    ):
        yield settled


def constant(t: torch.Tensor) -> float | None:
    """The value that all elements have, 0 if none is larger than a thousandth, 1 if all are 0 or 1 (an identity); None for anything else."""
    flat = t.reshape(-1)
    some = flat[:: max(1, flat.numel() // 16)]  # most are none of these, and need no second look
    for x in (some, flat):
        same, tiny, binary = (
            bool((x == x[0]).all()),
            bool((x.abs() < 1e-3).all()),
            bool(((x == 0) | (x == 1)).all()),
        )
        if not same and not tiny and not binary:
            return None
    return float(flat[0]) if same else 0.0 if tiny else 1.0
