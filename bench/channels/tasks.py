"""Any tasks, judged as in training: pass@k by group of tasks, and why the rest failed.

    python -m bench.channels.tasks --data heldout.jsonl --model FOLDER --n 8 --out sft.json
    python -m bench.channels.tasks --data FOLDER_OF_TASKS --endpoint http://host:8000/v1 --out theirs.json
    python -m bench.channels.compare sft.json grpo.json

--data takes what train_grpo.py's --tasks takes. The tasks of a collect_data.py file are grouped by their
"split" (held_out_operator, held_out_composition, held_out_shape), others by their folder.

The run writes OUT.json, OUT.md and OUT.journal.jsonl, with which the same command continues after a kill. Two
results are compared task by task: the seeds of the samples are the same for every model. `--hard-last FILE`
writes the tasks to a .jsonl in the order of how often they were solved, with that rate in their meta: a
curriculum for train_grpo.py --order given. `--sometimes FILE` writes what GRPO learns most from: the tasks
that were solved by some of their samples and not by all. A third of those that none solved goes along, drawn
at random: 16 samples may find what these few have missed.
"""

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from bench.channels import sources
from bench.channels.given import numbers_of
from bench.channels.run import FREE, BenchmarkRun, Job, check
from bench.channels.scores import NOT_COMPILED, Outcome, tables
from bench.channels.sources import ServerOptions
from bench.results import usual_device
from nanotriton import config, log
from nanotriton.collect.files import put_rows
from nanotriton.executor import Executor, Verdict
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World
from nanotriton.rules.extract import extract_candidate
from nanotriton.rules.policy import POLICIES
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks.prompt import read_prompt
from nanotriton.tasks.sets import read_tasks
from nanotriton.tasks.task import Task

ROW = 'row {"task": name, "completion": text}'
NEVER_SOLVED = 1 / 3  # of the tasks that no sample solved, the share that --sometimes keeps


@dataclass
class Config:
    data: str = ""  # a task file, a folder of them, or a .jsonl of them
    model: str = ""  # candidates from a model folder or hub id, by our sampler
    # candidates from an OpenAI-compatible server: its URL, such as http://localhost:8000/v1
    endpoint: str = ""
    # candidates from a .jsonl of {"task": its name, "completion": an answer}, such as a run's samples.jsonl
    samples: str = ""
    # candidates a task; none: 4 from a model or an endpoint, all there are from a file
    n: Annotated[int | None, ">= 1"] = None
    policy: Literal[tuple(POLICIES)] = "strict"  # what counts as Triton
    device: Literal["cpu", "cuda"] = ""  # where candidates run; empty: cuda if there is a GPU
    limit: Annotated[int, ">= 0"] = 0  # only the first so many tasks of each group; 0: all
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    hard_last: str = ""  # a .jsonl to write: the tasks that were ever solved, the easiest first
    sometimes: str = ""  # a .jsonl to write: the tasks that were solved sometimes, and some that never were
    prompt: str = ""  # a file with {source} in it: how tasks are put to the model; empty: as in training
    template: str = ""  # variables for the model's chat template, in JSON: '{"enable_thinking": false}'
    ks: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])  # the k of pass@k
    temperature: Annotated[float, ">= 0"] = 1.0  # of the samples; 0: greedy
    top_p: Annotated[float, "> 0", "<= 1"] = 1.0  # nucleus
    max_tokens: Annotated[int, ">= 1"] = 2048  # longest completion
    seed: Annotated[int, ">= 0"] = 0  # of the samples, and of the judge's draws
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    timeout: Annotated[float, "> 0"] = 10.0  # seconds for each stage of a candidate
    server: ServerOptions = field(default_factory=ServerOptions)

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()
        if self.n is None and not self.samples:
            self.n = 4

    def validate(self) -> None:
        check(self, "samples", "a task file, a folder of them, or a .jsonl of them,")
        read_prompt(self.prompt)
        for flag, path in (("--hard-last", self.hard_last), ("--sometimes", self.sometimes)):
            if path and not path.endswith(".jsonl"):
                raise config.ConfigError(f"{flag} {path}: a name that ends in .jsonl is expected")


