"""Running sums and products. A program goes over its row block by block, scans each block and carries what it
came to into the next, so rows of any length work. Where rows aren't contiguous, each lane goes along a row
of its own. A scan from the end reads the row from its end.
"""

import torch

from nanotriton.collect.compose.emit.kernel import Body, Group, Kernel, Space, last_uses
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node

SCAN = {  # (of a block, how the carry joins it, the carry after it, what it starts with)
    "cumsum": ("tl.cumsum({0}, axis=0)", "carry + {0}", "0.0"),
    "cumprod": ("tl.cumprod({0}, axis=0)", "carry * {0}", "1.0"),
    "logcumsumexp": ("tl.associative_scan({0}, 0, log_add)", "log_add(carry, {0})", '-float("inf")'),
}
LOG_ADD = """\
@triton.jit
def log_add(a, b):
    distance = tl.where(a == b, 0.0, tl.abs(a - b))
    return tl.maximum(a, b) + libdevice.log1p(tl.exp(-distance))
"""
BLOCK = 1024


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    along = along_lanes if stage.anchor.attrs["dim"] < len(stage.full) - 1 else along_rows
    along(kernel, stage, host, outs, dim_texts)


def along_rows(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    attrs, rank = stage.anchor.attrs, len(stage.full)
    kernel.taken |= {"row", "col", "mask", "BLOCK", "start", "carry"}
    before = tuple(range(rank - 1))
    groups = [Group(before, "row", "rows"), Group((rank - 1,), "col", "cols", "mask")]
    space = Space(stage.full, [g for g in groups if g.dims], texts, kernel, "mask")
    kernel.constant("BLOCK", str(BLOCK))
    kernel.grid = f"({space.length(before)},)"
    if before:
        kernel.add("row = tl.program_id(0)")
    whole = stage.anchor.dtype == torch.int64
    kernel.add("carry = tl.zeros((), dtype=tl.int64)" if whole else f"carry = {SCAN[attrs['kind']][2]}")
    body = Body(kernel, space, stage, host)
    cols = kernel.size("cols", texts[-1])
    kernel.add(f"for start in range(0, {cols}, BLOCK):")
    outer, kernel.lines = kernel.lines, []
    kernel.add(
        *(
            (f"col = {cols} - 1 - start - tl.arange(0, BLOCK)", "mask = col >= 0")
            if attrs["reverse"]
            else ("col = start + tl.arange(0, BLOCK)", f"mask = col < {cols}")
        )
    )
    x = scanned(body, stage, SCAN[attrs["kind"]][2] if not whole else "0")
    scan_block(kernel, body, stage, x)
    epilogue(body, stage, outs)
    kernel.lines = outer + [f"    {line}" for line in kernel.lines]


def scanned(body: Body, stage: Stage, nothing: str) -> str:
    """The variable with the block that is scanned; lanes past the end of the row hold `nothing`, which
    changes nothing.
    """
    (x,) = stage.anchor.args
    if x not in stage.nodes:
        body.other[x] = nothing
    for node in stage.nodes[: stage.nodes.index(stage.anchor)]:
        body.compute(node, last_uses(stage))
    value = body.value(x)
    if x in stage.nodes:
        body.kernel.add(f"{value} = tl.where(mask, {value}, {nothing})")
    if stage.anchor.dtype == torch.int64 and x.dtype != torch.int64:
        body.kernel.add(f"{value} = {value}.to(tl.int64)")
    return value


def scan_block(kernel: Kernel, body: Body, stage: Stage, x: str) -> None:
    """The block's own scan, what came before it, and what comes out of it."""
    kind = stage.anchor.attrs["kind"]
    text, joined, _ = SCAN[kind]
    if kind == "logcumsumexp":
        kernel.helpers.append(LOG_ADD)
    y = body.variable[stage.anchor] = body.name(stage.anchor)
    kernel.add(f"{y} = {joined.format(text.format(x))}")
    if kind == "cumsum":
        kernel.add(f"carry += tl.sum({x}, axis=0)")
    else:
        kernel.add(f"carry = tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, {y}, 0.0), axis=0)")


def along_lanes(kernel: Kernel, stage: Stage, host, outs, texts: list[str]) -> None:
    attrs = stage.anchor.attrs
    dim = stage.anchor.attrs["dim"]
    rank = len(stage.full)
    kernel.taken |= {"row", "lane", "k", "mask", "BLOCK", "acc"}
    before, after = tuple(range(dim)), tuple(range(dim + 1, rank))
    groups = [
        Group(before, "row", "rows"),
        Group((dim,), "k", "length"),
        Group(after, "lane", "inner", "mask"),
    ]
    space = Space(stage.full, [g for g in groups if g.dims], texts, kernel, "mask")
    inner = kernel.size("inner", space.length(after))
    length = kernel.size("length", texts[dim])
    kernel.constant("BLOCK", "256")
    blocks = f"triton.cdiv({kernel.sizes[inner]}, 256)"
    kernel.grid = f"({space.length(before)}, {blocks})" if before else f"({blocks},)"
    if before:
        kernel.add("row = tl.program_id(0)")
    kernel.add(
        f"lane = tl.program_id({1 if before else 0}) * BLOCK + tl.arange(0, BLOCK)", f"mask = lane < {inner}"
    )
    nothing = SCAN[attrs["kind"]][2]
    if stage.anchor.dtype == torch.int64:
        kernel.add(f"acc = tl.full([BLOCK], {int(float(nothing))}, dtype=tl.int64)")
    elif nothing == "0.0":
        kernel.add("acc = tl.zeros([BLOCK], dtype=tl.float32)")
    else:
        kernel.add(f"acc = tl.full([BLOCK], {nothing}, dtype=tl.float32)")
    loop = f"for k in range({length}):" if not attrs["reverse"] else f"for k in range({length} - 1, -1, -1):"
    kernel.add(loop)
    outer, kernel.lines = kernel.lines, []
    body = Body(kernel, space, stage, host)
    for node in stage.nodes[: stage.nodes.index(stage.anchor)]:
        body.compute(node, last_uses(stage))
    x = body.value(stage.anchor.args[0])
    if attrs["kind"] == "logcumsumexp":
        kernel.helpers.append(LOG_ADD)
        kernel.add(f"acc = log_add(acc, {x})")
    else:
        kernel.add(f"acc {'+' if attrs['kind'] == 'cumsum' else '*'}= {x}")
    body.variable[stage.anchor] = "acc"
    if len(stage.nodes) > stage.nodes.index(stage.anchor) + 1:  # the epilogue must leave acc as it is
        body.variable[stage.anchor] = body.name(stage.anchor)
        kernel.add(f"{body.variable[stage.anchor]} = acc")
    epilogue(body, stage, outs)
    kernel.lines = outer + [f"    {line}" for line in kernel.lines]


def epilogue(body: Body, stage: Stage, outs: dict[Node, str]) -> None:
    last = last_uses(stage)
    for node in stage.nodes:
        body.compute(node, last)
    for node in stage.stored:
        place, mask = body.space.place(stage.full)
        body.store(node, outs[node], place, mask)
