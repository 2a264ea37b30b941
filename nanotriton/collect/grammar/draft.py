"""A drawn module before its sizes are filled in, and how it becomes a text.

A Draft has names for sizes and two sets of them. The large ones are what GPUs are used for and what a
model is shown; the small ones make the same module quick to verify on a CPU. A solution that reads its
sizes from the inputs' shapes serves both.
"""

import random
import re
from dataclasses import dataclass, field

from nanotriton.collect.grammar.style import (
    Style,
    docstring,
    forward_docstring,
    numbered,
    renamed,
    with_layers,
    without_clashes,
)
from nanotriton.tasks.task import Task

SOURCE = """\
{imports}


class Model(nn.Module):
{said}{init}    def forward(self, {arguments}){returns}:
{forward_said}        {lines}


{heading}{sizes}


def get_inputs():
    {inputs}


def get_init_inputs():
    return [{init_inputs}]
"""
SMALL = {
    "rows": (3, 9),
    "cols": (33, 90),
    "batch": (2, 4),
    "length": (9, 40),
    "features": (17, 70),
    "channels": (4, 8),
    "depth": (6, 8),
    "height": (8, 13),
    "width": (8, 13),
    "inner": (17, 40),
    "hidden": (17, 40),
    "out_channels": (4, 12),
    "heads": (2, 4),
    "keys": (17, 40),
    "kv_heads": (2, 3),
}
LARGE = {
    "rows": (512, 32768),
    "cols": (256, 65536),
    "batch": (8, 128),
    "length": (256, 4096),
    "features": (256, 4096),
    "channels": (16, 128),
    "depth": (8, 32),
    "height": (32, 512),
    "width": (32, 512),
    "inner": (256, 8192),
    "hidden": (256, 8192),
    "out_channels": (32, 128),
    "heads": (8, 32),
    "keys": (256, 2048),
    "kv_heads": (2, 8),
}
TINY = {  # of volumes, which have so many elements
    "height": (6, 8),
    "width": (6, 8),
    "batch": (2, 2),
    "channels": (4, 4),
    "out_channels": (4, 8),
}
SORTED = 4096  # longest row that is sorted by comparing each element with each other
MOST = 1 << 27  # elements of the first input at the large sizes


class Formula(str):
    """A size that is written with others' names, such as `(out_channels, 1, 1)`."""


class Misfit(Exception):
    """These choices don't go together: draw again."""


