"""What a candidate may use of Python's own modules: what each of them offers to everybody.

A module's namespace also holds the modules that it imports: `enum.bltns` is builtins with exec, `logging.os`
is os. So a name of a module counts only where the module lists it (`__all__`), and a submodule only where it
is named below.
"""

import functools
import importlib

from nanotriton.plan.aten import words

STANDARD = words("""
    abc argparse bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions
    functools hashlib heapq itertools json logging math numbers pprint random re statistics struct textwrap
    time typing warnings weakref
""")
# Modules of others that are listed, too.
LISTED = STANDARD | {"typing_extensions"}
SUBMODULES = {"collections": {"abc"}, "json": {"decoder", "encoder"}, "logging": {"root"}}
# Standard modules that others hold under a name of a submodule or of a function of their own.
OWN_NAMES = words("abc copy math random time types struct")


@functools.cache
def public(module: str) -> frozenset[str] | None:
    """The names that a module offers, None if it does not list them."""
    try:
        listed = getattr(importlib.import_module(module), "__all__", None)
    except ImportError:  # typing_extensions is no part of Python
        return None
    return None if listed is None else frozenset(listed) | SUBMODULES.get(module, set())


def held_back(path: str) -> str | None:
    """The part of a dotted path under a listed module that this one does not offer, or None."""
    root, *rest = path.split(".")
    offered = public(root) if root in LISTED and rest else None
    return rest[0] if offered is not None and rest[0] not in offered | {"*"} else None


def held_by_another(path: str) -> str | None:
    """What a path of another module names of a standard one: "enum.Enum" of triton.testing.enum.Enum."""
    root, *rest = path.split(".")
    if root in LISTED:
        return None
    for i, name in enumerate(rest):
        if name in LISTED and name not in OWN_NAMES:
            return ".".join(rest[i:])
    return None
