"""KernelBench, judged by our executor: pass@k, fast_p and why the rest failed, beside the published tables.

    python -m bench.kernelbench --data KernelBench --levels 1 2 3 --model FOLDER --n 10 --out results.json       # our sampler
    torchrun --nproc-per-node 8 -m -- bench.kernelbench --data hub --levels 1 2 3 --model FOLDER --n 10 --device cuda --out results.json
    python -m bench.kernelbench --data KernelBench --levels 1 --endpoint http://localhost:8000/v1 --out results.json
    python -m bench.kernelbench --data KernelBench --levels 1 2 --samples runs/NAME --out results.json           # files

`--samples` takes a KernelBench `runs/` folder, a folder laid out as the problems are, or JSONL: a samples.jsonl of train_grpo.py, a journal
of this script, or rows of {level, problem_id, sample_id, completion or candidate}. Under policy none a candidate that defines `Model` and
no `ModelNew` is taken as it is, so that the problems themselves can be given as candidates. Behind torchrun's `--` its options end.

The run writes OUT.json, OUT.md and two plots as it goes, and OUT.journal.jsonl, with which the same command continues after a kill.
Exit status: 0 finished, 1 some candidates could not be had or not be judged (run it again), 2 a mistake of the user's.
"""

import dataclasses
import json
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import environment, report, sources
from bench.journal import Journal, write_json
from bench.scores import NOT_COMPILED, Outcome, tables
from nanotriton import config, distributed, log
from nanotriton.executor import Executor, Verdict
from nanotriton.rollout import seed_of
from nanotriton.tasks import kernelbench
from nanotriton.tasks.kernelbench import Problem
from nanotriton.tasks.task import Task
from reward import rules
from reward.extract import defines, extract_candidate, parse
from reward.policy import POLICIES

REFRESH = 20.0  # seconds between two versions of the results while candidates are judged


@dataclass
class Config:
    data: str = ""  # a clone of KernelBench, or "hub" for the Hugging Face dataset
    levels: list[int] = field(default_factory=lambda: [1, 2, 3])  # which levels
    model: str = ""  # candidates from a model folder or hub id, by our sampler
    endpoint: str = ""  # candidates from an OpenAI-compatible server: its URL, such as http://localhost:8000/v1
    samples: str = ""  # candidates from files
    n: Annotated[int | None, ">= 1"] = None  # candidates a problem; none: 1 from a model or an endpoint, all there are from files
    policy: list[Literal["strict", "kernelbench", "autotriton", "none"]] = field(default_factory=lambda: ["strict", "kernelbench", "autotriton"])  # what counts as Triton: a table for each
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"  # where candidates run
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems of each level; 0: all
    ids: list[int] = field(default_factory=list)  # only these problems of each level
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    prompt: Literal["autotriton", "kernelbench"] = "autotriton"  # what a model is asked: the paper's way, or the benchmark's own
    ks: list[int] = field(default_factory=lambda: [1, 2, 5, 10, 20, 50, 100])  # the k of pass@k, as far as there are samples
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
    baseline: str = ""  # KernelBench's baseline_time_*.json (torch.compile, say): speed-ups against it as well

    def validate(self) -> None:
        if sum(map(bool, (self.model, self.endpoint, self.samples))) != 1:
            raise config.ConfigError("give one of --model FOLDER, --endpoint URL and --samples PATH")
        if not self.data:
            raise config.ConfigError("--data: a clone of KernelBench is expected, or hub")
        if not self.out.endswith(".json"):
            raise config.ConfigError(f"--out {self.out}: a name that ends in .json is expected")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise config.ConfigError("--device cuda: this machine has no usable CUDA GPU")
        if any(k < 1 for k in self.ks):
            raise config.ConfigError("--ks: each must be at least 1")
        self.policy = sorted(set(self.policy), key=POLICIES.index)  # strictest first: see `implied`


FREE = {"out", "fresh", "ids", "limit", "levels", "n", "policy", "ks", "workers", "concurrency", "per_minute", "retries", "request_timeout", "key_env", "baseline"}


