"""A short account of a solution, told from its operator graph: what is computed, how memory is read, the
launch, the masks, the wrapper.

It stands before the code, as a person would sketch the kernel before writing it. Every sentence is about
something that the code below it has.
"""

from nanotriton.collect.compose.compose import UNSAID, Composed
from nanotriton.collect.compose.fuse import Stage

ACCESS = {
    "pointwise": "Each program takes a block of the flat output.",
    "total": "Each program reduces a block and joins its part to the result with an atomic {atomic}.",
    "matmul": "Each program computes a tile with tl.dot, block by block along the inner dimension, in fp32.",
    "conv": "It is an implicit matrix product: rows are output places, columns output channels, and the sum runs over input channels and taps.",  # noqa: E501
    "grouped": "Each lane has one output element and adds up its group's channels and taps.",
    "pool": "Each lane has one output element and goes over its window.",
    "scan": "The scan carries what it has come to along the dimension, so it works at any length.",
    "rank": "An element's place is the number of elements that come before it, so a row is compared with each of its elements in turn.",  # noqa: E501
    "attention": "Each program has a block of queries and goes over the keys; a running maximum and sum make the softmax, so no score is stored.",  # noqa: E501
    "lanes": "Each lane has a column of its own and goes down it, as the reduced dimension isn't the last.",
    "rows": "One program per row goes over it block by block, so rows of any length work.",
}
QUIET = (*UNSAID, "cast")  # steps of something that has a name of its own
GATHER = "Each lane has one place of the output and works out which element of the input belongs there."


def reasoning(composed: Composed) -> str:
    """A paragraph for one kernel; for several, a line for each, in order."""
    several = len(composed.stages) > 1
    lines = [given(composed)]
    for stage, kernel in zip(composed.stages, composed.kernels):
        prefix = f"`{kernel.name}`: " if several else "One kernel: "
        lines.append(f"{prefix}{what(stage)}. {how(stage, kernel.source())}")
    if several:
        count = number(len(composed.stages))
        lines.insert(1, f"It takes {count} kernels, as each needs the whole result of the one before.")
    lines.append(wrapper(composed))
    return "\n".join(lines)


def given(composed: Composed) -> str:
    """What is read off the module before a line of the kernel is written: the ranks of the inputs, and the
    parameters that there are. What a layer does not have, such as a bias that its maker turned off, is said
    too: a small model loads it otherwise.
    """
    inputs = [n for n in composed.graph.nodes if n.op == "input"]
    parameters = [n.text.removeprefix("self.") for n in composed.graph.nodes if n.op == "param"]
    text = ", ".join(f"{n.text or n.name} has {count(n.rank)}" for n in inputs)
    if parameters:
        text += f"; parameters: {', '.join(parameters)}"
        layers = [p.removesuffix(".weight") for p in parameters if p.endswith(".weight")]
        bare = [layer for layer in layers if f"{layer}.bias" not in parameters]
        text += "".join(f"; {layer} has no bias" for layer in bare)
    return f"{text}."


def count(rank: int) -> str:
    return f"{rank} dimension{'s' * (rank != 1)}"


def number(n: int) -> str:
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(n, str(n))


def what(stage: Stage) -> str:
    """The operators of a kernel, as their names stand in PyTorch."""
    own = [n for n in stage.nodes if n.op != "reduce" or n.attrs.get("asked")]
    said = list(dict.fromkeys(n.said for n in own if n.said not in QUIET))
    said = said or list(dict.fromkeys(n.said for n in stage.nodes if n.op == "reduce"))
    return ", ".join(s.replace("_", " ") for s in said) or "the copy"


def how(stage: Stage, source: str) -> str:
    kind = stage.kind
    if kind == "rows":
        kind = "lanes" if "lane = " in source else "rows"
    elif kind == "conv" and "tl.dot" not in source:
        kind = "grouped"
    atomic = next((a for a in ("max", "min") if f"atomic_{a}" in source), "add")
    text = ACCESS.get(kind, GATHER).format(atomic=atomic)
    if ".to(tl.float32)" in source:
        text += " Half precision is widened to fp32."
    return text


def wrapper(composed: Composed) -> str:
    text = "Lanes past the end are masked. "
    text += "Sizes come from shapes, and forward only allocates and launches."
    if any(n.op == "param" for n in composed.graph.nodes):
        text += " Parameters are made as in `Model`."
    return text
