"""Results as a Markdown table, with the published rows beside ours, and two plots.

    python -m bench.report results.json [more.json ...]      # writes results.md, results.status.png and results.speedup.png beside each

The benchmarks call `write` as they go. Published figures are AutoTriton's (arXiv 2507.05687), one sample a problem, measured with the
benchmarks' own checks; ours are stricter, so the column to put beside them is the one with the benchmark's tolerance.
"""

import json
import statistics
import sys
from collections import Counter
from pathlib import Path

from bench.scores import kind_of
from nanotriton.config import die

PUBLISHED = {
    "kernelbench": [
        ("AutoTriton 8B", "83/36 (10/6)", "97/45 (17/0)", "82/20 (10/4)"),
        ("its SFT stage", "65/29 (10/4)", "85/27 (8/3)", "64/6 (2/2)"),
        ("Claude-4-Sonnet", "87/33 (11/7)", "92/26 (10/1)", "82/18 (2/0)"),
        ("DeepSeek-R1-0528", "90/35 (7/1)", "90/42 (28/2)", "76/26 (14/2)"),
        ("Seed-Coder-8B-Reasoning (base)", "48/10 (4/2)", "44/11 (5/4)", "52/10 (4/4)"),
    ],
    "tritonbench": [
        ("AutoTriton 8B", "15.76/15.76 (7.61/2.17)", "40.36/39.16 (17.04/6.02)"),
        ("its SFT stage", "14.67/14.13", "34.94/34.94"),
        ("DeepSeek-R1-0528", "16.30/15.22", "30.72/30.12"),
        ("Claude-4-Sonnet", "9.24/9.24", "10.84/10.84"),
    ],
}
COLUMNS = {"kernelbench": ["level 1", "level 2", "level 3"], "tritonbench": ["G", "T"]}
CAPTION = {
    "kernelbench": "compiled/correct (fast_1/fast_2), percent of problems",
    "tritonbench": "call/execution (fast_1/fast_2), percent of problems",
}

# what counts as right beside our own verdict
OWN_CHECK = {"kernelbench": "the benchmark's own check", "tritonbench": "paper: stdout"}
LOADS = {"kernelbench": "compiled", "tritonbench": "call"}


def percent(rate: dict | None, spread: bool = False) -> str:
    """A rate as "36.0", or "36.0 [27.1, 45.2]" with its 95% interval; "-" where it isn't known."""
    if rate is None:
        return "-"
    text = f"{100 * rate['value']:.1f}"
    return text + (
        f" [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]" if spread and rate["low"] is not None else ""
    )


def times(rate: dict | None) -> str:
    if rate is None:
        return "-"
    return f"{rate['value']:.2f}x" + (
        f" [{rate['low']:.2f}, {rate['high']:.2f}]" if rate["low"] is not None else ""
    )


