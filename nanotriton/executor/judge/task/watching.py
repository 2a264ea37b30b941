"""What the judge's dispatch modes share: they see a task's ATen calls as its own code makes them."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watching(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import torch._dynamo at the first call, which takes seconds
        return False


def is_view(func) -> bool:
    """Whether what an ATen operator returns shares its operand's memory, and was not written in place."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def may_draw(func, args: tuple, kwargs: dict) -> bool:
    """Whether a call may take random numbers: attention does only with a dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for number, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[number] if number < len(args) else kwargs.get(argument.name, argument.default_value)
            return given != 0
    return True


def new_memory(func, out) -> set[int]:
    """The addresses of the storages that a call has made; none for a view, or a write in place."""
    if any(r.alias_info is not None for r in func._schema.returns):
        return set()
    return {t.untyped_storage().data_ptr() for t in tensors_of(out)}


def tensors_of(values) -> list[torch.Tensor]:
    """The tensors among an ATen call's arguments, or among what it returns."""
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
