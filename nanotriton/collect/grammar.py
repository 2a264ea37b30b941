"""Draws modules in KernelBench's format: chains of operators (operators.py, steps.py) and whole modules
(whole.py).

A drawn module is a Draft: its text with names for sizes, and two sets of sizes. The large ones are what
GPUs are used for and what a model is shown; the small ones make the same module quick to verify on a CPU.
A solution that reads its sizes from the inputs' shapes serves both.
"""

import random
import re
from dataclasses import dataclass, field

from nanotriton.collect.heads import HEAD_STEPS, POOL_STEPS
from nanotriton.collect.operators import OPS, Op
from nanotriton.collect.steps import (
    CHANNEL_STEPS,
    GATHER_STEPS,
    IMAGES,
    REDUCE_STEPS,
    ROW_STEPS,
    SCAN_STEPS,
    SHAPES,
    SORT_STEPS,
    Step,
)
from nanotriton.collect.whole import WHOLES, Whole
from nanotriton.tasks.task import Task

SOURCE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
{init}    def forward(self, {arguments}):
        {lines}


{sizes}


def get_inputs():
    return [{draws}]


def get_init_inputs():
    return [{init_inputs}]
"""

# Families of modules and their shares; a family names the heads, the middle and the end of its chains.
FAMILIES = {
    "map": 16,
    "rows": 15,
    "matmul": 15,
    "conv": 14,
    "pool": 6,
    "channel": 9,
    "scan": 4,
    "layout": 8,
    "sort": 3,
    "integer": 3,
    "whole": 24,
}
SMALL = {
    "rows": (3, 9),
    "cols": (33, 90),
    "batch": (2, 4),
    "length": (9, 40),
    "features": (17, 70),
    "channels": (4, 8),
    "height": (7, 13),
    "width": (7, 13),
    "depth": (4, 6),
    "inner": (17, 40),
    "hidden": (17, 40),
    "out_channels": (4, 12),
    "heads": (2, 4),
    "keys": (17, 40),
    "kv_heads": (2, 3),
}
LARGE = {
    "rows": (512, 16384),
    "cols": (256, 8192),
    "batch": (8, 64),
    "length": (256, 2048),
    "features": (256, 2048),
    "channels": (16, 128),
    "height": (32, 256),
    "width": (32, 256),
    "depth": (8, 32),
    "inner": (256, 4096),
    "hidden": (256, 4096),
    "out_channels": (32, 128),
    "heads": (8, 32),
    "keys": (256, 2048),
    "kv_heads": (2, 8),
}
TINY = {
    "height": (4, 6),
    "width": (4, 6),
    "batch": (2, 2),
    "channels": (4, 4),
    "out_channels": (4, 8),
}  # of volumes, which have so many elements
LONG_ROW = 4096  # elements; longer rows are gone over block by block
FIXED = {
    "kernel_size": ("3", "5", "2"),
    "stride": ("2",),
    "padding": ("1",),
    "dilation": ("2",),
    "groups": ("2", "4"),
}


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
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (small, large)

    def source(self, large: bool) -> str:
        """The task's text."""
        values = {n: pair[large] for n, pair in self.sizes.items()}
        draws = {n: self.with_dtype(d) for n, d in self.inputs.items()}
        used = [n for n in values if any(re.search(rf"\b{n}\b", line) for line in self.init)]
        init = ""
        if self.init:
            init = f"    def __init__(self, {', '.join(used)}):\n" if used else "    def __init__(self):\n"
            init += "        super().__init__()\n" + "".join(f"        {line}\n" for line in self.init) + "\n"
        return SOURCE.format(
            init=init,
            arguments=", ".join(self.inputs),
            lines="\n        ".join(self.lines),
            init_inputs=", ".join(used),
            sizes="\n".join(f"{n} = {v}" for n, v in values.items()),
            draws=", ".join(draws.values()),
        )

    def with_dtype(self, draw: str) -> str:
        if not self.dtype:
            return draw
        return re.sub(r"torch\.(randn?)\(([^()]*)\)", rf"torch.\1(\2, dtype=torch.{self.dtype})", draw)

    def looped(self) -> bool:
        """Whether rows of the large sizes are too long for one block."""
        return (
            max(
                (
                    large
                    for name, (_, large) in self.sizes.items()
                    if name in ("cols", "features", "inner", "hidden")
                ),
                default=0,
            )
            > LONG_ROW
        )

    def task(self, name: str, large: bool) -> Task:
        return Task(
            name,
            self.source(large),
            None,
            {"family": self.family, "ops": self.ops, "dtype": self.dtype or "float32"},
        )


