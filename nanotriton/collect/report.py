"""The data card: sources, counts by filter, operators, lengths, shapes, examples; as report.json for machines
and report.md with plots for people.
"""

import importlib.metadata
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from nanotriton.collect.files import put
from nanotriton.collect.sets import UNFAIR

# What a candidate's status means on the card. The executor's own verdicts are in docs/executor.md.
MEANING = {
    "kept": "a pair: strictly correct twice, with other secrets",
    "task": "no pair, and a fair question: an RL task",
    "emitted": "made, and not verified yet",
    "duplicate": "its module, or the pair, was there already",
    "copy": "a problem of an excluded benchmark",
    "unfit": "no solution could be made",
    "failed": "our own maker raised",
    "infra_error": "the executor failed, which says nothing of the candidate",
}
NOT_LOST = ("kept", "task", "emitted")
OURS = "made here: the project's own"  # the licence of what the grammar draws
EXAMPLES = 5


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
    pairs = sum(r["status"] == "kept" and r["split"] == "train" for r in records)
    return {
        "settings": settings,
        "seconds": round(seconds, 1),
        "candidates": len(records),
        "sets": {name: len(rows) for name, rows in kept.items()},
        "left_out": pairs - len(sft),  # by --count and --cap-share
        "statuses": dict(Counter(r["status"] for r in records).most_common()),
        "reasons": reasons(r for r in records if r["status"] not in NOT_LOST),
        "rl_reasons": reasons(r for r in records if r["status"] == "task"),
        "by_family": families(records),
        "by_route": dict(Counter(r["meta"].get("route", "?") for r in sft)),
        "by_origin": origins(records, kept),
        "operators": dict(Counter(o for r in sft for o in set(r["meta"].get("operators", []))).most_common()),
        "dtypes": dict(Counter(r["meta"].get("dtype", "not noted") for r in sft)),
        "solution_tokens": quantiles([length(r["solution"]) for r in sft]),
        "computed_literals": quantiles([r["meta"].get("literals", 0) for r in sft]),
        "sizes": quantiles([n for r in sft for n in r["meta"].get("sizes", [])]),
        "seconds_to_make": quantiles([r["seconds"] for r in records]),
        "marked_as_same_operator": sum(bool(r["meta"].get("same_operator_as")) for r in sft),
    }


def reasons(records) -> dict[str, int]:
    """The 40 commonest reasons of these records: their status, and the beginning of the message."""
    found: Counter = Counter()
    for r in records:
        message = r["message"][:100]
        if not message and r["meta"].get("withheld"):
            message = "its solution is withheld, as those of all hard draws"
        found[f"{r['status']}: {message}" if message else r["status"]] += 1
    return dict(found.most_common(40))


def families(records: list[dict]) -> dict:
    """Of each family of modules: how many were drawn, emitted, kept, and the share kept of those that are
    fair questions.
    """
    found: dict[str, Counter] = {}
    for r in records:
        count = found.setdefault(r["meta"].get("family", r["meta"].get("origin", "?")), Counter())
        count["drawn"] += 1
        count["emitted"] += bool(r["solution"] or r["meta"].get("dropped"))
        count["kept"] += r["status"] == "kept"
        count["unfair"] += r["status"] in (*UNFAIR, "duplicate", "copy")
    rate = lambda c: round(c["kept"] / max(c["drawn"] - c["unfair"], 1), 3)
    return {name: {**c, "yield": rate(c)} for name, c in sorted(found.items())}


def origins(records: list[dict], kept: dict[str, list[dict]]) -> dict:
    """Of each source: how many candidates, pairs and RL tasks it gave, and its licence."""
    origin_of = lambda r: r["meta"].get("origin", "not named")
    candidates = Counter(map(origin_of, records))
    sets = {name: Counter(map(origin_of, kept[name])) for name in ("sft", "rl")}
    said = {origin_of(r): r["meta"]["licence"] for r in records if r["meta"].get("licence")}
    return {
        name: {
            "candidates": n,
            "pairs": sets["sft"][name],
            "rl_tasks": sets["rl"][name],
            "licence": OURS if name == "grammar" else said.get(name) or licence(name),
        }
        for name, n in candidates.most_common()
    }