@dataclass(frozen=True)
class Problem:
    """A task in its group. name: GROUP/NAME."""

    name: str
    group: str
    number: int  # its place in the data: the seeds of its samples follow from it
    task: Task


def main(cfg: Config, world: World) -> int:
    tasks, others = read_tasks("--data", cfg.data)
    for name, why in others.items():
        if world.is_main:
            print(f"{name}: left out: {why}", file=sys.stderr)
    problems = problems_of(tasks, cfg.limit)
    given = {}
    if cfg.samples:
        try:
            given = read_given(cfg.samples, problems)
        except ValueError as error:
            raise config.ConfigError(error) from None
    return TaskRun(cfg, world, problems, given).go()


def problems_of(tasks: list[Task], limit: int = 0) -> list[Problem]:
    """The tasks in their groups: the split of a collected task, else its folder. limit: so many of each."""
    found: dict[str, list[Problem]] = {}
    for number, task in enumerate(tasks):
        folder, _, name = task.name.rpartition("/")
        group = task.meta.get("split") or folder or "tasks"
        found.setdefault(group, []).append(Problem(f"{group}/{name}", group, number, task))
    return [problem for group in found.values() for problem in (group[:limit] if limit else group)]


def read_given(path: str, problems: list[Problem]) -> dict[tuple[str, int], str]:
    """{(problem's name, sample): completion} of a samples.jsonl or a journal. Raises ValueError."""
    names = {p.task.name: p.name for p in problems} | {p.name: p.name for p in problems}
    following: dict[str, int] = {}  # the number of a problem's next sample
    found = {}
    if Path(path).is_dir():
        raise ValueError(
            f"--samples {path}: a .jsonl file with a {ROW} for each answer is expected; this is a folder"
        )
    for number, row in enumerate(sources.read_jsonl(path), 1):
        name = names.get(row.get("task") or row.get("problem") or "")
        if name and isinstance(row.get("completion"), str):
            try:
                first, equal = numbers_of(row, following.get(name, 0))
            except ValueError as error:
                raise ValueError(f"--samples {path} entry {number}: {error}") from None
            following[name] = first + equal
            found |= {(name, s): row["completion"] for s in range(first, first + equal)}
    if not found:
        raise ValueError(f"--samples {path}: no {ROW} of a task in --data")
    return found


