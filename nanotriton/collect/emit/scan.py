"""Running sums and products: a program holds a row and scans it, or each lane goes along a row of its own
where rows aren't contiguous.
"""

import torch

from nanotriton.collect.emit.kernel import Body, Group, Kernel, Space, last_uses
from nanotriton.collect.fuse import Stage
from nanotriton.collect.ir import Node, Unfit

SCAN = {
    "cumsum": "tl.cumsum({0}, axis=0{1})",
    "cumprod": "tl.cumprod({0}, axis=0{1})",
    "logcumsumexp": "tl.associative_scan({0}, 0, log_add{1})",
}
LOG_ADD = """\
@triton.jit
def log_add(a, b):
    top = tl.maximum(a, b)
    return top + tl.log(tl.exp(a - top) + tl.exp(b - top))
"""
EMPTY = {"cumsum": "0", "cumprod": "1", "logcumsumexp": '-float("inf")'}


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    (x,) = stage.anchor.args
    return [f"{host[x]}.shape[{i}]" for i in range(x.rank)]


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    (along_lanes if stage.anchor.attrs["dim"] < len(stage.full) - 1 else along_rows)(
        kernel, stage, host, outs, dim_texts
    )


def along_rows(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    (x,), attrs = stage.anchor.args, stage.anchor.attrs
    rank = len(stage.full)
    kernel.taken |= {"row", "col", "mask", "BLOCK", "x"}
    before = tuple(range(rank - 1))
    groups = [Group(before, "row", "rows"), Group((rank - 1,), "col", "cols", "mask")]
    space = Space(stage.full, [g for g in groups if g.dims], texts, kernel, "mask")
    px = kernel.pointer(x, host[x])
    cols = kernel.size("cols", texts[-1])
    kernel.constant("BLOCK", f"triton.next_power_of_2({kernel.sizes[cols]})")
    kernel.grid = f"({space.length(before)},)"
    if before:
        kernel.add("row = tl.program_id(0)")
    kernel.add("col = tl.arange(0, BLOCK)", f"mask = col < {cols}")
    place, _ = space.place(stage.full)
    kind = (
        ".to(tl.float32)"
        if x.dtype in (torch.float16, torch.bfloat16)
        else ".to(tl.int64)"
        if stage.anchor.dtype == torch.int64
        else ""
    )
    kernel.add(f"x = tl.load({px} + {place}, mask=mask, other={EMPTY[attrs['kind']]}){kind}")
    if attrs["kind"] == "logcumsumexp":
        kernel.helpers.append(LOG_ADD)
    kernel.add("x = " + SCAN[attrs["kind"]].format("x", ", reverse=True" if attrs["reverse"] else ""))
    epilogue(kernel, stage, space, host, outs, "x")


def along_lanes(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    (x,), attrs, dim, rank = stage.anchor.args, stage.anchor.attrs, stage.anchor.attrs["dim"], len(stage.full)
    if attrs["kind"] == "logcumsumexp" or stage.anchor.dtype == torch.int64:
        raise Unfit("this scan along another dimension than the last")
    kernel.taken |= {"row", "lane", "k", "mask", "BLOCK", "acc", "x"}
    before, after = tuple(range(dim)), tuple(range(dim + 1, rank))
    groups = [
        Group(before, "row", "rows"),
        Group((dim,), "k", "length"),
        Group(after, "lane", "inner", "mask"),
    ]
    space = Space(stage.full, [g for g in groups if g.dims], texts, kernel, "mask")
    px = kernel.pointer(x, host[x])
    inner, length = kernel.size("inner", space.length(after)), kernel.size("length", texts[dim])
    kernel.constant("BLOCK", "256")
    blocks = f"triton.cdiv({kernel.sizes[inner]}, 256)"
    kernel.grid = f"({space.length(before)}, {blocks})" if before else f"({blocks},)"
    if before:
        kernel.add("row = tl.program_id(0)")
    kernel.add(
        f"lane = tl.program_id({1 if before else 0}) * BLOCK + tl.arange(0, BLOCK)", f"mask = lane < {inner}"
    )
    kernel.add(
        "acc = tl.zeros([BLOCK], dtype=tl.float32)"
        if attrs["kind"] == "cumsum"
        else "acc = tl.full([BLOCK], 1.0, dtype=tl.float32)"
    )
    loop = f"for k in range({length}):" if not attrs["reverse"] else f"for k in range({length} - 1, -1, -1):"
    kernel.add(loop)
    outer, kernel.lines = kernel.lines, []
    place, _ = space.place(stage.full)
    kernel.add(f"acc {'+' if attrs['kind'] == 'cumsum' else '*'}= tl.load({px} + {place}, mask=mask)")
    if len(stage.nodes) > 1:
        kernel.add("x = acc")
    epilogue(kernel, stage, space, host, outs, "x" if len(stage.nodes) > 1 else "acc")
    kernel.lines = outer + [f"    {line}" for line in kernel.lines]


def epilogue(kernel: Kernel, stage: Stage, space: Space, host, outs, value: str) -> None:
    body = Body(kernel, space, stage, host)
    body.variable[stage.anchor] = body.names[stage.anchor] = value
    last = last_uses(stage)
    for node in stage.nodes:
        body.compute(node, last)
    for node in stage.stored:
        place, mask = space.place(stage.full)
        body.store(node, outs[node], place, mask)
