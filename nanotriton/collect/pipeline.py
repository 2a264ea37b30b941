"""From jobs to files: candidates are made in a pool of processes, filtered in order, verified by the
executor, written to a journal, and sorted into sets.

The journal is the run's memory: one line a candidate, appended when its fate is known. Killed at any
instant and started again, a run reads the journal, cuts off a last line that isn't whole, and goes on with
the jobs that have none. The sets are made from the journal alone, in the order of jobs, so that they don't
depend on what finished first.
"""

import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path

from nanotriton import log
from nanotriton.collect import distil
from nanotriton.collect.distil import Conversation, converse
from nanotriton.collect.files import Journal, folder_for, put_rows
from nanotriton.collect.filters import Decontaminator, Duplicates
from nanotriton.collect.fingerprint import canonical, digest
from nanotriton.collect.make import computed_literals, make, pool
from nanotriton.collect.output import token_counter, unwieldy, write_sets
from nanotriton.collect.sets import UNFAIR, may_be_pair, may_be_rl
from nanotriton.collect.sources import kind_of, modules
from nanotriton.collect.split import split_of
from nanotriton.collect.verify import AGAIN, PROBE, Verifier, verifier
from nanotriton.config import ConfigError
from nanotriton.endpoint.answer import Later
from nanotriton.endpoint.client import Client
from nanotriton.executor.processes import cores
from nanotriton.tasks.task import Task

AHEAD = 64  # jobs that the pool makes before they are needed


