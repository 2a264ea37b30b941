"""Convolutions of one to three dimensions, and transposed ones, with their epilogues.

Without groups, as an implicit product of matrices: rows are the output's places, columns its channels, and
the sum runs over input channels and taps; no matrix of windows is ever stored. With groups, directly: each
lane has one output element and adds up its taps.
"""

from nanotriton.collect.emit import flat
from nanotriton.collect.emit.kernel import Group, Kernel, Space
from nanotriton.collect.emit.matmul import BLOCKS, finish
from nanotriton.collect.fuse import Stage
from nanotriton.collect.ir import Node, Unfit, text_of


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    """[batch, channels, ...] of the output on the host, by the formula of torch.nn's documentation."""
    x, w = stage.anchor.args
    attrs, transposed = stage.anchor.attrs, stage.anchor.attrs["transposed"]
    texts = [f"{host[x]}.shape[0]"]
    if transposed:
        groups = text_of(attrs["groups"])
        texts.append(f"{host[w]}.shape[1]" + (f" * {groups}" if int(attrs["groups"]) > 1 else ""))
    else:
        texts.append(f"{host[w]}.shape[0]")
    extra = attrs.get("output_padding", (0,) * len(attrs["stride"]))
    for i, (s, p, d, e) in enumerate(zip(attrs["stride"], attrs["padding"], attrs["dilation"], extra)):
        n, k = f"{host[x]}.shape[{i + 2}]", f"{host[w]}.shape[{i + 2}]"
        reach = f"{k} - 1" if int(d) == 1 else f"{text_of(d)} * ({k} - 1)"
        texts.append(transposed_size(n, s, p, reach, e) if transposed else plain_size(n, s, p, reach))
    return texts


def plain_size(n: str, s, p, reach: str) -> str:
    padded = n if int(p) == 0 else f"{n} + 2 * {text_of(p)}"
    inner = f"{padded} - {f'({reach})'}"
    if int(s) == 1:
        return inner
    return f"({inner} - 1) // {text_of(s)} + 1"


def transposed_size(n: str, s, p, reach: str, e) -> str:
    text = f"({n} - 1) * {text_of(s)}" if int(s) != 1 else f"{n} - 1"
    text += f" + {reach} + 1"
    text += f" - 2 * {text_of(p)}" if int(p) else ""
    return text + (f" + {text_of(e)}" if int(e) else "")


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    out = outs.get(stage.stored[0])
    texts = [
        f"{out}.shape[{i}]" for i in range(len(stage.full))
    ]  # the output is there already: its shape is the shortest way to say them
    (direct if int(stage.anchor.attrs["groups"]) > 1 else implicit_gemm)(kernel, stage, host, outs, texts)


