"""Trees of tensors: tensors in nested tuples, lists and dicts, as `forward` takes and returns them."""

from collections.abc import Callable

import numpy as np
import torch


def leaves(tree, path: str = "") -> list[tuple[str, object]]:
    """[(where, leaf)] in order. `where` is "" for a bare tensor, else an index like "[1]" or "['key'][0]"."""
    if isinstance(tree, list | tuple):
        items = enumerate(tree)
    elif isinstance(tree, dict):
        items = tree.items()
    else:
        return [(path, tree)]
    found = []
    for key, value in items:
        found += leaves(value, f"{path}[{key!r}]")
    return found


def tensors(tree) -> list[torch.Tensor]:
    """The leaves that are tensors, in order."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def describe(tree) -> str:
    """A tree's structure in words: "a tuple of 2", "a tensor"."""
    if isinstance(tree, torch.Tensor):
        return "a tensor"
    if isinstance(tree, list | tuple | dict):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "None" if tree is None else f"a {type(tree).__name__}"


def without_numpy(tree):
    """The same tree with tensors of their own for NumPy's arrays, and Python's numbers for NumPy's."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(np.array(tree, order="C"))
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, dict):
        return {without_numpy(key): without_numpy(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(without_numpy(value) for value in tree)
    return tree


def mapped(tree, function: Callable[[torch.Tensor], torch.Tensor]):
    """The same tree with every tensor replaced by `function` of it."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, function) for value in tree)
    if isinstance(tree, dict):
        return {key: mapped(value, function) for key, value in tree.items()}
    return tree


def widen(tree):
    """A copy with every floating tensor in float64 and every complex one in complex128."""

    def wide(t: torch.Tensor) -> torch.Tensor:
        dtype = t.dtype
        if t.is_floating_point():
            dtype = torch.float64
        elif t.is_complex():
            dtype = torch.complex128
        return t.detach().to(dtype, copy=True)

    return mapped(tree, wide)


def identical(a, b) -> bool:
    """Whether two trees of one structure hold equal tensors, where NaN equals NaN."""
    for (_, x), (_, y) in zip(leaves(a), leaves(b), strict=True):
        if isinstance(x, torch.Tensor) and not _equal(x, y):
            return False
    return True


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    if torch.equal(x, y):
        return True
    both_nan = (x != x) & (y != y)
    return bool(((x == y) | both_nan).all())
