"""Products of matrices with tl.dot, and the element-wise operators after them in the same kernel."""

from nanotriton.collect.compose.emit.kernel import Body, Group, Kernel, Space, last_uses, product
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node

BLOCKS = {"BLOCK_M": "64", "BLOCK_N": "64", "BLOCK_K": "32"}


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    """The product's dimensions on the host."""
    a, b = stage.anchor.args
    m = a.rank - (1 if stage.anchor.attrs["trans_a"] else 2)
    n = b.rank - (2 if stage.anchor.attrs["trans_b"] else 1)
    leading = [f"{host[a]}.shape[{i}]" for i in range(a.rank - 2)]
    return [*leading, f"{host[a]}.shape[{m}]", f"{host[b]}.shape[{n}]"]


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    a, b = stage.anchor.args
    trans_a, trans_b = stage.anchor.attrs["trans_a"], stage.anchor.attrs["trans_b"]
    rank = len(stage.full)
    batched = b.rank > 2
    groups = [Group(tuple(range(rank - 2)), "batch", "batches")] if batched else []
    rows = (rank - 2,) if batched else tuple(range(rank - 1))
    kernel.taken |= {"row", "col", "k", "mask", "batch", "acc", "start", "a", "b", *BLOCKS}
    m = kernel.size("M", product([dim_texts[d] for d in rows]))
    n = kernel.size("N", dim_texts[-1])
    groups += [Group(rows, "row", "M", f"row < {m}"), Group((rank - 1,), "col", "N", f"col < {n}")]
    space = Space(stage.full, groups, dim_texts, kernel, "mask")
    inner = f"{host[a]}.shape[{a.rank - (2 if trans_a else 1)}]"
    k = kernel.size("K", inner)
    for name, size in BLOCKS.items():
        kernel.constant(name, size)
    grid = [
        f"triton.cdiv({kernel.sizes[m]}, {BLOCKS['BLOCK_M']})",
        f"triton.cdiv({kernel.sizes[n]}, {BLOCKS['BLOCK_N']})",
    ]
    kernel.grid = f"({', '.join(grid + ([space.length(range(rank - 2))] if batched else []))})"

    pa, pb = kernel.pointer(a, host[a]), kernel.pointer(b, host[b])
    kernel.add(
        "row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
        "col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
    )
    offset_a = offset_b = ""
    if batched:
        kernel.add("batch = tl.program_id(2)")
        offset_a, offset_b = f" + batch * {m} * {k}", f" + batch * {k} * {n}"
    place_a = f"k[None, :] * {m} + row" if trans_a else f"row * {k} + k[None, :]"
    place_b = f"col * {k} + k[:, None]" if trans_b else f"k[:, None] * {n} + col"
    kernel.add(
        "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
        f"for start in range(0, {k}, BLOCK_K):",
        "    k = start + tl.arange(0, BLOCK_K)",
        f"    a = tl.load({pa}{offset_a} + {place_a}, mask=(row < {m}) & (k[None, :] < {k}), other=0.0)",
        f"    b = tl.load({pb}{offset_b} + {place_b}, mask=(k[:, None] < {k}) & (col < {n}), other=0.0)",
        '    acc = tl.dot(a, b, acc, input_precision="ieee")',
        f"mask = (row < {m}) & (col < {n})",
    )
    finish(kernel, stage, space, host, outs, {"{row}": "row", "{col}": "col"} if len(rows) == 1 else {})


def finish(kernel: Kernel, stage: Stage, space: Space, host, outs, places=None, acc: str = "acc") -> None:
    """The epilogue of any kernel whose anchor's value is in the variable `acc`, and its stores."""
    body = Body(kernel, space, stage, host, places)
    body.variable[stage.anchor] = body.names[stage.anchor] = acc
    last = last_uses(stage)
    for node in stage.nodes:
        body.compute(node, last)
    for node in stage.stored:
        place, mask = space.place(stage.full, own=True)
        body.store(node, outs[node], place, mask)
