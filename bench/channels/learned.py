"""What a GRPO run has learned, as one picture: success over its steps, and on tasks that it never saw.

    python -m bench.channels.learned RUN --before A.json [...] --after B.json [...] --out learned.png

RUN is the folder of a train_grpo.py run. --before and --after are results of bench.channels.tasks or
bench.channels.kernelbench for the model that the run began with, and for the one that it made, in the same
order. The left half is the share of a step's samples that are correct. The right half has a pair of bars for
each group of tasks, with the difference and its 95% interval (a bootstrap over problems).
"""

import argparse
import json
import sys
from pathlib import Path

from bench.channels.compare import compare
from bench.channels.report import load
from nanotriton.config import Parser, die, reason
from nanotriton.log import smooth

POLICY = "strict"


def success(run: Path) -> list[tuple[int, float]]:
    """(step, share of its samples that are correct) of each step of GRPO. Ends in a line if there is none."""
    path = run / "metrics.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        die(f"{path}: {reason(error)}; the folder of a train_grpo.py run is expected")
    steps = [row for row in rows if row["stage"] == "grpo" and "statuses" in row]
    if not steps:
        die(f"{path}: no step of GRPO in it")
    return [(row["step"], share(row["statuses"])) for row in steps]


def share(statuses: dict[str, int]) -> float:
    return statuses.get("correct", 0) / sum(statuses.values())


def groups(before: list[str], after: list[str]) -> dict[str, dict]:
    """{group of tasks: compare.statistics of it}, of pairs of results."""
    found: dict[str, dict] = {}
    for a, b in zip(before, after, strict=True):
        said = compare(load(a), load(b), POLICY)
        if not said["all"]["problems"]:
            die(f"{a} and {b} have no judged problem in common")
        found |= said["groups"] or {Path(b).stem.split(".")[-1]: said["all"]}
    return found


def draw(steps: list[tuple[int, float]], found: dict[str, dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    numbers, shares = map(list, zip(*steps, strict=True))
    left.plot(numbers, shares, "o", ms=4, alpha=0.4, color="C0", label="a step's samples")
    left.plot(numbers, smooth(shares, 0.8), color="C0", label="moving average")
    left.set(title="correct samples over training", xlabel="step of GRPO", ylabel="share", ylim=(0, 1))

    places = range(len(found))
    width = 0.38
    before, after = ([100 * said[side] for said in found.values()] for side in "ab")
    right.bar([p - width / 2 for p in places], before, width, color="C7", label="before GRPO")
    right.bar([p + width / 2 for p in places], after, width, color="C0", label="after GRPO")
    for place, said in zip(places, found.values(), strict=True):
        right.annotate(gain(said), (place, 100 * max(said["a"], said["b"]) + 2), ha="center", fontsize=8)
    right.set_xticks(places, [label(name) for name in found])
    right.set(title="correct answers to tasks that it never saw", ylabel="percent of samples", ylim=(0, 105))
    for axis in (left, right):
        axis.legend(frameon=False, loc="lower right" if axis is left else "upper right")
        axis.grid(alpha=0.2)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def label(group: str) -> str:
    """A group's name in two short lines: held_out_shape, level1, or 1, as kernelbench.py has it."""
    if group.isdecimal():
        return f"level {group}"
    return group.replace("held_out_", "held-out\n").replace("level", "KernelBench\nlevel ")


def gain(said: dict) -> str:
    """The difference in points, with its interval below."""
    text = f"{100 * said['difference']:+.1f}"
    if said["interval"]:
        text += "\n[{:+.1f}, {:+.1f}]".format(*(100 * bound for bound in said["interval"]))
    return text


def main(argv: list[str]) -> None:
    parser = Parser(
        prog="python -m bench.channels.learned",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--before", nargs="+", required=True)
    parser.add_argument("--after", nargs="+", required=True)
    parser.add_argument("--out", default="learned.png")
    given = parser.parse_args(argv)
    if len(given.before) != len(given.after):
        die(f"--before has {len(given.before)} files and --after {len(given.after)}: as many are expected")
    found = groups(given.before, given.after)
    draw(success(given.run), found, given.out)
    for name, said in found.items():
        print(f"{name}: {100 * said['a']:.1f} -> {100 * said['b']:.1f}, {' '.join(gain(said).split())}")


if __name__ == "__main__":
    main(sys.argv[1:])
