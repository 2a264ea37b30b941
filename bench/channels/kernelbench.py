"""KernelBench, judged by our executor: pass@k, fast_p and why the rest failed, beside the published tables.

Candidates come from our sampler (one process, or one a GPU), from a server, or from files:

    python -m bench.channels.kernelbench --data KernelBench --levels 1 2 --model FOLDER --n 10 --out kb.json
    torchrun --nproc-per-node 8 -m -- bench.channels.kernelbench --data hub --model FOLDER --out kb.json
    python -m bench.channels.kernelbench --data KernelBench --endpoint http://localhost:8000/v1 --out kb.json
    python -m bench.channels.kernelbench --data KernelBench --samples runs/NAME --out kb.json

`--samples` takes a KernelBench `runs/` folder, a folder laid out as the problems are, or JSONL: the
samples.jsonl of train_grpo.py, a journal of this script, or rows of {level, problem_id, sample_id, completion
or candidate}. Under policy none a candidate that defines `Model` and no `ModelNew` is taken as it is, so that
the problems themselves can be given as candidates. torchrun's own options end at the `--`.

Speed-ups are against the problem's own module, eager. With `--compile-baseline` they are also given against
torch.compile, which is timed here (bench/channels/compiled.py).

The run writes OUT.json, OUT.md and two plots as it goes. With OUT.journal.jsonl the same command continues
after a kill. Exit status: 0 finished; 1 some candidates could not be had or not be judged (run it again); 2 a
mistake of the user's.
"""

import hashlib
import json
import sys
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from bench.channels import compiled, sources
from bench.channels.run import FREE, REFRESH, BenchmarkRun, check
from bench.channels.scores import NOT_COMPILED, Outcome, tables
from bench.results import usual_device
from nanotriton import config, log
from nanotriton.executor import Executor, Verdict
from nanotriton.rules import rules
from nanotriton.rules.extract import defines, extract_candidate, parse
from nanotriton.rules.policy import POLICIES
from nanotriton.run import launch
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks import kernelbench
from nanotriton.tasks.kernelbench import Problem
from nanotriton.tasks.task import Task
from nanotriton.world import World

COMPILE = "torch.compile"  # what that baseline is called in the results


@dataclass
class Config:
    data: str = ""  # a clone of KernelBench, or "hub" for the Hugging Face dataset
    levels: list[int] = field(default_factory=lambda: [1, 2, 3])  # which levels
    model: str = ""  # candidates from a model folder or hub id, by our sampler
    # candidates from an OpenAI-compatible server: its URL, such as http://localhost:8000/v1
    endpoint: str = ""
    samples: str = ""  # candidates from files
    # candidates a problem; none: 1 from a model or an endpoint, all there are from files
    n: Annotated[int | None, ">= 1"] = None
    # what counts as Triton: a table for each
    policy: list[Literal["strict", "kernelbench", "autotriton", "none"]] = field(
        default_factory=lambda: ["strict", "kernelbench", "autotriton"]
    )
    device: Literal["cpu", "cuda"] = ""  # where candidates run; empty: cuda if there is a GPU
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems of each level; 0: all
    ids: list[int] = field(default_factory=list)  # only these problems of each level
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    # what a model is asked: autotriton (as in training), kernelbench (the benchmark's own words), or a file
    # with {source} in it
    prompt: str = "autotriton"
    template: str = ""  # variables for the model's chat template, in JSON: '{"enable_thinking": false}'
    # the k of pass@k, as far as there are samples
    ks: list[int] = field(default_factory=lambda: [1, 2, 5, 10, 20, 50, 100])
    temperature: Annotated[float, ">= 0"] = 1.0  # of the samples; 0: greedy
    top_p: Annotated[float, "> 0", "<= 1"] = 1.0  # nucleus
    max_tokens: Annotated[int, ">= 1"] = 4096  # longest completion
    seed: Annotated[int, ">= 0"] = 0  # of the samples, and of the judge's draws
    served_model: str = ""  # the model's name at the endpoint; empty: the first that the endpoint lists
    key_env: str = "OPENAI_API_KEY"  # environment variable with the endpoint's key, if it wants one
    concurrency: Annotated[int, ">= 1"] = 16  # requests at a time
    per_minute: Annotated[float, ">= 0"] = 0.0  # requests a minute, at most; 0: no limit
    retries: Annotated[int, ">= 0"] = 6  # times a request is sent again
    request_timeout: Annotated[float, "> 0"] = 600.0  # seconds that one request may take
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: one less than cores
    timeout: Annotated[float, "> 0"] = 10.0  # seconds for each stage of a candidate
    memory_gib: Annotated[float, "> 0"] = 4.0  # for each judging process
    # KernelBench's baseline_time_*.json (torch.compile, say): speed-ups against it as well
    baseline: str = ""
    # speed-ups against torch.compile too, timed here once a problem (seconds each)
    compile_baseline: bool = False

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()

    def validate(self) -> None:
        check(self, "samples", "a clone of KernelBench, or hub,")
        kernelbench.prompt_of(self.prompt)
        if self.compile_baseline and self.device != "cuda":
            raise config.ConfigError(
                "--compile-baseline times torch.compile on a GPU: it needs --device cuda"
            )
        self.policy = sorted(set(self.policy), key=POLICIES.index)  # strictest first: see `implied`


