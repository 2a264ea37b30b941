"""Kernels that put elements elsewhere: each lane has one place of the output and works out which element of
the input belongs there.

Most act along one dimension. Then a flat index is (outer * length + i) * inner + rest, and an operator is
a formula for i.
"""

from nanotriton.collect.compose.emit import flat
from nanotriton.collect.compose.emit.conv import finish_flat
from nanotriton.collect.compose.emit.kernel import HALVES, Kernel, wrapped
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node, Unfit, text_of


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    """Each dimension of the output, as forward writes it. host: what tensors are called there."""
    node = stage.anchor
    x = node.args[0]
    texts = [f"{host[x]}.shape[{i}]" for i in range(x.rank)]
    return SHAPES[node.op](node, texts, host) if node.op in SHAPES else texts


def _replaced(texts: list[str], dim: int, text: str) -> list[str]:
    return [text if i == dim else t for i, t in enumerate(texts)]


def _pad_dims(node: Node, texts: list[str], host) -> list[str]:
    rank, pairs = len(texts), node.attrs["pairs"]
    for i, (left, right) in enumerate(pairs):
        if int(left) or int(right):
            dim = rank - 1 - i
            texts = _replaced(texts, dim, f"{texts[dim]} + {text_of(left)} + {text_of(right)}")
    return texts


def _shuffle_dims(node: Node, texts: list[str], host) -> list[str]:
    n, c, h, w = texts
    r = text_of(node.attrs["factor"])
    if node.op == "pixel_shuffle":
        return [n, f"{c} // {r} // {r}", f"{h} * {r}", f"{w} * {r}"]
    return [n, f"{c} * {r} * {r}", f"{h} // {r}", f"{w} // {r}"]


def _slice_dims(node: Node, texts: list[str], host) -> list[str]:
    dim, stop = node.attrs["dim"], node.attrs["stop"]
    if node.attrs.get("one"):
        return _replaced(texts, dim, "1")
    if stop is None:
        end = texts[dim]
    elif not hasattr(stop, "text") and stop < 0:  # counted from the end
        end = f"{texts[dim]} - {-stop}"
    else:
        end = text_of(stop)
    start, step = text_of(node.attrs["start"]), text_of(node.attrs["step"])
    start = f"({start})" if " " in start else start
    length = f"{end} - {start}" if int(node.attrs["start"]) else end
    if int(node.attrs["step"]) != 1:
        length = f"({length} + {step} - 1) // {step}"
    return _replaced(texts, dim, length)


def _lookup_dims(node: Node, texts: list[str], host) -> list[str]:
    index = node.args[1]
    places = [f"{host[index]}.shape[{i}]" for i in range(index.rank)]
    return texts[: node.attrs["dim"]] + places + texts[node.attrs["dim"] + 1 :]


def _permute_dims(node: Node, texts: list[str], host) -> list[str]:
    return [texts[i] for i in node.attrs["order"]]


def _narrow_dims(node: Node, texts: list[str], host) -> list[str]:
    dim = node.attrs["dim"]
    return _replaced(texts, dim, f"{texts[dim]} // {node.attrs['parts']}")


def _repeat_dims(node: Node, texts: list[str], host) -> list[str]:
    dim = node.attrs["dim"]
    return _replaced(texts, dim, f"{texts[dim]} * {text_of(node.attrs['repeats'])}")


def _cat_dims(node: Node, texts: list[str], host) -> list[str]:
    dim, other = node.attrs["dim"], host[node.args[1]]
    return _replaced(texts, dim, f"{texts[dim]} + {other}.shape[{dim}]")


def _upsample_dims(node: Node, texts: list[str], host) -> list[str]:
    return texts[:2] + [f"{t} * {text_of(s)}" for t, s in zip(texts[2:], node.attrs["scale"])]


def _gather_dims(node: Node, texts: list[str], host) -> list[str]:
    return [f"{host[node.args[1]]}.shape[{i}]" for i in range(node.rank)]


# operator -> the output's dimensions, made of the input's; those that aren't here keep the input's
SHAPES = {
    "permute": _permute_dims,
    "narrow": _narrow_dims,
    "repeat_interleave": _repeat_dims,
    "cat": _cat_dims,
    "pad": _pad_dims,
    "pixel_shuffle": _shuffle_dims,
    "pixel_unshuffle": _shuffle_dims,
    "slice": _slice_dims,
    "lookup": _lookup_dims,
    "upsample": _upsample_dims,
    "gather": _gather_dims,
}


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    node = stage.anchor
    write = WRITERS.get(node.op)
    if write is None:
        raise Unfit(f"no kernel for {node.op}")
    out = outs[stage.stored[0]]
    kernel.taken |= {"value", "i", "outer", "rest", "source"}
    kernel.pointer(node.args[0], host[node.args[0]])
    texts = [f"{out}.shape[{i}]" for i in range(len(stage.full))]
    space = flat.start(kernel, stage, texts, out)
    write(kernel, node, host, texts)
    if len(stage.nodes) > 1 and node.dtype in HALVES:
        kernel.add("value = value.to(tl.float32)")
    finish_flat(kernel, stage, space, host, outs, "value")


