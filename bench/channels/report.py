"""Results as a Markdown table with the published rows beside ours, and two plots.

    python -m bench.channels.report results.json [more.json ...]

It writes results.md, results.status.png and results.speedup.png beside each file. The benchmarks call `write`
as they go. The published figures are AutoTriton's (arXiv 2507.05687), one sample a problem, measured with the
benchmarks' own checks. Ours are stricter, so the row to put beside them is the one with the benchmark's own
check.
"""

import json
import statistics
import sys
from collections import Counter
from pathlib import Path

from bench.channels import problems
from bench.channels.markdown import clean, table
from bench.channels.scores import kind_of
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
    "tasks": [],  # anybody's own
}
COLUMNS = {"kernelbench": ["level 1", "level 2", "level 3"], "tritonbench": ["G", "T"], "tasks": []}
CAPTION = {
    "kernelbench": "compiled/correct (fast_1/fast_2), percent of problems",
    "tritonbench": "call/execution (fast_1/fast_2), percent of problems",
    "tasks": "compiled/correct, percent of tasks",
}

# The benchmark's own idea of a right answer, beside our verdict.
OWN_CHECK = {"kernelbench": "the benchmark's own check", "tritonbench": "paper: stdout", "tasks": "-"}
# What the column "compiled" is called.
LOADS = {"kernelbench": "compiled", "tritonbench": "call", "tasks": "compiled"}
DETAIL = [
    "",
    "problems",
    "samples",
    "not judged",
    "",  # LOADS
    "correct [95%]",
    "",  # OWN_CHECK
    "pass@k",
    "timed",
    "fast_p",
    "speed-up [95%]",
]


# ---- cells ----


def percent(rate: dict | None, spread: bool = False) -> str:
    """A rate as "36.0", with `spread` as "36.0 [27.1, 45.2]", its 95% interval; "-" where it isn't known."""
    if rate is None:
        return "-"
    text = f"{100 * rate['value']:.1f}"
    if spread and rate["low"] is not None:
        text += f" [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"
    return text


def times(rate: dict | None) -> str:
    """A speed-up as "1.20x [1.10, 1.31]"."""
    if rate is None:
        return "-"
    text = f"{rate['value']:.2f}x"
    if rate["low"] is not None:
        text += f" [{rate['low']:.2f}, {rate['high']:.2f}]"
    return text


def cell(scores: dict | None, right: str) -> str:
    """One cell in the form of the published tables. right: which rate stands there, "correct" or "loose"."""
    if scores is None:
        return "-"
    text = f"{percent(scores['compiled'])}/{percent(scores[right])}"
    fast = [percent(scores["fast_p"].get(p)) for p in ("1", "2")]
    if fast == ["-", "-"] or right != "correct":  # only what is right by our own check has a speed
        return text
    return f"{text} ({fast[0]}/{fast[1]})"


def fast_list(scores: dict) -> str:
    """fast_p for every p that is known."""
    return ", ".join(f"{p}: {percent(r)}" for p, r in scores["fast_p"].items() if r is not None)


# ---- the Markdown file ----


def markdown(results: dict) -> str:
    kind, scores = results["benchmark"], results["scores"]
    lines = [f"# {kind}", "", f"`{results['command']}`", ""]
    if not results["complete"]:
        lines += [f"**Not finished**: {results['judged']} of {results['wanted']} candidates judged.", ""]
    lines += model_notes(results)
    published = " Published rows are with the benchmark's own check." if PUBLISHED[kind] else ""
    lines += [f"{CAPTION[kind]}.{published}", ""]
    lines += summary(kind, scores)
    if kind == "tritonbench":
        lines += gold_notes(results)
    for policy, groups in scores.items():
        lines += [f"## {policy}", "", *detail(groups, kind)]
        for baseline, against in results.get("scores_against", {}).items():
            lines += against_baseline(baseline, against[policy])
    for baseline, scores_on_hidden in results.get("verified", {}).items():
        lines += verified_table(baseline, scores_on_hidden)
    if missing := results.get("not_compiled"):
        lines += ["A baseline has no time for:", ""]
        lines += [*(f"- {name}: {clean(why)}" for name, why in missing.items()), ""]
    environment = ", ".join(f"{k} {v}" for k, v in results["environment"].items() if v is not None)
    return "\n".join([*lines, f"{results['seconds']} s; {environment}.", ""])


def model_notes(results: dict) -> list[str]:
    """Which model answered, and what it was not asked with."""
    if not results.get("model"):
        return []
    text = f"Model: `{results['model']}`"
    if endpoint := results["settings"]["endpoint"]:
        text += f" at {endpoint}"
    if others := results["answered_by"]:
        text += "; the server says that " + ", ".join(f"`{k}` wrote {n}" for k, n in others.items())
    if left_out := results["left_out"]:
        text += f"; not asked with {', '.join(left_out)}, which it does not take"
    return [f"{text}.", ""]


