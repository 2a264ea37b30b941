"""Operators that a candidate registers with torch.library: which Python function runs for a "GPU" tensor.

In the recording such tensors are meta tensors, for which torch would call another function than for a GPU's.
"""

from collections.abc import Callable

import torch
from torch._library.custom_ops import OPDEFS
from torch.library import Library

# dispatch keys of a CUDA tensor, in the order in which torch asks for a function
KEYS = ("AutogradCUDA", "Autograd", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")

_registered: dict[str, dict[str, Callable]] = {}  # "mine::add" -> dispatch key -> function
_running: list[tuple[str, str]] = []  # (operator, key) of the functions that are being called

_impl = Library.impl


def library_impl(self, op_name, fn, dispatch_key="", **options):
    """In place of Library.impl: it also notes the function."""
    name = op_name.name() if isinstance(op_name, torch._ops.OpOverload) else op_name
    name = name if "::" in name else f"{self.ns}::{name}"
    key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
    _registered.setdefault(name, {})[key] = fn
    return _impl(self, op_name, fn, dispatch_key, **options)


def implementation(func) -> Callable | None:
    """The Python function that a candidate registered for an operator on a GPU, else None."""
    name = _name(func)
    if name is None:
        return None
    definition = OPDEFS.get(name)
    if definition is not None:
        functions = definition._backend_fns
        return functions.get("cuda") or functions.get(None) or definition._init_fn
    for key in KEYS:
        if key in _registered.get(name, ()) and (name, key) not in _running:
            return _call(name, key)
    return None


def _name(func) -> str | None:
    """The name of an operator: "mine::add", or "mine::add.out" for an overload."""
    if isinstance(func, torch._ops.OpOverload):
        return func.name()
    if isinstance(func, torch._ops.OpOverloadPacket) and func.overloads() == ["default"]:
        return func._qualified_op_name
    return None


def _call(name: str, key: str) -> Callable:
    """The function of that key. If it calls the operator again, it means the next key's."""

    def call(*args, **kwargs):
        _running.append((name, key))
        try:
            return _registered[name][key](*args, **kwargs)
        finally:
            _running.pop()

    return call