def parts(kernel: Kernel, texts: list[str], dim: int) -> tuple[str, str]:
    """Lines for `outer` and `i` (and `rest`) of a flat index along a dimension -> how to put a source index
    together: (before, after) of i.
    """
    after, before = texts[dim + 1 :], texts[:dim]
    length = kernel.size("length", texts[dim])
    if after:
        inner = kernel.size("inner", " * ".join(after))
        kernel.add(
            f"rest = offsets % {inner}", f"i = offsets // {inner}" + (f" % {length}" if before else "")
        )
        if before:
            kernel.add(f"outer = offsets // ({inner} * {length})")
        return inner, "rest"
    kernel.add(f"i = offsets % {length}" if before else "i = offsets")
    if before:
        kernel.add(f"outer = offsets // {length}")
    return "", ""


def source_index(inner: str, rest: str, formula: str, length: str, before: bool) -> str:
    """The flat index of the source's element. inner, rest: of `parts`. formula: its place along the
    dimension, which is `length` long there. before: whether dimensions come before it.
    """
    index = f"outer * {length} + {formula}" if before else formula
    return f"{wrapped(index)} * {inner} + {rest}" if inner else index


def load(kernel: Kernel, index: str) -> None:
    """The lane's value: the first tensor's element with this flat index."""
    kernel.add(f"value = tl.load({kernel.pointers[0][0]} + {index}, mask=mask)")


