"""Kernels that put elements elsewhere: each lane has one place of the output and works out which element of
the input belongs there.

Most act along one dimension. Then a flat index is (outer * length + i) * inner + rest, and an operator is
a formula for i.
"""

from nanotriton.collect.emit import flat
from nanotriton.collect.emit.conv import finish_flat
from nanotriton.collect.emit.kernel import HALVES, Kernel
from nanotriton.collect.fuse import Stage
from nanotriton.collect.ir import Node, Unfit, text_of


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    node = stage.anchor
    x = node.args[0]
    texts = [f"{host[x]}.shape[{i}]" for i in range(x.rank)]
    return SHAPES.get(node.op, lambda node, texts, host: texts)(node, texts, host)


def _replaced(texts: list[str], dim: int, text: str) -> list[str]:
    return [text if i == dim else t for i, t in enumerate(texts)]


def _pad_dims(node: Node, texts: list[str], host) -> list[str]:
    rank, pairs = len(texts), node.attrs["pairs"]
    for i, (left, right) in enumerate(pairs):
        if int(left) or int(right):
            texts = _replaced(
                texts, rank - 1 - i, f"{texts[rank - 1 - i]} + {text_of(left)} + {text_of(right)}"
            )
    return texts


def _shuffle_dims(node: Node, texts: list[str], host) -> list[str]:
    n, c, h, w = texts
    r = text_of(node.attrs["factor"])
    if node.op == "pixel_shuffle":
        return [n, f"{c} // {r} // {r}", f"{h} * {r}", f"{w} * {r}"]
    return [n, f"{c} * {r} * {r}", f"{h} // {r}", f"{w} // {r}"]


def _slice_dims(node: Node, texts: list[str], host) -> list[str]:
    a = node.attrs
    if a.get("one"):
        return _replaced(texts, a["dim"], "1")
    whole = texts[a["dim"]] if a["stop"] is None else text_of(a["stop"])
    if a["stop"] is not None and not hasattr(a["stop"], "text") and a["stop"] < 0:
        whole = f"{texts[a['dim']]} - {-a['stop']}"
    start = text_of(a["start"])
    start = f"({start})" if " " in start else start
    text = f"{whole} - {start}" if int(a["start"]) else whole
    return _replaced(
        texts,
        a["dim"],
        text if int(a["step"]) == 1 else f"({text} + {text_of(a['step'])} - 1) // {text_of(a['step'])}",
    )


def _lookup_dims(node: Node, texts: list[str], host) -> list[str]:
    index = node.args[1]
    places = [f"{host[index]}.shape[{i}]" for i in range(index.rank)]
    return texts[: node.attrs["dim"]] + places + texts[node.attrs["dim"] + 1 :]


