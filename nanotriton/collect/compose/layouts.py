"""PyTorch's operators that give a tensor another shape or put its elements elsewhere: how each becomes a node
of the graph.
"""

import math

import torch

from nanotriton.collect.compose.ir import TRITON_TYPE, Builder, NamedInt, Node, Unfit, per_dimension, text_of
from nanotriton.collect.compose.lower import lowers

# ---- shapes ----


@lowers("view", "reshape")
def view(b: Builder, x: Node, *shape, op="") -> Node:
    shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list | torch.Size) else shape
    size = [int(n) for n in shape]
    if -1 in size:
        rest = math.prod(n for n in size if n != -1)
        size[size.index(-1)] = math.prod(x.shape) // rest
    return b.view(x, size, "{0}." + f"view({', '.join(map(text_of, shape))})")


@lowers("flatten")
def flatten(b: Builder, x: Node, start_dim=0, end_dim=-1, op="") -> Node:
    start, end = start_dim % x.rank, end_dim % x.rank
    shape = (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])
    return b.view(x, shape, f"{{0}}.flatten({int(start_dim)}, {int(end_dim)})")


@lowers("unflatten")
def unflatten(b: Builder, x: Node, dim, sizes, op="") -> Node:
    sizes = list(sizes)
    known = math.prod(int(s) for s in sizes if s != -1)
    whole = [int(s) if s != -1 else x.shape[dim] // known for s in sizes]
    dim = dim % x.rank
    return b.view(
        x,
        (*x.shape[:dim], *whole, *x.shape[dim + 1 :]),
        f"{{0}}.unflatten({dim}, ({', '.join(map(text_of, sizes))}))",
    )


@lowers("unsqueeze")
def unsqueeze(b: Builder, x: Node, dim, op="") -> Node:
    place = dim % (x.rank + 1)
    return b.view(x, (*x.shape[:place], 1, *x.shape[place:]), f"{{0}}.unsqueeze({int(dim)})", alias=True)


@lowers("squeeze")
def squeeze(b: Builder, x: Node, dim=None, op="") -> Node:
    if dim is None:
        dims = range(x.rank)
    else:
        dims = [d % x.rank for d in (dim if isinstance(dim, tuple | list) else [dim])]
    shape = [n for i, n in enumerate(x.shape) if i not in dims or n != 1]
    return b.view(x, shape, f"{{0}}.squeeze({'' if dim is None else text_of(dim)})", alias=True)


@lowers("to", "type", "float", "half", "bfloat16", "int", "long", "bool", "type_as")
def cast(b: Builder, x: Node, dtype=None, *rest, op="", **kwargs) -> Node:
    named = {
        "float": torch.float32,
        "half": torch.float16,
        "bfloat16": torch.bfloat16,
        "int": torch.int32,
        "long": torch.int64,
        "bool": torch.bool,
    }
    dtype = named.get(op, dtype.dtype if isinstance(dtype, Node) else kwargs.get("dtype", dtype))
    if not isinstance(dtype, torch.dtype):
        raise Unfit(f"{op} of {dtype}")
    if dtype == x.dtype:
        return x
    if dtype not in TRITON_TYPE:
        raise Unfit(f"the dtype {dtype}")
    text = "{0} != 0" if dtype == torch.bool else f"{{0}}.to({TRITON_TYPE[dtype]})"
    return b.map("cast", text, x, dtype=dtype)


@lowers("transpose", "swapaxes", "t", "permute", "movedim")
def permute(b: Builder, x: Node, *dims, op="") -> Node:
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    order = list(range(x.rank))
    if op in ("transpose", "swapaxes", "t"):
        i, j = (dims[0] % x.rank, dims[1] % x.rank) if dims else (0, 1)
        order[i], order[j] = order[j], order[i]
    elif op == "permute":
        order = [d % x.rank for d in dims]
    else:
        raise Unfit(op)
    return b.anchor("permute", [x], [x.shape[d] for d in order], order=order)


# ---- gathers: the output's place says which element of the input it is (emit/gather.py) ----


@lowers("chunk", "split")
def chunk(b: Builder, x: Node, size, dim=0, op="") -> list[Node]:
    dim = dim % x.rank
    parts = int(size) if op == "chunk" else x.shape[dim] // int(size)
    if x.shape[dim] % parts or (op == "split" and parts * int(size) != x.shape[dim]):
        raise Unfit("parts of different lengths")
    shape = [n // parts if i == dim else n for i, n in enumerate(x.shape)]
    return [b.anchor("narrow", [x], shape, dim=dim, part=i, parts=parts) for i in range(parts)]


@lowers("roll")
def roll(b: Builder, x: Node, shifts, dims=None, op="") -> Node:
    if isinstance(dims, tuple | list):
        dims, shifts = (dims[0], per_dimension(shifts, 1)[0]) if len(dims) == 1 else (None, None)
    if dims is None:
        raise Unfit("a roll of several dimensions")
    return b.anchor("roll", [x], x.shape, dim=dims % x.rank, shift=shifts)


@lowers("repeat_interleave")
def repeat_interleave(b: Builder, x: Node, repeats, dim=None, op="") -> Node:
    if dim is None or isinstance(repeats, Node):
        raise Unfit("repeats of different lengths")
    shape = [n * int(repeats) if i == dim % x.rank else n for i, n in enumerate(x.shape)]
    return b.anchor("repeat_interleave", [x], shape, dim=dim % x.rank, repeats=repeats)


@lowers("cat", "concat")
def cat(b: Builder, tensors, dim=0, op="") -> Node:
    if len(tensors) != 2:
        raise Unfit("a concatenation of more than two")
    x, y = tensors
    dim = dim % x.rank
    shape = [n + y.shape[i] if i == dim else n for i, n in enumerate(x.shape)]
    return b.anchor("cat", [x, y], shape, dim=dim)


@lowers("pad", "constant_pad_nd")
def pad(b: Builder, x: Node, pad=None, mode="constant", value=None, padding=None, op="") -> Node:
    pad = pad if pad is not None else padding
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    if any(int(v) < 0 for v in pad):
        raise Unfit("a negative padding")
    before = [0] * x.rank
    shape = list(x.shape)
    for i, (left, right) in enumerate(pairs):
        before[x.rank - 1 - i] = left
        shape[x.rank - 1 - i] += int(left) + int(right)
    return b.anchor(
        "pad",
        [x],
        shape,
        before=tuple(before),
        after=tuple(shape),
        mode=mode,
        value=value or 0.0,
        pairs=tuple(pairs),
    )


@lowers("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def shuffle(b: Builder, x: Node, upscale_factor=None, op="", downscale_factor=None, groups=None) -> Node:
    factor = next(f for f in (upscale_factor, downscale_factor, groups) if f is not None)
    if x.rank != 4:
        raise Unfit(f"{op} of other than four dimensions")
    n, c, h, w = x.shape
    r = int(factor)
    shape = {
        "pixel_shuffle": (n, c // r**2, h * r, w * r),
        "pixel_unshuffle": (n, c * r**2, h // r, w // r),
    }.get(op, x.shape)
    return b.anchor(op, [x], shape, factor=factor)


@lowers("interpolate", "upsample")
def interpolate(
    b: Builder, x: Node, size=None, scale_factor=None, mode="nearest", align_corners=None, op="", **rest
) -> Node:
    scale = per_dimension(scale_factor, x.rank - 2)
    if mode != "nearest" or size is not None or any(int(s) != s for s in scale):
        raise Unfit("an interpolation other than nearest by a whole factor")
    return b.anchor(
        "upsample", [x], (*x.shape[:2], *(n * int(s) for n, s in zip(x.shape[2:], scale))), scale=scale
    )


@lowers("gather", "take_along_dim", "index_select", "embedding", "embedding_module")
def gather(b: Builder, x: Node, *args, op="", dim=None, index=None, weight=None, **rest) -> Node:
    """index_select and embedding take whole rows, gather and take_along_dim single elements."""
    if op.startswith("embedding"):
        index, table = x, weight if weight is not None else args[0]
        return b.anchor("lookup", [table, index], (*index.shape, table.shape[1]), table.dtype, dim=0)
    given = [a for a in (*args, dim, index) if a is not None]
    index = next(a for a in given if isinstance(a, Node))
    dim = next(int(a) for a in given if not isinstance(a, Node)) % x.rank
    if op == "index_select":
        shape = [index.shape[0] if i == dim else n for i, n in enumerate(x.shape)]
        return b.anchor("lookup", [x, index], shape, dim=dim)
    return b.anchor("gather", [x, index], index.shape, dim=dim)


@lowers("scatter_add", "index_add", "bincount")
def scatter(b: Builder, x: Node, *args, op="", **rest) -> Node:
    """Sums at places that indices name: no kernel is written for them."""
    raise Unfit(op)


@lowers("getitem")
def getitem(b: Builder, x: Node, index, op="") -> Node:
    """Only what keeps the order of memory whole: None and full slices, and slices of one dimension."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, Node) for i in items):
        raise Unfit("indexing with a tensor")
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (x.rank - sum(i is not None for i in items) + 1)
    items += [slice(None)] * (x.rank - sum(i is not None for i in items))
    if all(i is None or i == slice(None) for i in items):
        dims, shape = iter(x.shape), []
        for i in items:
            shape.append(1 if i is None else next(dims))
        said = ", ".join("None" if i is None else ":" for i in items)
        return b.view(x, shape, f"{{0}}[{said}]", alias=True)
    if None in items:
        raise Unfit("a new dimension next to an index")
    for d in reversed(range(len(items))):  # from the last, so that a dimension that goes moves no other
        if isinstance(items[d], slice):
            x = x if items[d] == slice(None) else strided(b, x, d, items[d])
        elif isinstance(items[d], int):
            x = select(b, x, d, items[d])
        else:
            raise Unfit("an index that is neither a number nor a slice")
    return x


def from_start(x: Node, dim: int, place):
    """A place along a dimension, counted from the start."""
    if isinstance(place, NamedInt) or place >= 0:
        return place
    return NamedInt(x.shape[dim] + place, f"@{x.name}@.shape[{dim}] - {-place}")


@lowers("select")
def select(b: Builder, x: Node, dim, index, op="") -> Node:
    """One place of a dimension, which is gone then."""
    dim = dim % x.rank
    start = from_start(x, dim, index)
    shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
    stop = NamedInt(int(start) + 1, f"{text_of(start)} + 1")
    one = b.anchor("slice", [x], shape, dim=dim, start=start, step=1, stop=stop, one=True)
    return b.view(one, [n for d, n in enumerate(shape) if d != dim], f"{{0}}.squeeze({dim})", alias=True)


@lowers("narrow")
def narrow(b: Builder, x: Node, dim, start, length, op="") -> Node:
    stop = NamedInt(int(start) + int(length), f"{text_of(start)} + {text_of(length)}")
    return strided(b, x, dim % x.rank, slice(start, stop if hasattr(length, "text") else int(stop)))


def strided(b: Builder, x: Node, dim: int, cut: slice) -> Node:
    """A slice along one dimension."""
    start, stop, step = cut.indices(x.shape[dim])
    first = from_start(x, dim, cut.start) if cut.start is not None else 0
    shape = list(x.shape)
    shape[dim] = len(range(start, stop, step))
    return b.anchor("slice", [x], shape, dim=dim, start=first, step=cut.step or 1, stop=cut.stop)