def main(cfg: Config, world: distributed.World) -> int:
    start = time.perf_counter()
    try:
        known = kernelbench.load_problems(cfg.data, cfg.levels)
        problems = kernelbench.select(known, cfg.ids, cfg.limit)
        given = read_samples(cfg.samples, known) if cfg.samples else {}
        baseline = read_baseline(cfg.baseline) if cfg.baseline else {}
    except ValueError as error:
        raise config.ConfigError(error) from None
    if cfg.samples:
        wanted = [(p, s) for p in problems for s in sorted(s for name, s in given if name == p.name)[: cfg.n]]
        if not wanted:
            raise config.ConfigError(f"--samples {cfg.samples}: no candidate for the problems asked for")
    else:
        wanted = [(p, s) for p in problems for s in range(cfg.n or 1)]
    out = Path(cfg.out)
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in FREE}
    with Journal(out, settings, world.rank, world.world_size, cfg.fresh) as journal:
        world.barrier()
        run = Run(cfg, world, journal.read(), problems, wanted, baseline, start)
        mine = world.share(wanted)
        run.failures += collect(run, mine, given)
        for policy in cfg.policy:
            judge(run, mine, policy)
        world.barrier()
        if world.is_main:
            journal.read()
            report.print_results(run.write())
        world.barrier()
    return sources.tell(run.failures)


# ---- candidates ----


def collect(run: "Run", wanted: list[tuple[Problem, int]], given: dict[tuple[str, int], dict]) -> list[str]:
    """Bring in the candidates that the journal lacks; returns a line for each that could not be had."""
    cfg, journal = run.cfg, run.journal
    missing = [(p, s) for p, s in wanted if journal.get("sample", p.name, s) is None]

    def save(ask: sources.Ask, completion: str, details: dict) -> None:
        journal.append({"kind": "sample", "problem": ask.problem, "sample": ask.sample, "completion": completion,
                        "candidate": extract_candidate(completion), **details})  # fmt: skip

    if given:
        for p, s in missing:
            journal.append({"kind": "sample", "problem": p.name, "sample": s, **given[p.name, s]})
        return []
    asks = [
        sources.Ask(p.name, s, kernelbench.messages(p.task.source, cfg.prompt), p.task.source, seed_of(cfg.seed, 20, p.level, p.id, s))
        for p, s in missing
    ]
    return sources.collect(cfg, asks, run.world, save)


def read_samples(path: str, problems: list[Problem]) -> dict[tuple[str, int], dict]:
    """{(problem's name, sample): {"candidate", "completion"}} from files. ValueError for problems unknown in the levels loaded."""
    levels = {p.level for p in problems}
    if not Path(path).is_file():
        found = {key: {"candidate": source, "completion": None} for key, source in kernelbench.read_samples(path).items()}
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
            raise ValueError(f"{where}: it names no problem; level and problem_id, problem (such as 1/23) or task are expected")
        if not kernelbench.NAME.fullmatch(name):
            raise ValueError(f"{where}: problem {name}: numbers are expected for level and problem_id")
        sample = row.get("sample", row.get("sample_id", count.get(name, 0)))
        if type(sample) is not int or sample < 0:
            raise ValueError(f"{where}: sample {sample!r}: a number is expected")
        if (name, sample) in found:
            raise ValueError(f"{where}: problem {name} has a sample {sample} already")
        completion, candidate = row.get("completion"), row.get("candidate")
        if not isinstance(completion, str) and not isinstance(candidate, str):
            raise ValueError(f"{where}: it has neither completion nor candidate")
        if not isinstance(candidate, str):
            candidate = extract_candidate(completion)
        found[name, sample] = {"candidate": candidate, "completion": completion}
        called[name], count[name] = name, count.get(name, 0) + 1
    return found, called