@dataclass
class Draft:
    """A module before its sizes are filled in."""

    family: str
    ops: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)  # name -> what draws it
    init: list[str] = field(default_factory=list)  # lines of the constructor
    lines: list[str] = field(default_factory=list)  # of forward; the last one returns
    dtype: str = ""
    even: bool = False  # the last dimension must be even
    sizes: dict[str, tuple] = field(default_factory=dict)  # name -> (small, large)
    multiples: dict[str, int] = field(default_factory=dict)  # what a size must be divisible by
    fixed: dict[str, object] = field(default_factory=dict)  # numbers that are the same in both sets
    defaults: dict[str, object] = field(default_factory=dict)  # of the constructor's last arguments
    style: Style = field(default_factory=Style)

    def source(self, large: bool) -> str:
        """The task's text."""
        style = self.style
        plain = numbered(self.lines, style.steps) if style.steps else self.lines
        names, layers = self.other_names(plain)

        def rename(text: str) -> str:
            return with_layers(renamed(text, names), layers)

        init = [rename(line) for line in self.init]
        lines = [rename(line) for line in plain]
        arguments = [names.get(n, n) for n in self.inputs]
        draws = {names.get(n, n): self.draw(renamed(text, names)) for n, text in self.inputs.items()}
        values = self.values(names, large)
        defaults = {names.get(n, n): v for n, v in self.defaults.items()}

        used = [n for n in values if any(uses(line, n) for line in init)]
        required = [n for n in used if n not in defaults]
        optional = [n for n in used if n in defaults]
        given = list(optional)  # by get_init_inputs: all up to the last that differs from its default
        while given and values[given[-1]] == defaults[given[-1]]:
            given.pop()
        drawn = set(re.findall(r"\w+", " ".join(draws.values())))
        unsaid = set(optional) - set(given) - drawn  # nothing but the default has them
        text = SOURCE.format(
            imports=self.imports([*init, *lines]),
            said=docstring(style, self.ops, "    "),
            init=self.constructor(init, self.signature(required, optional, values, defaults)),
            arguments=", ".join(f"{a}: torch.Tensor" if style.annotated else a for a in arguments),
            returns=" -> torch.Tensor" if style.annotated and not is_tuple(lines[-1]) else "",
            forward_said=forward_docstring(style, arguments, "        "),
            lines="\n        ".join(self.last(lines)),
            heading=f"{style.heading}\n" if style.heading else "",
            sizes="\n".join(f"{n} = {v}" for n, v in values.items() if n not in unsaid),
            inputs="\n    ".join(self.made(draws)),
            init_inputs=", ".join([*required, *given]),
        )
        return text.replace("F.", "torch.nn.functional.") if style.spelled_out else text

    def other_names(self, lines: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        """What the style calls names and layers otherwise, where that clashes with no other name. lines: of
        forward.
        """
        text = " ".join([*self.inputs, *self.inputs.values(), *self.init, *lines])
        words = set(re.findall(r"\w+", text))
        attributes = set(re.findall(r"self\.(\w+)", " ".join([*self.init, *self.lines])))
        names = without_clashes(self.style.names, words | set(self.sizes))
        return names, without_clashes(self.style.layers, attributes)

    def values(self, names: dict[str, str], large: bool) -> dict[str, object]:
        """The sizes of one set, under their other names."""
        found = {}
        for name, pair in self.sizes.items():
            value = pair[large]
            formula = isinstance(value, Formula)
            found[names.get(name, name)] = Formula(renamed(value, names)) if formula else value
        return found

    def signature(self, required: list[str], optional: list[str], values: dict, defaults: dict) -> list[str]:
        """The constructor's parameters."""
        equals = " = " if self.style.annotated else "="
        found = [self.parameter(n, values[n]) for n in required]
        return found + [f"{self.parameter(n, defaults[n])}{equals}{defaults[n]}" for n in optional]

    def draw(self, text: str) -> str:
        if self.style.uniform and "/" not in text:
            text = text.replace("torch.randn(", "torch.rand(")
        if not self.dtype:
            return text
        return re.sub(r"torch\.(randn?)\(([^()]*)\)", rf"torch.\1(\2, dtype=torch.{self.dtype})", text)

    def imports(self, lines: list[str]) -> str:
        functional = any("F." in line for line in lines) and not self.style.spelled_out
        mathematics = "import math\n\n" if any("math." in line for line in lines) else ""
        return f"{mathematics}import torch\nimport torch.nn as nn" + (
            "\nimport torch.nn.functional as F" if functional or self.style == Style() else ""
        )

    def parameter(self, name: str, value: object) -> str:
        kind = "tuple" if isinstance(value, Formula) else type(value).__name__
        return f"{name}: {kind}" if self.style.annotated else name

    def constructor(self, init: list[str], signature: list[str]) -> str:
        if not (init or self.style.always_init):
            return ""
        call = "super(Model, self).__init__()" if self.style.old_super else "super().__init__()"
        head = f"    def __init__({', '.join(['self', *signature])}):\n        {call}\n"
        return head + "".join(f"        {line}\n" for line in init) + "\n"

    def last(self, lines: list[str]) -> list[str]:
        """The lines of forward; the result sometimes gets a name first."""
        result = lines[-1].removeprefix("return ")
        if not self.style.returned_last or is_tuple(result):
            return lines
        return [*lines[:-1], f"out = {result}", "return out"]

    def made(self, draws: dict[str, str]) -> list[str]:
        if not self.style.inputs_named:
            return [f"return [{', '.join(draws.values())}]"]
        return [*(f"{name} = {text}" for name, text in draws.items()), f"return [{', '.join(draws)}]"]

    def task(self, name: str, large: bool) -> Task:
        return Task(
            name,
            self.source(large),
            None,
            {"family": self.family, "ops": self.ops, "dtype": self.dtype or "float32"},
        )

    def numbers(self) -> list[int]:
        """The large sizes, as the held-out sets are told by."""
        return [large for _, large in self.sizes.values() if type(large) is int]


def top_level(text: str) -> str:
    """A text without what stands in brackets."""
    while (shorter := re.sub(r"[(\[][^()\[\]]*[)\]]", "", text)) != text:
        text = shorter
    return text


def is_tuple(line: str) -> bool:
    """Whether a line of forward gives several results."""
    return bool(re.search(r", \w", top_level(line)))


def uses(text: str, name: str) -> bool:
    """Whether a text reads this name: not as an attribute, nor as the keyword of an argument."""
    return bool(re.search(rf"(?<![\w.]){name}\b(?!=)", text))


def sizes(rng: random.Random, draft: Draft) -> dict[str, tuple]:
    """Sizes for every name that the texts use.

    Half of the large ones are round numbers, as people's are; the small ones seldom are.
    """
    text = " ".join([*draft.inputs.values(), *draft.init])
    found: dict[str, tuple] = {}
    for name in SMALL:
        if not uses(text, name):
            continue
        volume = "depth" in text and name in TINY
        small = rng.randint(*(TINY if volume else SMALL)[name])
        large = size(rng, *LARGE[name])
        while any(small == other for other, _ in found.values()):
            small += 1  # shapes that are alike only by chance would mislead
        halved = draft.even and name in ("cols", "features", "height", "width")
        if name in ("channels", "out_channels") or halved:
            small = 4 * max(small // 4, 1) if "channels" in name else 2 * (small // 2)
            large = 4 * max(large // 4, 1)
        if draft.family == "sort" and name in ("cols", "features"):
            large = min(large, SORTED)
        if n := draft.multiples.get(name):
            small, large = n * -(-small // n), n * -(-large // n)
        found[name] = (small, large)
    if {"heads", "kv_heads"} <= found.keys():
        found["kv_heads"] = (2, 4)
        found["heads"] = (4, 16)
    if ("width" in found and "heads" in text) or draft.family == "attention":
        found["width"] = (rng.choice((16, 24, 32)), rng.choice((32, 64, 128)))
    found |= {name: (value, value) for name, value in draft.fixed.items()}
    return bounded(draft, found)


def bounded(draft: Draft, found: dict[str, tuple]) -> dict[str, tuple]:
    """The first dimension is smaller where the whole input, or what a transposed convolution makes of it,
    would be too large.
    """
    most = MOST >> 4 if any("ConvTranspose" in line for line in draft.init) else MOST
    first = next(iter(draft.inputs.values()))
    dims = [n.strip() for n in re.findall(r"\(([^()]*)\)", first)[0].split(",") if n.strip() in found]
    elements = 1
    for name in dims:
        elements *= found[name][1]
    if dims and elements > most and dims[0] in ("batch", "rows"):
        small, large = found[dims[0]]
        found[dims[0]] = (small, max(large * most // elements, 4))
    return found


def size(rng: random.Random, low: int, high: int) -> int:
    """Between low and high, evenly on a logarithmic scale; every second one a power of two or a
    few of them."""
    value = int(low * (high / low) ** rng.random())
    if rng.random() < 0.5:
        step = 1 << max(value.bit_length() - 2, 0)
        return max(value // step, 1) * step
    return value
