"""Trees of tensors between processes: JSON and raw bytes, never pickle. The reader trusts nothing.

A description is [tree, [[shape, stride, dtype], ...]], where the tree is encoded as in aten.py. The bytes
are those of the tensors, contiguous, one after another.
"""

import math

import torch

from nanotriton.plan.aten import check_value, decode, encode_tree
from nanotriton.plan.plan import DTYPES

MAX_TENSORS = 10_000


class WireError(ValueError):
    """The bytes don't fit their description. The message is one line."""


def describe(tree) -> tuple[list, list[torch.Tensor]]:
    """(description, tensors). Raises TypeError, with the type, if the tree holds another kind of value."""
    tensors: list[torch.Tensor] = []

    def number(t: torch.Tensor) -> int:
        tensors.append(t.detach())
        return len(tensors) - 1

    encoded = encode_tree(tree, number)
    layouts = []
    for t in tensors:
        dtype = str(t.dtype).removeprefix("torch.")
        layouts.append([list(t.shape), list(t.stride()), dtype])
    return [encoded, layouts], tensors


def stand_ins(description: list):
    """The tree with meta tensors: shapes, strides and dtypes without data."""
    tree, layouts = description

    def make(index: int) -> torch.Tensor:
        shape, stride, dtype = layouts[index]
        return torch.empty_strided(shape, stride, dtype=DTYPES[dtype], device="meta")

    return decode(tree, make, torch.device("cpu"))


def raw(tensors: list[torch.Tensor]) -> bytes:
    """The tensors' elements as bytes, contiguous, one tensor after another."""
    parts = []
    for t in tensors:
        if t.numel():
            plain = t.cpu().resolve_conj().resolve_neg().contiguous()
            parts.append(plain.reshape(-1).view(torch.uint8).numpy())
    return b"".join(parts)


def size(description: list) -> int:
    """The bytes that a description's tensors take."""
    _, layouts = description
    return sum(_nbytes(shape, dtype) for shape, _, dtype in layouts)


def _is_size(n) -> bool:
    return type(n) is int and 0 <= n < 2**48


def _nbytes(shape: list[int], dtype: str) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize


def rebuild(description, data: memoryview):
    """(tree, bytes used). The tree's tensors have memory of their own.

    Raises WireError unless the description fits the data.
    """
    try:
        tree, layouts = description
        if not isinstance(layouts, list) or len(layouts) > MAX_TENSORS:
            raise WireError("too many tensors")
        check_value(tree, len(layouts), "the answer")
        made, used = [], 0
        for shape, stride, dtype in layouts:
            sizes = all(_is_size(n) for n in (*shape, *stride))
            if not sizes or len(shape) != len(stride):
                raise WireError("a shape that is none")
            end = used + _nbytes(shape, dtype)
            if end > len(data):
                raise WireError("fewer bytes than its tensors take")
            made.append(tensor(data[used:end], shape, stride, DTYPES[dtype]))
            used = end
        return decode(tree, made.__getitem__, torch.device("cpu")), used
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError, RecursionError) as error:
        raise WireError(f"malformed: {type(error).__name__}: {str(error)[:200]}") from None


def tensor(data: memoryview, shape: list[int], stride: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of these contiguous bytes.

    It has these strides if they lay out exactly as many elements as there are. Else it is contiguous.
    """
    flat = torch.empty(shape, dtype=dtype)
    if len(data):
        given = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        flat.reshape(-1).view(torch.uint8).copy_(given)
    if 0 in stride and flat.numel():  # an expanded dimension has one element in memory
        first = tuple(slice(0, 1) if s == 0 else slice(None) for s in stride)
        return flat[first].contiguous().expand(shape)
    span = 0  # elements from the first to the last
    if flat.numel():
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    if tuple(stride) == flat.stride() or span != flat.numel():
        return flat
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(flat)
