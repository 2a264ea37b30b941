"""The flat output taken apart: helpers of the kernels whose programs take BLOCK elements of it (pooling,
direct convolution, gathers).
"""

from nanotriton.collect.compose.emit.kernel import Group, Kernel, Space
from nanotriton.collect.compose.emit.pointwise import flat_space
from nanotriton.collect.compose.fuse import Stage
from nanotriton.collect.compose.ir import text_of

LETTERS = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def start(kernel: Kernel, stage: Stage, dim_texts: list[str], out: str) -> Space:
    """The lines that say which elements of the output a program has. out: what forward calls it."""
    return flat_space(kernel, stage, dim_texts, f"{out}.numel()")


def coordinates(kernel: Kernel, names: list[str], sizes: list[str], index: str = "offsets") -> None:
    """Lines that take a flat index apart. sizes: of all coordinates but the first, as names in the kernel; a
    name "" is left out.
    """
    for i, name in enumerate(names):
        after = sizes[i:]
        text = index
        if after:
            text += f" // {after[0]}" if len(after) == 1 else f" // ({' * '.join(after)})"
        if i:
            text += f" % {sizes[i - 1]}"
        if name:
            kernel.add(f"{name} = {text}")


def number(kernel: Kernel, name: str, value) -> str:
    """A hyperparameter in the kernel: a literal as it stands in the task, or an argument that the host reads
    from the layer.
    """
    return kernel.size(name, text_of(value)) if hasattr(value, "text") else text_of(value)


def spread(lines: list[str], fresh, values: tuple, whole: str, names: list[str]) -> list[str]:
    """Lines of forward that give a hyperparameter's values names -> the name for each dimension. A number
    that holds for all of them has one name, `whole`.
    """
    texts = [text_of(v) for v in values]
    if len(set(texts)) == 1:
        name = fresh(whole)
        lines.append(f"{name} = {texts[0]}")
        return [name] * len(values)
    own = [fresh(name) for name in names]
    layer = texts[0].removesuffix("[0]")
    if texts == [f"{layer}[{i}]" for i in range(len(texts))]:
        lines.append(f"{', '.join(own)} = {layer}")
    else:
        lines.append(f"{', '.join(own)} = {', '.join(texts)}")
    return own


def received(kernel: Kernel, given: list[str], whole: str, names: list[str]) -> list[str]:
    """The kernel's parameters for what `spread` named."""
    if len(set(given)) == 1:
        return [kernel.size(whole, given[0])] * len(given)
    return [kernel.size(name, text) for name, text in zip(names, given)]


def numbers(kernel: Kernel, name: str, values: tuple, letters: tuple[str, ...]) -> list[str]:
    """One text a dimension for numbers of an operator."""
    if len({text_of(v) for v in values}) == 1:
        return [number(kernel, name, values[0])] * len(values)
    return [number(kernel, f"{name}_{letter}", v) for letter, v in zip(letters, values)]


__all__ = ["LETTERS", "Group", "coordinates", "number", "numbers", "received", "spread", "start"]
