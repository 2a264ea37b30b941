"""Names in the text that is written.

Shapes are said as a person says them: `rows, cols = x.shape` once, then `rows` and `cols`.
"""

import re
from collections.abc import Iterable

DIMENSIONS = {
    2: ("rows", "cols"),
    3: ("batch", "rows", "cols"),
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}

WEIGHT = ("out_channels", "in_channels", "KD", "KH", "KW")  # of a convolution


def distinct(base: str, taken: Iterable[str]) -> str:
    """The name itself, or with the first number that makes it another than those that are taken."""
    name = base
    number = 1
    taken = set(taken)
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def unpacked(lines: list[str], ranks: dict[str, int], taken: set[str]) -> list[str]:
    """The lines of a function, with each tensor whose dimensions are asked for one by one taken apart before.

    ranks: the number of dimensions of each tensor that may be taken apart, by its text on the host. taken:
    names that are in use.
    """
    for tensor, rank in ranks.items():
        pattern = re.compile(rf"(?<![\w.]){re.escape(tensor)}\.shape\[(\d+)\]")
        asked = {int(i) for line in lines for i in pattern.findall(line)}
        if len(asked) < 2:
            continue
        names = chosen(lines, pattern, tensor, rank, taken)
        names = {i: names[i] for i in asked}
        taken |= set(names.values())
        lines = [
            pattern.sub(lambda m, n=names: n[int(m[1])], line)
            for line in lines
            if not bound_by(line, pattern)
        ]
        first = next(
            k for k, line in enumerate(lines) if any(re.search(rf"\b{n}\b", line) for n in names.values())
        )
        made = next((k + 1 for k, line in enumerate(lines) if line.startswith(f"{tensor} = ")), 0)
        targets = ", ".join(names.get(i, "_") for i in range(rank))
        lines.insert(max(first, made) if first < made else first, f"{targets} = {tensor}.shape")
    return lines


def bound_by(line: str, pattern: re.Pattern) -> str | None:
    """The name, if a line does nothing but give one to a dimension."""
    found = re.fullmatch(rf"(\w+) = {pattern.pattern}", line)
    return found[1] if found else None


def chosen(lines: list[str], pattern: re.Pattern, tensor: str, rank: int, taken: set[str]) -> dict[int, str]:
    """A name for each dimension: the one that a line gives it, else the usual one, made different if it is in
    use.
    """
    names: dict[int, str] = {}
    for line in lines:
        if name := bound_by(line, pattern):
            names[int(re.fullmatch(rf"\w+ = {pattern.pattern}", line)[1])] = name
    usual = (
        WEIGHT[:2] + WEIGHT[len(WEIGHT) + 2 - rank :]
        if tensor.startswith("self.")
        else DIMENSIONS.get(rank, tuple(f"size{i}" for i in range(rank)))
    )
    for i in range(rank):
        name, number = usual[i], 1
        while i not in names and (name in taken or name in names.values()):
            name, number = f"{usual[i]}_{number}", number + 1
        names.setdefault(i, name)
    return names