def summary(kind: str, scores: dict) -> list[str]:
    """The first table: ours by policy, then the published rows. scores: {policy: {group: ...}}."""
    others = {name for groups in scores.values() for name in groups} - {"all", *COLUMNS[kind]}
    columns = COLUMNS[kind] + sorted(others)
    rows = []
    for policy, groups in scores.items():
        name = f"this run, {policy}"
        rows.append([name, *row(groups, columns, "all", "correct")])
        rows.append([f"{name}, without weak problems", *row(groups, columns, "fair", "correct")])
        if any((groups.get(c) or {}).get("all", {}).get("loose") for c in columns):
            title = f"{name}, {OWN_CHECK[kind]}" if kind == "kernelbench" else f"this run, {OWN_CHECK[kind]}"
            rows.append([title, *row(groups, columns, "all", "loose")])
    for published in PUBLISHED[kind]:
        rows.append([*published, *["-"] * (len(columns) + 1 - len(published))])
    return table(["", *columns], rows)


def row(groups: dict, columns: list[str], part: str, right: str) -> list[str]:
    """The cells of one row. part: "all" problems or the "fair" ones."""
    return [cell(groups.get(column, {}).get(part), right) for column in columns]


def gold_notes(results: dict) -> list[str]:
    """What a reader of a TritonBench table should know of the gold files and of what passed."""
    failures, weak = results["gold_failures"], results["weak_tests"]
    lines = [
        f"Correct by tensors without a Triton kernel in the text: {results['correct_without_triton']}. "
        f"Candidates that contain a gold solution: {results['contain_gold']}.",
        "",
        *time_notes(results),
        "",
    ]
    if failures:
        lines += ["Gold files that do not run here:", ""]
        lines += [*(f"- {name}: {clean(message)}" for name, message in failures.items()), ""]
    if weak:
        lines += ["Weak tests: " + ", ".join(f"{name} ({reason})" for name, reason in weak.items()) + ".", ""]
    return lines


def time_notes(results: dict) -> list[str]:
    """How candidates were timed, and the most frequent reasons why correct ones were not."""
    if results.get("not_timed"):
        return [results["not_timed"] + "."]
    why = Counter(kind_of(row["why"]) for row in results["samples"] if row.get("why"))
    gold = "kernel" if results["channel"] == "G" else "torch code"
    text = f"Times: the gold {gold} beside the candidate, by the executor's clock, "
    text += "on inputs of the benchmark's scripts"
    if why:
        text += f"; correct but without a time, counted as not faster: {sum(why.values())}"
    return [f"{text}.", *(f"- {clean(message)}: {count}" for message, count in why.most_common(5))]


def parts_of(groups: dict) -> list[tuple[str, dict]]:
    """(title, scores) of each row: every group that has samples, with and without weak problems."""
    rows = []
    for name, parts in groups.items():
        if name == "all" and len(groups) == 2:  # it is the same as the only group
            continue
        rows += [(name, parts["all"]), (f"{name}, without weak", parts["fair"])]
    return [(title, scores) for title, scores in rows if scores["samples"]]


def detail(groups: dict, kind: str) -> list[str]:
    """The table of one policy with intervals, and why the other candidates failed."""
    rows = []
    for title, s in parts_of(groups):
        rows.append(
            [
                title,
                str(s["problems"]),
                str(s["samples"]),
                str(s["not_judged"]),
                percent(s["compiled"]),
                percent(s["correct"], True),
                percent(s["loose"]),
                ", ".join(f"{k}: {percent(r)}" for k, r in s["pass_at_k"].items()),
                str(s["timed"]),
                fast_list(s),
                times(s["speedup"]),
            ]
        )
    head = list(DETAIL)
    head[4], head[6] = LOADS[kind], OWN_CHECK[kind]
    return table(head, rows) + failures_of(groups["all"]["failures"])


def failures_of(failures: list[dict]) -> list[str]:
    """The table of scores.taxonomy."""
    if not failures:
        return []
    rows = []
    for f in failures:
        causes = "; ".join(f"{clean(text)} ({count})" for text, count in f["causes"])
        rows.append([f["stage"], f["status"], str(f["count"]), f"{100 * f['share']:.1f}%", causes])
    head = ["stage", "status", "samples", "share", "most frequent"]
    return ["Why the others failed:", "", *table(head, rows)]


def against_baseline(baseline: str, groups: dict) -> list[str]:
    """The table of speed-ups against another baseline than the eager reference."""
    rows = [[title, str(s["timed"]), fast_list(s), times(s["speedup"])] for title, s in parts_of(groups)]
    return table([f"against {baseline}", "timed", "fast_p", "speed-up [95%]"], rows)


