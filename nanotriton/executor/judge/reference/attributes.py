"""Tensors that forward leaves on its module as plain attributes, and never reads: an auxiliary loss is one.

They are answers, as much as what forward returns. What forward reads is none: a cache, a state and a step on
the way show in what it returns, and a candidate may keep them as it likes, or not at all.
"""

from collections.abc import Callable
from contextlib import contextmanager

import torch

from nanotriton.executor.common.construct import plain_attributes


def only_left(model: torch.nn.Module, call: Callable[[], object]) -> frozenset[str]:
    """The names of the attributes that a call sets anew, and that no call reads.

    call: makes a call of the module, which is in a state that may be lost.
    """
    before = plain_attributes(model)
    call()
    after = plain_attributes(model)
    # a hook's, such as the weight that weight_norm makes anew for each call, are none
    hooked = {prefix for prefix, module in model.named_modules() if module._forward_pre_hooks}
    names = frozenset(
        name
        for name, t in after.items()
        if t is not before.get(name) and name.rpartition(".")[0] not in hooked
    )
    if not names:
        return names
    read: set[str] = set()
    try:
        with _reads_noted(model, names, read):
            call()
    except TypeError:  # a class that takes no other in its place
        return frozenset()
    return names - read


@contextmanager
def _reads_noted(model: torch.nn.Module, names: frozenset[str], read: set[str]):
    """While it is active, those of the attributes that are read are added to `read`."""
    classes = {module: type(module) for module in model.modules()}
    try:
        for prefix, module in model.named_modules():
            prefix = prefix and prefix + "."
            own = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
            module.__class__ = _noting(type(module), own, prefix, read)
        yield
    finally:
        for module, cls in classes.items():
            module.__class__ = cls


def _noting(cls: type, own: set[str], prefix: str, read: set[str]) -> type:
    class Noting(cls):
        def __getattribute__(self, name: str):
            if name in own:
                read.add(prefix + name)
            return super().__getattribute__(name)

    return Noting