def read_baseline(path: str) -> dict[str, float]:
    """{problem's name: mean in us} of KernelBench's results/timing/<card>/baseline_time_*.json. Raises ValueError."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return {f"{int(level.removeprefix('level'))}/{int(name.split('_')[0])}": row["mean"] * 1e3
                for level, rows in data.items() for name, row in rows.items()}  # fmt: skip
    except OSError as error:
        raise ValueError(f"--baseline {path}: cannot read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"--baseline {path}: not KernelBench's format, {{level1: {{1_Name.py: {{mean: milliseconds}}}}}}") from None


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


def judge(run: "Run", wanted: list[tuple[Problem, int]], policy: str) -> None:
    """Give every candidate its verdict under one policy, and write down each as it comes."""
    journal, cfg = run.journal, run.cfg
    pending: list[tuple[Problem, int, str]] = []
    for p, s in wanted:
        sample = journal.get("sample", p.name, s)
        if sample is None or journal.get("verdict", p.name, s, policy):
            continue
        if sample["candidate"] is None:
            run.save(p, s, policy, Verdict("no_code", "extract", sample.get("error") or "no fenced Python block defines ModelNew"))
            continue
        source = entry_point(sample["candidate"], policy)
        earlier = [journal.get("verdict", p.name, s, q) for q in POLICIES[: POLICIES.index(policy)]] if source == sample["candidate"] else []
        known = next((v for e in reversed(earlier) if e and (v := implied(Verdict(**e["verdict"]), source, policy))), None)
        if known is not None:
            run.save(p, s, policy, known)
        else:
            pending.append((p, s, source))
    if not pending:
        return
    with Executor(cfg.device, policy=policy, timeout=cfg.timeout, workers=cfg.workers, memory_gib=cfg.memory_gib, seed=cfg.seed,
                  time=cfg.device == "cuda") as executor, log.bar(total=len(pending), desc=f"judging ({policy})") as progress:  # fmt: skip
        futures: dict[Future[Verdict], list[tuple[Problem, int]]] = {}
        for p, s, source in pending:
            futures.setdefault(executor.submit(p.task, source), []).append((p, s))
        while futures:
            for future in wait(futures, timeout=REFRESH, return_when=FIRST_COMPLETED).done:
                for p, s in futures.pop(future):
                    run.save(p, s, policy, future.result())
                    progress.update()
            run.refresh()


# ---- results ----


@dataclass
class Run:
    """What all steps of a run share, and the results as far as they go."""

    cfg: Config
    world: distributed.World
    journal: Journal
    problems: list[Problem]
    wanted: list[tuple[Problem, int]]
    baseline: dict[str, float]
    start: float
    written: float = 0.0
    failures: list[str] = field(default_factory=list)  # a line for each candidate that could not be had, or not be judged

    def save(self, p: Problem, s: int, policy: str, verdict: Verdict) -> None:
        if verdict.status == "infra_error":  # ours: not written down, so that it is tried again when the run is continued
            self.failures.append(f"problem {p.name}, sample {s}, policy {policy}: {verdict.message}")
        else:
            self.journal.append({"kind": "verdict", "problem": p.name, "sample": s, "policy": policy, "verdict": dataclasses.asdict(verdict)})

    def refresh(self) -> None:
        if self.world.is_main and time.monotonic() - self.written > REFRESH:
            self.journal.read()
            self.write()

    def outcomes(self, policy: str, baseline: bool = False) -> list[Outcome]:
        """The judged samples; with `baseline` their speed-ups are against --baseline's times and not the eager reference's."""
        found = []
        for p, s in self.wanted:
            if entry := self.journal.get("verdict", p.name, s, policy):
                v = Verdict(**entry["verdict"])
                loose = bool(v.kernelbench_allclose) if v.status not in ("infra_error", "unsupported") else None
                speedup = v.speedup if not baseline else self.baseline[p.name] / v.time_us if v.time_us and p.name in self.baseline else None
                found.append(Outcome(p.name, v.status, v.stage, v.message, v.status not in NOT_COMPILED, loose, speedup))
        return found

    def weak(self) -> dict[str, str]:
        """Problems that are no fair question: known ones, and those that the judge found out (which it does without knowing names)."""
        found = {p.name: p.weak for p in self.problems if p.weak}
        for (kind, name, *_), entry in self.journal.entries.items():
            if kind == "verdict" and entry["verdict"]["status"] == "weak_task":
                found.setdefault(name, entry["verdict"]["message"])
        return found

    def write(self) -> dict:
        """Write the JSON, the table and the plots for what there is; returns the results."""
        cfg, weak = self.cfg, self.weak()
        title = {p.name: p.task.name for p in self.problems}
        judged, rows = {q: self.outcomes(q) for q in cfg.policy}, []
        for p, s in self.wanted:
            sample = self.journal.get("sample", p.name, s) or {}
            verdicts = {q: e["verdict"] for q in cfg.policy if (e := self.journal.get("verdict", p.name, s, q))}
            row = {"problem": p.name, "title": title[p.name], "sample": s, "weak": weak.get(p.name), "verdicts": verdicts}
            row |= {k: sample[k] for k in ("finish_reason", "tokens", "error") if k in sample}
            rows.append(row)
        score = lambda against: tables(lambda q: self.outcomes(q, against), cfg.policy, lambda name: f"level {name.split('/')[0]}", weak, cfg.ks)
        results = {
            "benchmark": "kernelbench", "command": command(), "complete": all(len(o) == len(self.wanted) for o in judged.values()),
            "wanted": len(self.wanted), "judged": {q: len(o) for q, o in judged.items()}, "seconds": round(time.perf_counter() - self.start, 1),
            "environment": environment(), "settings": dataclasses.asdict(cfg), "prompt": kernelbench.messages("{source}", cfg.prompt),
            "scores": score(False), "scores_against_baseline": score(True) if self.baseline else None, "samples": rows,
        }  # fmt: skip
        write_json(Path(cfg.out), results)
        report.write(results, Path(cfg.out))
        self.written = time.monotonic()
        return results


def command() -> str:
    return " ".join(["python -m bench.kernelbench", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(distributed.launch(main, config.parse(Config)))
