"""What both benchmarks share: candidates are brought in, judged, and written down as they come.

A benchmark derives from `BenchmarkRun`. It says how a completion becomes a candidate, what a model is asked,
how candidates are judged, and what belongs in its results. Everything else is here: the journal,
continuation, the ranks of torchrun, and the frame of the results.
"""

import contextlib
import dataclasses
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path

from bench.channels import report, sources
from bench.channels.journal import Journal
from bench.results import command, environment, write_json
from nanotriton import log
from nanotriton.config import ConfigError, flat, json_object
from nanotriton.executor import Executor
from nanotriton.executor.processes import check_card
from nanotriton.parallel.world import World
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

REFRESH = 20.0  # seconds between two versions of the results while candidates are judged
# Options that may change when a run is continued.
FREE = {
    "out",
    "fresh",
    "endpoint",  # the journal knows which model it serves
    "ids",
    "limit",
    "n",
    "ks",
    "workers",
    "concurrency",
    "per_minute",
    "retries",
    "request_timeout",
    "key_env",
}


def check(cfg, given: str, expected: str) -> None:
    """What both command lines require. Raises ConfigError.

    given: the option that passes candidates in files. expected: what --data takes, in words.
    """
    options = {"model": "--model FOLDER", "endpoint": "--endpoint URL", given: f"--{given} PATH"}
    if hasattr(cfg, "gold"):
        options["gold"] = "--gold"
    if sum(bool(getattr(cfg, name)) for name in options) != 1:
        *most, last = options.values()
        raise ConfigError(f"give one of {', '.join(most)} and {last}")
    if not cfg.data:
        raise ConfigError(f"--data: {expected} is expected")
    if not cfg.out.endswith(".json"):
        raise ConfigError(f"--out {cfg.out}: a name that ends in .json is expected")
    json_object("--template", cfg.template)
    check_card(cfg.device)
    if any(k < 1 for k in cfg.ks):
        raise ConfigError("--ks: each must be at least 1")


@dataclass(frozen=True)
class Job:
    """One candidate for the executor."""

    problem: str  # its name
    sample: int
    task: Task  # the problem's, or one with hidden inputs
    source: str
    key: str  # what the verdict goes by in the journal: the policy, and which hidden inputs