def cell(scores: dict | None, exact: str) -> str:
    """One cell in the form of the published tables; `exact`: which rate stands for correct."""
    if scores is None:
        return "-"
    fast = [percent(scores["fast_p"].get(p)) for p in ("1", "2")]
    known = fast != ["-", "-"] and exact == "correct"  # speed counts where it is right by our own check
    return f"{percent(scores['compiled'])}/{percent(scores[exact])}" + (
        f" ({fast[0]}/{fast[1]})" if known else ""
    )


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def markdown(results: dict) -> str:
    kind, scores = results["benchmark"], results["scores"]
    columns = COLUMNS[kind] + [
        g for g in sorted({g for by in scores.values() for g in by}) if g != "all" and g not in COLUMNS[kind]
    ]
    ours = []
    for policy, groups in scores.items():
        for title, part in (("", "all"), (", without weak problems", "fair")):
            ours.append(
                [
                    f"this run, {policy}{title}",
                    *(cell(groups.get(c, {}).get(part), "correct") for c in columns),
                ]
            )
        if any((groups.get(c) or {}).get("all", {}).get("loose") for c in columns):
            ours.append(
                [
                    f"this run, {policy}, {OWN_CHECK[kind]}"
                    if kind == "kernelbench"
                    else f"this run, {OWN_CHECK[kind]}",
                    *(cell(groups.get(c, {}).get("all"), "loose") for c in columns),
                ]
            )
    published = [[*row, *["-"] * (len(columns) + 1 - len(row))] for row in PUBLISHED[kind]]
    done = (
        ""
        if results["complete"]
        else f"**Not finished**: {results['judged']} of {results['wanted']} candidates judged.\n"
    )
    lines = [
        f"# {kind}",
        "",
        f"`{results['command']}`",
        "",
        done,
        f"{CAPTION[kind]}. Published rows are with the benchmark's own check.",
        "",
    ]
    lines += table(["", *columns], ours + published)
    if kind == "tritonbench":
        lines += gold_notes(results)
    for policy, groups in scores.items():
        lines += [f"## {policy}", "", *detail(groups, kind)]
        for baseline, against in results.get("scores_against", {}).items():
            rows = [
                [name, str(parts[part]["timed"]), fast_list(parts[part]), times(parts[part]["speedup"])]
                for name, part, parts in parts_of(against[policy])
            ]
            lines += table([f"against {baseline}", "timed", "fast_p", "speed-up [95%]"], rows)
    if missing := results.get("not_compiled"):
        lines += [
            "torch.compile has no time for:",
            "",
            *(f"- {name}: {clean(why)}" for name, why in missing.items()),
            "",
        ]
    environment = ", ".join(f"{k} {v}" for k, v in results["environment"].items() if v is not None)
    return "\n".join([*lines, f"{results['seconds']} s; {environment}.", ""])


def gold_notes(results: dict) -> list[str]:
    """What is to be known of the gold files and of what passed."""
    failures, weak = results["gold_failures"], results["weak_tests"]
    lines = [
        f"Correct by tensors without a Triton kernel in the text: {results['correct_without_triton']}. "
        f"Candidates that contain a gold solution: {results['contain_gold']}.",
        "",
    ]
    why = Counter(kind_of(row["why"]) for row in results["samples"] if row.get("why"))
    lines += (
        [results["not_timed"] + "."]
        if results.get("not_timed")
        else [
            f"Times: the gold {'kernel' if results['channel'] == 'G' else 'torch code'} beside the candidate, by the executor's clock, on inputs of the benchmark's scripts"
            + (f"; correct but without a time, counted as not faster: {sum(why.values())}." if why else "."),
            *(f"- {clean(text)}: {count}" for text, count in why.most_common(5)),
        ]
    )
    lines += [""]
    if failures:
        lines += [
            "Gold files that do not run here:",
            "",
            *(f"- {name}: {clean(message)}" for name, message in failures.items()),
            "",
        ]
    if weak:
        lines += ["Weak tests: " + ", ".join(f"{name} ({reason})" for name, reason in weak.items()) + ".", ""]
    return lines


def fast_list(scores: dict) -> str:
    return ", ".join(f"{p}: {percent(r)}" for p, r in scores["fast_p"].items() if r is not None)


def parts_of(groups: dict) -> list[tuple[str, str, dict]]:
    """(title, part, parts) of every row of a table: each group with and without weak problems, where there are samples."""
    names = [name for name in groups if name != "all" or len(groups) != 2]  # it is the same as the only group
    rows = [
        (title, part, groups[name])
        for name in names
        for part, title in (("all", name), ("fair", f"{name}, without weak"))
    ]
    return [row for row in rows if row[2][row[1]]["samples"]]