class Chain:
    """A chain while it is drawn: what x's dimensions are called, and what has been used."""

    def __init__(self, rng: random.Random, family: str, kind: str):
        self.rng, self.kind = rng, kind
        self.draft = Draft(family)
        self.dims: list[str] = list(SHAPES[kind])
        self.draft.inputs["x"] = f"torch.randn({', '.join(self.dims)})"
        self.layers = 0
        self.ended = False

    def step(self, step: Step) -> None:
        text, init = step.text, step.init
        values = {
            "c": self.rng.choice(step.constants) if step.constants else "",
            "last": self.dims[-1],
            "channels": self.dims[1] if len(self.dims) > 1 else "",
        }
        unnamed = {
            values["last"] if "{last}" in init else "",
            values["channels"] if "{channels}" in init else "",
        }
        if unnamed & {"?", "1"}:
            raise Misfit
        if init:
            init = init.format(**values)
            attribute = re.match(r"self\.(\w+)", init)[1]
            if any(f"self.{attribute} " in line for line in self.draft.init):
                raise Misfit
            self.draft.init.append(init)
        if any(name in self.draft.inputs for name, _ in step.inputs):
            raise Misfit
        self.draft.inputs |= dict(step.inputs)
        self.draft.even |= step.needs == "even"
        self.say(step.name, text.format(**values) if "{" in text else text)
        self.reshape(step)
        self.ended = step.needs == "last"

    def reshape(self, step: Step) -> None:
        """The dimensions after a step: "-1" drops the last, "*" stands for the rest, digits for
        the old ones."""
        if step.result == ("-1",):
            self.dims = self.dims[:-1]
        elif step.result and "*" in step.result:
            rest = self.dims[:-1] if step.result[0] == "*" else self.dims[2:]
            self.dims = [
                d for r in step.result for d in (rest if r == "*" else [self.dims[int(r)] if r == "0" else r])
            ]
        elif step.result in (("0", "1"),):
            self.dims = self.dims[:2]
        elif step.result:
            self.dims = (
                list(step.result)
                if len(step.result) > 1 or "?" not in step.result
                else ["?"] * len(self.dims)
            )

    def say(self, name: str, expression: str) -> None:
        self.draft.ops.append(name)
        self.draft.lines.append(f"x = {expression}")

    def map(self, op: Op) -> None:
        """An element-wise operator, in one of its spellings."""
        spelling = self.rng.choice(op.spellings)
        if "y" in re.findall(r"\b[a-z]\b", spelling):
            operand, suffix = self.operand()
            spelling = re.sub(r"\by\b", operand, spelling)
        else:
            suffix = ""
        c = self.rng.choice(op.constants) if op.constants else ""
        spelling = spelling.replace("{c}", c)
        if spelling.startswith("nn."):
            self.layers += 1
            name = f"act{self.layers}" if self.layers > 1 else "act"
            self.draft.init.append(f"self.{name} = {spelling}")
            spelling = f"self.{name}(x)"
        self.say(op.name + suffix, spelling)

    def operand(self) -> tuple[str, str]:
        """A second tensor for an operator of two: another input of x's shape, a vector along a dimension, or
        a parameter.
        """
        known = [d for d in self.dims if d not in ("?", "1")]
        if len(known) < len(self.dims) or not self.dims:
            choices = ["scalar"]
        elif len(self.dims) == 1:
            choices = ["same"]
        else:
            choices = ["same", "same", "vector", "column", "parameter", "channel"]
        if len(self.dims) > 2 and self.dims[1] not in ("?", "1"):
            choices.append("channel")
        way = self.rng.choice(choices)
        if way == "scalar":
            return self.parameter("alpha", "torch.randn(1)")
        if way == "parameter":
            return self.parameter(self.rng.choice(("scale", "bias")), f"torch.randn({self.dims[-1]})")
        if way == "channel":
            if len(self.dims) < 3:
                return self.parameter("gain", "torch.randn(1)")
            return self.parameter("gamma", f"torch.randn({self.dims[1]}{', 1' * (len(self.dims) - 2)})")
        name, shape = {
            "same": ("y", self.dims),
            "vector": ("v", self.dims[-1:]),
            "column": ("u", [*self.dims[:-1], "1"]),
        }[way]
        while name in self.draft.inputs and self.draft.inputs[name] != f"torch.randn({', '.join(shape)})":
            name += "2"
        self.draft.inputs[name] = f"torch.randn({', '.join(shape)})"
        return name, f"_{way}"

    def parameter(self, name: str, draw: str) -> tuple[str, str]:
        line = f"self.{name} = nn.Parameter({draw})"
        if line not in self.draft.init:
            if any(f"self.{name} " in other for other in self.draft.init):
                raise Misfit
            self.draft.init.append(line)
        return f"self.{name}", f"_{name}"


