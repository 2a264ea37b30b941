"""Two runs of one benchmark, problem by problem: which is better, and could that be chance?

    python -m bench.compare A.json B.json [--policy P] [--out compare.json]

A problem's score is the share of its samples that are correct; problems that both runs have judged are compared. The sign test counts the
problems that one run solves more often than the other; the interval of the mean difference is a bootstrap over problems.
"""

import json
import sys
from pathlib import Path

from bench.metrics import bootstrap, geometric_mean, mean, sign_test
from bench.report import load, table
from nanotriton.config import die

USAGE = "usage: python -m bench.compare A.json B.json [--policy P] [--out FILE.json]"


def rates(results: dict, policy: str) -> dict[str, list[dict]]:
    """{problem: verdicts of its samples}."""
    found: dict[str, list[dict]] = {}
    for row in results["samples"]:
        if verdict := row["verdicts"].get(policy):
            found.setdefault(row["problem"], []).append(verdict)
    return found


def solved(verdicts: list[dict]) -> float:
    return sum(v["status"] == "correct" for v in verdicts) / len(verdicts)


def speed(verdicts: list[dict]) -> float | None:
    """Geometric mean of the speed-ups of the correct and timed samples."""
    return geometric_mean([v["speedup"] for v in verdicts if v["status"] == "correct" and v.get("speedup")])


def compare(a: dict, b: dict, policy: str) -> dict:
    """The comparison of two results under one policy; `difference` is B minus A."""
    left, right = rates(a, policy), rates(b, policy)
    weak = {row["problem"] for row in (*a["samples"], *b["samples"]) if row.get("weak")}
    both = [name for name in left if name in right]
    parts = {}
    for title, names in (("all", both), ("fair", [n for n in both if n not in weak])):
        scores = [(solved(left[n]), solved(right[n])) for n in names]
        differences = [y - x for x, y in scores]
        wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
        ratios = [y / x for n in names if (x := speed(left[n])) and (y := speed(right[n]))]
        parts[title] = {
            "problems": len(names),
            "a": mean([x for x, _ in scores]),
            "b": mean([y for _, y in scores]),
            "difference": mean(differences),
            "interval": bootstrap(differences),
            "b_better": wins,
            "a_better": losses,
            "p": sign_test(wins, losses),
            "speed_ratio": geometric_mean(ratios),
            "b_faster": sum(r > 1 for r in ratios),
            "a_faster": sum(r < 1 for r in ratios),
            "p_speed": sign_test(sum(r > 1 for r in ratios), sum(r < 1 for r in ratios)),
        }
    changed = {n: [solved(left[n]), solved(right[n])] for n in both if solved(left[n]) != solved(right[n])}
    return {
        "policy": policy,
        **parts,
        "only_in_a": len(left.keys() - right.keys()),
        "only_in_b": len(right.keys() - left.keys()),
        "changed": changed,
    }


def markdown(found: dict, names: list[str]) -> str:
    rows = []
    for title in ("all", "fair"):
        p = found[title]
        if p["problems"]:
            spread = (
                f" [{100 * p['interval'][0]:+.1f}, {100 * p['interval'][1]:+.1f}]" if p["interval"] else ""
            )
            ratio = f"{p['speed_ratio']:.2f}x (p = {p['p_speed']:.3g})" if p["speed_ratio"] else "-"
            rows.append(
                [
                    title,
                    str(p["problems"]),
                    f"{100 * p['a']:.1f}",
                    f"{100 * p['b']:.1f}",
                    f"{100 * p['difference']:+.1f}{spread}",
                    str(p["b_better"]),
                    str(p["a_better"]),
                    f"{p['p']:.3g}",
                    ratio,
                ]
            )
    head = [
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
    lines = [
        f"A: {names[0]}, B: {names[1]}; correct under {found['policy']}, percent; fair: without weak problems",
        "",
        *table(head, rows),
    ]
    lines += [f"- {n}: {100 * x:.0f} -> {100 * y:.0f}" for n, (x, y) in found["changed"].items()]
    if found["only_in_a"] or found["only_in_b"]:
        lines.append(
            f"Left out: {found['only_in_a']} problems that only A has, {found['only_in_b']} that only B has."
        )
    return "\n".join(lines)


def main(argv: list[str]) -> None:
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
    a, b = map(load, files)
    if (a["benchmark"], a.get("channel")) != (b["benchmark"], b.get("channel")):
        die(
            f"{files[0]} is of {a['benchmark']} {a.get('channel', '')}, {files[1]} of {b['benchmark']} {b.get('channel', '')}: nothing to compare".replace(
                " ,", ","
            )
        )
    shared = [p for p in a["scores"] if p in b["scores"]]
    policy = options["--policy"] or (shared[0] if shared else "")
    if policy not in shared:
        die(f"policy {policy or '(none given)'}: both runs have {', '.join(shared) or 'none in common'}")
    found = compare(a, b, policy)
    if not found["all"]["problems"]:
        die(f"{files[0]} and {files[1]} have no judged problem in common")
    print(markdown(found, files))
    if options["--out"]:
        Path(options["--out"]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