class Pipeline:
    """One run of collect_data.py. cfg is its Config."""

    def __init__(self, cfg):
        self.cfg = cfg
        for text in cfg.modules:
            kind_of(text)  # a mistake leaves no folder behind
        self.decontaminator = Decontaminator.of(cfg.exclude)
        self.out = folder_for(cfg.out)
        self.shard, self.shards = (int(n) for n in cfg.shard.split("/"))
        self.journal = Journal(self.out / "journal.jsonl")
        # Two routes may solve the same module: each has duplicates of its own, and no pair comes twice.
        self.duplicates: dict[str, Duplicates] = defaultdict(Duplicates)
        self.classes: Counter = Counter()  # what became of the classes of packages
        self.texts: dict[str, str] = {}  # sha256 of a pair -> its key
        self.length = token_counter(cfg.tokenizer)
        self.workers = cfg.workers or cores()
        self.found = sum(may_be_pair(r) for r in self.journal.rows.values())
        self.tasks = sum(may_be_rl(r) for r in self.journal.rows.values())

    # ---- jobs ----

    def jobs(self) -> Iterator[dict]:
        """This shard's jobs, in an order that is the same every time."""
        everything = self.module_jobs() if self.cfg.modules else self.grammar_jobs()
        yield from itertools.islice(everything, self.shard - 1, None, self.shards)

    def module_jobs(self) -> Iterator[dict]:
        self.classes.clear()
        found = modules(self.cfg.modules, self.classes)
        tasks = (t for t in found if len(t.source) <= self.cfg.max_chars)
        if self.cfg.count:
            tasks = itertools.islice(tasks, self.cfg.count)
        for task in tasks:
            given = {
                "name": task.name,
                "source": task.source,
                "solution": task.solution,
                "meta": task.meta,
            }
            # A module that brings its Triton along is gone over once.
            for place, route in enumerate(self.cfg.route[: 1 if task.solution else None]):
                suffix = f"-{route}" if place else ""
                yield {"key": f"{task.name}-{task.key[:6]}{suffix}", "route": route, "task": given}

    def grammar_jobs(self) -> Iterator[dict]:
        """Draws without end; every fourth one, while RL tasks are wanted, is a hard one whose solution is
        withheld. Each route goes over a draw, the first alone over a hard one.
        """
        for i in itertools.count():
            hard = self.cfg.rl_share > 0 and i % 4 == 3
            for place, route in enumerate(self.cfg.route[: 1 if hard else None]):
                kind = "hard" if hard else route if place else "pair"
                yield {
                    "key": f"{kind}-{self.cfg.seed}-{i}",
                    "route": route,
                    "seed": f"{self.cfg.seed} {i}",
                    "hard": hard,
                }

    def enough(self) -> bool:
        """Whether this shard has its share of the pairs; a list of modules is gone through to its end."""
        return not self.cfg.modules and self.found >= self.pairs_wanted()

    def wanted(self, job: dict) -> bool:
        """Hard tasks only as far as their share goes."""
        return not job.get("hard") or self.tasks < self.tasks_wanted()

    def pairs_wanted(self) -> int:
        """This shard's share of --count."""
        return -(-self.cfg.count // self.shards)

    def tasks_wanted(self) -> float:
        """How many RL tasks hard draws may bring this shard to."""
        return self.cfg.rl_share * max(self.cfg.count // self.shards, 1)

    # ---- the run ----

    def run(self) -> None:
        start = time.monotonic()
        if self.cfg.verify == "later":
            self.go(None)
        else:
            with verifier(self.cfg.verify, self.workers, self.cfg.timeout) as judge:
                (self.distil if self.cfg.route == ["distil"] else self.go)(judge)
        self.finish(time.monotonic() - start)

    def distil(self, judge: Verifier | None) -> None:
        """Conversations with the teacher, several at a time.

        A teacher that can't be used ends the run; what is done is in the journal.
        """
        teacher = Client(self.cfg.endpoint, self.cfg.model, key_env=self.cfg.key_env, model_option="--model")

        def judged(task: Task, solution: str) -> tuple[str, str]:
            for text in (solution, solution + AGAIN):
                verdict = judge.executor.submit(task, text).result()
                if not verdict.correct:
                    break
            return verdict.status, verdict.message

        def talk(row: dict) -> tuple[dict, Conversation]:
            task = Task(row["key"], row["source"] if self.cfg.verify == "cuda" else row["small"])
            return row, converse(
                teacher, task.source, lambda solution: judged(task, solution), self.cfg.attempts
            )

        rows = [row for job in self.jobs() if (row := self.asked(job))]
        fatal = None
        with ThreadPoolExecutor(2 * self.workers) as talks:
            futures = [talks.submit(talk, row) for row in rows]
            for future in log.bar(as_completed(futures), total=len(rows), desc="modules"):
                try:
                    row, found = future.result()
                except (Later, ConfigError) as error:
                    fatal = fatal or error
                    teacher.stop.set()  # answers that are on their way are waited for, others not asked for
                    continue
                row["solution"], row["seconds"] = found.solution, found.seconds
                row["meta"] |= distil.meta(found) | {"teacher": teacher.model}
                row["meta"]["literals"] = computed_literals(row["source"], found.solution)
                if why := unwieldy(self.cfg, row, self.length):
                    row["meta"]["dropped"], row["solution"] = why, ""
                status = found.status if found.status in UNFAIR else "task"
                self.settle(row, "kept" if row["solution"] else status, why or found.message)
        if fatal:
            raise ValueError(str(fatal))

    def asked(self, job: dict) -> dict | None:
        """A row for the teacher; None if the module is done or filtered."""
        if job["key"] in self.journal.rows:
            return None
        row = make(job | {"route": "distil"})
        # what the teacher sees is what is judged
        row["source"] = row["source"] if self.cfg.verify == "cuda" else row["small"]
        return None if self.filtered(row) else row

    def go(self, judge: Verifier | None) -> None:
        total = self.cfg.count // self.shards if not self.cfg.modules else None
        with (
            pool(self.workers) as makers,
            log.bar(total=total, initial=self.found, desc="pairs") as progress,
        ):
            for made in self.made(makers):
                self.take(made, judge)
                if judge:
                    while judge.full():
                        self.collect(judge)
                progress.update(self.found - progress.n)
                if self.enough():
                    break
            makers.shutdown(cancel_futures=True)
            if judge:
                self.collect(judge, until_empty=True)

    def made(self, makers: ProcessPoolExecutor) -> Iterator[dict]:
        """Candidates in the order of jobs.

        Those in the journal are remembered as far as the filters need to, and not made again.
        """
        waiting: deque = deque()
        for job in self.jobs():
            if self.enough():
                return
            if row := self.journal.rows.get(job["key"]):
                if row["status"] not in ("duplicate", "copy"):
                    self.repeated(row)
                continue
            if not self.wanted(job):
                continue
            job["fingerprint"] = bool(self.cfg.exclude)
            job["elements"] = self.cfg.rl_elements if self.cfg.verify == "cuda" else None
            waiting.append(makers.submit(make, job))
            if len(waiting) >= AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def take(self, row: dict, judge: Verifier | None) -> None:
        """The filters that need no execution; then to the executor."""
        if self.filtered(row):
            return
        if judge is None:
            if row["meta"].get("withheld"):
                row["solution"] = row["reasoning"] = ""
            self.settle(row, row["status"], row["message"])
        else:
            task = Task(row["key"], row["small"] or row["source"])
            judge.submit(task, row["solution"] or PROBE, row)

    def filtered(self, row: dict) -> bool:
        """Whether a row goes for what it says: then it is settled."""
        kind, which = self.decontaminator.check(row["source"], row["solution"], row.pop("fingerprint"))
        if kind == "same operator":
            row["meta"]["same_operator_as"] = Path(which).name
        if kind == "copy" or (kind and self.cfg.strict_decontamination):
            self.settle(row, "copy", f"{kind} as {Path(which).name}")
        elif repeated := self.repeated(row):
            self.settle(row, "duplicate", repeated)
        elif row["status"] == "failed":
            self.settle(row, "failed", row["message"])
        else:
            if why := unwieldy(self.cfg, row, self.length):  # then it is a task without a pair
                row["meta"]["dropped"], row["message"], row["solution"] = why, why, ""
            return False
        return True

    def repeated(self, row: dict) -> str:
        """The key of an earlier row of the same route with this module, or of any route with this pair; ""
        for a new one, which is remembered.
        """
        if found := self.duplicates[row["meta"]["route"]].check(row["key"], row["source"]):
            return found
        if not row["solution"]:
            return ""
        found = self.texts.setdefault(digest(row["source"] + row["solution"]), row["key"])
        return found if found != row["key"] else ""

    def collect(self, judge: Verifier, until_empty: bool = False) -> None:
        for row, status, message in judge.results(until_empty):
            if row["solution"] and row["meta"].get("withheld"):
                row["solution"] = row["reasoning"] = ""
                self.settle(row, "task" if status == "correct" else status, message)
            elif row["solution"]:
                self.settle(row, "kept" if status == "correct" else status, message)
            else:
                self.settle(row, status if status in UNFAIR else "task", row["message"] or message)

    def settle(self, row: dict, status: str, message: str) -> None:
        row["status"], row["message"] = status, message
        operators = [canonical(name) for name in row["meta"].get("operators", [])]
        row["split"] = split_of(operators, row["meta"].get("sizes", []))
        self.found += may_be_pair(row)
        self.tasks += may_be_rl(row)
        self.journal.add(row)

    # ---- the files ----

    def finish(self, seconds: float) -> None:
        """The sets from the journal, in the order of jobs, and the report."""
        order = self.ordered()
        if self.cfg.count and not self.cfg.modules:
            order = self.without_surplus(order)
        line = write_sets(self.cfg, order, seconds, self.length, self.classes)
        if self.cfg.verify == "later":
            rows = [emitted(row) for row in order if row["status"] == "emitted"]
            file = self.out / "candidates.jsonl"
            put_rows(file, rows)
            line = (
                f"{file}: {log.counted(len(rows), 'candidate')}, not verified yet: --modules {file} does it"
            )
        print(line)

    def without_surplus(self, order: list[dict]) -> list[dict]:
        """The rows up to the last pair that is wanted, of the hard tasks as many as are wanted.

        Several workers are ahead by more than one. Without their surplus the sets don't depend on how many
        there were.
        """
        found, pairs, tasks = [], 0, 0
        for row in order:
            if pairs == self.pairs_wanted():
                break
            if row["key"].startswith("hard-") and tasks >= self.tasks_wanted():
                continue
            pairs += may_be_pair(row)
            tasks += may_be_rl(row)
            found.append(row)
        return found

    def ordered(self) -> list[dict]:
        """The journal's rows in the order of jobs."""
        if self.cfg.modules:
            return [self.journal.rows[j["key"]] for j in self.jobs() if j["key"] in self.journal.rows]
        place = {job: i for i, job in enumerate(("pair", "hard", *self.cfg.route))}

        def draw(row: dict) -> tuple[int, int]:
            kind, _, number = row["key"].rsplit("-", 2)
            return int(number), place.get(kind, 0)

        return sorted(self.journal.rows.values(), key=draw)


def emitted(row: dict) -> dict:
    """A line of candidates.jsonl, which --modules reads again to verify it elsewhere."""
    return {
        "name": row["key"],
        "pytorch_code": row["source"],
        "small_code": row["small"],
        "triton_code": row["solution"] or None,
        "meta": row["meta"] | {"module": row["module"]} if row["module"] else row["meta"],
    }