def implicit_gemm(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    x, w = stage.anchor.args
    letters = flat.LETTERS[x.rank - 2]
    kernel.taken |= {
        "row",
        "col",
        "k",
        "c",
        "mask",
        "acc",
        "start",
        "a",
        "b",
        "n",
        "place",
        "inside",
        *BLOCKS,
        *letters,
        *("k" + i for i in letters),
        *("i" + i for i in letters),
    }
    pixels = tuple(range(2, len(stage.full)))
    groups = [
        Group((0,), "n", "batch", "row < M"),
        Group((1,), "col", "N", "col < N"),
        Group(pixels, "place", "P", "row < M"),
    ]
    space = Space(stage.full, groups, texts, kernel, "mask")
    px, pw = kernel.pointer(x, host[x]), kernel.pointer(w, host[w])
    p, n = kernel.size("P", space.length(pixels)), kernel.size("N", texts[1])
    m = kernel.size("M", f"{texts[0]} * {space.length(pixels)}")
    channels = kernel.size("C", f"{host[x]}.shape[1]")
    sizes = [kernel.size(i.upper(), f"{host[x]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    outs_sizes = [kernel.size(f"O{i.upper()}", texts[j + 2]) for j, i in enumerate(letters[1:], 1)]
    taps = [kernel.constant(f"K{i.upper()}", f"{host[w]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    for name, size in BLOCKS.items():
        kernel.constant(name, size)
    kernel.grid = f"(triton.cdiv({kernel.sizes[m]}, {BLOCKS['BLOCK_M']}), triton.cdiv({kernel.sizes[n]}, {BLOCKS['BLOCK_N']}))"  # noqa: E501

    kernel.add(
        "row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
        "col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
        f"n = row // {p}",
        f"place = row % {p}",
    )
    if len(letters) > 1:
        flat.coordinates(kernel, list(letters), outs_sizes, "place")
    else:
        kernel.add("w = place")
    window = " * ".join(taps)
    kernel.add(
        "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
        f"for start in range(0, {channels} * {window}, BLOCK_K):",
    )
    outer, kernel.lines = kernel.lines, []
    kernel.add("k = start + tl.arange(0, BLOCK_K)")
    flat.coordinates(kernel, ["c", *("k" + i for i in letters)], taps, "k")
    inside = input_places(kernel, stage, letters, sizes, lambda i: f"k{i}[None, :]")
    limit = f"{channels} * {window}"
    source = f"(n * {channels} + c[None, :])"
    for i, size in zip(letters, sizes):
        source = f"({source} * {size} + i{i})"
    kernel.add(
        f"inside = (row < {m}) & (k[None, :] < {limit}) & {inside}",
        f"a = tl.load({px} + {source[1:-1]}, mask=inside, other=0.0)",
        f"b = tl.load({pw} + {weight_place(stage, n, window, limit)}, mask=(k[:, None] < {limit}) & (col < {n}), other=0.0)",  # noqa: E501
        'acc = tl.dot(a, b, acc, input_precision="ieee")',
    )
    kernel.lines = outer + [f"    {line}" for line in kernel.lines]
    kernel.add(f"mask = (row < {m}) & (col < {n})")
    finish(kernel, stage, space, host, outs)


def weight_place(stage: Stage, n: str, window: str, limit: str) -> str:
    """A weight is [out, in, taps...], of a transposed convolution [in, out, taps...]."""
    if stage.anchor.attrs["transposed"]:
        return (
            f"(k[:, None] // ({window}) * {n} + col) * {window} + k[:, None] % ({window})"
            if "*" in window
            else f"(k[:, None] // {window} * {n} + col) * {window} + k[:, None] % {window}"
        )
    return f"col * {limit} + k[:, None]"


def input_places(kernel: Kernel, stage: Stage, letters, sizes: list[str], tap) -> str:
    """Lines for the input's coordinates `id`, `ih`, `iw` under a tap -> the condition that they are inside
    the input.
    """
    attrs = stage.anchor.attrs
    stride = flat.numbers(kernel, "stride", attrs["stride"], letters, 1)
    padding = flat.numbers(kernel, "padding", attrs["padding"], letters, 0)
    dilation = flat.numbers(kernel, "dilation", attrs["dilation"], letters, 1)
    conditions = []
    for i, size, s, p, d in zip(letters, sizes, stride, padding, dilation):
        if attrs["transposed"]:
            place = i + (f" + {p}" if p else "") + f" - {tap(i)}" + (f" * {d}" if d else "")
            kernel.add(f"i{i} = {place}")
            if s:
                conditions.append(f"(i{i} % {s} == 0)")
                conditions.append(f"(i{i} >= 0)")
                conditions.append(f"(i{i} // {s} < {size})")
            else:
                conditions += [f"(i{i} >= 0)", f"(i{i} < {size})"]
        else:
            kernel.add(f"i{i} = {flat.window(i, s, p, tap(i), d)}")
            conditions += [f"(i{i} >= 0)", f"(i{i} < {size})"] if p else [f"(i{i} < {size})"]
    if attrs["transposed"] and any(stride):
        kernel.add(f"inside = {' & '.join(conditions)}")
        kernel.add(*(f"i{i} = i{i} // {s}" for i, s in zip(letters, stride) if s))
        return "inside"
    return " & ".join(conditions)


def direct(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    """A grouped convolution: for each output element a loop over its group's channels and over the taps."""
    x, w = stage.anchor.args
    letters = flat.LETTERS[x.rank - 2]
    kernel.taken |= {
        "acc",
        "n",
        "c",
        "channel",
        "inside",
        "a",
        "b",
        "ci",
        *letters,
        *("k" + i for i in letters),
        *("i" + i for i in letters),
    }
    px, pw = kernel.pointer(x, host[x]), kernel.pointer(w, host[w])
    space = flat.start(kernel, stage, texts)
    attrs = stage.anchor.attrs
    outs_sizes = [kernel.size(f"O{i.upper()}", texts[j + 2]) for j, i in enumerate(letters)]
    out_channels = kernel.size("N", texts[1])
    sizes = [kernel.size(i.upper(), f"{host[x]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    channels = kernel.size("C", f"{host[x]}.shape[1]")
    taps = [kernel.constant(f"K{i.upper()}", f"{host[w]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    groups = flat.number(kernel, "groups", attrs["groups"])
    flat.coordinates(kernel, ["n", "channel", *letters], [out_channels, *outs_sizes])
    kernel.add(
        f"first = channel // ({out_channels} // {groups}) * ({channels} // {groups})  # of the group's input channels"  # noqa: E501
    )
    kernel.add("acc = tl.zeros([BLOCK], dtype=tl.float32)")
    outer, kernel.lines = kernel.lines, []
    inside = input_places(kernel, stage, letters, sizes, lambda i: f"k{i}")
    source = f"n * {channels} + first + c"
    for i, size in zip(letters, sizes):
        source = f"({source}) * {size} + i{i}"
    if attrs["transposed"]:
        place = f"(first + c) * ({out_channels} // {groups}) + channel % ({out_channels} // {groups})"
    else:
        place = f"channel * ({channels} // {groups}) + c"
    for i, t in zip(letters, taps):
        place = f"({place}) * {t} + k{i}"
    kernel.add(
        f"a = tl.load({px} + {source}, mask=mask & {inside}, other=0.0)",
        f"b = tl.load({pw} + {place}, mask=mask, other=0.0)",
        "acc += a.to(tl.float32) * b",
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