class Misfit(Exception):
    """These choices don't go together: draw again."""


MAPS = [op for op in OPS.values() if op.spellings and op.domain in ("real", "positive")]
INTEGER_MAPS = [op for op in OPS.values() if op.domain == "int"]


def draw(rng: random.Random, hard: bool = False) -> Draft:
    """One module, with both sets of sizes. hard: a longer chain, of two families' steps."""
    while True:
        family = rng.choices(list(FAMILIES), list(FAMILIES.values()))[0]
        try:
            if hard:
                draft = long_chain(rng)
            else:
                draft = (
                    whole(rng)
                    if family == "whole"
                    else integers(rng)
                    if family == "integer"
                    else chain(rng, family)
                )
        except Misfit:
            continue
        draft.sizes = sizes(rng, draft)
        return draft


HEADS = {
    "matmul": [s for s in HEAD_STEPS if s.group == "matmul"],
    "conv": [s for s in HEAD_STEPS if s.group == "conv"],
    "pool": POOL_STEPS,
    "channel": CHANNEL_STEPS,
    "scan": SCAN_STEPS,
    "layout": GATHER_STEPS,
    "sort": SORT_STEPS,
    "rows": ROW_STEPS + REDUCE_STEPS,
}


def chain(rng: random.Random, family: str) -> Draft:
    """x -> maybe maps -> the family's step -> maps, sometimes with a row operation or a reduction
    at the end."""
    if family == "map":
        made = Chain(rng, family, rng.choice(list(SHAPES)))
        maps(made, rng.randint(1, 4))
        return finish(made)
    names = sorted({s.name for s in HEADS[family]})
    name = rng.choice(names)  # by name, so that an operator with many spellings is no more common
    step = rng.choice([s for s in HEADS[family] if s.name == name])
    made = Chain(rng, family, rng.choice(step.kinds))
    before = {"matmul": 0.1, "conv": 0.05, "rows": 0.5, "channel": 0.4}.get(family, 0.3)
    if rng.random() < before:
        maps(made, rng.randint(1, 2))
    made.step(step)
    if not made.ended:
        maps(made, rng.choice((0, 1, 1, 2, 3)) if family in ("matmul", "conv") else rng.choice((0, 0, 1, 2)))
        ending(made, family)
    return finish(made)


def long_chain(rng: random.Random) -> Draft:
    """A product or a convolution, maps, a norm or a row operation, maps, and another of those: harder than
    what there are solutions for.
    """
    family = rng.choice(("matmul", "conv"))
    step = rng.choice(HEADS[family])
    made = Chain(rng, "hard_" + family, rng.choice(step.kinds))
    made.step(step)
    for _ in range(rng.randint(2, 3)):
        maps(made, rng.randint(1, 2))
        if len(made.dims) != len(SHAPES[made.kind]):
            break
        table = CHANNEL_STEPS + POOL_STEPS if made.kind in IMAGES else ROW_STEPS + REDUCE_STEPS
        made.step(rng.choice([s for s in table if made.kind in s.kinds and s.needs != "last"]))
    maps(made, 1)
    return finish(made)


def ending(made: Chain, family: str) -> None:
    """Sometimes a second step that is no map: what KernelBench's second level is made of."""
    rng = made.rng
    if rng.random() > {"matmul": 0.35, "conv": 0.35, "rows": 0.3}.get(family, 0.1) or len(made.dims) < 2:
        return
    if made.kind in IMAGES and len(made.dims) == len(SHAPES[made.kind]):
        second = rng.choice([s for s in CHANNEL_STEPS + POOL_STEPS if made.kind in s.kinds])
    elif made.kind not in IMAGES and len(made.dims) == len(SHAPES[made.kind]):
        second = rng.choice([s for s in ROW_STEPS + REDUCE_STEPS if made.kind in s.kinds])
    else:
        return
    made.step(second)
    if not made.ended:
        maps(made, rng.choice((0, 0, 1, 2)))


def maps(made: Chain, count: int) -> None:
    for _ in range(count):
        op = made.rng.choice(MAPS)
        if op.domain == "positive":
            made.draft.lines.append("x = torch.abs(x) + 0.5")
            made.draft.ops.append("shifted_abs")
        made.map(op)


