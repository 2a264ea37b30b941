"""Convolutions of one to three dimensions, and transposed ones, with their epilogues.

Without groups, as an implicit product of matrices: rows are the output's places, columns its channels, and
the sum runs over input channels and taps; no matrix of windows is ever stored. With groups, directly: each
lane has one output element and adds up its taps.
"""

from collections.abc import Callable

from nanotriton.collect.compose.emit import flat
from nanotriton.collect.compose.emit.kernel import HALVES, Group, Kernel, Space
from nanotriton.collect.compose.emit.matmul import BLOCKS, finish
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node, Unfit, text_of


def prepare(
    stage: Stage, host: dict[Node, str], shape: list[str], fresh: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """(lines of forward, the output's dimensions), by the formulas of torch.nn's documentation.

    shape: the input's dimensions on the host. fresh: makes an unused name of forward. The names are left in
    the anchor's attrs["names"] for `emit`. All hyperparameters get a name, also those at their default: then
    the kernel is the same text for each of them.
    """
    x, w = stage.anchor.args
    attrs, transposed = stage.anchor.attrs, stage.anchor.attrs["transposed"]
    letters = flat.LETTERS[x.rank - 2]
    channels = fresh("N")
    taps = [fresh(f"K{i.upper()}") for i in letters]
    named = ["_", channels] if transposed else [channels, "_"]
    lines = [f"{', '.join([*named, *taps])} = {host[w]}.shape"]
    names = {"taps": taps}
    for key, value in (("stride", "s"), ("padding", "p"), ("dilation", "d")):
        names[key] = flat.spread(lines, fresh, attrs[key], key, [value + i for i in letters])
    if transposed and int(attrs["groups"]) > 1:
        lines.append(f"{channels} = {channels} * {text_of(attrs['groups'])}")
    sizes = []
    extra = attrs.get("output_padding", (0,) * len(letters))
    for i, letter in enumerate(letters):
        n, k, s, p, d = shape[i + 2], taps[i], *(names[key][i] for key in ("stride", "padding", "dilation"))
        sizes.append(fresh(f"O{letter.upper()}"))
        if transposed:
            more = "" if all(int(e) == 0 for e in extra) else f" + {text_of(extra[i])}"
            lines.append(f"{sizes[i]} = ({n} - 1) * {s} - 2 * {p} + {d} * ({k} - 1) + 1{more}")
        else:
            lines.append(f"{sizes[i]} = ({n} + 2 * {p} - {d} * ({k} - 1) - 1) // {s} + 1")
    attrs["names"] = names
    return lines, [shape[0], channels, *sizes]


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    grouped = int(stage.anchor.attrs["groups"]) > 1
    (direct if grouped else implicit_gemm)(kernel, stage, host, outs, dim_texts)


def implicit_gemm(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    x, w = stage.anchor.args
    letters = flat.LETTERS[x.rank - 2]
    kernel.taken |= {"row", "col", "k", "c", "mask", "acc", "start", "a", "b", "batch", "place", "inside"}
    kernel.taken |= {*BLOCKS, *letters, *("k" + i for i in letters), *("i" + i for i in letters)}
    pixels = tuple(range(2, len(stage.full)))
    groups = [
        Group((0,), "batch", "batches", "row < M"),
        Group((1,), "col", "N", "col < N"),
        Group(pixels, "place", "P", "row < M"),
    ]
    space = Space(stage.full, groups, texts, kernel, "mask")
    px, pw = kernel.pointer(x, host[x]), kernel.pointer(w, host[w])
    m = kernel.size("M", f"{texts[0]} * {space.length(pixels)}")
    n = kernel.size("N", texts[1])
    channels = kernel.size("C", f"{host[x]}.shape[1]")
    p, sizes, outs_sizes, taps = pictures(kernel, stage, host, texts, letters)
    numbers = hyperparameters(kernel, stage, letters)
    for name, size in BLOCKS.items():
        kernel.constant(name, size)
    rows = f"triton.cdiv({kernel.sizes[m]}, {BLOCKS['BLOCK_M']})"
    cols = f"triton.cdiv({kernel.sizes[n]}, {BLOCKS['BLOCK_N']})"
    kernel.grid = f"({rows}, {cols})"

    kernel.add(
        "row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
        "col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
        f"batch = row // {p}",
        f"place = row % {p}",
    )
    flat.coordinates(kernel, list(letters), outs_sizes[1:], "place")
    window = " * ".join(taps)
    count = f"({window})" if len(taps) > 1 else window
    kernel.add(
        "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
        f"for start in range(0, {channels} * {window}, BLOCK_K):",
    )
    outer, kernel.lines = kernel.lines, []
    kernel.add("k = start + tl.arange(0, BLOCK_K)")
    flat.coordinates(kernel, ["c", *("k" + i for i in letters)], taps, "k")
    inside, at = input_places(kernel, stage, letters, sizes, numbers, lambda i: f"k{i}[None, :]")
    limit = f"{channels} * {window}"
    source = f"(batch * {channels} + c[None, :])"
    for size, i in zip(sizes, at):
        source = f"({source} * {size} + {i})"
    # a weight is [out, in, taps...], of a transposed convolution [in, out, taps...]
    weight = f"col * {limit} + k[:, None]"
    if stage.anchor.attrs["transposed"]:
        weight = f"(c[:, None] * {n} + col) * {window} + k[:, None] % {count}"
    kernel.add(
        f"inside = (row < {m}) & (k[None, :] < {limit}) & {inside}",
        f"a = tl.load({px} + {source[1:-1]}, mask=inside, other=0.0)",
        f"b = tl.load({pw} + {weight}, mask=(k[:, None] < {limit}) & (col < {n}), other=0.0)",
        'acc = tl.dot(a, b, acc, input_precision="ieee")',
    )
    kernel.lines = outer + [f"    {line}" for line in kernel.lines]
    kernel.add(f"mask = (row < {m}) & (col < {n})")
    finish(kernel, stage, space, host, outs)


def pictures(kernel: Kernel, stage: Stage, host, texts: list[str], letters) -> tuple:
    """The kernel's names for P, the places of a picture, and for the sizes of the input, of the output and
    of the window.
    """
    (x, _), names = stage.anchor.args, stage.anchor.attrs["names"]
    sizes = [kernel.size(i.upper(), f"{host[x]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    outs = [kernel.size(f"O{i.upper()}", texts[j + 2]) for j, i in enumerate(letters)]
    p = outs[0] if len(letters) == 1 else kernel.size("P", " * ".join(texts[2:]))
    taps = [kernel.constant(f"K{i.upper()}", t) for t, i in zip(names["taps"], letters)]
    return p, sizes, outs, taps


def hyperparameters(kernel: Kernel, stage: Stage, letters) -> list[tuple[str, str, str]]:
    """The kernel's names for (stride, padding, dilation) of each dimension."""
    names = stage.anchor.attrs["names"]
    columns = [
        flat.received(kernel, names[key], key, [value + i for i in letters])
        for key, value in (("stride", "s"), ("padding", "p"), ("dilation", "d"))
    ]
    return list(zip(*columns))


def input_places(
    kernel: Kernel, stage: Stage, letters, sizes: list[str], numbers, tap
) -> tuple[str, list[str]]:
    """Lines for the input's coordinates `id`, `ih`, `iw` under a tap -> (the condition that they are inside
    the input, the coordinates' texts).
    """
    conditions, at = [], []
    for i, size, (s, p, d) in zip(letters, sizes, numbers):
        if stage.anchor.attrs["transposed"]:
            kernel.add(f"i{i} = {i} + {p} - {tap(i)} * {d}")
            conditions += [f"(i{i} >= 0)", f"(i{i} % {s} == 0)", f"(i{i} // {s} < {size})"]
            at.append(f"i{i} // {s}")
        else:
            kernel.add(f"i{i} = {i} * {s} - {p} + {tap(i)} * {d}")
            conditions += [f"(i{i} >= 0)", f"(i{i} < {size})"]
            at.append(f"i{i}")
    return " & ".join(conditions), at


def direct(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    """A grouped convolution: for each output element a loop over its group's channels and over the taps."""
    x, w = stage.anchor.args
    letters = flat.LETTERS[x.rank - 2]
    kernel.taken |= {"acc", "batch", "c", "channel", "first", "inside", "a", "b"}
    kernel.taken |= {*letters, *("k" + i for i in letters), *("i" + i for i in letters)}
    px, pw = kernel.pointer(x, host[x]), kernel.pointer(w, host[w])
    attrs = stage.anchor.attrs
    out_channels = kernel.size("N", texts[1])
    channels = kernel.size("C", f"{host[x]}.shape[1]")
    outs_sizes = [kernel.size(f"O{i.upper()}", texts[j + 2]) for j, i in enumerate(letters)]
    sizes = [kernel.size(i.upper(), f"{host[x]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    taps = [kernel.size(f"K{i.upper()}", t) for t, i in zip(attrs["names"]["taps"], letters)]
    numbers = hyperparameters(kernel, stage, letters)
    groups = flat.number(kernel, "groups", attrs["groups"])
    space = flat.start(kernel, stage, texts, outs[stage.stored[0]])
    flat.coordinates(kernel, ["batch", "channel", *letters], [out_channels, *outs_sizes])
    group = f"channel // ({out_channels} // {groups})"
    kernel.add(f"first = {group} * ({channels} // {groups})  # of the group's input channels")
    kernel.add("acc = tl.zeros([BLOCK], dtype=tl.float32)")
    outer, kernel.lines = kernel.lines, []
    inside, at = input_places(kernel, stage, letters, sizes, numbers, lambda i: f"k{i}")
    source = f"batch * {channels} + first + c"
    for size, i in zip(sizes, at):
        source = f"({source}) * {size} + {i}"
    if attrs["transposed"]:
        place = f"(first + c) * ({out_channels} // {groups}) + channel % ({out_channels} // {groups})"
    else:
        place = f"channel * ({channels} // {groups}) + c"
    for i, t in zip(letters, taps):
        place = f"({place}) * {t} + k{i}"
    kernel.add(
        f"inside = mask & {inside}",
        f"a = tl.load({px} + {source}, mask=inside, other=0.0)",
        f"b = tl.load({pw} + {place}, mask=mask, other=0.0)",
        "acc += a.to(tl.float32) * b" if x.dtype in HALVES else "acc += a * b",
    )
    loops = [
        f"for c in range({channels} // {groups}):",
        *(f"for k{i} in range({t}):" for i, t in zip(letters, taps)),
    ]
    indent = "    "
    inner = [indent * len(loops) + line for line in kernel.lines]
    kernel.lines = outer + [indent * i + line for i, line in enumerate(loops)] + inner
    finish_flat(kernel, stage, space, host, outs)


def finish_flat(kernel: Kernel, stage: Stage, space: Space, host, outs, acc: str = "acc") -> None:
    if any("{row}" in n.text for n in stage.nodes):
        raise Unfit("a triangle of a picture")
    finish(kernel, stage, space, host, outs, acc=acc)
