"""Published predictions by call, by stdout ("paper") and by tensors: one line a prediction, from runs of bench.tritonbench.

    python -m bench.tritonbench --data TritonBench --channel G --predictions G.jsonl --device cpu --out g.json      # and again to g2.json
    python -m bench.published --runs g.json t.json --again g2.json t2.json --out results/tritonbench_published.json

Writes OUT and, beside it, a Markdown table. Every disagreement between paper and tensors has its reason from the verdict; the remark of someone
who looked at the candidate and the gold file (`checked` in OUT) is kept when the file is written again, as long as the verdict is the same.
No code of the candidates' is copied. Exit status: 0 if both runs agree on every verdict, 1 if not, 2 for a mistake of the user's.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nanotriton import config

LONGEST = 200  # characters of a reason


@dataclass
class Config:
    runs: list[str] = field(default_factory=list)  # results of bench.tritonbench
    again: list[str] = field(default_factory=list)  # results of the same commands, run once more
    out: str = "tritonbench_published.json"  # where to write

    def validate(self) -> None:
        if not self.runs or len(self.runs) != len(self.again):
            raise config.ConfigError(
                "--runs and --again: the same number of result files is expected, at least one each"
            )
        if not self.out.endswith(".json"):
            raise config.ConfigError(f"--out {self.out}: a name that ends in .json is expected")


def load(path: str) -> dict:
    try:
        results = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise config.ConfigError(f"{path}: {error}") from None
    if results.get("benchmark") != "tritonbench" or not results.get("complete"):
        raise config.ConfigError(f"{path}: the results of a finished bench.tritonbench run are expected")
    return results


def without_code(message: str) -> str:
    """A verdict's message with line numbers instead of lines."""
    short = re.sub(r"\s*\(line (\d+): .*$", r" (line \1)", " ".join(message.split()))
    return short if len(short) <= LONGEST else short[: LONGEST - 3] + "..."


def told(*facts: bool | None) -> bool | None:
    """All of them; None if that can't be told."""
    return False if False in facts else None if None in facts else True


def rows(results: dict) -> list[dict]:
    found = []
    for s in results["samples"]:
        verdict = s["verdicts"]["tensors"]
        unknown = verdict["status"] in ("unsupported", "infra_error")
        row = {
            "channel": results["channel"],
            "problem": s["problem"],
            "sample": s["sample"],
            "call": s["call"],
            "paper": told(s["call"], s["stdout"]),
        }
        row |= {
            "tensors": None if unknown else verdict["status"] == "correct",
            "status": verdict["status"],
            "stage": verdict["stage"],
        }
        found.append(row | {"reason": without_code(verdict["message"]), "weak_test": s["weak"]})
    return found


def explain(row: dict) -> str:
    """Why paper and tensors disagree, in one line."""
    where = "both print the same" if row["paper"] else "what they print differs"
    weak = f" (weak test: {row['weak_test']})" if row["weak_test"] else ""
    return f"{where}; {row['reason'] or 'the tensors agree'}{weak}"


def collect(cfg: Config) -> dict:
    out, sets, every, changed = Path(cfg.out), {}, [], []
    before = json.loads(out.read_text()) if out.exists() else {}
    remarks = {
        (d["channel"], d["problem"], d["sample"], d["status"]): d["checked"]
        for d in before.get("disagreements", [])
        if "checked" in d
    }
    for first, second in zip(map(load, cfg.runs), map(load, cfg.again), strict=True):
        mine, theirs = rows(first), rows(second)
        judged = lambda row: [
            row[k] for k in ("channel", "problem", "sample", "call", "paper", "status", "stage")
        ]
        changed += [
            [judged(a), judged(b)] for a, b in zip(mine, theirs, strict=True) if judged(a) != judged(b)
        ]
        count = lambda key, value, part=mine: sum(r[key] is value for r in part)
        sets[Path(first["settings"]["predictions"]).name] = {
            "channel": first["channel"],
            "predictions": len(mine),
            **{k: count(k, True) for k in ("call", "paper", "tensors")},
            "not told here": {k: count(k, None) for k in ("call", "paper", "tensors")},
            "weak tests": sum(bool(r["weak_test"]) for r in mine),
        }
        every += mine
        environment = first["environment"]
    disagreements = [
        {**r, "explanation": explain(r)}
        for r in every
        if None not in (r["paper"], r["tensors"]) and r["paper"] != r["tensors"]
    ]
    for d in disagreements:
        if remark := remarks.get((d["channel"], d["problem"], d["sample"], d["status"])):
            d["checked"] = remark
    return {
        "command": " ".join(
            ["python -m bench.published", *(Path(a).name if a.endswith(".json") else a for a in sys.argv[1:])]
        ),
        "environment": environment,
        "sets": sets,
        "verdicts that changed": changed,
        "disagreements": disagreements,
        "predictions": every,
    }


def markdown(results: dict) -> str:
    sign = {True: "yes", False: "no", None: "?"}
    clean = lambda text: text.replace("|", "\\|").replace("<", "&lt;")
    lines = ["# TritonBench's published predictions, three ways", ""]
    lines += [
        "Call: the candidate with the test behind it runs to its end. Paper: it does, and prints what the gold file prints. Tensors: the test's",
        "answers are the gold file's. `?`: can't be told without a GPU.",
        "",
        "| predictions | of | call | paper | tensors | ? (tensors) |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {n} | {s['predictions']} | {s['call']} | {s['paper']} | {s['tensors']} | {s['not told here']['tensors']} |"
        for n, s in results["sets"].items()
    ]
    changed = len(results["verdicts that changed"])
    lines += [
        "",
        f"Run twice: {changed or 'no'} verdict{'' if changed == 1 else 's'} changed.",
        "",
        "## Where paper and tensors disagree",
        "",
    ]
    for d in results["disagreements"]:
        checked = f" Looked at: {d['checked']}" if "checked" in d else ""
        lines.append(
            f"- **{d['channel']} {d['problem']}** ({d['status']}): {clean(d['explanation'])}.{clean(checked)}"
        )
    lines += [
        "",
        "## All",
        "",
        "| | problem | call | paper | tensors | verdict | reason |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results["predictions"]:
        told = " | ".join(sign[r[k]] for k in ("call", "paper", "tensors"))
        lines.append(f"| {r['channel']} | {r['problem']} | {told} | {r['status']} | {clean(r['reason'])} |")
    where = ", ".join(f"{k} {v}" for k, v in results["environment"].items() if v is not None)
    return "\n".join([*lines, "", f"`{results['command']}`; {where}.", ""])


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    try:
        results = collect(cfg)
    except config.ConfigError as error:
        config.die(error)
    Path(cfg.out).write_text(json.dumps(results, indent=1) + "\n")
    Path(cfg.out).with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(
        json.dumps(results["sets"]),
        f"{len(results['disagreements'])} disagreements, {len(results['verdicts that changed'])} changed",
    )
    return 1 if results["verdicts that changed"] else 0


if __name__ == "__main__":
    sys.exit(main())
