"""Problem by problem: how many of its samples are right, how fast the best one is, and why the rest failed.

It is what shows whether a model solves few problems always or many of them now and then, and which problem to
look at.
"""

from collections import Counter

from bench.channels.markdown import clean, table
from bench.channels.scores import kind_of

MESSAGE = 80  # characters of the most frequent reason


def by_problem(results: dict) -> list[str]:
    """The lines of one table for each policy, in the order of the problems. results: a results file's."""
    rows: dict[str, list[dict]] = {}
    for row in results["samples"]:
        rows.setdefault(row["problem"], []).append(row)
    lines = []
    for policy in results["scores"]:
        head = ["problem", "right", "best speed-up", "most frequent failure"]
        body = [line(name, some, policy) for name, some in rows.items()]
        lines += [f"## By problem, {policy}", "", *table(head, body)]
    return lines


def line(name: str, rows: list[dict], policy: str) -> list[str]:
    """The cells of one problem. rows: those of its samples."""
    title = next((row["title"] for row in rows if row.get("title")), "")
    verdicts = [row["verdicts"][policy] for row in rows if policy in row["verdicts"]]
    right = [v for v in verdicts if v["status"] == "correct"]
    speedups = [v["speedup"] for v in right if v.get("speedup")]
    weak = next((row["weak"] for row in rows if row.get("weak")), None)
    return [
        clean(f"{name} {title}".strip()) + (f" (weak: {clean(weak)})" if weak else ""),
        f"{len(right)} of {len(verdicts)}" if verdicts else "not judged",
        f"{max(speedups):.2f}x" if speedups else "-",
        failure(verdicts),
    ]


def failure(verdicts: list[dict]) -> str:
    """The most frequent failure, how often it came, and its most frequent message without what differs."""
    failed = [v for v in verdicts if v["status"] != "correct"]
    if not failed:
        return ""
    status, count = Counter(v["status"] for v in failed).most_common(1)[0]
    messages = Counter(kind_of(v["message"]) for v in failed if v["status"] == status)
    text = clean(messages.most_common(1)[0][0])
    if len(text) > MESSAGE:
        text = text[: MESSAGE - 3].rstrip("\\") + "..."
    return f"{status} ({count}){': ' * bool(text)}{text}"
