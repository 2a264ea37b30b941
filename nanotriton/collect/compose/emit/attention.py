"""Attention in one kernel (FlashAttention, arXiv 2205.14135): scores are never stored; a running maximum
rescales what was added up.
"""

from nanotriton.collect.compose.emit.kernel import Kernel
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import Node, Unfit, text_of


def out_dims(stage: Stage, host: dict[Node, str]) -> list[str]:
    q = stage.anchor.args[0]
    return [f"{host[q]}.shape[{i}]" for i in range(4)]


def emit(
    kernel: Kernel, stage: Stage, host: dict[Node, str], outs: dict[Node, str], dim_texts: list[str]
) -> None:
    q, k, v = stage.anchor.args
    attrs = stage.anchor.attrs
    if len(stage.nodes) > 1:
        raise Unfit("an operator in the same kernel as attention")
    pq, pk, pv = (kernel.pointer(t, host[t]) for t in (q, k, v))
    po = kernel.pointer(Node("out", "out", (), (), q.dtype), outs[stage.stored[0]])
    rows = kernel.size("rows", f"{host[q]}.shape[2]")
    keys = kernel.size("keys", f"{host[k]}.shape[2]")
    width = kernel.size("width", f"{host[q]}.shape[3]")
    scale = (
        kernel.size("scale", f"{host[q]}.shape[3] ** -0.5")
        if attrs["scale"] is None
        else number(kernel, attrs["scale"])
    )
    kernel.constant("BLOCK_M", "64")
    kernel.constant("BLOCK_N", "32")
    kernel.constant("BLOCK_D", f"max(16, triton.next_power_of_2({host[q]}.shape[3]))")
    kernel.grid = f"(triton.cdiv({host[q]}.shape[2], 64), {host[q]}.shape[0] * {host[q]}.shape[1])"
    kernel.add("head = tl.program_id(1)")
    source = "head"
    # several heads of queries share one of keys and values; both are counted over the whole batch
    if attrs["grouped"]:
        share = kernel.size("share", f"{host[q]}.shape[1] // {host[k]}.shape[1]")
        source = "kv_head"
        kernel.add(f"kv_head = head // {share}")
    visible = f"(key[None, :] < {keys})" + (" & (key[None, :] <= row[:, None])" if attrs["causal"] else "")
    stop = f"tl.minimum({keys}, (tl.program_id(0) + 1) * BLOCK_M)" if attrs["causal"] else keys
    kernel.add(
        "row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
        "col = tl.arange(0, BLOCK_D)",
        f"own = (row[:, None] < {rows}) & (col[None, :] < {width})",
        f"q = tl.load({pq} + (head * {rows} + row[:, None]) * {width} + col[None, :], mask=own, other=0.0)",
        'top = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)',
        "total = tl.zeros([BLOCK_M], dtype=tl.float32)",
        "acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)",
        f"for start in range(0, {stop}, BLOCK_N):",
        "    key = start + tl.arange(0, BLOCK_N)",
        f"    place = ({source} * {keys} + key[:, None]) * {width} + col[None, :]",
        f"    inside = (key[:, None] < {keys}) & (col[None, :] < {width})",
        f"    k = tl.load({pk} + place, mask=inside, other=0.0)",
        f"    v = tl.load({pv} + place, mask=inside, other=0.0)",
        f'    score = tl.dot(q, tl.trans(k), input_precision="ieee") * {scale}',
        f'    score = tl.where({visible}, score, -float("inf"))',
        "    new_top = tl.maximum(top, tl.max(score, axis=1))",
        "    p = tl.exp(score - new_top[:, None])",
        "    shrink = tl.exp(top - new_top)",
        "    total = total * shrink + tl.sum(p, axis=1)",
        '    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")',
        "    top = new_top",
        f"tl.store({po} + (head * {rows} + row[:, None]) * {width} + col[None, :], acc / total[:, None], mask=own)",  # noqa: E501
    )


def number(kernel: Kernel, value) -> str:
    return kernel.size("scale", text_of(value)) if hasattr(value, "text") else text_of(value)
