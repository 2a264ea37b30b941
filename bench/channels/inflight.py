"""TritonBench's files on their way through the executor, slow ones first.

All files are given to the executor at once, and a problem is done when its own have run. So a file that
hangs holds up its problem alone. What begins last keeps the whole run waiting, and so gold files go first:
they all compile, while most candidates of most models fail early.
"""

from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue

from bench.channels.golds import Files, GoldAnswer, KeptGolds
from nanotriton.executor.script import ScriptExecutor
from nanotriton.tasks.tritonbench import Problem
from nanotriton.verdict import Verdict


class Running:
    """One problem's files: the gold file, unless it was kept, and the candidates'."""

    def __init__(self, problem: Problem, candidates: list[tuple[int, Files]], seed: int):
        self.problem, self.candidates = problem, candidates
        self.gold_files = Files.of(problem.code, problem, seed)
        self.kept: GoldAnswer | None = None  # by an earlier run
        self.futures: dict[str, Future[Verdict]] = {}  # by text: equal files run once

    def done(self) -> bool:
        return all(future.done() for future in self.futures.values())

    def results(self, files: Files) -> tuple[Verdict, Verdict]:
        """The verdicts of running both files."""
        return self.futures[files.ours].result(), self.futures[files.paper].result()


class InFlight:
    """All problems of a run. Answers lie on the disk until their problems are forgotten."""

    def __init__(self, executor: ScriptExecutor, golds: KeptGolds, problems: list[Running]):
        self.executor, self.golds = executor, golds
        self.unfinished = list(problems)
        self.heard: SimpleQueue[Running] = SimpleQueue()  # problems of which one more file has run
        for _, _, files, running in sorted(self._wanted(), key=lambda one: one[:2]):
            self._submit(files, running)
        self.users = Counter(source for running in problems for source in running.futures)

    def _wanted(self) -> list[tuple[bool, int, Files, Running]]:
        """(whether candidates' and not gold, minus the work, the files, their problem)."""
        wanted = []
        for running in self.unfinished:
            running.kept = self.golds.find(running.gold_files)
            if running.kept is None:
                wanted.append((False, -work(running.gold_files), running.gold_files, running))
            wanted += [(True, -work(files), files, running) for _, files in running.candidates]
        return wanted

    def _submit(self, files: Files, running: Running) -> None:
        for source in (files.ours, files.paper):
            if source not in running.futures:
                running.futures[source] = self.executor.run(source)
                running.futures[source].add_done_callback(lambda _: self.heard.put(running))

    def ended(self, seconds: float) -> Running | None:
        """A problem whose files have all run; None if none has had its last one run for so long."""
        try:
            running = self.heard.get(timeout=seconds)
        except Empty:
            return None
        if running not in self.unfinished or not running.done():
            return None
        self.unfinished.remove(running)
        return running

    def gold(self, running: Running) -> GoldAnswer:
        """What the gold file of a problem answers that has ended. It is kept for later runs."""
        if running.kept is not None:
            return running.kept
        ran = running.results(running.gold_files)
        gold = GoldAnswer.found(self.executor, running.gold_files, ran)
        self.golds.keep(running.gold_files, gold, ran)
        return gold

    def forget(self, running: Running) -> None:
        """Delete the answers of a problem's files that no other problem has, too."""
        self.users.subtract(list(running.futures))
        for source in running.futures:
            if not self.users[source]:
                Path(self.executor.answer_file(source)).unlink(missing_ok=True)


def work(files: Files) -> int:
    """A guess at how long a file compiles: matrix products take longest, and each configuration again."""
    return (1 + files.ours.count("tl.dot(")) * (1 + files.ours.count("Config("))
