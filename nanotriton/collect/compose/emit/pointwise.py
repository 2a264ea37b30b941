"""Element-wise kernels, and the sum of everything: a program takes BLOCK elements of the flat output."""

from nanotriton.collect.compose.emit.kernel import Body, Group, Kernel, Space, last_uses
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node, Unfit

BLOCK = 1024


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    """A chain of element-wise operators. Several results are stored side by side."""
    space = flat_space(kernel, stage, dim_texts, f"{outs[stage.stored[0]]}.numel()")
    body = Body(kernel, space, stage, host, matrix_places(kernel, stage, space))
    last = last_uses(stage)
    for node in stage.nodes:
        body.compute(node, last)
    for node in stage.stored:
        body.store(node, outs[node], "offsets", "mask")


def flat_space(kernel: Kernel, stage: Stage, dim_texts: list[str], count: str = "") -> Space:
    """Writes the lines that say which elements a program has. count: how many there are, on the host."""
    everything = tuple(range(len(stage.full)))
    space = Space(stage.full, [Group(everything, "offsets", "n", "mask")], dim_texts, kernel, "mask")
    n = kernel.size("n", count or space.length(everything))
    kernel.constant("BLOCK", str(BLOCK))
    kernel.grid = f"(triton.cdiv({kernel.sizes[n]}, {BLOCK}),)"
    kernel.taken |= {"offsets", "mask", "BLOCK"}
    kernel.add("offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", f"mask = offsets < {n}")
    return space


def matrix_places(kernel: Kernel, stage: Stage, space: Space) -> dict[str, str]:
    """How the last two dimensions' places are spelt, for operators that ask for {row} or {col}."""
    rank = len(stage.full)
    if rank < 2 or not any("{row}" in n.text or "{col}" in n.text for n in stage.nodes):
        return {}
    cols = kernel.size("cols", space.dim_texts[-1])
    row = f"offsets // {cols}" + (f" % {kernel.size('rows', space.dim_texts[-2])}" if rank > 2 else "")
    return {"{row}": f"({row})", "{col}": f"(offsets % {cols})"}


def emit_total(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    """The sum, mean, maximum or minimum of everything: programs add their parts to one number, which starts
    at zero, or at what is less, or more, than everything.
    """
    if len(stage.stored) > 1:
        raise Unfit("what is computed with the reduction of a whole tensor")
    (result,) = stage.stored
    space = flat_space(kernel, stage, dim_texts)
    body = Body(kernel, space, stage, host)
    last = last_uses(stage)
    for node in stage.nodes[:-1]:
        body.compute(node, last)
    x = body.value(result.args[0])
    nothing = {"max": '-float("inf")', "min": 'float("inf")'}.get(result.text, "0.0")
    across = {"mean": "sum"}.get(result.text, result.text)
    total = f"tl.{across}(tl.where(mask, {x}, {nothing}), axis=0)"
    if result.text == "mean":
        total += f" / {kernel.size('n', space.length(range(len(stage.full))))}"
    pointer = kernel.pointer(Node("out", "out", (), (), result.dtype), outs[result])
    kernel.add(f"tl.atomic_{across.replace('sum', 'add')}({pointer}, {total})")
    kernel.start = nothing
