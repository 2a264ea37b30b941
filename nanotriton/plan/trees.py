"""Trees of tensors: tensors in nested tuples, lists and dicts, as `forward` takes and returns them."""

from collections.abc import Callable

import torch


def leaves(tree, path: str = "") -> list[tuple[str, object]]:
    """[(where, leaf)] of nested tuples, lists and dicts, in order. `where` is "" for a bare tensor, else like "[1]"."""
    if isinstance(tree, list | tuple):
        return [leaf for i, v in enumerate(tree) for leaf in leaves(v, f"{path}[{i}]")]
    if isinstance(tree, dict):
        return [leaf for k, v in tree.items() for leaf in leaves(v, f"{path}[{k!r}]")]
    return [(path, tree)]


def tensors(tree) -> list[torch.Tensor]:
    return [t for _, t in leaves(tree) if isinstance(t, torch.Tensor)]


def describe(tree) -> str:
    """A tree's structure in words: "a tuple of 2", "a tensor"."""
    if isinstance(tree, torch.Tensor):
        return "a tensor"
    if isinstance(tree, list | tuple | dict):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "None" if tree is None else f"a {type(tree).__name__}"


def mapped(tree, function: Callable[[torch.Tensor], torch.Tensor]):
    """The same tree with every tensor replaced by `function` of it."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(v, function) for v in tree)
    return {k: mapped(v, function) for k, v in tree.items()} if isinstance(tree, dict) else tree


def widen(tree):
    """A copy with every floating tensor in float64."""

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t.detach().to(
            torch.float64 if t.is_floating_point() else torch.complex128 if t.is_complex() else t.dtype,
            copy=True,
        )

    return mapped(tree, wide)


def identical(a, b) -> bool:
    """The same bits, for trees of the same structure."""
    return all(
        torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())
        if isinstance(x, torch.Tensor)
        else True
        for (_, x), (_, y) in zip(leaves(a), leaves(b), strict=True)
    )