def verified_table(baseline: str, scores: dict) -> list[str]:
    """The columns of KernelBench-Verified: right on the hidden inputs too, and how fast those are.

    The paper's (arXiv 2607.16241) are the best of five samples, so pass@5 stands beside its correctness.
    """
    rows = []
    for policy, groups in scores.items():
        for title, s in parts_of(groups):
            passes = ", ".join(f"{k}: {percent(r)}" for k, r in s["pass_at_k"].items())
            speed = [str(s["timed"]), fast_list(s), times(s["speedup"])]
            rows.append([f"{policy}, {title}", percent(s["correct"], True), passes, *speed])
    against = f", against {baseline}" if baseline else ""
    head = [f"KernelBench-Verified{against}", "right on hidden inputs too [95%]", "pass@k"]
    return table([*head, "timed", "fast_p", "speed-up [95%]"], rows)


# ---- plots ----


def plots(results: dict, out: Path) -> None:
    """The mix of statuses by group and the distribution of speed-ups, of the first policy, beside `out`."""
    import matplotlib

    matplotlib.use("Agg")
    policy, groups = next(iter(results["scores"].items()))
    plot_statuses(f"{results['benchmark']}: verdicts ({policy})", groups, out.with_suffix(".status.png"))
    verdicts = [row["verdicts"][policy] for row in results["samples"] if policy in row["verdicts"]]
    right = [v for v in verdicts if v["status"] == "correct"]
    title = f"{results['benchmark']}: speed-up of correct candidates ({policy})"
    plot_speedups(title, right, out.with_suffix(".speedup.png"))


def plot_statuses(title: str, groups: dict, path: Path) -> None:
    """One bar a group, divided by status."""
    import matplotlib.pyplot as plt

    totals = {name: parts["all"] for name, parts in groups.items() if parts["all"]["samples"]}
    statuses = list(groups["all"]["all"]["statuses"])
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.5 * max(len(totals), 1)), layout="constrained")
    left = [0.0] * len(totals)
    for i, status in enumerate(statuses):
        width = [total["statuses"].get(status, 0) / total["samples"] for total in totals.values()]
        axis.barh(list(totals), width, left=left, label=status, color=plt.get_cmap("tab20")(i % 20))
        left = [a + b for a, b in zip(left, width, strict=True)]
    axis.set(title=title, xlim=(0, 1), xlabel="share of the candidates")
    axis.invert_yaxis()
    if statuses:
        axis.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False)
    save(figure, path)


def plot_speedups(title: str, right: list[dict], path: Path) -> None:
    """A histogram from 1/16 to 16; its last bins hold what lies beyond. right: the correct verdicts."""
    import matplotlib.pyplot as plt

    found = sorted(v["speedup"] for v in right if v.get("speedup"))
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    if found:
        average = statistics.geometric_mean(found)
        bins = [2 ** (i / 4) for i in range(-16, 17)]
        axis.hist([min(max(s, 1 / 16), 16) for s in found], bins=bins, color="C0")
        axis.axvline(average, color="C1", label=f"geometric mean {average:.2f}")
        axis.axvline(1, color="0.5", lw=1)
        axis.legend(frameon=False)
    else:
        text = f"no correct candidate was timed ({len(right)} correct)"
        axis.text(0.5, 0.5, text, ha="center", transform=axis.transAxes)
    axis.set_xscale("log", base=2)
    axis.set(title=title, xlabel="reference time / candidate time", ylabel="candidates")
    save(figure, path)


def save(figure, path: Path) -> None:
    """Write the figure to a temporary file and rename it."""
    import matplotlib.pyplot as plt

    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(path)
    plt.close(figure)


# ---- files ----


def write(results: dict, out: Path) -> None:
    """Write the tables and the plots beside the results file `out`."""
    path, temporary = out.with_suffix(".md"), out.with_suffix(".md.tmp")
    # the table by problem is as long as the benchmark, so it is not printed
    temporary.write_text(markdown(results) + "\n" + "\n".join(problems.by_problem(results)))
    temporary.replace(path)
    plots(results, out)


def load(path: str) -> dict:
    """The results in a file. Ends in one line and exit status 2 if it holds none."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        die(f"{path}: cannot read: {error.strerror}")
    except ValueError:
        die(f"{path}: not JSON")
    if not isinstance(results, dict) or results.get("benchmark") not in PUBLISHED or "samples" not in results:
        die(f"{path}: not a results file of bench.channels.kernelbench, tritonbench or tasks")
    return results


def main(names: list[str]) -> None:
    if {"-h", "--help"} & set(names):
        print(__doc__.strip())
        return
    if not names or names[0].startswith("-"):
        die("usage: python -m bench.channels.report RESULTS.json [RESULTS.json ...]")
    for name in names:
        found = load(name)
        write(found, Path(name))
        print(markdown(found))


if __name__ == "__main__":
    main(sys.argv[1:])
