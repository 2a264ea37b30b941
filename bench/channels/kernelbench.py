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

Speed-ups are against the problem's own module, eager. With `--compile-baseline` and `--tf32-baseline` they
are also given against torch.compile and against TF32, which are timed here (bench/channels/compiled.py).
`--verified CLONE` adds KernelBench-Verified's columns: who is right on its hidden inputs as well
(bench/channels/verified.py).

The run writes OUT.json, OUT.md and two plots as it goes. With OUT.journal.jsonl the same command continues
after a kill. Exit status: 0 finished; 1 some candidates could not be had or not be judged (run it again); 2 a
mistake of the user's.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from bench.channels import compiled, sources, verified
from bench.channels.given import read_baseline, read_samples
from bench.channels.run import FREE, BenchmarkRun, Job, check
from bench.channels.scores import NOT_COMPILED, Outcome, tables
from bench.channels.sources import ServerOptions
from bench.results import usual_device
from nanotriton import config
from nanotriton.executor import Executor, Verdict
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World
from nanotriton.rules import rules
from nanotriton.rules.extract import defines, extract_candidate, parse
from nanotriton.rules.policy import POLICIES
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks import kernelbench
from nanotriton.tasks.kernelbench import Problem

# What the baselines that are timed here are called in the results.
BASELINES = {"compile": "torch.compile", "tf32": "the problem's own module in TF32"}


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
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    timeout: Annotated[float, "> 0"] = 10.0  # seconds for each stage of a candidate
    memory_gib: Annotated[float | None, "> 0"] = None  # for each judging process; none: a share
    # KernelBench's baseline_time_*.json (torch.compile, say): speed-ups against it as well
    baseline: str = ""
    # speed-ups against torch.compile too, timed here once a problem (seconds each)
    compile_baseline: bool = False
    # speed-ups against the problem's own module in TF32 too, as KernelBench-Verified has them
    tf32_baseline: bool = False
    # a clone of KernelBench-Verified: who is right on its hidden inputs as well?
    verified: str = ""
    server: ServerOptions = field(default_factory=ServerOptions)

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()

    def validate(self) -> None:
        check(self, "samples", "a clone of KernelBench, or hub,")
        kernelbench.prompt_of(self.prompt)
        for option, what in (("compile", "torch.compile"), ("tf32", "TF32")):
            if getattr(self, f"{option}_baseline") and self.device != "cuda":
                raise config.ConfigError(f"--{option}-baseline times {what} on a GPU: it needs --device cuda")
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
    free = FREE | {"levels", "policy", "baseline", "compile_baseline", "tf32_baseline", "verified"}

    def __init__(
        self, cfg: Config, world: World, problems: list[Problem], given: dict, baseline: dict[str, float]
    ):
        super().__init__(cfg, world, problems, given, f"--samples {cfg.samples}")
        # {the baseline's name: {problem's name: us}}
        self.baselines = {Path(cfg.baseline).name: baseline} if cfg.baseline else {}
        self.not_compiled: dict[str, str] = {}  # {problem's name: why}
        self.prompt = kernelbench.prompt_of(cfg.prompt)
        self.variants: dict[str, list[verified.Variant]] = {}  # {problem's name: it with hidden inputs}
        if cfg.verified:
            folder = verified.check_folder(cfg.verified)
            self.variants = {p.name: verified.variants(folder, p) for p in problems}

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
            if pending := self.pending_hidden(wanted, policy):
                self.run(pending, policy)

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

    def known(
        self, p: Problem, s: int, candidate: str, policy: str, variant: verified.Variant | None = None
    ) -> Verdict | None:
        """What the verdicts under stricter policies imply, the least strict of them first; None: nothing."""
        for stricter in reversed(POLICIES[: POLICIES.index(policy)]):
            key = hidden(stricter, variant) if variant else stricter
            entry = self.journal.get("verdict", p.name, s, key)
            if entry and (verdict := implied(Verdict(**entry["verdict"]), candidate, policy)):
                return verdict
        return None

    def pending_hidden(self, wanted: list[tuple[Problem, int]], policy: str) -> list[Job]:
        """The jobs of the right candidates on the hidden inputs of their problems, as far as they are to do.

        What a stricter policy found of the same candidate holds for a looser one, which runs the same code.
        """
        found = []
        for p, s in wanted:
            entry = self.journal.get("verdict", p.name, s, policy)
            if not entry or entry["verdict"]["status"] != "correct":
                continue
            candidate = self.journal.get("sample", p.name, s)["candidate"]
            for variant in self.variants.get(p.name, ()):
                key = hidden(policy, variant)
                if self.journal.get("verdict", p.name, s, key):
                    continue
                if known := self.known(p, s, candidate, policy, variant):
                    self.save(p.name, s, key, known)
                else:
                    found.append(Job(p.name, s, variant.task, entry_point(candidate, policy), key))
        return found

    def execute(self, pending: list[tuple[Problem, int, str]], policy: str) -> None:
        """Have the executor judge candidates on their problems as they are."""
        self.run([Job(p.name, s, p.task, source, policy) for p, s, source in pending], policy)

    def run(self, jobs: list[Job], policy: str) -> None:
        """Have an executor with this policy do these jobs."""
        cfg = self.cfg
        with Executor(
            cfg.device,
            policy=policy,
            timeout=cfg.timeout,
            workers=cfg.workers,
            memory_gib=cfg.memory_gib,
            seed=cfg.seed,
            time=cfg.device == "cuda",
        ) as executor:
            self.execute_jobs(executor, jobs, f"judging ({policy})")

    def measure(self) -> None:
        """Time the other baselines on the problems that some candidate solved.

        The ranks share them, each on its own GPU.
        """
        if self.cfg.compile_baseline:
            self.measure_baseline("compile")
        if self.cfg.tf32_baseline:
            self.measure_baseline("tf32")

    def measure_baseline(self, way: str) -> None:
        """Time one of BASELINES."""
        solved = set()
        for policy in self.cfg.policy:
            solved |= {o.problem for o in self.outcomes(policy) if o.speedup is not None}
        mine = self.world.share([p for p in self.problems if p.name in solved])
        tasks, folder = [p.task for p in mine], Path(self.cfg.out).parent
        found = compiled.times(tasks, folder, self.world.local_rank, way=way)
        times = self.baselines[BASELINES[way]] = {}
        for part in self.world.gather({p.name: found[p.task.key] for p in mine}):
            for name, line in part.items():
                if "us" in line:
                    times[name] = line["us"]
                if "error" in line:
                    self.not_compiled[name] = line["error"]

    # ---- results ----

    def outcomes(
        self, policy: str, baseline: dict[str, float] | None = None, on_hidden: bool = False
    ) -> list[Outcome]:
        """The judged samples.

        With `baseline`, speed-ups are against its times and not the eager reference's. on_hidden: those are
        right that are so on the hidden inputs as well.
        """
        found = []
        for p, s in self.wanted:
            if entry := self.journal.get("verdict", p.name, s, policy):
                verdict = Verdict(**entry["verdict"])
                if on_hidden:
                    verdict = verified.joined(verdict, self.on_hidden(p, s, policy))
                found.append(outcome(p, verdict, baseline))
        return found

    def on_hidden(self, p: Problem, s: int, policy: str) -> dict[str, Verdict]:
        """{label: the verdict of a candidate on these hidden inputs}."""
        found = {}
        for variant in self.variants.get(p.name, ()):
            if entry := self.journal.get("verdict", p.name, s, hidden(policy, variant)):
                found[variant.label] = Verdict(**entry["verdict"])
        return found

    def weak(self) -> dict[str, str]:
        """The problems known to be weak, and those that the judge, which knows no names, found weak."""
        found = {p.name: p.weak for p in self.problems if p.weak}
        for (kind, name, *_), entry in self.journal.entries.items():
            own = kind == "verdict" and entry["policy"] in POLICIES  # not with hidden inputs
            if own and entry["verdict"]["status"] == "weak_task":
                found.setdefault(name, entry["verdict"]["message"])
        return found

    def row(self, p: Problem, s: int, sample: dict) -> dict:
        verdicts = {}
        for policy in self.cfg.policy:
            if entry := self.journal.get("verdict", p.name, s, policy):
                verdicts[policy] = entry["verdict"]
        row = {"title": p.task.name, "verdicts": verdicts}
        if self.variants:
            row["hidden"] = {}
            for policy in self.cfg.policy:
                statuses = {label: v.status for label, v in self.on_hidden(p, s, policy).items()}
                row["hidden"][policy] = statuses
        return row

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        cfg = self.cfg

        def score(baseline: dict[str, float] | None = None, on_hidden: bool = False) -> dict:
            outcomes = {policy: self.outcomes(policy, baseline, on_hidden) for policy in cfg.policy}
            return tables(outcomes, lambda name: f"level {name.split('/')[0]}", weak, cfg.ks)

        return {
            "judged": {policy: len(self.outcomes(policy)) for policy in cfg.policy},
            "prompt": self.prompt.messages,
            "scores": score(),
            "scores_against": {name: score(baseline) for name, baseline in self.baselines.items()},
            "verified": self.verified(score),
            "baselines_us": self.baselines,
            "not_compiled": self.not_compiled,
        }

    def verified(self, score: Callable[..., dict]) -> dict:
        """{baseline: the scores of those that are right on hidden inputs too}; "" is the eager reference."""
        if not self.variants:
            return {}
        against = {name: score(baseline, True) for name, baseline in self.baselines.items()}
        return {"": score(None, True)} | against


def hidden(policy: str, variant: verified.Variant) -> str:
    """What verdicts on hidden inputs go by in the journal."""
    return f"{policy}, inputs {variant.label}"


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
    program(main, config.parse(Config))
