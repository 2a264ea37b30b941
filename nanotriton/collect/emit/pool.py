"""Pooling: each lane has one output element, and the window is unrolled by tl.static_range."""

from nanotriton.collect.emit import flat
from nanotriton.collect.emit.conv import finish_flat
from nanotriton.collect.emit.kernel import Kernel
from nanotriton.collect.fuse import Stage
from nanotriton.collect.ir import Node, text_of

UNROLLED = 32  # taps; larger windows are a loop


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    from nanotriton.collect.emit.conv import plain_size

    (x,), attrs = stage.anchor.args, stage.anchor.attrs
    texts = [f"{host[x]}.shape[0]", f"{host[x]}.shape[1]"]
    for i, (k, s, p, d) in enumerate(
        zip(attrs["kernel"], attrs["stride"], attrs["padding"], attrs["dilation"])
    ):
        n = f"{host[x]}.shape[{i + 2}]"
        if int(d) == 1 and int(p) == 0 and text_of(k) == text_of(s):
            texts.append(f"{n} // {text_of(k)}")
            continue
        reach = f"{text_of(k)} - 1" if int(d) == 1 else f"{text_of(d)} * ({text_of(k)} - 1)"
        texts.append(plain_size(n, s, p, reach))
    return texts


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    (x,), attrs = stage.anchor.args, stage.anchor.attrs
    letters = flat.LETTERS[x.rank - 2]
    kernel.taken |= {
        "acc",
        "picture",
        "inside",
        "value",
        "count",
        *letters,
        *("k" + i for i in letters),
        *("i" + i for i in letters),
    }
    out = outs[stage.stored[0]]
    texts = [f"{out}.shape[{i}]" for i in range(len(stage.full))]
    px = kernel.pointer(x, host[x])
    space = flat.start(kernel, stage, texts)
    outs_sizes = [kernel.size(f"O{i.upper()}", texts[j + 2]) for j, i in enumerate(letters)]
    sizes = [kernel.size(i.upper(), f"{host[x]}.shape[{j + 2}]") for j, i in enumerate(letters)]
    taps = [kernel.constant(f"K{i.upper()}", text_of(k)) for i, k in zip(letters, attrs["kernel"])]
    flat.coordinates(kernel, ["picture", *letters], outs_sizes)
    largest = attrs["kind"] == "max"
    kernel.add(
        'acc = tl.full([BLOCK], -float("inf"), dtype=tl.float32)'
        if largest
        else "acc = tl.zeros([BLOCK], dtype=tl.float32)"
    )
    counting = not largest and not attrs["include_pad"] and any(map(int, attrs["padding"]))
    if counting:
        kernel.add("count = tl.zeros([BLOCK], dtype=tl.float32)")
    total = 1
    for k in attrs["kernel"]:
        total *= int(k)
    loop = "tl.static_range" if total <= UNROLLED else "range"
    depth = len(taps)
    for level, (i, tap) in enumerate(zip(letters, taps)):
        kernel.add("    " * level + f"for k{i} in {loop}({tap}):")
    outer, kernel.lines = kernel.lines, []
    inside = places(kernel, stage, letters, sizes)
    source = "picture"
    for i, size in zip(letters, sizes):
        source = f"({source}) * {size} + i{i}" if source != "picture" else f"picture * {size} + i{i}"
    other = '-float("inf")' if largest else "0.0"
    mask = f"mask & {inside}" if inside else "mask"
    kernel.add(f"value = tl.load({px} + {source}, mask={mask}, other={other})")
    kernel.add("acc = tl.maximum(acc, value)" if largest else "acc += value")
    if counting:
        kernel.add(f"count += tl.where({inside}, 1.0, 0.0)")
    kernel.lines = outer + ["    " * depth + line for line in kernel.lines]
    if not largest:
        kernel.add(
            "acc = acc / count"
            if counting
            else f"acc = acc / {taps[0]}"
            if depth == 1
            else f"acc = acc / ({' * '.join(taps)})"
        )
    finish_flat(kernel, stage, space, host, outs)


def places(kernel: Kernel, stage: Stage, letters, sizes: list[str]) -> str:
    """Lines for the input's coordinates -> the condition that they are inside, "" where windows never leave
    the input.
    """
    attrs = stage.anchor.attrs
    stride = flat.numbers(kernel, "stride", attrs["stride"], letters, 1)
    if all(text_of(k) == text_of(s) for k, s in zip(attrs["kernel"], attrs["stride"])):
        stride = [f"K{i.upper()}" for i in letters]
    padding = flat.numbers(kernel, "padding", attrs["padding"], letters, 0)
    dilation = flat.numbers(kernel, "dilation", attrs["dilation"], letters, 1)
    conditions = []
    for i, size, s, p, d in zip(letters, sizes, stride, padding, dilation):
        kernel.add(f"i{i} = {flat.window(i, s, p, f'k{i}', d)}")
        if p:
            conditions += [f"(i{i} >= 0)", f"(i{i} < {size})"]
    return " & ".join(conditions)
