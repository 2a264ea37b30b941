"""How a module is constructed in the judge and in the candidate's child alike: seeds, moved constants."""

import contextlib
import copy
import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._device import _device_constructors

# Fresh memory of as many bytes is not looked at before it is filled: it takes seconds for gigabytes.
BLANK = 1 << 20
INITIALISERS = ("zeros_", "ones_", "constant_", "eye_", "dirac_")  # of nn.init
NOISE = 0.25
# torch asks once which functions take a default device, and keeps the answer. It must not ask while they are
# patched.
_device_constructors()


def seed_from(*parts: bytes | str | int) -> int:
    """A 60-bit seed that depends on every part: three bits are left for what kinds.Trial says with them."""
    text = b"\0".join(p if isinstance(p, bytes) else str(p).encode() for p in parts)
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 4


@contextlib.contextmanager
def patched(replacements: list[tuple[object, str, object]]) -> Iterator[None]:
    """Set attributes, (owner, name, new value), and put back the old ones at the end."""
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
    """Seed torch, NumPy and Python. A GPU is seeded only if CUDA has started."""
    # torch.manual_seed takes 0.5 ms to queue a seed for a CUDA that may never start
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def whereabouts() -> list:
    """Where all generators are that seed_everything seeds, to compare. It draws a number, so seed them again.

    A number of NumPy's and of Python's tells as much as their states, which take 0.2 ms to read.
    """
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    states = [g.get_state().numpy().tobytes() for g in generators]
    return [*states, np.random.random(), random.random()]


@contextlib.contextmanager
def moved_constants(
    seed: int, buffers: set[str] | frozenset[str] = frozenset(), found: set[str] | None = None
) -> Iterator[Callable]:
    """While modules are constructed, add noise of up to 0.25 to parameters that would be constant or tiny.

    Yields a function of a finished module that moves the constants it still has, and returns the module:
    `weight.data = torch.ones(8)` goes past the patches. buffers: the names of buffers that are moved too.
    found: if it is given, every buffer is moved and its name is added to it. The reference's names are
    collected so, because a candidate may keep constants of its own that must stay as they are.

    The noise depends on the seed, the size and the value alone, and draws nothing from the usual random
    stream: a candidate whose layers differ in number, order, kind or shape from the reference's gets the
    same weights.
    """
    mover = _Mover(seed, buffers, found)
    _movers.append(mover)
    try:
        with patched(mover.replacements()):
            yield mover.settle
    finally:
        _movers.remove(mover)


