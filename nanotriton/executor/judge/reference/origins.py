"""Which weights of a task's module may be trained, so that the module stays what it is?

Not those of which its constructor has made a tensor that it keeps as a plain attribute: the copy would stay
as it was, and nobody could say which of the two counts. So the operators that the constructor calls are
followed. A buffer may change where the constructor draws it: one that is always the same is a constant of
the task, as a mask or a table of frequencies is, and a kernel may compute it.
"""

from collections.abc import Callable

import torch
from torch import nn

from nanotriton.executor.common.construct import named_state
from nanotriton.executor.common.training import Trained, every_parameter, may_change, may_shuffle
from nanotriton.executor.judge.task.watching import Watching, new_memory, tensors_of

REGISTERED = ("_parameters", "_buffers", "_modules")  # attributes in which a module keeps what has a name


def what_to_train(model: nn.Module, other: nn.Module, construct: Callable[[], nn.Module]) -> Trained:
    """model: the task's. other: the same with other weights. construct: makes `model` anew."""
    every = every_parameter(model)
    parameters = set(every.parameters)
    if plain_tensors(model):
        parameters -= kept_elsewhere(construct, other)
    return Trained(tuple(sorted(parameters)), tuple(drawn_buffers(model, other)), every.tables)


def drawn_buffers(model: nn.Module, other: nn.Module) -> list[str]:
    """Names of the buffers of the state that may change, and that have other values in the other module."""
    theirs, named = other.state_dict(), dict(model.named_buffers())
    found = []
    for name, own in model.state_dict().items():
        movable = name in named and (may_change(own) or may_shuffle(own))
        if movable and not same(own, theirs.get(name, own)):
            found.append(name)
    return found


def plain_tensors(model: nn.Module) -> list[torch.Tensor]:
    """The tensors that a module keeps and that have no name: attributes, and items of lists and dicts.

    What a hook makes anew for each call is none.
    """
    registered = {id(t) for t in named_state(model).values()}
    found = []
    for module in model.modules():
        if module._forward_pre_hooks:
            continue
        values = [value for name, value in vars(module).items() if name not in REGISTERED]
        found += [t for t in tensors_of(values) if id(t) not in registered]
    return found


def kept_elsewhere(construct: Callable[[], nn.Module], other: nn.Module) -> set[int]:
    """Numbers of the parameters that a plain tensor shares memory with, or was made of.

    other: the module with other weights. A plain tensor that came from outside of torch, and is another one
    there, may have been made of any of them.
    """
    with Origins() as origins:
        model = construct()
    addresses: set[int] = set()
    mine, theirs = plain_tensors(model), plain_tensors(other)
    for number, t in enumerate(mine):
        address = address_of(t)
        constant = len(mine) == len(theirs) and same(t, theirs[number])
        if address not in origins.made and not constant:
            return set(range(len(list(model.parameters()))))
        addresses |= {address} | origins.sources.get(address, set())
    return {number for number, p in enumerate(model.parameters()) if address_of(p) in addresses}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(one, other)


def address_of(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


class Origins(Watching):
    """While it is active, it notes of which tensors every tensor is made.

    made: addresses of the storages that an operator has made. sources: address of a storage -> addresses of
    the storages that its values came from.
    """

    def __init__(self):
        super().__init__()
        self.made: set[int] = set()
        self.sources: dict[int, set[int]] = {}
        self.alive: list[torch.UntypedStorage] = []  # so that no other storage takes an address

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = tensors_of([args, kwargs])
        # what is written in place is returned too
        written = tensors_of(out)
        sources = {address_of(t) for t in given}
        for address in list(sources):
            sources |= self.sources.get(address, set())
        for t in written:
            self.sources.setdefault(address_of(t), set()).update(sources - {address_of(t)})
        self.made |= new_memory(func, out)
        self.alive += [t.untyped_storage() for t in given + written]
        return out