SHAPES = {
    "permute": lambda node, texts, host: [texts[i] for i in node.attrs["order"]],
    "narrow": lambda node, texts, host: _replaced(
        texts, node.attrs["dim"], f"{texts[node.attrs['dim']]} // {node.attrs['parts']}"
    ),
    "repeat_interleave": lambda node, texts, host: _replaced(
        texts, node.attrs["dim"], f"{texts[node.attrs['dim']]} * {text_of(node.attrs['repeats'])}"
    ),
    "cat": lambda node, texts, host: _replaced(
        texts,
        node.attrs["dim"],
        f"{texts[node.attrs['dim']]} + {host[node.args[1]]}.shape[{node.attrs['dim']}]",
    ),
    "pad": _pad_dims,
    "pixel_shuffle": _shuffle_dims,
    "pixel_unshuffle": _shuffle_dims,
    "slice": _slice_dims,
    "lookup": _lookup_dims,
    "upsample": lambda node, texts, host: (
        texts[:2] + [f"{t} * {text_of(s)}" for t, s in zip(texts[2:], node.attrs["scale"])]
    ),
    "gather": lambda node, texts, host: [f"{host[node.args[1]]}.shape[{i}]" for i in range(node.rank)],
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
    if node.op == "scatter_add":
        scatter_add(kernel, stage, host, outs)
        return
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


def source_index(kernel: Kernel, inner: str, rest: str, formula: str, length: str, before: bool) -> str:
    index = f"outer * {length} + {formula}" if before else formula
    if not inner:
        return index
    return f"{index if index.isidentifier() else f'({index})'} * {inner} + {rest}"


def along(formula, changes: bool = False):
    """A writer for an operator that acts along one dimension. formula: (kernel, node, length in the kernel)
    -> the source's i.
    """

    def write(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
        dim, x = node.attrs["dim"], node.args[0]
        inner, rest = parts(kernel, texts, dim)
        length = (
            kernel.size("in_length", f"{host[x]}.shape[{dim}]")
            if changes
            else kernel.size("length", texts[dim])
        )
        index = source_index(kernel, inner, rest, formula(kernel, node, length), length, dim > 0)
        kernel.add(f"value = tl.load({kernel.pointers[0][0]} + {index}, mask=mask)")

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
        index = f"({index}) * {size_of[d]} + i{d}" if d > 1 else f"i0 * {size_of[1]} + i1"
    if order[0] != 0:
        pass
    kernel.add(f"value = tl.load({kernel.pointers[0][0]} + {index}, mask=mask)")


def _cat(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x, y = node.args
    dim = node.attrs["dim"]
    py = kernel.pointer(y, host[y])
    inner, rest = parts(kernel, texts, dim)
    first, second = (kernel.size(f"{t.name}_length", f"{host[t]}.shape[{dim}]") for t in (x, y))
    a = source_index(kernel, inner, rest, "i", first, dim > 0)
    b = source_index(
        kernel, inner, rest, f"(i - {first})" if not inner and not dim else f"i - {first}", second, dim > 0
    )
    kernel.add(
        f"a = tl.load({kernel.pointers[0][0]} + {a}, mask=mask & (i < {first}), other=0)",
        f"b = tl.load({py} + {b}, mask=mask & (i >= {first}), other=0)",
        f"value = tl.where(i < {first}, a, b)",
    )


def _pad(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x, attrs, rank = node.args[0], node.attrs, node.rank
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
        index = (
            f"({index}) * {length} + i{d}"
            if index and index != "outer"
            else f"outer * {length} + i{d}"
            if index
            else f"i{d}"
        )
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
    kernel.add(
        f"value = tl.load({kernel.pointers[0][0]} + ((n * {ic} + {channel}) * {ih} + {row}) * {iw} + {col}, mask=mask)"  # noqa: E501
    )


def _upsample(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    x = node.args[0]
    letters = flat.LETTERS[node.rank - 2]
    sizes = [kernel.size(i.upper(), texts[j + 2]) for j, i in enumerate(letters)]
    flat.coordinates(kernel, ["picture", *letters], sizes)
    index = "picture"
    scales = flat.numbers(kernel, "scale", node.attrs["scale"], letters)
    for j, (i, s) in enumerate(zip(letters, scales)):
        length = kernel.size(f"I{i.upper()}", f"{host[x]}.shape[{j + 2}]")
        index = f"({index}) * {length} + {i} // {s}" if j else f"picture * {length} + {i} // {s}"
    kernel.add(f"value = tl.load({kernel.pointers[0][0]} + {index}, mask=mask)")


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
    kernel.add(
        f"value = tl.load({kernel.pointers[0][0]} + {source_index(kernel, inner, rest, 'i', length, dim > 0)}, mask=mask)"  # noqa: E501
    )


def _lookup(kernel: Kernel, node: Node, host, texts: list[str]) -> None:
    """Whole slices by number: rows of a table, columns of a matrix."""
    x, index = node.args
    pi, dim = kernel.pointer(index, host[index]), node.attrs["dim"]
    count = texts[dim : dim + index.rank]
    merged = [*texts[:dim], " * ".join(count), *texts[dim + index.rank :]]
    inner, rest = parts(kernel, merged, dim)
    length = kernel.size("in_length", f"{host[x]}.shape[{dim}]") if dim else ""
    kernel.add(f"i = tl.load({pi} + i, mask=mask, other=0)")
    kernel.add(
        f"value = tl.load({kernel.pointers[0][0]} + {source_index(kernel, inner, rest, 'i', length, dim > 0)}, mask=mask)"  # noqa: E501
    )


def scatter_add(kernel: Kernel, stage: Stage, host, outs) -> None:
    raise Unfit("scatter_add")


def _slice(kernel: Kernel, node: Node, length: str) -> str:
    a = node.attrs
    step = "i" if int(a["step"]) == 1 else f"i * {flat.number(kernel, 'step', a['step'])}"
    return step if not int(a["start"]) else f"{flat.number(kernel, 'start', a['start'])} + {step}"


WRITERS = {
    "narrow": along(
        lambda kernel, node, length: (
            f"{node.attrs['part']} * ({length} // {node.attrs['parts']}) + i" if node.attrs["part"] else "i"
        ),
        True,
    ),
    "roll": along(
        lambda kernel, node, length: (
            f"(i + {length} - {flat.number(kernel, 'shift', node.attrs['shift'])}) % {length}"
        )
    ),
    "repeat_interleave": along(
        lambda kernel, node, length: f"i // {flat.number(kernel, 'repeats', node.attrs['repeats'])}", True
    ),
    "slice": along(_slice, True),
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
    "scatter_add": scatter_add,
}
