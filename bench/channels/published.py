"""Published predictions for TritonBench, judged three ways: by call, by stdout ("paper") and by tensors.

    python -m bench.channels.tritonbench --data CLONE --predictions G.jsonl --device cpu --out g.json
    python -m bench.channels.published --runs g.json t.json --again g2.json t2.json --out published.json

--runs are results of bench.channels.tritonbench. --again are results of the same commands, run once more: a
verdict that changed between the two is reported.

It writes OUT and a Markdown table beside it, with one line a prediction. Every disagreement between paper and
tensors is explained by the verdict's message. Someone who has looked at the candidate and the gold file can
leave a remark in OUT (`checked`), which is kept when the file is written again, as long as the verdict is the
same. No code of the candidates is copied. Exit status: 0 both runs agree on every verdict; 1 they do not; 2 a
mistake of the user's.
"""

import json
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.results import write_json
from nanotriton import config

LONGEST = 200  # characters of a reason


@dataclass
class Config:
    runs: list[str] = field(default_factory=list)  # results of bench.channels.tritonbench
    again: list[str] = field(default_factory=list)  # results of the same commands, run once more
    out: str = "tritonbench_published.json"  # where to write

    def validate(self) -> None:
        if not self.runs or len(self.runs) != len(self.again):
            raise config.ConfigError(
                "--runs and --again: the same number of result files is expected, at least one each"
            )
        if not self.out.endswith(".json"):
            raise config.ConfigError(f"--out {self.out}: a name that ends in .json is expected")


# ---- one run ----


def load(path: str) -> dict:
    """The results in a file. Raises ConfigError."""
    try:
        results = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise config.ConfigError(f"{path}: {error}") from None
    if results.get("benchmark") != "tritonbench" or not results.get("complete"):
        raise config.ConfigError(
            f"{path}: the results of a finished bench.channels.tritonbench run are expected"
        )
    return results


def without_code(message: str) -> str:
    """A verdict's message, with the number of a line in place of the line."""
    short = re.sub(r"\s*\(line (\d+): .*$", r" (line \1)", " ".join(message.split()))
    return short if len(short) <= LONGEST else short[: LONGEST - 3] + "..."


def told(*facts: bool | None) -> bool | None:
    """Whether all facts are true; None (unknown) if one is unknown and none is false."""
    if False in facts:
        return False
    return None if None in facts else True


def rows(results: dict) -> list[dict]:
    """What a run says of each prediction.

    call, paper and tensors are True, False, or None where that can't be told.
    """
    found = []
    for s in results["samples"]:
        verdict = s["verdicts"]["tensors"]
        unknown = verdict["status"] in ("unsupported", "infra_error")
        found.append(
            {
                "channel": results["channel"],
                "problem": s["problem"],
                "sample": s["sample"],
                "call": s["call"],
                "paper": told(s["call"], s["stdout"]),
                "tensors": None if unknown else verdict["status"] == "correct",
                "status": verdict["status"],
                "stage": verdict["stage"],
                "reason": without_code(verdict["message"]),
                "weak_test": s["weak"],
            }
        )
    return found


def judged(row: dict) -> list:
    """What must be the same when the run is repeated."""
    return [row[k] for k in ("channel", "problem", "sample", "call", "paper", "status", "stage")]


def totals(results: dict, mine: list[dict]) -> dict:
    """How many predictions of a run are right each way, and how many can't be told here."""

    def count(key: str, value: bool | None) -> int:
        return sum(row[key] is value for row in mine)

    ways = ("call", "paper", "tensors")
    return {
        "channel": results["channel"],
        "predictions": len(mine),
        **{way: count(way, True) for way in ways},
        "not told here": {way: count(way, None) for way in ways},
        "weak tests": sum(bool(row["weak_test"]) for row in mine),
    }


# ---- all runs ----


def explain(row: dict) -> str:
    """Why paper and tensors disagree, in one line."""
    where = "both print the same" if row["paper"] else "what they print differs"
    weak = f" (weak test: {row['weak_test']})" if row["weak_test"] else ""
    return f"{where}; {row['reason'] or 'the tensors agree'}{weak}"


