"""KernelBench, judged by our executor: pass@k, fast_p and why the rest failed, beside the published tables.

    python -m bench.kernelbench --data KernelBench --levels 1 2 3 --model FOLDER --n 10 --out results.json       # our sampler
    torchrun --nproc-per-node 8 -m -- bench.kernelbench --data hub --levels 1 2 3 --model FOLDER --n 10 --device cuda --out results.json
    python -m bench.kernelbench --data KernelBench --levels 1 --endpoint http://localhost:8000/v1 --out results.json
    python -m bench.kernelbench --data KernelBench --levels 1 2 --samples runs/NAME --out results.json           # files

`--samples` takes a KernelBench `runs/` folder, a folder laid out as the problems are, or JSONL: a samples.jsonl of train_grpo.py, a journal
of this script, or rows of {level, problem_id, sample_id, completion or candidate}. Under policy none a candidate that defines `Model` and
no `ModelNew` is taken as it is, so that the problems themselves can be given as candidates. Behind torchrun's `--` its options end.

Speed-ups are against the problem's own module, eager; with `--compile-baseline` also against torch.compile, timed here (bench/compiled.py).

The run writes OUT.json, OUT.md and two plots as it goes, and OUT.journal.jsonl, with which the same command continues after a kill.
Exit status: 0 finished, 1 some candidates could not be had or not be judged (run it again), 2 a mistake of the user's.
"""

import json
import sys
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import compiled, sources
from bench.run import FREE, REFRESH, Run, check
from bench.scores import NOT_COMPILED, Outcome, tables
from nanotriton import config, log
from nanotriton.executor import Executor, Verdict
from nanotriton.rollout import seed_of
from nanotriton.rules import rules
from nanotriton.rules.extract import defines, extract_candidate, parse
from nanotriton.rules.policy import POLICIES
from nanotriton.run import launch
from nanotriton.tasks import kernelbench
from nanotriton.tasks.kernelbench import Problem
from nanotriton.tasks.task import Task
from nanotriton.world import World

COMPILE = "torch.compile"  # what its baseline is called


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
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"  # where candidates run
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems of each level; 0: all
    ids: list[int] = field(default_factory=list)  # only these problems of each level
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    # what a model is asked: the paper's way, or the benchmark's own
    prompt: Literal["autotriton", "kernelbench"] = "autotriton"
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

    def validate(self) -> None:
        check(self, "samples", "a clone of KernelBench, or hub,")
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
    """{(problem's name, sample): {"candidate", "completion"}} from files. ValueError for problems unknown in the levels loaded."""
    levels = {p.level for p in problems}
    if not Path(path).is_file():
        found = {
            key: {"candidate": source, "completion": None}
            for key, source in kernelbench.read_samples(path).items()
        }
        unknown = {name: name for name, _ in found}
    else:
        found, unknown = read_rows(path, problems)
    names = {p.name for p in problems}
    for name, where in unknown.items():
        if name not in names and int(name.split("/")[0]) in levels:
            raise ValueError(f"{path}: a candidate for problem {where}, which is not in the data")
    return found


