"""Two runs of one benchmark, problem by problem: which is better, and could that be chance?

    python -m bench.channels.compare A.json B.json [--policy P] [--out compare.json]

A problem's score is the share of its samples that are correct. Problems that both runs have judged are
compared, all together and by group (a level, or a set of held-out tasks). The sign test counts the problems
that one run solves more often than the other. The interval of the mean difference is a bootstrap over
problems.
"""

import sys

from bench.channels.markdown import table
from bench.channels.metrics import bootstrap, geometric_mean, mean, sign_test
from bench.channels.report import load
from bench.results import write_json
from nanotriton.config import die
from nanotriton.log import counted

USAGE = "usage: python -m bench.channels.compare A.json B.json [--policy P] [--out FILE.json]"
HEAD = [
    "",
    "problems",
    "A",
    "B",
    "B - A [95%]",
    "B better",
    "A better",
    "p (sign test)",
    "B's speed over A's",
]


def verdicts_of(results: dict, policy: str) -> dict[str, list[dict]]:
    """{problem: verdicts of its samples}."""
    found: dict[str, list[dict]] = {}
    for row in results["samples"]:
        if verdict := row["verdicts"].get(policy):
            found.setdefault(row["problem"], []).append(verdict)
    return found


def solved(verdicts: list[dict]) -> float:
    return sum(v["status"] == "correct" for v in verdicts) / len(verdicts)


def speed(verdicts: list[dict]) -> float | None:
    """Geometric mean of the speed-ups of the correct and timed samples; None where there are none."""
    return geometric_mean([v["speedup"] for v in verdicts if v["status"] == "correct" and v.get("speedup")])


def compare(a: dict, b: dict, policy: str) -> dict:
    """The comparison of two results under one policy, over all problems and over the fair ones (not weak)."""
    left, right = verdicts_of(a, policy), verdicts_of(b, policy)
    weak = {row["problem"] for row in (*a["samples"], *b["samples"]) if row.get("weak")}
    both = [name for name in left if name in right]
    scores = {name: [solved(left[name]), solved(right[name])] for name in both}
    return {
        "policy": policy,
        "all": statistics(both, left, right),
        "fair": statistics([name for name in both if name not in weak], left, right),
        "groups": {g: statistics(names, left, right) for g, names in grouped(both).items()},
        "only_in_a": len(left.keys() - right.keys()),
        "only_in_b": len(right.keys() - left.keys()),
        "changed": {name: [x, y] for name, (x, y) in scores.items() if x != y},
    }


def grouped(names: list[str]) -> dict[str, list[str]]:
    """{group: names} of names such as 1/23 and held_out_shape/NAME; {} if there is one group only."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition("/")[0], []).append(name)
    return found if len(found) > 1 else {}


def statistics(names: list[str], left: dict[str, list[dict]], right: dict[str, list[dict]]) -> dict:
    """The figures of these problems; differences are B minus A.

    left, right: A's and B's verdicts by problem.
    """
    before, after = [solved(left[n]) for n in names], [solved(right[n]) for n in names]
    differences = [y - x for x, y in zip(before, after, strict=True)]
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    speeds = [(speed(left[n]), speed(right[n])) for n in names]
    ratios = [y / x for x, y in speeds if x and y]
    faster, slower = sum(r > 1 for r in ratios), sum(r < 1 for r in ratios)
    return {
        "problems": len(names),
        "a": mean(before),
        "b": mean(after),
        "difference": mean(differences),
        "interval": bootstrap(differences),
        "b_better": wins,
        "a_better": losses,
        "p": sign_test(wins, losses),
        "speed_ratio": geometric_mean(ratios),
        "b_faster": faster,
        "a_faster": slower,
        "p_speed": sign_test(faster, slower),
    }


def markdown(found: dict, names: list[str]) -> str:
    """A table for a person. names: of the two files."""
    policy = found["policy"]
    parts = {"all": found["all"], "fair": found["fair"], **found["groups"]}
    lines = [
        f"A: {names[0]}, B: {names[1]}; correct under {policy}, percent; fair: without weak problems",
        "",
        *table(HEAD, [cells(title, s) for title, s in parts.items() if s["problems"]]),
    ]
    lines += [f"- {n}: {100 * x:.0f} -> {100 * y:.0f}" for n, (x, y) in found["changed"].items()]
    only_a, only_b = found["only_in_a"], found["only_in_b"]
    if only_a or only_b:
        lines.append(f"Left out: {counted(only_a, 'problem')} of A alone, {only_b} of B alone.")
    return "\n".join(lines)


def cells(title: str, s: dict) -> list[str]:
    """One line of the table, of what `statistics` found."""
    difference = f"{100 * s['difference']:+.1f}"
    if s["interval"]:
        low, high = s["interval"]
        difference += f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return [
        title,
        str(s["problems"]),
        f"{100 * s['a']:.1f}",
        f"{100 * s['b']:.1f}",
        difference,
        str(s["b_better"]),
        str(s["a_better"]),
        f"{s['p']:.3g}",
        f"{s['speed_ratio']:.2f}x (p = {s['p_speed']:.3g})" if s["speed_ratio"] else "-",
    ]


def read_arguments(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """(the two files, the options by name). Ends in one line for a mistake."""
    options = {"--policy": "", "--out": ""}
    files = []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in options:
            options[flag] = value if equals else next(words, "") or die(f"{flag}: a value is expected")
        elif word.startswith("-"):
            die(f"unknown option {word}; {USAGE}")
        else:
            files.append(word)
    if len(files) != 2:
        die(USAGE)
    return files, options


def main(argv: list[str]) -> None:
    if {"-h", "--help"} & set(argv):
        print(__doc__.strip())
        return
    files, options = read_arguments(argv)
    a, b = map(load, files)
    kinds = [" ".join(filter(None, (run["benchmark"], run.get("channel")))) for run in (a, b)]
    if kinds[0] != kinds[1]:
        die(f"{files[0]} is of {kinds[0]}, {files[1]} of {kinds[1]}: nothing to compare")
    shared = [p for p in a["scores"] if p in b["scores"]]
    policy = options["--policy"] or (shared[0] if shared else "")
    if policy not in shared:
        die(f"policy {policy or '(none given)'}: both runs have {', '.join(shared) or 'none in common'}")
    found = compare(a, b, policy)
    if not found["all"]["problems"]:
        die(f"{files[0]} and {files[1]} have no judged problem in common")
    print(markdown(found, files))
    if options["--out"]:
        write_json(options["--out"], found)


if __name__ == "__main__":
    main(sys.argv[1:])