def main(cfg: Config, world: World) -> int:
    try:
        known = kernelbench.load_problems(cfg.data, cfg.levels)
        problems = kernelbench.select(known, cfg.ids, cfg.limit)
        given = read_samples(cfg.samples, known) if cfg.samples else {}
        baseline = read_baseline(cfg.baseline) if cfg.baseline else {}
    except ValueError as error:
        raise config.ConfigError(error) from None
    return KernelBench(cfg, world, problems, given, baseline).go()


# ---- candidates ----


def read_samples(path: str, problems: list[Problem]) -> dict[tuple[str, int], dict]:
    """{(problem's name, sample): {"candidate", "completion"}} from files.

    ValueError (one line) for a problem that is not in the levels loaded.
    """
    if Path(path).is_file():
        found = read_rows(path, problems)
    else:
        files = kernelbench.read_samples(path)
        found = {key: {"candidate": source, "completion": None} for key, source in files.items()}
    levels, names = {p.level for p in problems}, {p.name for p in problems}
    for name, _ in found:
        if name not in names and int(name.split("/")[0]) in levels:
            raise ValueError(f"{path}: a candidate for problem {name}, which is not in the data")
    return found


def read_rows(path: str, problems: list[Problem]) -> dict[tuple[str, int], dict]:
    """As read_samples, from JSONL."""
    by_source = {p.task.key: p.name for p in problems}
    by_title = {p.task.name: p.name for p in problems}
    found: dict[tuple[str, int], dict] = {}
    count: dict[str, int] = {}  # samples of a problem so far, which number those that have no number
    for number, row in enumerate(sources.read_jsonl(path), 1):
        if row.get("kind") in ("settings", "model", "verdict"):  # of a journal
            continue
        try:
            name = problem_of(row, by_source, by_title)
            first, equal = numbers_of(row, count.get(name, 0))
            entry = candidate_of(row)
            for s in range(first, first + equal):
                if (name, s) in found:
                    raise ValueError(f"problem {name} has a sample {s} already")
                found[name, s] = entry
        except ValueError as error:
            raise ValueError(f"{path} entry {number}: {error}") from None
        count[name] = count.get(name, 0) + equal
    return found


def problem_of(row: dict, by_source: dict[str, str], by_title: dict[str, str]) -> str:
    """The name of a row's problem, such as 1/23. Raises ValueError.

    by_source: names by the task's key. by_title: names by the task's title.
    """
    if "level" in row and "problem_id" in row:
        name = f"{row['level']}/{row['problem_id']}"
    elif isinstance(row.get("problem"), str) and kernelbench.NAME.fullmatch(row["problem"]):
        name = row["problem"]
    elif isinstance(row.get("task"), str):
        key = Task("", str(row.get("task_source", ""))).key
        name = by_source.get(key) or by_title.get(Path(row["task"]).name)
        if name is None:
            raise ValueError(f"a candidate for task {row['task']}, which is not in the data")
    else:
        expected = "level and problem_id, problem (such as 1/23) or task"
        raise ValueError(f"it names no problem; {expected} are expected")
    if not kernelbench.NAME.fullmatch(name):
        raise ValueError(f"problem {name}: numbers are expected for level and problem_id")
    return name


def numbers_of(row: dict, following: int) -> tuple[int, int]:
    """(the number of a row's first sample, how many equal samples the row stands for). Raises ValueError.

    following: the number that a row without one gets.
    """
    first = row.get("sample", row.get("sample_id", following))
    equal = row.get("count", 1) if "task_source" in row else 1  # train_grpo.py writes equal samples once
    if type(first) is not int or first < 0:
        raise ValueError(f"sample {first!r}: a number is expected")
    if type(equal) is not int or equal < 1:
        raise ValueError(f"count {equal!r}: a number of equal samples is expected")
    return first, equal


