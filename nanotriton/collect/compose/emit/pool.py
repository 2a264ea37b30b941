"""Pooling: each lane has one output element and goes over its window."""

from collections.abc import Callable

from nanotriton.collect.compose.emit import flat
from nanotriton.collect.compose.emit.conv import finish_flat
from nanotriton.collect.compose.emit.kernel import Kernel, wrapped
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node


def prepare(
    stage: Stage, host: dict[Node, str], shape: list[str], fresh: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """(lines of forward, the output's dimensions); see conv.prepare. Only max pooling has a dilation."""
    attrs = stage.anchor.attrs
    letters = flat.LETTERS[len(shape) - 2]
    lines: list[str] = []
    names = {"kernel": flat.spread(lines, fresh, attrs["kernel"], "K", [f"K{i.upper()}" for i in letters])}
    for key, letter in (("stride", "s"), ("padding", "p"), ("dilation", "d")):
        if key != "dilation" or attrs["kind"] == "max":
            names[key] = flat.spread(lines, fresh, attrs[key], key, [letter + i for i in letters])
    sizes = []
    for i, letter in enumerate(letters):
        k, s, p = (names[key][i] for key in ("kernel", "stride", "padding"))
        reach = f"{names['dilation'][i]} * ({k} - 1) - 1" if "dilation" in names else k
        sizes.append(fresh(f"O{letter.upper()}"))
        lines.append(f"{sizes[i]} = ({shape[i + 2]} + 2 * {p} - {reach}) // {s} + 1")
    attrs["names"] = names
    return lines, [*shape[:2], *sizes]


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    (x,), attrs = stage.anchor.args, stage.anchor.attrs
    letters = flat.LETTERS[x.rank - 2]
    kernel.taken |= {"acc", "picture", "inside", "value", "count"}
    kernel.taken |= {*letters, *("k" + i for i in letters), *("i" + i for i in letters)}
    px = kernel.pointer(x, host[x])
    sizes = [kernel.size(i.upper(), f"{host[x]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    outs_sizes = [kernel.size(f"O{i.upper()}", dim_texts[j + 2]) for j, i in enumerate(letters)]
    names = attrs["names"]
    taps = flat.received(kernel, names["kernel"], "K", [f"K{i.upper()}" for i in letters])
    numbers = {}  # stride, padding and dilation -> their names in the kernel, by dimension
    for key, given in names.items():
        if key != "kernel":
            numbers[key] = flat.received(kernel, given, key, [key[0] + i for i in letters])
    space = flat.start(kernel, stage, dim_texts, outs[stage.stored[0]])
    flat.coordinates(kernel, ["picture", *letters], outs_sizes)
    largest = attrs["kind"] == "max"
    nothing = 'tl.full([BLOCK], -float("inf"), dtype=tl.float32)'
    kernel.add(f"acc = {nothing if largest else 'tl.zeros([BLOCK], dtype=tl.float32)'}")
    counting = not largest and not attrs["include_pad"]
    if counting:
        kernel.add("count = tl.zeros([BLOCK], dtype=tl.float32)")
    depth = len(taps)
    for level, (i, tap) in enumerate(zip(letters, taps)):
        kernel.add("    " * level + f"for k{i} in range({tap}):")
    outer, kernel.lines = kernel.lines, []
    window(kernel, letters, sizes, numbers)
    source = "picture"
    for i, size in zip(letters, sizes):
        source = f"{wrapped(source)} * {size} + i{i}"
    other = '-float("inf")' if largest else "0.0"
    kernel.add(f"value = tl.load({px} + {source}, mask=inside, other={other})")
    kernel.add("acc = tl.maximum(acc, value)" if largest else "acc += value")
    if counting:
        kernel.add("count += tl.where(inside, 1.0, 0.0)")
    kernel.lines = outer + ["    " * depth + line for line in kernel.lines]
    if counting:
        kernel.add("acc = acc / count")
    elif not largest:
        kernel.add(f"acc = acc / {wrapped(' * '.join(taps))}")
    finish_flat(kernel, stage, space, host, outs)


def window(kernel: Kernel, letters, sizes: list[str], numbers: dict[str, list[str]]) -> None:
    """Lines for the input's coordinates under a tap, and for whether they are inside."""
    conditions = []
    for j, (i, size) in enumerate(zip(letters, sizes)):
        reach = f" * {numbers['dilation'][j]}" if "dilation" in numbers else ""
        kernel.add(f"i{i} = {i} * {numbers['stride'][j]} - {numbers['padding'][j]} + k{i}{reach}")
        conditions += [f"(i{i} >= 0)", f"(i{i} < {size})"]
    kernel.add(f"inside = mask & {' & '.join(conditions)}")
