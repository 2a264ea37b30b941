"""Were the rewards of a run deserved? Judge its rewarded samples again, with other draws and the strictest
rules.

    python -m nanotriton.reward.audit RUN [--device cpu|cuda] [--split train] [--limit 500] [--worst 20]
                                          [--page RUN/audit.md]

RUN is a run's folder, or a samples.jsonl. Each distinct rewarded candidate is judged under policy
strict with a fresh secret seed. Those whose verdict is no longer `correct` are listed, and a Markdown
page shows the most suspicious ones with their source, so that two audits can be compared with diff.
Exit status: 0 every reward stands, 1 some do not or could not be judged again, 2 bad usage.
"""

import argparse
import json
import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nanotriton import log
from nanotriton.config import Parser, reason
from nanotriton.executor.executor import Executor
from nanotriton.executor.processes import check_card
from nanotriton.rows import read_object
from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks.task import Task
from nanotriton.verdict import STATUSES, Verdict

NEEDED = {"task": str, "task_source": str, "completion": str, "verdict": dict, "reward": int | float | None}


@dataclass
class Sample:
    """One distinct rewarded candidate of a task, with how often the run drew it and its highest reward."""

    task: Task
    candidate: str
    before: dict  # the verdict in the run
    reward: float
    step: int = 0
    count: int = 1
    after: Verdict | None = None
    reasons: dict[str, int] = field(default_factory=dict)  # why it is suspicious: reason -> points

    @property
    def differs(self) -> bool:
        return self.after is not None and self.after.judged and not self.after.correct

    @property
    def points(self) -> int:
        return sum(self.reasons.values())