def licence(origin: str) -> str:
    """The licence of an installed package, as its metadata says."""
    try:
        meta = importlib.metadata.metadata(origin.split(".")[0])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "not known"
    classifiers = [c for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
    said = meta.get("License-Expression") or meta.get("License") or "".join(classifiers[:1])
    return said.splitlines()[0].rsplit(":: ")[-1][:60] if said else "not known"


def quantiles(values: list[float]) -> dict:
    if not values:
        return {}
    ordered = sorted(values)
    at = lambda share: ordered[min(int(share * len(ordered)), len(ordered) - 1)]
    return {"p10": at(0.1), "median": statistics.median(ordered), "p90": at(0.9), "max": ordered[-1]}


def write(folder: Path, numbers: dict, kept: dict[str, list[dict]], length: Callable[[str], int]) -> None:
    """report.json, report.md and the plots, each written whole and then renamed."""
    put(folder / "report.json", json.dumps(numbers, indent=2) + "\n")
    plots(folder, numbers, kept["sft"], length)
    put(folder / "report.md", card(numbers, kept["sft"]))


# ---- the card


def card(numbers: dict, sft: list[dict]) -> str:
    sets = numbers["sets"]
    parts = [
        "# Data card",
        f"{sets['sft']:,} SFT pairs, {sets['rl']:,} RL tasks, {sets['heldout']:,} held-out tasks, of "
        f"{numbers['candidates']:,} candidates in {numbers['seconds']:,.0f} s.",
        "## Sources",
        table(
            ("source", "candidates", "pairs", "RL tasks", "licence"),
            [
                (name, o["candidates"], o["pairs"], o["rl_tasks"], o["licence"])
                for name, o in numbers["by_origin"].items()
            ],
        ),
        "Pairs by route: " + (listed(numbers["by_route"]) or "none") + ".",
        "## What became of the candidates",
        table(
            ("status", "candidates", "what it means"),
            [(status, n, MEANING.get(status, meaning(status))) for status, n in numbers["statuses"].items()],
        ),
    ]
    if numbers["left_out"]:
        parts.append(f"{numbers['left_out']:,} kept pairs are not in sft.jsonl: --count or --cap-share.")
    parts += [
        "## Families",
        table(
            ("family", "drawn", "emitted", "kept", "yield of fair ones"),
            [
                (name, f["drawn"], f["emitted"], f["kept"], f"{f['yield']:.0%}")
                for name, f in numbers["by_family"].items()
            ],
        ),
        f"## {len(numbers['operators'])} operators",
        listed(numbers["operators"]),
        "## Lengths, sizes and literals",
        table(
            ("", "p10", "median", "p90", "max"),
            [
                (what, *numbers[name].values())
                for what, name in (
                    ("tokens of a solution", "solution_tokens"),
                    ("sizes of inputs", "sizes"),
                    ("numbers in a solution that nothing explains", "computed_literals"),
                )
                if numbers[name]
            ],
        ),
        "![lengths, operators and sizes](histograms.png)",
    ]
    parts += bullets("## What became of classes of packages and files of folders", numbers.get("classes", {}))
    parts += bullets("## Why candidates were lost", numbers["reasons"])
    parts += bullets("## Why modules are RL tasks, and no pairs", numbers["rl_reasons"])
    for row in random.Random(0).sample(sft, min(EXAMPLES, len(sft))):
        parts += [f"## Example {row['name']}", f"```python\n{row['task'].strip()}\n```", row["completion"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def meaning(status: str) -> str:
    if status.startswith("second_"):
        return "correct once, and not again with other secrets"
    return "not a fair question" if status in UNFAIR else "the executor's verdict on the solution"


def table(head: tuple[str, ...], rows: list[tuple]) -> str:
    cell = lambda value: f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items())


def bullets(title: str, counts: dict[str, int]) -> list[str]:
    lines = [f"- {n} x {why}" for why, n in list(counts.items())[:20]]
    return [title, "\n".join(lines)] if lines else []


def plots(folder: Path, numbers: dict, sft: list[dict], length: Callable[[str], int]) -> None:
    """histograms.png: lengths of modules and solutions, the commonest operators, the sizes of the modules."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for what in ("solution", "task"):
        axes[0].hist([length(r[what]) for r in sft], bins=40, histtype="step", label=what)
    axes[0].set(title="lengths", xlabel="tokens", ylabel="pairs")
    axes[0].legend()
    common = list(numbers["operators"].items())[:25][::-1]
    axes[1].barh([name for name, _ in common], [n for _, n in common])
    axes[1].tick_params(axis="y", labelsize=6)
    axes[1].set(title="commonest operators", xlabel="pairs")
    sizes = [n for r in sft for n in r["meta"].get("sizes", []) if n > 0]
    if sizes:
        axes[2].hist(sizes, bins=[2**i for i in range(max(sizes).bit_length() + 1)])
        axes[2].set_xscale("log", base=2)
    axes[2].set(title="sizes of the inputs", xlabel="size of a dimension", ylabel="dimensions")
    temporary = folder / "histograms.tmp.png"
    figure.savefig(temporary, dpi=100)
    temporary.replace(folder / "histograms.png")
    plt.close(figure)
