"""Judge candidates, or check tasks, from a shell. The interface is a contract: scripts depend on it.

    python -m nanotriton.executor TASK.py CANDIDATE.py [CANDIDATE.py ...]
        [--device cpu|cuda] [--mode replay|process] [--policy strict|kernelbench|autotriton|none]
        [--time] [--json] [--timeout S]
    python -m nanotriton.executor TASK.py|FOLDER [--device cpu|cuda] [--json] [--timeout S]
    python -m nanotriton.executor --tasks TASK.py|FOLDER|ROWS.jsonl ...
    python -m nanotriton.executor --serve SOCKET [options as above, but --json]
    python -m nanotriton.executor TASK.py CANDIDATE.py [CANDIDATE.py ...] --server SOCKET [--json]

It prints one line a candidate, in order, on stdout. With --json the line is an object (the verdict's fields
after "file"), without it a line to read. Exit status: 0 all correct, 1 not all, 2 bad usage.

Without a candidate, and with --tasks, it prints one line a task: "ok", or why no candidate for it could be
judged; with --json an object of "task", "fit" and "reason". Exit status: 0 all are fit, 1 not all, 2 bad
usage.

With --serve it keeps an executor until it is interrupted. A command with --server is judged by that one, with
its options, and so does not wait for a start.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from nanotriton.config import Parser, die
from nanotriton.executor.common import probe
from nanotriton.executor.executor import MODES, NEEDS_GPU, Executor
from nanotriton.executor.preflight import POLICY, Finding, preflight
from nanotriton.executor.processes import check_card
from nanotriton.executor.server import ask, serve
from nanotriton.python_text import read_anyhow
from nanotriton.rows import is_rows
from nanotriton.rules.policy import POLICIES
from nanotriton.tasks.task import REQUIRED, Task, find_tasks, load_task
from nanotriton.verdict import Verdict


def fail(message: str) -> NoReturn:
    die(message, "executor")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        who="executor",
        prog="python -m nanotriton.executor",
        description="Judge Triton candidates for one task; without a candidate, check the task.",
        allow_abbrev=False,
    )
    parser.add_argument("task", nargs="?", help="a file with class Model, get_inputs() and get_init_inputs()")
    parser.add_argument(
        "candidates", nargs="*", help="files that define ModelNew; none: can candidates for TASK be judged?"
    )
    parser.add_argument(
        "--tasks", action="store_true", help="all files and folders that are given are tasks, to be checked"
    )
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
    parser.add_argument("--serve", metavar="SOCKET", help="keep an executor that other commands may ask")
    parser.add_argument(
        "--server", metavar="SOCKET", help="ask that executor, which judges by its own options"
    )
    options = parser.parse_args(argv)
    if options.serve and (options.task or options.server):
        parser.error("--serve: it takes no task, and is no --server")
    if not options.serve and not options.task:
        parser.error("the following arguments are required: task")
    if options.server and not options.candidates:
        parser.error("--server: it judges candidates")
    if not 0 < options.timeout < 1e6:
        parser.error("--timeout: must be a positive number of seconds")
    return options


def read(path: str) -> str:
    """A candidate's source."""
    try:
        return read_anyhow(path)
    except OSError as error:
        fail(f"{path}: cannot read: {error.strerror}")


def looks_like_a_task(source: str) -> bool:
    return all(name in source for name in REQUIRED) and "ModelNew" not in source


def read_tasks(paths: list[str]) -> tuple[list[Task], dict[str, Finding]]:
    """The tasks of these files and folders, named by their paths, and the files that are none."""
    tasks: list[Task] = []
    findings: dict[str, Finding] = {}
    for path in paths:
        found, others = find_tasks(path)
        tasks += [Task(shown(path, task.name), task.source) for task in found]
        findings |= {shown(path, name): Finding(False, reason) for name, reason in others.items()}
    return tasks, findings


def shown(path: str, name: str) -> str:
    """What a task is called on the console: its file, or its file and its name among the rows."""
    if Path(path).is_dir():
        return f"{Path(path) / name}.py"
    return f"{path}, {name}" if is_rows(path) else path


def check_tasks(options: argparse.Namespace) -> int:
    """Print a line for each task: whether its candidates can be judged. Returns the exit status."""
    try:
        tasks, findings = read_tasks([options.task, *options.candidates])
        check_card(options.device)
    except ValueError as error:
        fail(str(error))
    mode = options.mode or "replay"
    with Executor(options.device, mode, policy=POLICY, timeout=options.timeout) as executor:
        findings |= zip((task.name for task in tasks), preflight(tasks, executor), strict=True)
    for name, found in sorted(findings.items()):
        if options.json:
            print(json.dumps({"task": name, **asdict(found)}))
        else:
            print(f"{name}: {'ok' if found.fit else 'bad'}{': ' * bool(found.reason)}{found.reason}")
    fit = sum(found.fit for found in findings.values())
    if len(findings) > 1 and not options.json:
        print(f"{fit} of {len(findings)} tasks are fit")
    return 0 if fit == len(findings) else 1


def main(argv: list[str]) -> int:
    options = parse(argv)
    if options.mode == "process" and options.device == "cpu":
        fail(f"--mode process: {NEEDS_GPU}")
    if options.serve:
        return keep(options)
    if options.tasks or not options.candidates:
        return check_tasks(options)
    try:
        task = load_task(options.task)
        if not options.server:
            check_card(options.device, options.time)
    except ValueError as error:
        fail(str(error))
    sources = [read(path) for path in options.candidates]
    if others := [path for path, source in zip(options.candidates, sources) if looks_like_a_task(source)]:
        print(f"note: {others[0]} looks like a task: --tasks checks several of them", file=sys.stderr)
    if options.time and options.device == "cpu":
        print("note: nothing is timed on a CPU; --time wants --device cuda", file=sys.stderr)
    try:
        if options.server:
            return report(options, ask(options.server, task, sources))
        with make_executor(options) as executor:
            futures: list[Future[Verdict]] = [executor.submit(task, source) for source in sources]
            return report(options, (future.result() for future in futures))
    except ValueError as error:
        fail(str(error))


def make_executor(options: argparse.Namespace) -> Executor:
    return Executor(
        options.device, options.mode, policy=options.policy, timeout=options.timeout, time=options.time
    )


def report(options: argparse.Namespace, verdicts: Iterable[Verdict]) -> int:
    """Print a line for each candidate as its verdict arrives. Returns the exit status."""
    all_correct = True
    for path, verdict in zip(options.candidates, verdicts, strict=True):
        all_correct = all_correct and verdict.correct
        if options.json:
            line = json.dumps({"file": path, **asdict(verdict)})
        else:
            line = f"{path}: {verdict}"
        print(line, flush=True)
    return 0 if all_correct else 1


def keep(options: argparse.Namespace) -> int:
    """Keep an executor at a socket. It starts once its first candidate is judged, which is one of ours."""
    try:
        check_card(options.device, options.time)
        with make_executor(options) as executor:
            executor.submit(Task(**probe.TASK), probe.CANDIDATE).result()
            serve(executor, options.serve)
    except (ValueError, OSError) as error:
        fail(str(error))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