def remarks_in(out: Path) -> dict[tuple, str]:
    """{what a remark is about: the remark}, from the file that is to be written again."""
    before = json.loads(out.read_text()) if out.exists() else {}
    found = {}
    for row in before.get("disagreements", []):
        if "checked" in row:
            found[about(row)] = row["checked"]
    return found


def about(row: dict) -> tuple:
    return row["channel"], row["problem"], row["sample"], row["status"]


def collect(cfg: Config) -> dict:
    """The contents of OUT."""
    remarks = remarks_in(Path(cfg.out))
    sets, every, changed = {}, [], []
    for first, second in zip(map(load, cfg.runs), map(load, cfg.again), strict=True):
        mine = rows(first)
        for a, b in zip(mine, rows(second), strict=True):
            if judged(a) != judged(b):
                changed.append([judged(a), judged(b)])
        sets[Path(first["settings"]["predictions"]).name] = totals(first, mine)
        every += mine
        environment = first["environment"]
    disagreements = []
    for row in every:
        known = None not in (row["paper"], row["tensors"])
        if known and row["paper"] != row["tensors"]:
            found = {**row, "explanation": explain(row)}
            if about(row) in remarks:
                found["checked"] = remarks[about(row)]
            disagreements.append(found)
    # The names of files are enough: their folders are this machine's.
    words = [Path(word).name if word.endswith(".json") else word for word in sys.argv[1:]]
    return {
        "command": shlex.join(["python", "-m", "bench.channels.published", *words]),
        "environment": environment,
        "sets": sets,
        "verdicts that changed": changed,
        "disagreements": disagreements,
        "predictions": every,
    }


# ---- the Markdown file ----


def clean(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def markdown(results: dict) -> str:
    changed = len(results["verdicts that changed"])
    where = ", ".join(f"{k} {v}" for k, v in results["environment"].items() if v is not None)
    lines = [
        "# TritonBench's published predictions, three ways",
        "",
        "Call: the candidate with the test behind it runs to its end. Paper: it does, and prints what the",
        "gold file prints. Tensors: the test's answers are the gold file's. `?`: only a GPU could tell.",
        "",
        *sets_table(results["sets"]),
        "",
        f"Run twice: {changed or 'no'} verdict{'' if changed == 1 else 's'} changed.",
        "",
        "## Where paper and tensors disagree",
        "",
        *map(disagreement_line, results["disagreements"]),
        "",
        "## All",
        "",
        *predictions_table(results["predictions"]),
        "",
        f"`{results['command']}`; {where}.",
        "",
    ]
    return "\n".join(lines)


def sets_table(sets: dict[str, dict]) -> list[str]:
    lines = ["| predictions | of | call | paper | tensors | ? (tensors) |", "|---|---|---|---|---|---|"]
    for name, s in sets.items():
        numbers = [s["predictions"], s["call"], s["paper"], s["tensors"], s["not told here"]["tensors"]]
        lines.append(f"| {name} | " + " | ".join(map(str, numbers)) + " |")
    return lines


def disagreement_line(row: dict) -> str:
    remark = f" Looked at: {row['checked']}" if "checked" in row else ""
    name = f"**{row['channel']} {row['problem']}** ({row['status']})"
    return f"- {name}: {clean(row['explanation'])}.{clean(remark)}"


def predictions_table(predictions: list[dict]) -> list[str]:
    sign = {True: "yes", False: "no", None: "?"}
    lines = ["| | problem | call | paper | tensors | verdict | reason |", "|---|---|---|---|---|---|---|"]
    for row in predictions:
        ways = [sign[row[way]] for way in ("call", "paper", "tensors")]
        cells = [row["channel"], row["problem"], *ways, row["status"], clean(row["reason"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    try:
        results = collect(cfg)
    except config.ConfigError as error:
        config.die(error)
    write_json(cfg.out, results)
    Path(cfg.out).with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(
        json.dumps(results["sets"]),
        f"{len(results['disagreements'])} disagreements, {len(results['verdicts that changed'])} changed",
    )
    return 1 if results["verdicts that changed"] else 0


if __name__ == "__main__":
    sys.exit(main())