class TaskRun(BenchmarkRun):
    benchmark = "tasks"
    free = FREE | {"hard_last", "sometimes"}

    def __init__(self, cfg: Config, world: World, problems: list[Problem], given: dict):
        super().__init__(cfg, world, problems, given, f"--samples {cfg.samples}")
        self.prompt = read_prompt(cfg.prompt)

    def sample(self, problem: Problem, given: str) -> dict:
        return {"completion": given, "candidate": extract_candidate(given)}

    def ask(self, problem: Problem, s: int) -> sources.Ask:
        seed = seed_of(self.cfg.seed, Stream.HELDOUT, 1, problem.number, s)
        return sources.Ask(problem.name, s, self.prompt.of(problem.task.source), seed)

    def judge(self, wanted: list[tuple[Problem, int]]) -> None:
        """Judge the samples that have no verdict yet, and write down each verdict as it comes."""
        cfg, jobs = self.cfg, []
        for problem, s in wanted:
            sample = self.journal.get("sample", problem.name, s)
            if sample is None or self.journal.get("verdict", problem.name, s, cfg.policy):
                continue
            if sample["candidate"] is None:
                why = sample.get("error") or "no fenced Python block defines ModelNew"
                self.save(problem.name, s, cfg.policy, Verdict("no_code", "extract", why))
            else:
                jobs.append(Job(problem.name, s, problem.task, sample["candidate"], cfg.policy))
        if not jobs:
            return
        with Executor(
            cfg.device, policy=cfg.policy, timeout=cfg.timeout, workers=cfg.workers, seed=cfg.seed
        ) as executor:
            self.execute_jobs(executor, jobs, "judging")

    # ---- results ----

    def verdict(self, problem: Problem, s: int) -> Verdict | None:
        entry = self.journal.get("verdict", problem.name, s, self.cfg.policy)
        return Verdict(**entry["verdict"]) if entry else None

    def outcomes(self) -> list[Outcome]:
        found = []
        for problem, s in self.wanted:
            if verdict := self.verdict(problem, s):
                compiled = verdict.scored and verdict.status not in NOT_COMPILED
                found.append(
                    Outcome(problem.name, verdict.status, verdict.stage, verdict.message, compiled, None)
                )
        return found

    def weak(self) -> dict[str, str]:
        weak = {}
        for problem, s in self.wanted:
            if (verdict := self.verdict(problem, s)) and verdict.status == "weak_task":
                weak.setdefault(problem.name, verdict.message)
        return weak

    def row(self, problem: Problem, s: int, sample: dict) -> dict:
        verdict = self.verdict(problem, s)
        more = {k: problem.task.meta[k] for k in ("operators", "family") if k in problem.task.meta}
        return {"verdicts": {self.cfg.policy: verdict.brief()} if verdict else {}} | more

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        outcomes, policy = self.outcomes(), self.cfg.policy
        group_of = {p.name: p.group for p in self.problems}
        return {
            "judged": {policy: len(outcomes)},
            "prompt": self.prompt.messages,
            "groups": sorted({p.group for p in self.problems}),
            "scores": tables({policy: outcomes}, group_of.__getitem__, weak, self.cfg.ks),
        }

    def write(self) -> dict:
        results = super().write()
        if results["complete"]:
            rates = pass_rates(self.outcomes())
            chosen = {}
            if self.cfg.hard_last:
                chosen[self.cfg.hard_last] = hard_last(self.problems, rates)
            if self.cfg.sometimes:
                chosen[self.cfg.sometimes] = sometimes(self.problems, rates, self.cfg.seed)
            for path, problems in chosen.items():
                write_tasks(path, problems, rates)
                print(f"{path}: {len(problems)} of {log.counted(len(rates), 'task')}", file=sys.stderr)
        return results


def pass_rates(outcomes: list[Outcome]) -> dict[str, float]:
    """{problem: the share of its samples that are correct}, of those that were judged."""
    judged: dict[str, list[bool]] = {}
    for outcome in outcomes:
        if outcome.judged:
            judged.setdefault(outcome.problem, []).append(outcome.correct)
    return {name: sum(right) / len(right) for name, right in judged.items()}


def hard_last(problems: list[Problem], rates: dict[str, float]) -> list[Problem]:
    """The tasks that were solved at least once, the most often solved first."""
    return sorted((p for p in problems if rates.get(p.name)), key=lambda p: -rates[p.name])


def sometimes(problems: list[Problem], rates: dict[str, float], seed: int) -> list[Problem]:
    """The tasks that were solved by some samples and not by all, and a third of those that none solved."""
    draw = random.Random(seed)
    lucky = {p.name for p in problems if rates.get(p.name) == 0 and draw.random() < NEVER_SOLVED}
    return [p for p in problems if 0 < rates.get(p.name, 0) < 1 or p.name in lucky]


def write_tasks(path: str, problems: list[Problem], rates: dict[str, float]) -> None:
    """Tasks as rows of a .jsonl, with how often they were solved in their meta."""
    rows = [
        {"name": p.task.name, "task": p.task.source, "meta": p.task.meta | {"pass_rate": rates[p.name]}}
        for p in problems
    ]
    put_rows(Path(path), rows)


if __name__ == "__main__":
    program(main, config.parse(Config))