def candidate_of(row: dict) -> dict:
    """{"candidate", "completion"} of a row that has at least one of them."""
    completion, candidate = row.get("completion"), row.get("candidate")
    if isinstance(candidate, str):
        return {"candidate": candidate, "completion": completion}
    if isinstance(completion, str):
        return {"candidate": extract_candidate(completion), "completion": completion}
    raise ValueError("it has neither completion nor candidate")


def read_baseline(path: str) -> dict[str, float]:
    """{problem's name: mean in us} of a baseline_time_*.json of KernelBench's results/timing/<card>/.

    Raises ValueError (one line).
    """
    found = {}
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        for level, rows in data.items():
            for file, row in rows.items():
                name = f"{int(level.removeprefix('level'))}/{int(file.split('_')[0])}"
                found[name] = row["mean"] * 1e3  # the file has milliseconds
    except OSError as error:
        raise ValueError(f"--baseline {path}: cannot read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        expected = "{level1: {1_Name.py: {mean: milliseconds}}}"
        raise ValueError(f"--baseline {path}: not KernelBench's format, {expected}") from None
    return found


# ---- verdicts ----


def entry_point(source: str, policy: str) -> str:
    """The source that runs. Under policy none a file that defines Model and no ModelNew runs too."""
    if policy == "none":
        try:
            tree = parse(source)
        except SyntaxError:
            return source
        if defines(tree, "Model") and not defines(tree, "ModelNew"):
            return source.rstrip() + "\n\n\nModelNew = Model\n"
    return source


def implied(stricter: Verdict, source: str, policy: str) -> Verdict | None:
    """The verdict under `policy` where the one under a stricter policy settles it; None: judge again.

    A looser policy runs the same code and checks less. So every verdict stays as it is, except one of broken
    rules and one of a candidate that was not run at all.
    """
    if stricter.status in ("rule_violation", "unsupported", "infra_error"):
        return None
    if violation := rules.check_source(source, policy):
        return Verdict(violation.status, "rules", str(violation), stricter.mode, stricter.device)
    return stricter


class KernelBench(BenchmarkRun):
    benchmark = "kernelbench"
    free = FREE | {"levels", "policy", "baseline", "compile_baseline"}

    def __init__(
        self, cfg: Config, world: World, problems: list[Problem], given: dict, baseline: dict[str, float]
    ):
        super().__init__(cfg, world, problems, given, f"--samples {cfg.samples}")
        # {the baseline's name: {problem's name: us}}
        self.baselines = {Path(cfg.baseline).name: baseline} if cfg.baseline else {}
        self.not_compiled: dict[str, str] = {}  # {problem's name: why}
        self.prompt = kernelbench.prompt_of(cfg.prompt)

    def settings(self) -> dict:
        """The options, with the content of a prompt's file behind its name."""
        found = super().settings()
        if self.cfg.prompt not in ("autotriton", "kernelbench"):
            found["prompt"] += f" (sha256 {hashlib.sha256(self.prompt.plain.encode()).hexdigest()[:12]})"
        return found

    def sample(self, problem: Problem, given: dict | str) -> dict:
        if isinstance(given, dict):  # from a file
            return given
        return {"completion": given, "candidate": extract_candidate(given)}

    def ask(self, p: Problem, s: int) -> sources.Ask:
        seed = seed_of(self.cfg.seed, Stream.KERNELBENCH, p.level, p.id, s)
        return sources.Ask(p.name, s, self.prompt.of(p.task.source), seed)

    # ---- verdicts ----

    def judge(self, wanted: list[tuple[Problem, int]]) -> None:
        """Give every candidate its verdict under each policy, and write down each as it comes."""
        for policy in self.cfg.policy:
            if pending := self.pending(wanted, policy):
                self.execute(pending, policy)

    def pending(self, wanted: list[tuple[Problem, int]], policy: str) -> list[tuple[Problem, int, str]]:
        """(problem, sample, source) of the candidates that must run.

        The others have their verdicts already, or get them here.
        """
        pending = []
        for p, s in wanted:
            sample = self.journal.get("sample", p.name, s)
            if sample is None or self.journal.get("verdict", p.name, s, policy):
                continue
            candidate = sample["candidate"]
            if candidate is None:
                why = sample.get("error") or "no fenced Python block defines ModelNew"
                self.save(p.name, s, policy, Verdict("no_code", "extract", why))
                continue
            source = entry_point(candidate, policy)
            known = self.known(p, s, candidate, policy) if source == candidate else None
            if known is None:
                pending.append((p, s, source))
            else:
                self.save(p.name, s, policy, known)
        return pending

    def known(self, p: Problem, s: int, candidate: str, policy: str) -> Verdict | None:
        """What the verdicts under stricter policies imply, the least strict of them first; None: nothing."""
        for stricter in reversed(POLICIES[: POLICIES.index(policy)]):
            entry = self.journal.get("verdict", p.name, s, stricter)
            if entry and (verdict := implied(Verdict(**entry["verdict"]), candidate, policy)):
                return verdict
        return None

    def execute(self, pending: list[tuple[Problem, int, str]], policy: str) -> None:
        """Have the executor judge them."""
        cfg, futures = self.cfg, {}
        with (
            Executor(
                cfg.device,
                policy=policy,
                timeout=cfg.timeout,
                workers=cfg.workers,
                memory_gib=cfg.memory_gib,
                seed=cfg.seed,
                time=cfg.device == "cuda",
            ) as executor,
            log.bar(total=len(pending), desc=f"judging ({policy})") as progress,
        ):
            for p, s, source in pending:
                future: Future[Verdict] = executor.submit(p.task, source)
                futures.setdefault(future, []).append((p, s))
            while futures:
                for future in wait(futures, timeout=REFRESH, return_when=FIRST_COMPLETED).done:
                    for p, s in futures.pop(future):
                        self.save(p.name, s, policy, future.result())
                        progress.update()
                self.refresh()

    def measure(self) -> None:
        """Time torch.compile on the problems that some candidate solved.

        The ranks share them, each on its own GPU.
        """
        if not self.cfg.compile_baseline:
            return
        solved = set()
        for policy in self.cfg.policy:
            solved |= {o.problem for o in self.outcomes(policy) if o.speedup is not None}
        mine = self.world.share([p for p in self.problems if p.name in solved])
        found = compiled.times([p.task for p in mine], Path(self.cfg.out).parent, self.world.local_rank)
        self.baselines[COMPILE] = {}
        for part in self.world.gather({p.name: found[p.task.key] for p in mine}):
            for name, line in part.items():
                if "us" in line:
                    self.baselines[COMPILE][name] = line["us"]
                if "error" in line:
                    self.not_compiled[name] = line["error"]

    # ---- results ----

    def outcomes(self, policy: str, baseline: dict[str, float] | None = None) -> list[Outcome]:
        """The judged samples.

        With `baseline`, speed-ups are against its times and not the eager reference's.
        """
        found = []
        for p, s in self.wanted:
            if entry := self.journal.get("verdict", p.name, s, policy):
                found.append(outcome(p, Verdict(**entry["verdict"]), baseline))
        return found

    def weak(self) -> dict[str, str]:
        """The problems known to be weak, and those that the judge, which knows no names, found weak."""
        found = {p.name: p.weak for p in self.problems if p.weak}
        for (kind, name, *_), entry in self.journal.entries.items():
            if kind == "verdict" and entry["verdict"]["status"] == "weak_task":
                found.setdefault(name, entry["verdict"]["message"])
        return found

    def row(self, p: Problem, s: int, sample: dict) -> dict:
        verdicts = {}
        for policy in self.cfg.policy:
            if entry := self.journal.get("verdict", p.name, s, policy):
                verdicts[policy] = entry["verdict"]
        return {"title": p.task.name, "verdicts": verdicts}

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        cfg = self.cfg

        def score(baseline: dict[str, float] | None = None) -> dict:
            outcomes = {policy: self.outcomes(policy, baseline) for policy in cfg.policy}
            return tables(outcomes, lambda name: f"level {name.split('/')[0]}", weak, cfg.ks)

        return {
            "judged": {policy: len(self.outcomes(policy)) for policy in cfg.policy},
            "prompt": self.prompt.messages,
            "scores": score(),
            "scores_against": {name: score(baseline) for name, baseline in self.baselines.items()},
            "baselines_us": self.baselines,
            "not_compiled": self.not_compiled,
        }


def outcome(p: Problem, verdict: Verdict, baseline: dict[str, float] | None) -> Outcome:
    """A verdict as the scores see it.

    baseline: {problem's name: us}, for a speed-up against these times; None: against the eager reference.
    """
    speedup = verdict.speedup
    if baseline is not None:
        timed = verdict.time_us and p.name in baseline
        speedup = baseline[p.name] / verdict.time_us if timed else None
    compiled = verdict.scored and verdict.status not in NOT_COMPILED
    loose = bool(verdict.kernelbench_allclose) if verdict.judged else None
    return Outcome(p.name, verdict.status, verdict.stage, verdict.message, compiled, loose, speedup)


if __name__ == "__main__":
    sys.exit(launch(main, config.parse(Config)))
