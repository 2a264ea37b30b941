"""Judge candidates from a shell. The interface is a contract: scripts depend on it.

    python -m nanotriton.executor TASK.py CANDIDATE.py [CANDIDATE.py ...] [--device cpu|cuda] [--mode replay|process]
                                  [--policy strict|kernelbench|autotriton|none] [--time] [--json] [--timeout S]

One line a candidate, in order, on stdout: with --json an object (the verdict's fields after "file"), without it
something to read. Exit status: 0 all correct, 1 not all, 2 bad usage.
"""

import argparse
import json
import sys
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from nanotriton.executor.executor import MODES, NEEDS_GPU, Executor
from nanotriton.executor.processes import check_card
from nanotriton.rules.policy import POLICIES
from nanotriton.tasks.task import load_task
from nanotriton.verdict import Verdict


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        fail(message)


def fail(message: str):
    print(f"executor: {message}", file=sys.stderr)
    raise SystemExit(2)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m nanotriton.executor",
        description="Judge Triton candidates for one task.",
        allow_abbrev=False,
    )
    parser.add_argument("task", help="a file with class Model, get_inputs() and get_init_inputs()")
    parser.add_argument("candidates", nargs="+", help="files that define ModelNew")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where candidates run (default: cpu)"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="default: replay; on a GPU then process for what can't be recorded, if the policy allows it",
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default="strict", help="what counts as Triton (default: strict)"
    )
    parser.add_argument("--time", action="store_true", help="time correct candidates (needs --device cuda)")
    parser.add_argument("--json", action="store_true", help="one JSON object a candidate")
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds for each stage of a candidate (default: 10)",
    )
    options = parser.parse_args(argv)
    if not 0 < options.timeout < 1e6:
        parser.error("--timeout: must be a positive number of seconds")
    return options


def read(path: str) -> str:
    """A candidate's source. What is no UTF-8 is no Python either, but it still gets its verdict."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        fail(f"{path}: cannot read: {error.strerror}")


def readable(path: str, verdict: Verdict) -> str:
    notes = [] if verdict.speedup is None else [f"{verdict.speedup:.2f}x"]
    notes += (
        []
        if verdict.effective_launches is None
        else [f"{verdict.effective_launches} of {verdict.launches} launches effective"]
    )
    notes += [] if verdict.max_error is None else [f"error {verdict.max_error:.1e}"]
    return (
        f"{path}: {verdict.status}"
        + (f" ({', '.join(notes)})" if notes else "")
        + (f": {verdict.message}" if verdict.message else "")
    )


def main(argv: list[str]) -> int:
    options = parse(argv)
    try:
        task = load_task(options.task)
        check_card(options.device, options.time)
    except ValueError as error:
        fail(str(error))
    sources = [read(path) for path in options.candidates]
    if options.mode == "process" and options.device == "cpu":
        fail(f"--mode process: {NEEDS_GPU}")
    if options.time and options.device == "cpu":
        print("note: nothing is timed on a CPU; --time wants --device cuda", file=sys.stderr)
    with Executor(
        options.device, options.mode, policy=options.policy, timeout=options.timeout, time=options.time
    ) as executor:
        futures: list[Future[Verdict]] = [executor.submit(task, source) for source in sources]
        verdicts = []
        for path, future in zip(options.candidates, futures, strict=True):
            verdict = future.result()
            verdicts.append(verdict)
            print(
                json.dumps({"file": path, **asdict(verdict)}) if options.json else readable(path, verdict),
                flush=True,
            )
    return 0 if all(v.correct for v in verdicts) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
