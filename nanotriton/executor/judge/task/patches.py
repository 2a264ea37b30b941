"""Names that a task's code changes for everybody: functions of torch, methods of its classes, whole modules.

`shared.watch()` remembers what is there, the task's code runs, and `shared.undo()` puts back what it changed
and says what that was.
"""

import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

MISSING = object()  # in place of a name that is not there
# Modules whose names are watched, because tasks and the judge call them: 7,000 names, which takes a
# millisecond.
WATCHED = re.compile(
    r"torch|torch\.(_C|_VF|_tensor|amp|functional|linalg|fft|overrides|random|special|cuda|backends\..*)"
    r"|torch\.autograd(\.[a-z_]+)?|torch\.nn(\.(functional|init|parameter|modules|modules\.module))?"
    r"|numpy|numpy\.(random|linalg|fft)|triton|triton\.language"
    r"|builtins|collections|contextlib|copy|functools|inspect|itertools|json|math|operator|os|posixpath"
    r"|random|sys|time|typing|warnings"
)
# And the classes in them that these packages and modules define, beside torch.Tensor.
DEFINES = ("torch.nn.", "torch.autograd.", "numpy.random.", "random.")


class Patch(NamedTuple):
    owner: Any  # a module, a class, or sys.modules
    name: str
    value: Any  # MISSING: the name is deleted

    def put(self) -> None:
        if self.owner is sys.modules:
            self._enter()
        elif self.value is not MISSING:
            setattr(self.owner, self.name, self.value)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)

    def _enter(self) -> None:
        if self.value is MISSING:
            sys.modules.pop(self.name, None)
        else:
            sys.modules[self.name] = self.value

    def undone(self) -> "Patch":
        """What puts back what is there now."""
        names = self.owner if self.owner is sys.modules else vars(self.owner)
        return Patch(self.owner, self.name, names.get(self.name, MISSING))


def _same(one: Any, other: Any) -> bool:
    """Whether two containers hold the same. Identity is looked at first, so this hardly ever calls Python."""
    try:
        return bool(one == other)
    except Exception:  # a NumPy array, say, has no one truth value; then it was replaced
        return False


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """[(name, old value, new value)] of what differs; MISSING where there is none."""
    if _same(old, new):
        return []
    changed = [
        (name, old.get(name, MISSING), value)
        for name, value in new.items()
        if old.get(name, MISSING) is not value
    ]
    return changed + [(name, value, MISSING) for name, value in old.items() if name not in new]


def _is_internal(name: str, old: Any, new: Any) -> bool:
    """Whether that is a module's own business: an imported submodule, or a private value that is
    no function."""
    submodule = old is MISSING and isinstance(new, types.ModuleType)
    return submodule or (name.startswith("_") and not callable(old) and not callable(new))


def _is_watched_class(value: Any) -> bool:
    if not isinstance(value, type):
        return False
    return value is torch.Tensor or f"{value.__module__}.".startswith(DEFINES)


class Shared:
    """The watched names of this process."""

    def __init__(self):
        self.watching = False
        self.cuda_runs = False  # torch.cuda sets names of its own when CUDA starts
        self.modules: dict[str, types.ModuleType] = {}  # sys.modules
        self.path: list[str] = []  # sys.path
        self.owners: dict[int, tuple[Any, dict]] = {}  # by address: a module or a class, and its names

    def watch(self) -> None:
        """Remember all names as they are now."""
        if not _same(self.modules, sys.modules):
            self.modules = dict(sys.modules)
            for owner in self._found():
                self.owners.setdefault(id(owner), (owner, {}))
        for key, (owner, names) in self.owners.items():
            if not _same(vars(owner), names):
                self.owners[key] = owner, dict(vars(owner))
        self.path = [place or os.getcwd() for place in sys.path]
        self.cuda_runs = torch.cuda._initialized
        self.watching = True

    def _found(self) -> Iterator[Any]:
        for name, module in self.modules.items():
            if WATCHED.fullmatch(name) and isinstance(module, types.ModuleType):
                yield module
                yield from filter(_is_watched_class, list(vars(module).values()))

    def undo(self) -> list[Patch]:
        """Put back what differs from what `watch` saw, and return what was there."""
        if not self.watching:
            return []
        made = []
        for owner, names in self.owners.values():
            if owner is torch.cuda and self.cuda_runs != torch.cuda._initialized:
                continue
            for name, old, new in _changes(names, vars(owner)):
                if not _is_internal(name, old, new):
                    made.append(Patch(owner, name, new))
        for name, _, new in _changes(self.modules, sys.modules):
            if not self._stays(name, new):
                made.append(Patch(sys.modules, name, new))
        for owner, name, _ in made:
            names = self.modules if owner is sys.modules else self.owners[id(owner)][1]
            Patch(owner, name, names.get(name, MISSING)).put()
        self.watching = False
        return made

    def _stays(self, name: str, module: Any) -> bool:
        """Whether a changed entry of sys.modules is what any other task would get that imports the name.

        A library that was imported for the first time stays, with all that it has entered there: a second
        import of it may fail.
        """
        root = name.partition(".")[0]
        if name in self.modules:
            return False
        return _is_imported(module) if root in self.modules else self._is_installed(sys.modules.get(root))

    def _is_installed(self, module: Any) -> bool:
        """Whether the import system has found it where sys.path led before the task."""
        if not _is_imported(module):
            return False
        spec = module.__spec__
        file = next(iter(spec.submodule_search_locations or [spec.origin]))
        return file in ("built-in", "frozen") or os.path.dirname(file) in self.path


def _is_imported(module: Any) -> bool:
    """Whether the import system made it, of a file or of none."""
    spec = getattr(module, "__spec__", None)
    return bool(spec and (spec.origin or spec.submodule_search_locations))


shared = Shared()
