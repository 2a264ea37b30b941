"""The data card: sources, counts by filter, operators, lengths, shapes, examples; as report.json for machines
and report.md with plots for people.
"""

import json
import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path


def report(
    records: list[dict],
    kept: dict[str, list[dict]],
    settings: dict,
    seconds: float,
    length: Callable[[str], int],
) -> dict:
    """The numbers of a run. records: every candidate's row of the journal; kept: set -> rows; length: a
    text's length in tokens.
    """
    sft = kept["sft"]
    solutions = [length(r["solution"]) for r in sft]
    return {
        "settings": settings,
        "seconds": round(seconds, 1),
        "candidates": len(records),
        "sets": {name: len(rows) for name, rows in kept.items()},
        "statuses": dict(Counter(r["status"] for r in records).most_common()),
        "reasons": dict(
            Counter(
                f"{r['status']}: {r['message'][:100]}"
                for r in records
                if r["message"] and r["status"] != "kept"
            ).most_common(40)
        ),
        "by_family": families(records),
        "by_route": dict(Counter(r["meta"].get("route", "?") for r in sft)),
        "by_origin": {
            o: {"pairs": n, "licence": licence(o)}
            for o, n in Counter(r["meta"].get("origin", "?") for r in sft).items()
        },
        "operators": dict(Counter(o for r in sft for o in set(r["meta"].get("operators", []))).most_common()),
        "dtypes": dict(Counter(r["meta"].get("dtype", "?") for r in sft)),
        "solution_tokens": quantiles(solutions),
        "computed_literals": quantiles([r["meta"].get("literals", 0) for r in sft]),
        "seconds_to_make": quantiles([r["seconds"] for r in records]),
        "marked_as_same_operator": sum(bool(r["meta"].get("same_operator_as")) for r in sft),
    }


def families(records: list[dict]) -> dict:
    """Of each family of modules: how many were drawn, emitted, kept, and the share kept of those that are
    fair questions.
    """
    found: dict[str, Counter] = {}
    for r in records:
        count = found.setdefault(r["meta"].get("family", r["meta"].get("origin", "?")), Counter())
        count["drawn"] += 1
        count["emitted"] += bool(r["solution"])
        count["kept"] += r["status"] == "kept"
        count["unfair"] += r["status"] in ("weak_task", "unsupported", "duplicate", "copy")
    rate = lambda c: round(c["kept"] / max(c["drawn"] - c["unfair"], 1), 3)
    return {name: {**c, "yield": rate(c)} for name, c in sorted(found.items())}


def licence(origin: str) -> str:
    known = {
        "grammar": "made here: the project's own",
        "pytorch-jit-paritybench": "none stated: modules are not redistributed",
        "torch.nn": "BSD-3-Clause",
        "torchvision": "BSD-3-Clause",
    }
    return known.get(origin, "as its owner says")


def quantiles(values: list[float]) -> dict:
    if not values:
        return {}
    ordered = sorted(values)
    at = lambda share: ordered[min(int(share * len(ordered)), len(ordered) - 1)]
    return {"p10": at(0.1), "median": statistics.median(ordered), "p90": at(0.9), "max": ordered[-1]}


def write(folder: Path, numbers: dict, kept: dict[str, list[dict]], length: Callable[[str], int]) -> None:
    """report.json, report.md and the plots, each written whole and then renamed."""
    put(folder / "report.json", json.dumps(numbers, indent=2) + "\n")
    plots(folder, kept["sft"], length)
    put(folder / "report.md", card(numbers, kept["sft"]))


def put(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def card(numbers: dict, sft: list[dict]) -> str:
    lines = [
        "# Data card",
        "",
        f"{numbers['sets']['sft']:,} SFT pairs, {numbers['sets']['rl']:,} RL tasks, {numbers['sets']['heldout']:,} held-out tasks; "  # noqa: E501
        f"{numbers['candidates']:,} candidates in {numbers['seconds']:,.0f} s.",
        "",
    ]
    lines += ["## Sources", "", "| source | pairs | licence |", "|---|---|---|"]
    lines += [f"| {name} | {o['pairs']:,} | {o['licence']} |" for name, o in numbers["by_origin"].items()]
    lines += [
        "",
        "## What became of the candidates",
        "",
        "| status | candidates |",
        "|---|---|",
        *(f"| {s} | {n:,} |" for s, n in numbers["statuses"].items()),
    ]
    lines += [
        "",
        "## Families",
        "",
        "| family | drawn | emitted | kept | yield of fair ones |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {f['drawn']} | {f['emitted']} | {f['kept']} | {f['yield']:.0%} |"
        for name, f in numbers["by_family"].items()
    ]
    lines += [
        "",
        f"## {len(numbers['operators'])} operators",
        "",
        ", ".join(f"{o} {n}" for o, n in numbers["operators"].items()),
        "",
    ]
    lines += [
        "## Lengths and literals",
        "",
        f"Tokens of a solution: {numbers['solution_tokens']}. Numbers in it that the task doesn't have and no definition explains: {numbers['computed_literals']}.",  # noqa: E501
        "",
    ]
    lines += [
        "![lengths, operators and sizes](histograms.png)",
        "",
        "## Why candidates were lost",
        "",
        *(f"- {n} x {why}" for why, n in list(numbers["reasons"].items())[:20]),
    ]
    for row in random.Random(0).sample(sft, min(3, len(sft))):
        lines += [
            "",
            f"## Example {row['name']}",
            "",
            "```python",
            row["task"].rstrip(),
            "```",
            "",
            row["completion"],
        ]
    return "\n".join(lines) + "\n"


def plots(folder: Path, sft: list[dict], length: Callable[[str], int]) -> None:
    """histograms.png: lengths of solutions, the commonest operators, the sizes of the modules."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    axes[0].hist([length(r["solution"]) for r in sft], bins=40)
    axes[0].set(title="tokens of a solution", ylabel="pairs")
    common = Counter(o for r in sft for o in set(r["meta"].get("operators", []))).most_common(25)
    axes[1].barh([o for o, _ in common][::-1], [n for _, n in common][::-1])
    axes[1].tick_params(axis="y", labelsize=6)
    axes[1].set(title="commonest operators", xlabel="pairs")
    sizes = [n for r in sft for n in r["meta"].get("sizes", []) if n > 0]
    if sizes:
        axes[2].hist(sizes, bins=[2**i for i in range(16)])
        axes[2].set_xscale("log", base=2)
    axes[2].set(title="sizes in the modules", ylabel="sizes")
    temporary = folder / "histograms.tmp.png"
    figure.savefig(temporary, dpi=100)
    temporary.replace(folder / "histograms.png")
    plt.close(figure)