class BenchmarkRun:
    """One run of a benchmark, from its command line to its results.

    problems: those asked for; each has a `name`. given: {(problem's name, sample): what `sample` takes},
    empty if a model is asked. path: the option that `given` came by, for messages.
    """

    benchmark = ""
    free = FREE

    def __init__(
        self, cfg, world: World, problems: list, given: dict[tuple[str, int], object], path: str = ""
    ):
        self.cfg, self.world, self.problems, self.given = cfg, world, problems, given
        self.start = time.perf_counter()
        self.written = 0.0  # when the results were written last
        self.stages: dict[str, float] = {}  # seconds of this process: candidates, judging, baselines
        self.failures: list[str] = []  # a line for each candidate that could not be had, or not be judged
        numbers: dict[str, list[int]] = {}
        for name, s in sorted(given):
            numbers.setdefault(name, []).append(s)
        self.wanted = []  # (problem, sample number)
        for p in problems:
            samples = numbers.get(p.name, [])[: cfg.n] if given else range(cfg.n or 1)
            self.wanted += [(p, s) for s in samples]
        if not self.wanted:
            raise ConfigError(f"{path}: no candidate for the problems asked for")

    # ---- what a benchmark adds ----

    def sample(self, problem, given) -> dict:
        """The journal's entries for what was given, or for a completion: "completion", "candidate", ..."""
        raise NotImplementedError

    def ask(self, problem, s: int) -> sources.Ask:
        """What a model is asked for sample `s` of a problem."""
        raise NotImplementedError

    def judge(self, wanted: list[tuple]) -> None:
        """Judge this rank's candidates, and `save` each verdict as it comes."""
        raise NotImplementedError

    def measure(self) -> None:
        """Measure baselines, which need all verdicts. Called on every rank."""

    def weak(self) -> dict[str, str]:
        """{name of a weak problem: why it is weak}."""
        raise NotImplementedError

    def row(self, problem, s: int, sample: dict) -> dict:
        """What the results say of one candidate beyond the frame; "verdicts" holds its verdicts by policy."""
        raise NotImplementedError

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        """What the results hold beyond the frame: scores, prompt, "judged": {policy: number of verdicts}."""
        raise NotImplementedError

    def settings(self) -> dict:
        """The options as the journal keeps them: `free` ones apart, the run is not continued with others."""
        return flat(self.cfg)

    # ---- what is the same ----

    def go(self) -> int:
        """Run to the end, or continue what was begun -> exit status."""
        settings = {k: v for k, v in self.settings().items() if k not in self.free}
        with Journal(
            Path(self.cfg.out), settings, self.world.rank, self.world.world_size, self.cfg.fresh
        ) as self.journal:
            self.world.barrier()
            self.journal.read()
            mine = self.world.share(self.wanted)
            with self.stage("candidates"):
                self.collect(mine)
                self.withhold_drafts()
            with self.stage("judging"):
                self.judge(mine)
            self.world.barrier()
            self.journal.read()
            with self.stage("baselines"):
                self.measure()
            self.world.barrier()
            if self.world.is_main:
                print(report.markdown(self.write()))
            self.world.barrier()
        return sources.tell(self.failures)

    @contextlib.contextmanager
    def stage(self, name: str):
        """Note the seconds of a part of the run."""
        start = time.perf_counter()
        yield
        self.stages[name] = round(time.perf_counter() - start, 3)

    def collect(self, wanted: list[tuple]) -> None:
        """Bring in the candidates that the journal lacks."""

        def have(p, s: int) -> dict | None:
            return self.journal.get("sample", p.name, s)

        def add(p, s: int, entries: dict) -> None:
            self.journal.append({"kind": "sample", "problem": p.name, "sample": s, **entries})

        missing = [(p, s) for p, s in wanted if have(p, s) is None]
        if not self.given:
            problems = {p.name: p for p, _ in missing}

            def save(ask: sources.Ask, completion: str, details: dict) -> None:
                p = problems[ask.problem]
                add(p, ask.sample, self.sample(p, completion) | details)

            asks = [self.ask(p, s) for p, s in missing]
            if self.cfg.model and asks:
                self.journal.asks(sources.model_id(self.cfg.model))
                sampling = sources.sampling_of(self.cfg)
                sources.from_model(self.cfg.model, asks, sampling, self.world, save)
            elif asks:
                endpoint = sources.make_endpoint(self.cfg)
                self.journal.asks(endpoint.client.model)
                self.failures += endpoint.run(asks, save)
            return
        for p, s in wanted:
            entries = self.sample(p, self.given[p.name, s])
            if (old := have(p, s)) is None:
                add(p, s, entries)
            elif old["candidate"] != entries["candidate"]:
                what = f"another candidate for problem {p.name}, sample {s}"
                raise ConfigError(f"{self.cfg.out} holds {what}: give another --out, or --fresh")

    def withhold_drafts(self) -> None:
        """Take away the candidates of an endpoint's answers that were cut inside their reasoning.

        They are drafts. Only all answers together tell which ones were cut there.
        """
        if not self.cfg.endpoint:
            return
        self.world.barrier()
        self.journal.read()
        samples = [line for (kind, *_), line in self.journal.entries.items() if kind == "sample"]
        for sample in sources.cut_in_reasoning(samples):
            sample |= {"candidate": None, "error": "it was cut inside its reasoning"}

    def save(self, name: str, s: int, policy: str, verdict: Verdict, **more) -> None:
        """Write a verdict down. more: further entries of its line in the journal."""
        # Our own failure is not written down, so that the candidate is judged when the run is continued.
        if verdict.status == "infra_error":
            self.failures.append(f"problem {name}, sample {s}, {policy}: {verdict.message}")
        else:
            line = {"kind": "verdict", "problem": name, "sample": s, "policy": policy, **more}
            self.journal.append(line | {"verdict": dataclasses.asdict(verdict)})

    def execute_jobs(self, executor: Executor, jobs: list[Job], desc: str) -> None:
        """Have the executor judge these candidates, and write down each verdict as it comes."""
        futures: dict[Future[Verdict], list[Job]] = {}
        with log.bar(total=len(jobs), desc=desc) as progress:
            for job in jobs:
                futures.setdefault(executor.submit(job.task, job.source), []).append(job)
            while futures:
                for future in wait(futures, timeout=REFRESH, return_when=FIRST_COMPLETED).done:
                    for job in futures.pop(future):
                        self.save(job.problem, job.sample, job.key, future.result())
                        progress.update()
                self.refresh()

    def refresh(self) -> None:
        """Write the results so far, every REFRESH seconds."""
        if self.world.is_main and time.monotonic() - self.written > REFRESH:
            self.journal.read()
            self.write()

    def asked(self) -> dict:
        """What is known of the model that was asked; nothing where candidates come from files.

        "answered_by" counts the samples of each model that a server named as another than the one asked for,
        "left_out" names the parameters that it did not take.
        """
        if not self.journal.model:
            return {}
        samples = [self.journal.get("sample", p.name, s) or {} for p, s in self.wanted]
        others = Counter(sample["model"] for sample in samples if sample.get("model"))
        left_out = {name for sample in samples for name in sample.get("left_out", ())}
        return {
            "model": self.journal.model,
            "answered_by": dict(others),
            "left_out": sorted(left_out),
        }

    def write(self) -> dict:
        """Write the JSON, the table and the plots of what there is so far -> the results."""
        cfg = self.cfg
        weak = self.weak()
        rows = []
        for p, s in self.wanted:
            sample = self.journal.get("sample", p.name, s) or {}
            row = {"problem": p.name, "sample": s, "weak": weak.get(p.name)}
            row |= {k: sample[k] for k in ("finish_reason", "tokens", "error", "model") if k in sample}
            rows.append(row | self.row(p, s, sample))
        found = self.results(weak, rows)
        results = {
            "benchmark": self.benchmark,
            "command": command(f"bench.channels.{self.benchmark}"),
            "complete": all(n == len(self.wanted) for n in found["judged"].values()),
            "wanted": len(self.wanted),
            "seconds": round(time.perf_counter() - self.start, 1),
            "seconds_of": self.stages,
            "environment": environment() | {"device": cfg.device},
            "settings": flat(cfg),
            **self.asked(),
            **found,
            "samples": rows,
        }
        write_json(Path(cfg.out), results)
        report.write(results, Path(cfg.out))
        self.written = time.monotonic()
        return results
