"""Sorting by rank: an element's place is the number of those that come before it. A block of a row is
compared with each of the row's elements in turn.
"""

from nanotriton.collect.compose.emit.kernel import Kernel
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import FLOATS, Node, Unfit, text_of

BLOCK = 1024


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    (x,), attrs = stage.anchor.args, stage.anchor.attrs
    leading = [f"{host[x]}.shape[{i}]" for i in range(x.rank - 1)]
    if attrs["what"] == "pick":
        return leading
    return [*leading, f"{host[x]}.shape[{x.rank - 1}]" if attrs["k"] is None else text_of(attrs["k"])]


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    (x,), attrs = stage.anchor.args, stage.anchor.attrs
    if len(stage.nodes) > 1:
        raise Unfit("an operator in the same kernel as a sort")
    px, po = (
        kernel.pointer(x, host[x]),
        kernel.pointer(Node("out", "out", (), (), x.dtype), outs[stage.stored[0]]),
    )
    cols = kernel.size("cols", f"{host[x]}.shape[{x.rank - 1}]")
    kernel.constant("BLOCK", str(BLOCK))
    rows = " * ".join(f"{host[x]}.shape[{i}]" for i in range(x.rank - 1)) or "1"
    kernel.grid = f"({rows}, triton.cdiv({kernel.sizes[cols]}, {BLOCK}))"
    sign = ">" if attrs["descending"] else "<"
    address = f"{px} + row * {cols} + " if x.rank > 1 else f"{px} + "
    kernel.add(
        *["row = tl.program_id(0)"] * (x.rank > 1),
        "col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
        f"mask = col < {cols}",
        f"x = tl.load({address}col, mask=mask)",
    )
    kernel.add(
        "rank = tl.zeros([BLOCK], dtype=tl.int32)",
        f"for k in range({cols}):",
        f"    other = tl.load({address}k)",
        f"    before = (other {sign} x) | ((other == x) & (k < col))",
        "    rank += before.to(tl.int32)",
    )
    value = "x" if attrs["what"] != "indices" else "col"
    row = "row * {} + " if x.rank > 1 else ""
    if attrs["what"] == "pick":
        k = f"({cols} - 1) // 2" if attrs["k"] is None else f"{number(kernel, attrs['k'])} - 1"
        place = f"{'row' if x.rank > 1 else '0'} + tl.zeros([BLOCK], dtype=tl.int32)"
        kernel.add(f"tl.store({po} + {place}, x, mask=mask & (rank == {k}))")
    elif attrs["k"] is None:
        kernel.add(f"tl.store({po} + {row.format(cols)}rank, {value}, mask=mask)")
    else:
        k = number(kernel, attrs["k"])
        kernel.add(f"tl.store({po} + {row.format(k)}rank, {value}, mask=mask & (rank < {k}))")
    if x.dtype not in FLOATS and attrs["what"] == "pick":
        raise Unfit("the median of whole numbers")


def number(kernel: Kernel, k) -> str:
    return kernel.size("k_largest", text_of(k)) if hasattr(k, "text") else text_of(k)
