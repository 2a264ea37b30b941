"""A solution for a module that does other things in evaluation mode, as batch norms do: it is written for
each mode by itself, and the two are joined here."""

import ast
import re

from torch import nn

EVALUATED = (
    "evaluated"  # the method that is forward in evaluation mode, and what a second kernel's name begins with
)


def has_modes(model: nn.Module) -> bool:
    """Whether a part of the module has running statistics, which training updates and evaluation uses."""
    return any(getattr(part, "running_mean", None) is not None for part in model.modules())


def joined(training: str, evaluation: str) -> str:
    """One file of two, whose classes differ in forward alone.

    Each has its imports first, then its functions, then the class, with two empty lines in between.
    """
    if training == evaluation:
        return training
    head, *functions, model = training.strip().split("\n\n\n")
    other_head, *others, other_model = evaluation.strip().split("\n\n\n")
    taken = {name_of(text) for text in functions}
    for text in others:
        name = name_of(text)
        if text not in functions and name in taken:
            rename = re.compile(rf"\b{name}\b")
            others = [rename.sub(f"{EVALUATED}_{name}", other) for other in others]
            other_model = rename.sub(f"{EVALUATED}_{name}", other_model)
    heads = dict.fromkeys(head.split("\n") + other_head.split("\n"))
    parts = ["\n".join(heads), *dict.fromkeys(functions + others), with_method(model, other_model)]
    return "\n\n\n".join(parts) + "\n"


def name_of(text: str) -> str:
    """The name of a function or class; empty if it is neither."""
    found = re.search(r"^(?:def|class) (\w+)", text, re.M)
    return found[1] if found else ""


def with_method(model: str, other: str) -> str:
    """A class whose forward is that of another one in evaluation mode."""
    forward = re.search(r"^    def forward\(.*\):\n", model, re.M)
    theirs = re.search(r"^    def forward(\(.*\):\n(?:.*\n?)*)", other, re.M)
    function = next(
        n for n in ast.walk(ast.parse(model)) if isinstance(n, ast.FunctionDef) and n.name == "forward"
    )
    names = ", ".join(argument.arg for argument in function.args.args[1:])
    asked = f"        if not self.training:\n            return self.{EVALUATED}({names})\n"
    own = model[: forward.end()] + asked + model[forward.end() :]
    return f"{own.rstrip()}\n\n    def {EVALUATED}{theirs[1].rstrip()}"