def read_rows(path: str, problems: list[Problem]) -> tuple[dict[tuple[str, int], dict], dict[str, str]]:
    """As read_samples, from JSONL; and {name of a problem: how the file calls it}."""
    by_source, by_title = {p.task.key: p.name for p in problems}, {p.task.name: p.name for p in problems}
    found: dict[tuple[str, int], dict] = {}
    called: dict[str, str] = {}
    count: dict[str, int] = {}
    for number, row in enumerate(sources.read_jsonl(path), 1):
        where = f"{path} entry {number}"
        if row.get("kind") in ("settings", "verdict"):
            continue
        if "level" in row and "problem_id" in row:
            name = f"{row['level']}/{row['problem_id']}"
        elif isinstance(row.get("problem"), str) and kernelbench.NAME.fullmatch(row["problem"]):
            name = row["problem"]
        elif isinstance(row.get("task"), str):
            key = Task("", str(row.get("task_source", ""))).key
            name = by_source.get(key) or by_title.get(Path(row["task"]).name)
            if name is None:
                raise ValueError(f"{where}: a candidate for task {row['task']}, which is not in the data")
        else:
            raise ValueError(
                f"{where}: it names no problem; level and problem_id, problem (such as 1/23) or task are expected"
            )
        if not kernelbench.NAME.fullmatch(name):
            raise ValueError(f"{where}: problem {name}: numbers are expected for level and problem_id")
        sample = row.get("sample", row.get("sample_id", count.get(name, 0)))
        equal = row.get("count", 1) if "task_source" in row else 1  # train_grpo.py writes equal samples once
        if type(sample) is not int or sample < 0:
            raise ValueError(f"{where}: sample {sample!r}: a number is expected")
        if type(equal) is not int or equal < 1:
            raise ValueError(f"{where}: count {equal!r}: a number of equal samples is expected")
        completion, candidate = row.get("completion"), row.get("candidate")
        if not isinstance(completion, str) and not isinstance(candidate, str):
            raise ValueError(f"{where}: it has neither completion nor candidate")
        if not isinstance(candidate, str):
            candidate = extract_candidate(completion)
        for s in range(sample, sample + equal):
            if (name, s) in found:
                raise ValueError(f"{where}: problem {name} has a sample {s} already")
            found[name, s] = {"candidate": candidate, "completion": completion}
        called[name], count[name] = name, count.get(name, 0) + equal
    return found, called


