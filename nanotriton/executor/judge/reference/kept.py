"""What a reference gave on a draw that several candidates share.

In training the candidates of one task and one step share their draw (`Executor.submit`): all of them get the
same inputs and weights. So what depends on the draw alone is computed for the first of them and kept for the
others: inputs, the reference's answers in its own dtype and in float64, and what these are sensitive to.

What is kept is only read. Inputs, which a candidate or the reference may write to, are given out as copies.
On a CPU no kernel of a candidate's can reach them, because the evaluator knows every address. On a GPU it
could, so there they lie in a vault (gpu/vault.py), which is closed while a kernel of a candidate's runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch

from nanotriton.plan.trees import mapped, tensors

MOST_BYTES = 8 << 20  # of one task's, where there is no vault
CONSTANTS = (type(None), bool, int, float, complex, str, frozenset, torch.dtype)
HOLE = object()  # stands for a tensor that lies in a vault

Tensors = list[torch.Tensor]


class Vault(Protocol):
    """Where tensors of a GPU are kept."""

    device: torch.device

    def keep(self, given: Tensors) -> Callable[[], Tensors | None] | None:
        """Copy tensors into it. Returns what gives the copies, or None once they are gone; None if there is
        no room. The copies may be read until the vault is closed."""


class Kept:
    """What is kept of one task, for the last draw that was shared."""

    def __init__(self, vault: Vault | None = None):
        self.vault = vault
        self.draw: str | None = None
        self.found: dict[tuple, Callable[[], Any]] = {}  # each gives a value, or None if it is gone
        self.bytes = 0  # outside of a vault
        self.active = False  # a candidate that shares the draw is being judged
        self.computing = False  # something that will be kept

    @contextmanager
    def shared(self, draw: str | None) -> Iterator[None]:
        """A candidate with this draw is judged inside. None: with a draw of its own, and nothing is kept."""
        if draw is not None and draw != self.draw:
            self.forget()
            self.draw = draw
        before, self.active = self.active, draw is not None
        try:
            yield
        finally:
            self.active = before

    def forget(self) -> None:
        self.draw, self.bytes = None, 0
        self.found.clear()

    def once(self, key: tuple, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, which depends on the key and on the draw alone. Nobody may write to it.

        What is computed on the way to it is not kept beside it.
        """
        if not self.active or self.computing:
            return compute()
        if (known := self._known(key)) is not None:
            return known
        self.computing = True
        try:
            value = compute()
        finally:
            self.computing = False
        self._keep(key, value)
        return value

    def copy_of_draw(self, key: tuple, draw: Callable[[], list]) -> list:
        """Inputs of the caller's own. `draw` makes them."""
        if not self.active:
            return draw()
        if (known := self._known(key)) is not None:
            return mapped(known, torch.clone)
        given = draw()
        if can_be_cloned(given):
            self._keep(key, given)
        return given

    def _known(self, key: tuple) -> Any:
        if key not in self.found:
            return None
        value = self.found[key]()
        if value is None:
            del self.found[key]
        return value

    def _keep(self, key: tuple, value: Any) -> None:
        found: Tensors = []
        try:
            outline = replaced(value, lambda t: self._outside(t, found))
        except TypeError:  # there is something in it that can't be kept
            return
        if self.vault is None:
            size = sum(t.nbytes for t in found)
            if self.bytes + size <= MOST_BYTES:
                self.bytes += size
                self.found[key] = lambda: value
        elif (copies := self.vault.keep(found)) is not None:
            self.found[key] = lambda: filled(outline, copies())

    def _outside(self, t: torch.Tensor, found: Tensors) -> Any:
        """What stands for a tensor outside of the vault. found: those that lie inside."""
        if t.layout != torch.strided or t.is_quantized:
            raise TypeError("of such tensors a vault has no copies")
        if self.vault is not None and t.device != self.vault.device:
            return t
        found.append(t)
        return HOLE


def replaced(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same value with `function` of every tensor, or of every hole, in its place.

    Raises TypeError for what is neither a tensor nor a constant, a container or a dataclass.
    """
    if value is HOLE or isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in CONSTANTS:
        return value
    if isinstance(value, list | tuple):
        return type(value)(replaced(item, function) for item in value)
    if isinstance(value, dict):
        return {key: replaced(item, function) for key, item in value.items()}
    if is_dataclass(value):
        return replace(value, **{f.name: replaced(getattr(value, f.name), function) for f in fields(value)})
    raise TypeError(f"a {type(value).__name__} can't be kept")


def filled(outline: Any, copies: Tensors | None) -> Any:
    """The value of this outline. None if its tensors are gone."""
    if copies is None:
        return None
    rest = iter(copies)
    return replaced(outline, lambda t: next(rest) if t is HOLE else t)


def can_be_cloned(given: list) -> bool:
    """Whether clones of all tensors are what another draw would give: none of them shares memory with another
    one, is a view, is of a class of its own, or has a gradient."""
    whole = all(
        type(t) is torch.Tensor
        and t.is_contiguous()
        and not t.requires_grad
        and t.untyped_storage().nbytes() == t.nbytes
        for t in tensors(given)
    )
    storages = {t.untyped_storage()._cdata for t in tensors(given)}
    return whole and len(storages) == len(tensors(given))
