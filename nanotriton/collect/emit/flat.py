"""The flat output taken apart: helpers of the kernels whose programs take BLOCK elements of it (pooling,
direct convolution, gathers).
"""

from nanotriton.collect.emit.kernel import Group, Kernel, Space
from nanotriton.collect.emit.pointwise import flat_space
from nanotriton.collect.fuse import Stage
from nanotriton.collect.ir import text_of

LETTERS = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def start(kernel: Kernel, stage: Stage, dim_texts: list[str]) -> Space:
    """The lines that say which elements a program has."""
    return flat_space(kernel, stage, dim_texts)


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


def same(values: tuple) -> bool:
    return len(set(map(int, values))) == 1


def numbers(kernel: Kernel, name: str, values: tuple, letters: tuple[str, ...], default: int) -> list[str]:
    """One text a dimension; "" where the number is at its default and changes nothing."""
    if all(int(v) == default for v in values):
        return [""] * len(values)
    if same(values):
        return [number(kernel, name, values[0])] * len(values)
    return [number(kernel, f"{name}_{letter}", v) for letter, v in zip(letters, values)]


def window(out: str, stride: str, padding: str, tap: str, dilation: str) -> str:
    """The input's coordinate under a tap of a window: out * stride - padding + tap * dilation."""
    text = f"{out} * {stride}" if stride else out
    text += f" + {tap} * {dilation}" if dilation else f" + {tap}"
    return f"{text} - {padding}" if padding else text


__all__ = ["LETTERS", "Group", "coordinates", "number", "numbers", "same", "start", "window"]