def read_baseline(path: str) -> dict[str, float]:
    """{problem's name: mean in us} of KernelBench's results/timing/<card>/baseline_time_*.json. Raises ValueError."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return {
            f"{int(level.removeprefix('level'))}/{int(name.split('_')[0])}": row["mean"] * 1e3
            for level, rows in data.items()
            for name, row in rows.items()
        }
    except OSError as error:
        raise ValueError(f"--baseline {path}: cannot read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"--baseline {path}: not KernelBench's format, {{level1: {{1_Name.py: {{mean: milliseconds}}}}}}"
        ) from None


# ---- verdicts ----


def entry_point(source: str, policy: str) -> str:
    """Under policy none a file that defines Model and no ModelNew is a candidate too: the reference itself."""
    if policy == "none":
        try:
            tree = parse(source)
        except SyntaxError:
            return source
        if defines(tree, "Model") and not defines(tree, "ModelNew"):
            return source.rstrip() + "\n\n\nModelNew = Model\n"
    return source


def implied(stricter: Verdict, source: str, policy: str) -> Verdict | None:
    """The verdict under `policy`, where the one under a stricter policy settles it; None: judge again.

    A looser policy runs the same code and checks less, so all but broken rules (and what was not run at all) stays as it is.
    """
    if stricter.status in ("rule_violation", "unsupported", "infra_error"):
        return None
    if violation := rules.check_source(source, policy):
        return Verdict(violation.status, "rules", str(violation), stricter.mode, stricter.device)
    return stricter


class KernelBench(Run):
    benchmark = "kernelbench"
    free = FREE | {"levels", "policy", "baseline", "compile_baseline"}

    def __init__(
        self, cfg: Config, world: World, problems: list[Problem], given: dict, baseline: dict[str, float]
    ):
        super().__init__(cfg, world, problems, given, f"--samples {cfg.samples}")
        # {its name: {problem's name: us}}
        self.baselines = {Path(cfg.baseline).name: baseline} if cfg.baseline else {}
        self.not_compiled: dict[str, str] = {}  # {problem's name: why}

    def sample(self, problem: Problem, given: dict | str) -> dict:
        return (
            given if isinstance(given, dict) else {"completion": given, "candidate": extract_candidate(given)}
        )

    def ask(self, p: Problem, s: int) -> sources.Ask:
        return sources.Ask(
            p.name,
            s,
            kernelbench.messages(p.task.source, self.cfg.prompt),
            p.task.source,
            seed_of(self.cfg.seed, 20, p.level, p.id, s),
        )

    # ---- verdicts ----

    def judge(self, wanted: list[tuple[Problem, int]]) -> None:
        """Give every candidate its verdict under each policy, and write down each as it comes."""
        for policy in self.cfg.policy:
            if pending := self.pending(wanted, policy):
                self.execute(pending, policy)

    def pending(self, wanted: list[tuple[Problem, int]], policy: str) -> list[tuple[Problem, int, str]]:
        """(problem, sample, source) of the candidates that must run; the others have their verdicts already, or get them here."""
        pending, get = [], self.journal.get
        for p, s in wanted:
            sample = get("sample", p.name, s)
            if sample is None or get("verdict", p.name, s, policy):
                continue
            if sample["candidate"] is None:
                self.save(
                    p.name,
                    s,
                    policy,
                    Verdict(
                        "no_code", "extract", sample.get("error") or "no fenced Python block defines ModelNew"
                    ),
                )
                continue
            source = entry_point(sample["candidate"], policy)
            stricter = (
                [get("verdict", p.name, s, q) for q in POLICIES[: POLICIES.index(policy)]]
                if source == sample["candidate"]
                else []
            )
            known = next(
                (
                    v
                    for e in reversed(stricter)
                    if e and (v := implied(Verdict(**e["verdict"]), source, policy))
                ),
                None,
            )
            if known is not None:
                self.save(p.name, s, policy, known)
            else:
                pending.append((p, s, source))
        return pending

    def execute(self, pending: list[tuple[Problem, int, str]], policy: str) -> None:
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
        """torch.compile's times, of the problems that some candidate solved; the ranks share them, each on its own GPU."""
        if not self.cfg.compile_baseline:
            return
        solved = {
            o.problem for policy in self.cfg.policy for o in self.outcomes(policy) if o.speedup is not None
        }
        mine = self.world.share([p for p in self.problems if p.name in solved])
        found = compiled.times([p.task for p in mine], Path(self.cfg.out).parent, self.world.local_rank)
        everywhere = {
            name: line
            for part in self.world.gather({p.name: found[p.task.key] for p in mine})
            for name, line in part.items()
        }
        self.baselines[COMPILE] = {name: line["us"] for name, line in everywhere.items() if "us" in line}
        self.not_compiled = {name: line["error"] for name, line in everywhere.items() if "error" in line}

    # ---- results ----

    def outcomes(self, policy: str, baseline: dict[str, float] | None = None) -> list[Outcome]:
        """The judged samples; with `baseline` their speed-ups are against its times and not the eager reference's."""
        found = []
        for p, s in self.wanted:
            if entry := self.journal.get("verdict", p.name, s, policy):
                v = Verdict(**entry["verdict"])
                loose = bool(v.kernelbench_allclose) if v.scored else None
                speedup = (
                    v.speedup
                    if baseline is None
                    else baseline[p.name] / v.time_us
                    if v.time_us and p.name in baseline
                    else None
                )
                found.append(
                    Outcome(
                        p.name,
                        v.status,
                        v.stage,
                        v.message,
                        v.scored and v.status not in NOT_COMPILED,
                        loose,
                        speedup,
                    )
                )
        return found

    def weak(self) -> dict[str, str]:
        """Problems that are no fair question: known ones, and those that the judge found out (which it does without knowing names)."""
        found = {p.name: p.weak for p in self.problems if p.weak}
        for (kind, name, *_), entry in self.journal.entries.items():
            if kind == "verdict" and entry["verdict"]["status"] == "weak_task":
                found.setdefault(name, entry["verdict"]["message"])
        return found

    def row(self, p: Problem, s: int, sample: dict) -> dict:
        verdicts = {
            q: e["verdict"] for q in self.cfg.policy if (e := self.journal.get("verdict", p.name, s, q))
        }
        return {"title": p.task.name, "verdicts": verdicts}

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        cfg = self.cfg
        score = lambda baseline=None: tables(
            lambda q: self.outcomes(q, baseline),
            cfg.policy,
            lambda name: f"level {name.split('/')[0]}",
            weak,
            cfg.ks,
        )
        return {
            "judged": {q: len(self.outcomes(q)) for q in cfg.policy},
            "prompt": kernelbench.messages("{source}", cfg.prompt),
            "scores": score(),
            "scores_against": {name: score(baseline) for name, baseline in self.baselines.items()},
            "baselines_us": self.baselines,
            "not_compiled": self.not_compiled,
        }


if __name__ == "__main__":
    sys.exit(launch(main, config.parse(Config)))