def read_samples(path: Path, split: str | None = None) -> list[Sample]:
    """The distinct candidates that were paid for being right, in order of appearance.

    Raises ValueError (one line).

    Partial credit is below 1 and goes to what the run itself calls wrong: there is nothing to be doubted.
    """
    file = path / "samples.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file}: cannot read: {reason(error)}; a run's folder, or a samples.jsonl, is expected"
        ) from None
    found: dict[tuple[str, str], Sample] = {}
    splits = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = read_row(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
        splits.add(row.get("split"))
        if not row["reward"] or row["reward"] <= 0 or (split and row.get("split") != split):
            continue
        if row["verdict"]["status"] != "correct" and row["reward"] < 1:
            continue
        candidate = row["candidate"] if "candidate" in row else extract_candidate(row["completion"])
        if not candidate:
            continue
        count, key = row.get("count", 1), (row["task_source"], candidate)
        if key in found:
            found[key].count += count
            found[key].reward = max(found[key].reward, row["reward"])
        else:
            found[key] = Sample(
                Task(row["task"], row["task_source"]),
                candidate,
                row["verdict"],
                row["reward"],
                row.get("step", 0),
                count,
            )
    if split and splits and split not in splits:
        raise ValueError(f"--split {split}: {file} has {', '.join(sorted(map(str, splits)))}")
    return list(found.values())


def read_row(line: str) -> dict:
    """One line of samples.jsonl. ValueError says what is wrong with it."""
    row = read_object(line)
    if missing := [key for key in NEEDED if key not in row]:
        raise ValueError(f"a sample has {', '.join(NEEDED)}; this one lacks {', '.join(missing)}")
    if wrong := [key for key, kind in NEEDED.items() if not isinstance(row[key], kind)]:
        raise ValueError(f"its {wrong[0]} can't be {json.dumps(row[wrong[0]])[:40]}")
    if row["verdict"].get("status") not in STATUSES:
        raise ValueError("its verdict has no status")
    return row


def judge_again(samples: list[Sample], executor: Executor) -> None:
    futures = [executor.submit(sample.task, sample.candidate) for sample in samples]
    for sample, future in zip(samples, log.bar(futures, desc="judging again"), strict=True):
        sample.after = future.result()


def suspect(samples: list[Sample]) -> None:
    """Fill in `reasons`. Points only order the page: nothing here accuses anybody."""
    tasks_of: dict[str, set[str]] = {}
    for sample in samples:
        tasks_of.setdefault(sample.candidate, set()).add(sample.task.key)
    for sample in samples:
        v, before = sample.after, sample.before
        computing = sorted(v.torch_ops)
        checks = {
            f"judged again it is {v.status}: {v.message}": 100 * sample.differs,
            f"it could not be judged again ({v.status}: {v.message})": 50 * (not v.judged),
            f"the answer lies in memory of the {v.answer}s": 20 * (v.answer in ("input", "weight", "const")),
            f"{len(tasks_of[sample.candidate])} tasks were paid for this text": 20
            * (len(tasks_of[sample.candidate]) > 1),
            f"only {v.effective_launches} of {v.launches} launches change the answer": 15
            * (0 < (v.effective_launches or 0) < (v.launches or 0)),
            f"torch touches data in {', '.join(computing)} ({v.torch_bytes or 0} bytes)": 10
            * bool(computing),
            "KernelBench's tolerance says it is wrong": 15 * (v.kernelbench_allclose is False),
            f"its error, {v.max_error or 0:.1e} of the RMS, is large": 10 * ((v.max_error or 0) > 1e-5),
            f"it was timed {before.get('speedup') or 0:.1f} times as fast as the reference": 15
            * ((before.get("speedup") or 0) > 5),
            f"the run drew it {sample.count} times": 5 * (sample.count > 8),
        }
        sample.reasons = {reason: points for reason, points in checks.items() if points}


def page(samples: list[Sample], worst: int, source: str) -> str:
    """The Markdown page: no dates and no timings, so that it changes only when what was found changes."""
    differ = [s for s in samples if s.differs]
    lines = [
        f"# Audit of {source}",
        "",
        f"Judged again under policy strict: {log.counted(len(samples), 'distinct rewarded candidate')}; "
        f"with another verdict: {len(differ)}.",
        "",
    ]
    ranked = sorted(samples, key=lambda s: (-s.points, s.task.name, s.candidate))[:worst]
    for rank, s in enumerate((s for s in ranked if s.reasons), 1):
        lines += [
            f"## {rank}. {s.task.name}, step {s.step}",
            "",
            f"Reward {s.reward:g}; then {s.before['status']}, now {s.after.status}.",
            "",
        ]
        lines += [f"- {reason}" for reason in s.reasons] + [""]
        lines += ["Task:", "", fenced(s.task.source), "", "Candidate:", "", fenced(s.candidate), ""]
    if not any(s.reasons for s in ranked):
        lines += ["Nothing about them is suspicious.", ""]
    return "\n".join(lines)


def fenced(code: str) -> str:
    """A block that the code can't close: its fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code)), default=0))
    return f"{fence}python\n{code.strip()}\n{fence}"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        who="audit",
        prog="python -m nanotriton.reward.audit",
        description="Judge a run's rewarded samples again.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="a run's folder, or a samples.jsonl")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where candidates run (default: cpu)"
    )
    parser.add_argument("--split", help="only samples of this split, train for example (default: all)")
    parser.add_argument(
        "--limit", type=int, default=1000, help="at most so many candidates, drawn at random (default: 1000)"
    )
    parser.add_argument("--worst", type=int, default=20, help="how many the page shows (default: 20)")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="seconds for each stage of a candidate (default: 10)"
    )
    parser.add_argument(
        "--page", type=Path, help="where the page goes (default: audit.md in the run's folder)"
    )
    options = parser.parse_args(argv)
    try:
        check_card(options.device)
    except ValueError as error:
        parser.error(str(error))
    if options.limit < 1 or options.worst < 1 or options.timeout <= 0:
        parser.error("--limit, --worst and --timeout must be positive")
    return options


def main(argv: list[str]) -> int:
    options = parse(argv)
    out = options.page or (options.run if options.run.is_dir() else options.run.parent) / "audit.md"
    try:
        samples = read_samples(options.run, options.split)
        out.open("a").close()  # before minutes are spent on what couldn't be written
    except ValueError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"audit: {out}: cannot write the page: {error.strerror}; --page FILE puts it elsewhere",
            file=sys.stderr,
        )
        return 2
    total = len(samples)
    if total > options.limit:
        samples = [samples[i] for i in sorted(random.Random(0).sample(range(total), options.limit))]
    with Executor(device=options.device, policy="strict", timeout=options.timeout) as executor:
        judge_again(samples, executor)
    suspect(samples)
    out.write_text(page(samples, options.worst, options.run.resolve().name), encoding="utf-8")
    differ = [s for s in samples if s.differs]
    for s in differ:
        print(f"{rewarded(s)}, judged again {s.after.status}: {s.after.message}")
    failed = [s for s in samples if not s.after.judged]
    for s in failed:
        print(f"{rewarded(s)}, could not be judged again: {s.after.status}: {s.after.message}")
    print(f"{conclusion(samples, total)}; the page is {out}")
    return 1 if differ or failed else 0


def rewarded(sample: Sample) -> str:
    """Which sample it is, and what it was paid."""
    return f"{sample.task.name}, step {sample.step}: reward {sample.reward:g}"


def conclusion(samples: list[Sample], total: int) -> str:
    """What came of the samples that were judged again, of so many distinct ones in all."""
    differ = sum(sample.differs for sample in samples)
    failed = sum(not sample.after.judged for sample in samples)
    line = (
        f"{len(samples)} of {log.counted(total, 'distinct rewarded candidate')} judged again, {differ} differ"
    )
    if failed:
        line += f", {failed} could not be"
    if len(samples) < total:
        line += f" (--limit {total} judges all)"
    return line


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
