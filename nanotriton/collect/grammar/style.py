"""How a drawn module is written down. People name tensors, sizes and layers differently, annotate or don't,
and explain or don't: a model that has seen one hand only fails at the next.

A Style is drawn once a module and applied to its text with small and with large sizes alike, so that one
solution serves both.
"""

import random
import re
from dataclasses import dataclass, field

ARGUMENTS = (  # what forward's first two tensors are called; the others keep their names
    {},
    {},
    {"x": "A", "w": "B", "y": "B"},
    {"x": "a", "w": "b", "y": "b"},
    {"x": "input", "w": "weight", "y": "other"},
    {"x": "x", "w": "weight"},
    {"x": "predictions", "target": "targets"},
    {"x": "input", "target": "target"},
    {"x": "hidden_states"},
    {"x": "inputs"},
)
SIZES = {
    "batch": ("batch_size", "batch", "B", "N", "n"),
    "rows": ("rows", "batch_size", "M", "num_rows", "n_tokens"),
    "cols": ("cols", "dim", "N", "features", "input_dim", "num_features"),
    "length": ("length", "sequence_length", "seq_len", "L", "dim1"),
    "features": ("features", "dim", "hidden_size", "d_model", "in_features", "dim2"),
    "channels": ("channels", "in_channels", "C", "num_features", "in_channels"),
    "height": ("height", "H", "dim1", "h"),
    "width": ("width", "W", "dim2", "w_in"),
    "depth": ("depth", "D", "dim0"),
    "inner": ("inner", "K", "N", "out_features", "k"),
    "hidden": ("hidden", "out_features", "hidden_size", "output_dim"),
    "keys": ("keys", "S", "kv_len"),
    "heads": ("heads", "num_heads", "n_heads"),
}
LAYERS = {
    "fc": ("fc", "linear", "gemm", "matmul", "proj"),
    "conv": ("conv", "conv", "conv_transpose", "conv1d", "conv2d", "conv3d", "conv_layer"),
    "layer": ("layer", "norm", "bn", "ln", "gn", "group_norm", "batch_norm", "instance_norm"),
    "norm": ("norm", "group_norm", "bn", "gn"),
    "pool": ("pool", "maxpool", "max_pool", "avg_pool", "pooling"),
    "act": ("act", "activation", "fn", "act_fn"),
}
SAID = ("Computes", "Applies", "Performs", "A module with", "Simple model:", "Benchmark of")


@dataclass
class Style:
    names: dict[str, str] = field(default_factory=dict)  # of arguments and sizes
    layers: dict[str, str] = field(default_factory=dict)  # of attributes
    old_super: bool = False
    always_init: bool = False  # a constructor that makes nothing
    annotated: bool = False
    said: str = ""  # the docstring's first word; "": no docstring
    long_said: bool = False  # one for forward as well
    uniform: bool = False  # torch.rand for torch.randn
    spelled_out: bool = False  # torch.nn.functional for F
    inputs_named: bool = False  # get_inputs gives each tensor a name first
    returned_last: bool = False  # `return x` on a line of its own
    steps: str = ""  # each line's result has a name of its own, which begins so; "": all are called x
    heading: str = ""  # a comment above the sizes


def draw_style(rng: random.Random) -> Style:
    """A quarter of the modules are plain; the others take several habits at once."""
    if rng.random() < 0.25:
        return Style()
    names = dict(rng.choice(ARGUMENTS))
    for size, choices in SIZES.items():
        names[size] = rng.choice(choices)
    return Style(
        names=names,
        layers={name: rng.choice(choices) for name, choices in LAYERS.items()},
        old_super=rng.random() < 0.6,
        always_init=rng.random() < 0.5,
        annotated=rng.random() < 0.45,
        said=rng.choice(SAID) if rng.random() < 0.6 else "",
        long_said=rng.random() < 0.5,
        uniform=rng.random() < 0.4,
        spelled_out=rng.random() < 0.35,
        inputs_named=rng.random() < 0.5,
        returned_last=rng.random() < 0.35,
        steps=rng.choice(("h", "x", "t")) if rng.random() < 0.2 else "",
        heading=rng.choice(("", "", "# Sizes", "# Test code", "# Parameters of the test")),
    )


def without_clashes(names: dict[str, str], used: set[str]) -> dict[str, str]:
    """The renamings of what is used, each to a name that nothing else has."""
    found: dict[str, str] = {}
    for old, new in names.items():
        others = (used - {old}) | set(found.values())
        if old in used and new not in others:
            found[old] = new
    return found


def renamed(text: str, names: dict[str, str]) -> str:
    """A text with variables renamed; attributes stay."""
    if not names:
        return text
    pattern = r"(?<![\w.])(" + "|".join(map(re.escape, names)) + r")\b"
    return re.sub(pattern, lambda m: names[m[1]], text)


def numbered(lines: list[str], prefix: str) -> list[str]:
    """Lines of `x = f(x)` with another name for each result."""
    found, current = [], "x"
    for number, line in enumerate(lines, 1):
        target, sign, value = line.partition(" = ")
        if sign and target == "x":
            found.append(f"{prefix}{number} = {renamed(value, {'x': current})}")
            current = f"{prefix}{number}"
        else:
            found.append(renamed(line, {"x": current}))
    return found


def with_layers(text: str, layers: dict[str, str]) -> str:
    return re.sub(r"\bself\.(\w+)", lambda m: f"self.{layers.get(m[1], m[1])}", text)


def docstring(style: Style, ops: list[str], indent: str) -> str:
    if not style.said:
        return ""
    words = ", ".join(op.replace("_", " ") for op in ops)
    return f'{indent}"""\n{indent}{style.said} {words}.\n{indent}"""\n'


def forward_docstring(style: Style, arguments: list[str], indent: str) -> str:
    if not (style.said and style.long_said):
        return ""
    lines = [
        '"""',
        "Args:",
        *(f"    {name} (torch.Tensor): an input tensor" for name in arguments),
        "",
        "Returns:",
        "    torch.Tensor: the result",
        '"""',
    ]
    return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)