def finish(made: Chain) -> Draft:
    """The last line returns; sometimes all inputs are half precision, where nothing has parameters."""
    draft = made.draft
    draft.lines[-1] = draft.lines[-1].replace("x = ", "return ", 1)
    plain = not draft.init and draft.family not in ("scan", "sort")
    if plain and made.rng.random() < 0.25:
        draft.dtype = made.rng.choice(("float16", "bfloat16"))
    return draft


def integers(rng: random.Random) -> Draft:
    """Element-wise operators on whole numbers."""
    made = Chain(rng, "integer", rng.choice(("matrix", "sequence")))
    draws = "torch.randint(-1000, 1000, ({}), dtype=torch.int32)"
    made.draft.inputs["x"] = draws.format(", ".join(made.dims))
    for op in rng.sample(INTEGER_MAPS, rng.randint(1, 3)):
        spelling = rng.choice(op.spellings).replace("{c}", rng.choice(op.constants) if op.constants else "")
        if re.search(r"\by\b", spelling):
            made.draft.inputs["y"] = draws.format(", ".join(made.dims))
        made.say(op.name, spelling)
    made.draft.lines[-1] = made.draft.lines[-1].replace("x = ", "return ", 1)
    return made.draft


def whole(rng: random.Random) -> Draft:
    group = rng.choice(sorted({w.group for w in WHOLES}))
    chosen: Whole = rng.choice([w for w in WHOLES if w.group == group])
    values = {
        "lr": rng.choice(("0.01", "0.001", "0.1", "0.05")),
        "wd": rng.choice(("0.1", "0.01", "0.05")),
        "b1": rng.choice(("0.9", "0.95", "0.8")),
    }
    lines = list(chosen.lines)
    for key, value in values.items():
        lines = [line.replace(f"{{{key}}}", value) for line in lines]
    lines[-1] = f"return {lines[-1]}"
    draft = Draft(f"whole_{group}", [chosen.name], dict(chosen.inputs), [], lines)
    shape = rng.choice(("rows, cols", "rows, cols", "batch, length, features"))
    if (
        group in ("optimizer", "mixture")
        and "rows," not in str([d for _, d in chosen.inputs if "rows, cols" not in d])
        and shape != "rows, cols"
    ):
        draft.inputs = {
            n: d.replace("rows, cols", shape).replace("(cols)", "(features)") for n, d in draft.inputs.items()
        }
    if chosen.halves and rng.random() < 0.3:
        draft.dtype = rng.choice(("float16", "bfloat16"))
    return draft


def sizes(rng: random.Random, draft: Draft) -> dict[str, tuple[int, int]]:
    """Sizes for every name that the texts use. Half of the large ones are round numbers, as people's are; the
    small ones seldom are.
    """
    text = " ".join([*draft.inputs.values(), *draft.init])
    found: dict[str, tuple[int, int]] = {}
    for name in [*SMALL, *FIXED]:
        if not re.search(rf"\b{name}\b", text):
            continue
        if name in FIXED:
            value = int(rng.choice(FIXED[name]))
            found[name] = (value, value)
            continue
        small, large = (
            rng.randint(*(TINY if "depth" in text and name in TINY else SMALL)[name]),
            size(rng, *LARGE[name]),
        )
        while any(
            small == other for n, (other, _) in found.items() if n not in FIXED
        ):  # shapes that are alike only by chance would mislead
            small += 1
        if name in ("channels", "out_channels") or (
            draft.even and name in ("cols", "features", "height", "width")
        ):
            small, large = (
                4 * max(small // 4, 1) if "channels" in name else 2 * (small // 2),
                4 * max(large // 4, 1),
            )
        found[name] = (small, large)
    if {"heads", "kv_heads"} <= found.keys():
        found["kv_heads"] = (2, 4)
        found["heads"] = (4, 16)
    if ("width" in found and "heads" in text) or draft.family == "whole_attention":
        found["width"] = (rng.choice((16, 24, 32)), rng.choice((32, 64, 128)))
    if (
        found.get("stride", (1, 1))[0] > 1
        and found.get("padding", (0, 0))[0] * 2 > found.get("kernel_size", (3, 3))[0]
    ):
        found["kernel_size"] = (3, 3)
    return found


def size(rng: random.Random, low: int, high: int) -> int:
    """Between low and high, evenly on a logarithmic scale; every second one a power of two or a
    few of them."""
    value = int(low * (high / low) ** rng.random())
    if rng.random() < 0.5:
        step = 1 << max(value.bit_length() - 2, 0)
        return max(value // step, 1) * step
    return value
