"""A short account of a solution, told from its operator graph: what is computed, how memory is read, the
launch, the masks, the wrapper.

It stands before the code, as a person would sketch the kernel before writing it. Every sentence is about
something that the code below it has.
"""

from nanotriton.collect.compose import UNSAID, Composed
from nanotriton.collect.fuse import Stage

ACCESS = {
    "pointwise": "Each program takes a block of the flat output; every element is read once and written once.",  # noqa: E501
    "total": "Each program sums a block and adds its part to the result with an atomic add, so the result starts at zero.",  # noqa: E501
    "matmul": "Each program computes a tile of the result, goes along the inner dimension block by block and accumulates in fp32 with tl.dot.",  # noqa: E501
    "conv": "The convolution is an implicit matrix product: rows are output places, columns are output channels, and the sum runs over input channels and taps.",  # noqa: E501
    "pool": "Each lane has one output element and goes over its window.",
    "scan": "The scan goes along the dimension and carries what it has come to, so it works at any length.",
    "rank": "An element's place is the number of elements that come before it, so a row is compared with each of its elements in turn.",  # noqa: E501
    "attention": "Each program has a block of queries and goes over the keys; a running maximum and sum make the softmax, so no score is stored.",  # noqa: E501
}
QUIET = (*UNSAID, "cast")  # steps of something that has a name of its own
GATHER = "Each lane has one place of the output and works out which element of the input belongs there."


def reasoning(composed: Composed) -> str:
    """A paragraph for one kernel; for several, what each does, in order."""
    parts = []
    if len(composed.stages) > 1:
        parts.append(
            f"The module needs {number(len(composed.stages))} kernels, because each needs the whole result of the one before."  # noqa: E501
        )
    for stage, kernel in zip(composed.stages, composed.kernels):
        prefix = f"`{kernel.name}`: " if len(composed.stages) > 1 else ""
        parts.append(prefix + what(stage) + " " + how(stage, kernel.source()))
    parts.append(wrapper(composed))
    return "\n\n".join(parts)


def number(n: int) -> str:
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(n, str(n))


def what(stage: Stage) -> str:
    own = [n for n in stage.nodes if n.op != "reduce" or n.attrs.get("asked")]
    said = list(dict.fromkeys(n.said for n in own if n.said not in QUIET))
    said = said or list(dict.fromkeys(n.said for n in stage.nodes if n.op == "reduce"))
    names = [s.replace("_", " ") for s in said]
    listed = (
        names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "the copy"
    )
    return f"It computes {listed}" + (" in one kernel." if len(names) > 1 else ".")


def how(stage: Stage, source: str) -> str:
    text = rows(source) if stage.kind == "rows" else ACCESS.get(stage.kind, GATHER)
    if "mask" in source:
        text += " Lanes past the end are masked"
        text += (
            ", and filled with what the reduction ignores."
            if "other=-float" in source or "tl.where(mask" in source
            else "."
        )
    if ".to(tl.float32)" in source:
        text += " Half precision is widened to fp32 for the arithmetic."
    return text


def rows(source: str) -> str:
    if "lane = " in source:
        return "The reduced dimension isn't the last, so each lane has a column of its own and goes down it; neighbouring lanes read neighbouring addresses."  # noqa: E501
    return "One program per row goes over it block by block, so rows of any length work."


def wrapper(composed: Composed) -> str:
    text = "Sizes come from the input's shape, and the wrapper only allocates the output and launches."
    if any(n.op == "param" for n in composed.graph.nodes):
        text += " Parameters are made as in `Model`, so that they are the same."
    return text
