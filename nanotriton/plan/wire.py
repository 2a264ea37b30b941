"""Trees of tensors between processes: a description in JSON and raw bytes, never pickle. The reader trusts nothing.

A description is [tree, [[shape, stride, dtype], ...]], the tree as in aten.py with tensors by number. The bytes are those of the tensors,
contiguous, one after another.
"""

import math

import torch

from nanotriton.plan.aten import check_value, decode, encode_tree
from nanotriton.plan.plan import DTYPES

MAX_TENSORS = 10_000


class WireError(ValueError):
    """The bytes are not what a description says; one line."""


def describe(tree) -> tuple[list, list[torch.Tensor]]:
    """(description, tensors). Raises TypeError with the type of what has no place in one."""
    tensors: list[torch.Tensor] = []

    def number(t: torch.Tensor) -> int:
        tensors.append(t.detach())
        return len(tensors) - 1

    encoded = encode_tree(tree, number)
    return [
        encoded,
        [[list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")] for t in tensors],
    ], tensors


def stand_ins(description: list):
    """The tree with meta tensors: shapes, strides and dtypes, no data."""
    tree, tensors = description
    make = lambda i: torch.empty_strided(
        tensors[i][0], tensors[i][1], dtype=DTYPES[tensors[i][2]], device="meta"
    )
    return decode(tree, make, torch.device("cpu"))


def raw(tensors: list[torch.Tensor]) -> bytes:
    parts = [
        t.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        for t in tensors
        if t.numel()
    ]
    return b"".join(parts)


def size(description: list) -> int:
    return sum(math.prod(shape) * DTYPES[dtype].itemsize for shape, _, dtype in description[1])


def rebuild(description, data: memoryview):
    """(tree with tensors of their own memory, bytes used). Raises WireError unless the description fits the data."""
    try:
        tree, tensors = description
        if not isinstance(tensors, list) or len(tensors) > MAX_TENSORS:
            raise WireError("too many tensors")
        check_value(tree, len(tensors), "the answer")
        made, used = [], 0
        for shape, stride, dtype in tensors:
            if not all(type(n) is int and 0 <= n < 2**48 for n in (*shape, *stride)) or len(shape) != len(
                stride
            ):
                raise WireError("a shape that is none")
            end = used + math.prod(shape) * DTYPES[dtype].itemsize
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
    """A tensor of these contiguous bytes, with these strides where they lay out exactly that many elements (else contiguous)."""
    flat = torch.empty(shape, dtype=dtype)
    if len(data):
        flat.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    if 0 in stride and flat.numel():  # expanded: one element of that dimension is in memory
        kept = flat[tuple(slice(0, 1) if s == 0 else slice(None) for s in stride)]
        return kept.contiguous().expand(shape)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if flat.numel() else 0
    if tuple(stride) == flat.stride() or span != flat.numel():
        return flat
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(flat)
