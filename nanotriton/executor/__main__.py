"""Judge candidates from a shell. The interface is a contract: scripts depend on it.

    python -m nanotriton.executor TASK.py CANDIDATE.py [CANDIDATE.py ...]
        [--device cpu|cuda] [--mode replay|process] [--policy strict|kernelbench|autotriton|none]
        [--time] [--json] [--timeout S]

It prints one line a candidate, in order, on stdout. With --json the line is an object (the verdict's fields
after "file"), without it a line to read. Exit status: 0 all correct, 1 not all, 2 bad usage.
"""

import argparse
import json
import sys
from concurrent.futures import Future
from dataclasses import asdict

from nanotriton.executor.executor import MODES, NEEDS_GPU, Executor
from nanotriton.executor.processes import check_card
from nanotriton.python_text import read_anyhow
from nanotriton.rules.policy import POLICIES
from nanotriton.tasks.task import load_task
from nanotriton.verdict import Verdict


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

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
        help="default: replay; on a GPU then process where recording fails, if the policy allows it",
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
    """A candidate's source."""
    try:
        return read_anyhow(path)
    except OSError as error:
        fail(f"{path}: cannot read: {error.strerror}")


def readable(path: str, verdict: Verdict) -> str:
    """One line for a person."""
    notes = []
    if verdict.speedup is not None:
        notes.append(f"{verdict.speedup:.2f}x")
    if verdict.effective_launches is not None:
        notes.append(f"{verdict.effective_launches} of {verdict.launches} launches effective")
    if verdict.max_error is not None:
        notes.append(f"error {verdict.max_error:.1e}")
    line = f"{path}: {verdict.status}"
    if notes:
        line += f" ({', '.join(notes)})"
    if verdict.message:
        line += f": {verdict.message}"
    return line


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
    all_correct = True
    with Executor(
        options.device, options.mode, policy=options.policy, timeout=options.timeout, time=options.time
    ) as executor:
        futures: list[Future[Verdict]] = [executor.submit(task, source) for source in sources]
        for path, future in zip(options.candidates, futures, strict=True):
            verdict = future.result()
            all_correct = all_correct and verdict.correct
            if options.json:
                line = json.dumps({"file": path, **asdict(verdict)})
            else:
                line = readable(path, verdict)
            print(line, flush=True)
    return 0 if all_correct else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