def along(formula, changes: bool = False):
    """A writer for an operator that acts along one dimension.

    formula: (kernel, node, length in the kernel) -> the source's i. changes: the dimension's length.
    """

    def write(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
        dim, x = node.attrs["dim"], node.args[0]
        inner, rest = parts(kernel, texts, dim)
        if changes:
            length = kernel.size("in_length", f"{host[x]}.shape[{dim}]")
        else:
            length = kernel.size("length", texts[dim])
        load(kernel, source_index(inner, rest, formula(kernel, node, length), length, dim > 0))

    return write


def _flip(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    if len(node.attrs["dims"]) != 1:
        raise Unfit("a flip of several dimensions")
    node.attrs["dim"] = node.attrs["dims"][0]
    along(lambda kernel, node, length: f"{length} - 1 - i")(kernel, node, host, texts)


def _permute(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    order, rank = node.attrs["order"], node.rank
    names = [f"i{d}" for d in order]
    sizes = [kernel.size(f"size{d}", texts[j]) for j, d in enumerate(order)]
    flat.coordinates(kernel, names, sizes[1:])
    size_of = {d: sizes[j] for j, d in enumerate(order)}
    index = "i0"
    for d in range(1, rank):
        index = f"{wrapped(index)} * {size_of[d]} + i{d}"
    load(kernel, index)


def _cat(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x, y = node.args
    dim = node.attrs["dim"]
    py = kernel.pointer(y, host[y])
    inner, rest = parts(kernel, texts, dim)
    first, second = (kernel.size(f"{t.name}_length", f"{host[t]}.shape[{dim}]") for t in (x, y))
    past = f"i - {first}" if inner or dim else f"(i - {first})"
    a = source_index(inner, rest, "i", first, dim > 0)
    b = source_index(inner, rest, past, second, dim > 0)
    kernel.add(
        f"a = tl.load({kernel.pointers[0][0]} + {a}, mask=mask & (i < {first}), other=0)",
        f"b = tl.load({py} + {b}, mask=mask & (i >= {first}), other=0)",
        f"value = tl.where(i < {first}, a, b)",
    )


def _pad(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x = node.args[0]
    attrs = node.attrs
    rank = node.rank
    padded = [d for d in range(rank) if node.shape[d] != x.shape[d]]
    if not padded:
        raise Unfit("a padding by nothing")
    first = padded[0]
    names = ["outer" if first else ""] + [f"i{d}" for d in range(first, rank)]
    sizes = [kernel.size(f"size{d}", texts[d]) for d in range(first, rank)]
    flat.coordinates(kernel, names if first else names[1:], sizes if first else sizes[1:])
    conditions, index = [], "outer" if first else ""
    for d in range(first, rank):
        length = kernel.size(f"in_size{d}", f"{host[x]}.shape[{d}]")
        before = attrs["before"][d]
        if d in padded:
            if int(before):
                kernel.add(f"i{d} -= {flat.number(kernel, 'before', before)}")
            if attrs["mode"] == "reflect":
                kernel.add(f"i{d} = {length} - 1 - tl.abs({length} - 1 - tl.abs(i{d}))")
            elif attrs["mode"] == "replicate":
                kernel.add(f"i{d} = tl.minimum(tl.maximum(i{d}, 0), {length} - 1)")
            elif attrs["mode"] == "circular":
                kernel.add(f"i{d} = (i{d} + {length}) % {length}")
            else:
                conditions += [f"(i{d} >= 0)", f"(i{d} < {length})"]
        if index and index != "outer":
            index = f"({index})"
        index = f"{index} * {length} + i{d}" if index else f"i{d}"
    value = flat.number(kernel, "value", attrs["value"])
    tail = f", other={value}" if conditions else ""
    kernel.add(
        f"value = tl.load({kernel.pointers[0][0]} + {index}, mask={' & '.join(['mask', *conditions])}{tail})"
    )


def _pixels(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    """pixel_shuffle, its inverse, channel_shuffle and the nearest upsampling: pictures whose coordinates are
    put together anew.
    """
    x = node.args[0]
    c, h, w = (kernel.size(name, texts[i]) for name, i in (("C", 1), ("H", 2), ("W", 3)))
    flat.coordinates(kernel, ["n", "c", "h", "w"], [c, h, w])
    ic, ih, iw = (kernel.size(name, f"{host[x]}.shape[{i}]") for name, i in (("IC", 1), ("IH", 2), ("IW", 3)))
    r = flat.number(kernel, "factor", node.attrs["factor"]) if "factor" in node.attrs else ""
    channel, row, col = {
        "pixel_shuffle": (f"(c * {r} + h % {r}) * {r} + w % {r}", f"h // {r}", f"w // {r}"),
        "pixel_unshuffle": (f"c // ({r} * {r})", f"h * {r} + c // {r} % {r}", f"w * {r} + c % {r}"),
        "channel_shuffle": (f"c % {r} * ({c} // {r}) + c // {r}", "h", "w"),
    }[node.op]
    load(kernel, f"((n * {ic} + {channel}) * {ih} + {row}) * {iw} + {col}")


def _upsample(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x = node.args[0]
    letters = flat.LETTERS[node.rank - 2]
    sizes = [kernel.size(i.upper(), texts[j + 2]) for j, i in enumerate(letters)]
    flat.coordinates(kernel, ["picture", *letters], sizes)
    index = "picture"
    scales = flat.numbers(kernel, "scale", node.attrs["scale"], letters)
    for j, (i, s) in enumerate(zip(letters, scales)):
        length = kernel.size(f"I{i.upper()}", f"{host[x]}.shape[{j + 2}]")
        index = f"{wrapped(index)} * {length} + {i} // {s}"
    load(kernel, index)


def _gather(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x, index = node.args
    pi = kernel.pointer(index, host[index])
    dim = node.attrs["dim"]
    if any(n != m for d, (n, m) in enumerate(zip(x.shape, index.shape)) if d != dim):
        raise Unfit("a gather from part of a tensor")
    inner, rest = parts(kernel, texts, dim)
    kernel.lines = [line for line in kernel.lines if not line.startswith("i = ")]
    length = kernel.size("in_length", f"{host[x]}.shape[{dim}]")
    kernel.add(f"i = tl.load({pi} + offsets, mask=mask, other=0)")
    load(kernel, source_index(inner, rest, "i", length, dim > 0))


def _lookup(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    """Whole slices by number: rows of a table, columns of a matrix."""
    x, index = node.args
    pi, dim = kernel.pointer(index, host[index]), node.attrs["dim"]
    count = texts[dim : dim + index.rank]
    merged = [*texts[:dim], " * ".join(count), *texts[dim + index.rank :]]
    inner, rest = parts(kernel, merged, dim)
    length = kernel.size("in_length", f"{host[x]}.shape[{dim}]") if dim else ""
    kernel.add(f"i = tl.load({pi} + i, mask=mask, other=0)")
    load(kernel, source_index(inner, rest, "i", length, dim > 0))


# ---- formulas for `along`


def _narrow(kernel: Kernel, node: Node, length: str) -> str:
    part = node.attrs["part"]
    return f"{part} * ({length} // {node.attrs['parts']}) + i" if part else "i"


def _roll(kernel: Kernel, node: Node, length: str) -> str:
    return f"(i + {length} - {flat.number(kernel, 'shift', node.attrs['shift'])}) % {length}"


def _repeat(kernel: Kernel, node: Node, length: str) -> str:
    return f"i // {flat.number(kernel, 'repeats', node.attrs['repeats'])}"


def _slice(kernel: Kernel, node: Node, length: str) -> str:
    a = node.attrs
    step = "i" if int(a["step"]) == 1 else f"i * {flat.number(kernel, 'step', a['step'])}"
    return step if not int(a["start"]) else f"{flat.number(kernel, 'start', a['start'])} + {step}"


WRITERS = {
    "narrow": along(_narrow, changes=True),
    "roll": along(_roll),
    "repeat_interleave": along(_repeat, changes=True),
    "slice": along(_slice, changes=True),
    "flip": _flip,
    "permute": _permute,
    "cat": _cat,
    "pad": _pad,
    "pixel_shuffle": _pixels,
    "pixel_unshuffle": _pixels,
    "channel_shuffle": _pixels,
    "upsample": _upsample,
    "gather": _gather,
    "lookup": _lookup,
}