def detail(groups: dict, kind: str) -> list[str]:
    rows = []
    for title, part, parts in parts_of(groups):
        s = parts[part]
        passes = ", ".join(f"{k}: {percent(r)}" for k, r in s["pass_at_k"].items())
        rows.append(
            [
                title,
                str(s["problems"]),
                str(s["samples"]),
                str(s["not_judged"]),
                percent(s["compiled"]),
                percent(s["correct"], True),
                percent(s["loose"]),
                passes,
                str(s["timed"]),
                fast_list(s),
                times(s["speedup"]),
            ]
        )
    head = [
        "",
        "problems",
        "samples",
        "not judged",
        LOADS[kind],
        "correct [95%]",
        OWN_CHECK[kind],
        "pass@k",
        "timed",
        "fast_p",
        "speed-up [95%]",
    ]
    lines = table(head, rows)
    failures = groups["all"]["failures"]
    if failures:
        causes = lambda f: "; ".join(f"{clean(text)} ({count})" for text, count in f["causes"])
        lines += ["Why the others failed:", ""]
        lines += table(
            ["stage", "status", "samples", "share", "most frequent"],
            [
                [f["stage"], f["status"], str(f["count"]), f"{100 * f['share']:.1f}%", causes(f)]
                for f in failures
            ],
        )
    return lines


def clean(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def plots(results: dict, out: Path) -> None:
    """Status mix by group, and the distribution of speed-ups, of the first policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    policy, groups = next(iter(results["scores"].items()))
    names = [g for g in groups if groups[g]["all"]["samples"]]
    statuses = list(groups["all"]["all"]["statuses"])
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.5 * max(len(names), 1)), layout="constrained")
    left = [0.0] * len(names)
    for i, status in enumerate(statuses):
        width = [groups[g]["all"]["statuses"].get(status, 0) / groups[g]["all"]["samples"] for g in names]
        axis.barh(names, width, left=left, label=status, color=plt.get_cmap("tab20")(i % 20))
        left = [a + b for a, b in zip(left, width)]
    axis.set(
        title=f"{results['benchmark']}: verdicts ({policy})", xlim=(0, 1), xlabel="share of the candidates"
    )
    axis.invert_yaxis()
    if statuses:
        axis.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False)
    save(figure, out.with_suffix(".status.png"))

    verdicts = [
        v for row in results["samples"] if (v := row["verdicts"].get(policy)) and v["status"] == "correct"
    ]
    found = sorted(v["speedup"] for v in verdicts if v.get("speedup"))
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    if found:
        axis.hist(
            [min(max(s, 1 / 16), 16) for s in found], bins=[2 ** (i / 4) for i in range(-16, 17)], color="C0"
        )
        axis.axvline(
            statistics.geometric_mean(found),
            color="C1",
            label=f"geometric mean {statistics.geometric_mean(found):.2f}",
        )
        axis.axvline(1, color="0.5", lw=1)
        axis.legend(frameon=False)
    else:
        axis.text(
            0.5,
            0.5,
            f"no correct candidate was timed ({len(verdicts)} correct)",
            ha="center",
            transform=axis.transAxes,
        )
    axis.set_xscale("log", base=2)
    axis.set(
        title=f"{results['benchmark']}: speed-up of correct candidates ({policy})",
        xlabel="reference time / candidate time",
        ylabel="candidates",
    )
    save(figure, out.with_suffix(".speedup.png"))


def save(figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(path)
    plt.close(figure)


def write(results: dict, out: Path) -> None:
    """The table and the plots, beside the results file `out`."""
    path, temporary = out.with_suffix(".md"), out.with_suffix(".md.tmp")
    temporary.write_text(markdown(results))
    temporary.replace(path)
    plots(results, out)


def print_results(results: dict) -> None:
    print(markdown(results))


def load(path: str) -> dict:
    """A results file, or one line and exit 2."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        die(f"{path}: cannot read: {error.strerror}")
    except ValueError:
        die(f"{path}: not JSON")
    if not isinstance(results, dict) or results.get("benchmark") not in PUBLISHED or "samples" not in results:
        die(f"{path}: not a results file of bench.kernelbench or bench.tritonbench")
    return results


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        die("usage: python -m bench.report RESULTS.json [RESULTS.json ...]")
    for name in sys.argv[1:]:
        found = load(name)
        write(found, Path(name))
        print_results(found)