class _Mover:
    """The state of one `moved_constants`. Storages and tensors are kept by their addresses.

    registered: address of a storage -> (its tensor, which is kept alive; whether it is a buffer's).
    moved: the tensors that were moved, kept alive so that no other takes their place.
    blank: large storages made by torch.empty. They are zeros as often as not, but nobody chose that constant.
    lazy: buffers, by module and name, that had no shape when they were registered.
    """

    def __init__(self, seed: int, buffers: set[str] | frozenset[str], found: set[str] | None):
        self.seed = seed
        self.buffers = buffers
        self.found = found
        self.registered: dict[int, tuple[torch.Tensor, bool]] = {}
        self.moved: dict[int, torch.Tensor] = {}
        self.blank: dict[int, torch.UntypedStorage] = {}
        self.lazy: list[tuple[nn.Module, str]] = []
        self.finished = False
        self.make = torch.empty

    def replacements(self) -> list[tuple[object, str, object]]:
        """(owner, name, patched function) of the functions that a constructor fills a parameter with.

        Of methods _tell_movers says it.
        """
        found = [(torch, "empty", self.empty)]
        for name in INITIALISERS:
            found.append((nn.init, name, _followed(getattr(nn.init, name), self.move)))
        return found

    def empty(self, *args, **kwargs) -> torch.Tensor:
        t = self.make(*args, **kwargs)
        if not self.finished and t.nbytes >= BLANK:
            self.blank[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    def before_parameter(self, param: nn.Parameter | None) -> None:
        if param is None or is_lazy(param):
            return
        if param.untyped_storage().data_ptr() not in self.blank:
            self.move(param)
        self.registered[param.data_ptr()] = param, False

    def at_buffer(self, module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        """A buffer is about to be registered."""
        if is_lazy(tensor):
            self.lazy.append((module, name))
        else:
            self.before_buffer(name, tensor)

    def before_buffer(self, name: str, tensor: torch.Tensor | None) -> None:
        if not isinstance(tensor, torch.Tensor) or (self.found is None and name not in self.buffers):
            return
        if self.move(tensor, buffer=True) and self.found is not None:
            self.found.add(name)
        self.registered[tensor.data_ptr()] = tensor, True

    def after_fill(self, tensor: torch.Tensor) -> None:
        """A tensor was filled in place. It is moved if it is all of a registered tensor."""
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        self.blank.pop(storage.data_ptr(), None)
        known = self.registered.get(storage.data_ptr())
        if known is not None and storage.nbytes() == tensor.nbytes:
            _, buffer = known
            self.move(tensor, buffer)

    def settle(self, model):
        """Move the constants that a finished module still has."""
        self.finished = True
        self.blank.clear()
        for module, name in self.lazy:
            self.before_buffer(name, module._buffers[name])
        for param in model.parameters() if isinstance(model, nn.Module) else ():
            if param.data_ptr() not in self.moved or constant(param.detach()) in (0.0, 1.0):
                self.move(param)
        return model

    def move(self, t: torch.Tensor, buffer: bool = False) -> bool:
        """Add noise to a tensor if it is a constant, and return whether it is.

        A buffer is a constant only if all its elements are 0, or all are 1.
        """
        if type(t) not in (torch.Tensor, nn.Parameter) or t.is_meta:
            return False
        if not t.is_floating_point() or not t.numel():
            return False
        data = t.detach()
        value = constant(data)
        if value is None:
            return False
        if buffer and not (value in (0.0, 1.0) and bool((data == value).all())):
            return False
        noise = self._noise(t, value)
        with torch.no_grad():
            data.add_(noise.to(t.device, t.dtype))
        self.moved[t.data_ptr()] = t
        return True

    def _noise(self, t: torch.Tensor, value: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed_from("constant", self.seed, t.numel(), value))
        noise = self.make(t.shape, dtype=torch.float32, device="cpu")
        noise.uniform_(-NOISE, NOISE, generator=generator)
        if value in (0.0, 1.0):
            return noise
        # another value is a scale, a slope or a temperature: it keeps its sign
        if abs(value) > NOISE:
            return noise * value
        return noise.abs() * (1 if value > 0 else -1)


_movers: list[_Mover] = []  # that are at work in this process


def _tell_movers() -> None:
    """Let methods of modules and tensors tell the movers at work what they register and fill.

    They are replaced once and for all. Whoever sets an attribute of a class makes Python forget what it knows
    of the class and of all below it, which costs a forked child 2 ms each time.
    """
    register, keep = nn.Module.register_parameter, nn.Module.register_buffer

    def register_parameter(module, name, param):
        for mover in _movers:
            mover.before_parameter(param)
        register(module, name, param)

    def register_buffer(module, name, tensor, *args, **kwargs):
        for mover in _movers:
            mover.at_buffer(module, name, tensor)
        keep(module, name, tensor, *args, **kwargs)

    def after_fill(tensor):
        for mover in _movers:
            mover.after_fill(tensor)

    nn.Module.register_parameter, nn.Module.register_buffer = register_parameter, register_buffer
    for name in ("zero_", "fill_"):  # weight.data.zero_(), running_var.fill_(1)
        setattr(torch.Tensor, name, _followed(getattr(torch.Tensor, name), after_fill))


def _followed(original: Callable, after: Callable[[torch.Tensor], object]) -> Callable:
    """A function that fills its first argument, followed by a call of `after` with that tensor."""

    def call(tensor, *args, **kwargs):
        result = original(tensor, *args, **kwargs)
        after(tensor)
        return result

    return call


_tell_movers()


def constant(t: torch.Tensor) -> float | None:
    """The value that all elements have, or None.

    It is 0 also if no element is larger than a thousandth, and 1 if all are 0 or 1 (an identity).
    """
    flat = t.reshape(-1)
    some = flat[:: max(1, flat.numel() // 16)]  # most tensors are no constant, and need no second look
    if _value(some) is None:
        return None
    return _value(flat)


def _value(x: torch.Tensor) -> float | None:
    if bool((x == x[0]).all()):
        return float(x[0])
    if bool((x.abs() < 1e-3).all()):
        return 0.0
    return 1.0 if bool(((x == 0) | (x == 1)).all()) else None


def named_state(model: object) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers by name, a tied one under each name; of anything else nothing."""
    if not isinstance(model, nn.Module):
        return {}
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def plain_attributes(model: object) -> dict[str, torch.Tensor]:
    """The tensors that a module and its parts keep as attributes beside parameters and buffers, by name."""
    found = {}
    for prefix, module in model.named_modules() if isinstance(model, nn.Module) else ():
        prefix = prefix and prefix + "."
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                found[prefix + name] = value
    return found


def shares_memory(model: nn.Module) -> bool:
    """Whether different parameters and buffers share memory, as views do."""
    tensors = {id(t): t for t in named_state(model).values() if t.numel()}.values()
    return len({t.untyped_storage().data_ptr() for t in tensors}) < len(tensors)


def replicas(model: nn.Module, device: torch.device) -> dict[int, torch.Tensor]:
    """What copy.deepcopy shall put in place of a module's tensors, by id: them on the device, also those that
    are plain attributes."""
    found: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for t in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
            if isinstance(t, torch.Tensor) and id(t) not in found:
                there = t.detach().to(device, copy=True)
                found[id(t)] = nn.Parameter(there, t.requires_grad) if isinstance(t, nn.Parameter) else there
    return found


@contextlib.contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Inside, a module and its parts are in evaluation mode; afterwards each is as it was."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        if modes:
            model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def age_alike(model: object, other: object) -> None:
    """Let the other module's parameters seem to be changed in place as often as this one's."""
    if isinstance(model, nn.Module) and isinstance(other, nn.Module):
        for old, new in zip(model.parameters(), other.parameters(), strict=False):
            while new._version < old._version:
                torch.autograd.graph.increment_version(new)


def copied(model: nn.Module, replaced: dict[int, torch.Tensor] | None = None) -> nn.Module:
    """copy.deepcopy of a module, several times as fast: most of what a module holds is an empty dict of
    hooks, for each of which deepcopy takes as long as for a tensor.

    replaced: what is put in place of tensors, by id.
    """
    memo: dict[int, object] = dict(replaced or {})
    for module in model.modules():
        for value in vars(module).values():
            if type(value) in (dict, OrderedDict, set) and not value:
                memo[id(value)] = type(value)()
    return copy.deepcopy(model, memo)


# ---- lazy layers ----


def is_unfinished(model: object) -> bool:
    """Whether some layer (LazyLinear) waits for its first input to know its weights' shapes."""
    return isinstance(model, nn.Module) and any(is_lazy(t) for t in named_state(model).values())


def finish_lazy(model: nn.Module, call: Callable[[], object]) -> None:
    """Let lazy layers make their weights, in a first `call` that leaves no other trace in the module.

    They draw from the generators as these are now. In evaluation mode nothing else draws (dropout), and no
    running mean moves.
    """
    training = {module: module.training for module in model.modules()}
    state = {name: t.detach().clone() for name, t in named_state(model).items() if not is_lazy(t)}
    model.eval()
    call()
    for module, mode in training.items():
        module.training = mode
    with torch.no_grad():
        for name, t in named_state(model).items():
            if name in state and not torch.equal(t, state[name]):
                t.copy_(state[name])


def generator_states() -> list:
    """The state of each generator that seed_everything seeds, for `set_generators`."""
    return [torch.default_generator.get_state(), np.random.get_state(), random.getstate()]


def set_generators(states: list) -> None:
    torch.default_generator.set_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
