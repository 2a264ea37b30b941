"""A chain of operators while it is drawn: x = f(x), line by line."""

import random
import re

from nanotriton.collect.compose.operators import OPS, Op
from nanotriton.collect.grammar.draft import SMALL, TINY, Draft, Misfit
from nanotriton.collect.grammar.steps import IMAGES, SHAPES, Step

MAPS = [op for op in OPS.values() if op.spellings and op.domain in ("real", "positive")]
INTEGER_MAPS = [op for op in OPS.values() if op.domain == "int"]
KEPT = {  # what the constructor calls the number of an operator
    "add": ("add_value", "shift", "offset"),
    "sub": ("subtract_value", "offset"),
    "mul": ("scale", "scaling_factor", "multiplier"),
    "div": ("divisor", "temperature"),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "celu": ("alpha",),
    "hardtanh": ("limit",),
    "clamp": ("bound",),
    "clamp_min": ("min_value",),
    "clamp_max": ("max_value",),
    "threshold": ("threshold",),
    "hardshrink": ("lambd",),
    "softshrink": ("lambd",),
    "softplus": ("beta",),
    "pow": ("exponent",),
    "lerp": ("weight",),
}


class Chain:
    """A chain while it is drawn: what x's dimensions are called, and what has been used.

    extent: the least that the small sizes leave of each spatial dimension; windows must fit in.
    """

    def __init__(self, rng: random.Random, family: str, kind: str):
        self.rng, self.kind = rng, kind
        self.draft = Draft(family)
        self.dims: list[str] = list(SHAPES[kind])
        self.draft.inputs["x"] = f"torch.randn({', '.join(self.dims)})"
        self.layers = 0
        self.ended = False
        table = SMALL | TINY if kind == "volume" else SMALL
        self.extent = [table[d][0] for d in self.dims[2:]]

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
        if "GroupNorm" in init:
            self.draft.multiples[self.dims[-1] if self.kind not in IMAGES else self.dims[1]] = 8
        shape = f"({', '.join(self.dims)})"
        self.draft.inputs |= {name: drawn.replace("x_shape", shape) for name, drawn in step.inputs}
        self.draft.even |= step.needs == "even"
        self.say(step.name, self.dimension(text.format(**values) if "{" in text else text))
        self.reshape(step)
        self.ended = step.needs == "last"

    def dimension(self, text: str) -> str:
        """Sometimes a dimension is counted from the front, or is a number that the constructor gets."""
        found = re.findall(r"dim=(-?\d)(?!\d)", text)
        if len(set(found)) != 1 or self.draft.fixed.get("dim") or "dim=(" in text:
            return text
        dim = int(found[0])
        if self.rng.random() < 0.4:
            dim %= len(self.dims)
        if self.rng.random() < 0.35 and not any("dim" in line for line in self.draft.init):
            self.draft.init.append("self.dim = dim")
            self.draft.fixed["dim"] = dim
            if self.rng.random() < 0.4:
                self.draft.defaults["dim"] = dim
            return re.sub(r"dim=-?\d", "dim=self.dim", text)
        return re.sub(r"dim=-?\d", f"dim={dim}", text)

    def reshape(self, step: Step) -> None:
        """The dimensions after a step: "-1" drops the last, "*" stands for the rest, digits for
        the old ones."""
        if step.result == ("-1",):
            self.dims = self.dims[:-1]
        elif step.result == ("pooled",):
            self.dims = [*self.dims[:2], *["1"] * (len(self.dims) - 2)]
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
        spelling = self.number(op, spelling, c).replace("{c}", c)
        if spelling.startswith("nn."):
            self.layers += 1
            name = f"act{self.layers}" if self.layers > 1 else "act"
            self.draft.init.append(f"self.{name} = {spelling}")
            spelling = f"self.{name}(x)"
        self.say(op.name + suffix, spelling)

    def number(self, op: Op, spelling: str, c: str) -> str:
        """Sometimes an operator's number is one that the constructor gets, under a name."""
        if "{c}" not in spelling or op.name not in KEPT or self.rng.random() > 0.4:
            return spelling
        name = self.rng.choice(KEPT[op.name])
        if name in self.draft.fixed or any(f"self.{name} " in line for line in self.draft.init):
            return spelling
        self.draft.fixed[name] = float(c)
        if self.rng.random() < 0.3:
            self.draft.defaults[name] = float(c)
        if spelling.startswith("nn."):
            return spelling.replace("{c}", name)
        self.draft.init.append(f"self.{name} = {name}")
        return spelling.replace("{c}", f"self.{name}")

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

    def positive(self) -> None:
        """x is made positive, for what is defined there only."""
        self.draft.lines.append("x = torch.abs(x) + 0.5")
        self.draft.ops.append("shifted_abs")

    def finish(self) -> Draft:
        """The last line returns."""
        self.draft.lines[-1] = self.draft.lines[-1].replace("x = ", "return ", 1)
        return self.draft


def maps(made: Chain, count: int, table: list[Op] = MAPS) -> None:
    for _ in range(count):
        op = made.rng.choice(table)
        if op.domain == "positive":
            made.positive()
        made.map(op)
