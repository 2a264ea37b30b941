"""TritonBench, channels G and T, two ways side by side: as the paper scores it, and by the tensors that its tests return.

    python -m bench.tritonbench --data TritonBench --channel G --model FOLDER --n 10 --out results.json
    python -m bench.tritonbench --data TritonBench --channel T --endpoint http://localhost:8000/v1 --out results.json
    python -m bench.tritonbench --data TritonBench --channel G --predictions FILE.jsonl --out results.json
    python -m bench.tritonbench --data TritonBench --channel G --gold --out results.json       # the benchmark's own implementations

`paper`: call, the candidate with the test behind it runs to its end; and stdout, what it prints is what the gold file prints. `tensors`: the
test runs in the candidate's and in the gold's namespace, with the same seed, in separate sandboxed processes, and the structures that it
returns are compared. Tests that can't tell (no float tensor, only shapes, zeros pass) are flagged and scored apart. Without a GPU files are
recorded and replayed (nanotriton/executor/script.py); what can't be is `unsupported`.

The run writes OUT.json, OUT.md and two plots as it goes, and OUT.journal.jsonl, with which the same command continues after a kill.
Exit status: 0 finished, 1 some candidates could not be had or not be judged (run it again), 2 a mistake of the user's.
"""

import dataclasses
import sys
import time
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import answers, environment, report, sources
from bench.contamination import FLAG, Golds
from bench.journal import Journal, write_json
from bench.scores import Outcome, tables
from nanotriton import config, distributed, log
from nanotriton.executor.compare import Fault
from nanotriton.executor.script import ScriptExecutor, answer_path
from nanotriton.executor.verdict import Verdict
from nanotriton.rollout import seed_of
from nanotriton.tasks import tritonbench
from nanotriton.tasks.tritonbench import Problem
from reward import rules

REFRESH = 20.0  # seconds between two versions of the results while candidates are judged
AHEAD = 16  # problems whose files run before the first of them is compared: answers lie on the disk meanwhile
SYSTEM = "You are an expert in writing Triton kernels. Answer with one complete Python file in a single ```python block."


@dataclass
class Config:
    data: str = ""  # a clone of TritonBench
    channel: Literal["G", "T"] = "G"  # G: kernels of repositories, by description; T: Triton for PyTorch code
    model: str = ""  # candidates from a model folder or hub id, by our sampler
    endpoint: str = ""  # candidates from an OpenAI-compatible server: its URL, such as http://localhost:8000/v1
    predictions: str = ""  # candidates from a JSONL file of {instruction, predict, label}
    gold: bool = False  # the benchmark's own implementations as candidates: which of them run here?
    style: Literal["simp", "comp"] = "simp"  # which of the benchmark's instructions: simple or complex
    n: Annotated[int | None, ">= 1"] = None  # candidates a problem; none: 1 from a model or an endpoint, all there are from a file
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"  # where candidates run
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems; 0: all
    ids: list[str] = field(default_factory=list)  # only these problems, by file name
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    ks: list[int] = field(default_factory=lambda: [1, 2, 5, 10, 20, 50, 100])  # the k of pass@k, as far as there are samples
    temperature: Annotated[float, ">= 0"] = 1.0  # of the samples; 0: greedy
    top_p: Annotated[float, "> 0", "<= 1"] = 1.0  # nucleus
    max_tokens: Annotated[int, ">= 1"] = 4096  # longest completion
    seed: Annotated[int, ">= 0"] = 0  # of the samples, and of the tests' random tensors
    served_model: str = ""  # the model's name at the endpoint; empty: the first that the endpoint lists
    key_env: str = "OPENAI_API_KEY"  # environment variable with the endpoint's key, if it wants one
    concurrency: Annotated[int, ">= 1"] = 16  # requests at a time
    per_minute: Annotated[float, ">= 0"] = 0.0  # requests a minute, at most; 0: no limit
    retries: Annotated[int, ">= 0"] = 6  # times a request is sent again
    request_timeout: Annotated[float, "> 0"] = 600.0  # seconds that one request may take
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: one less than cores
    timeout: Annotated[float, "> 0"] = 60.0  # seconds for each stage of a file
    memory_gib: Annotated[float, "> 0"] = 4.0  # for each judging process

    def validate(self) -> None:
        if sum(map(bool, (self.model, self.endpoint, self.predictions, self.gold))) != 1:
            raise config.ConfigError("give one of --model FOLDER, --endpoint URL, --predictions FILE.jsonl and --gold")
        if not self.data:
            raise config.ConfigError("--data: a clone of TritonBench is expected")
        if not self.out.endswith(".json"):
            raise config.ConfigError(f"--out {self.out}: a name that ends in .json is expected")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise config.ConfigError("--device cuda: this machine has no usable CUDA GPU")
        if any(k < 1 for k in self.ks):
            raise config.ConfigError("--ks: each must be at least 1")


FREE = {"out", "fresh", "ids", "limit", "n", "ks", "workers", "concurrency", "per_minute", "retries", "request_timeout", "key_env"}


def main(cfg: Config, world: distributed.World) -> int:
    start = time.perf_counter()
    try:
        known = tritonbench.load_problems(cfg.data, cfg.channel)
        problems = tritonbench.select(known, cfg.ids, cfg.limit)
        given = tritonbench.join(sources.read_jsonl(cfg.predictions), known, cfg.predictions) if cfg.predictions else {}
        given |= {(p.name, 0): p.code for p in problems} if cfg.gold else {}
    except ValueError as error:
        raise config.ConfigError(error) from None
    if given:
        wanted = [(p, s) for p in problems for s in sorted(s for name, s in given if name == p.name)[: cfg.n]]
        if not wanted:
            raise config.ConfigError(f"--predictions {cfg.predictions}: no candidate for the problems asked for")
    else:
        wanted = [(p, s) for p in problems for s in range(cfg.n or 1)]
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in FREE}
    with Journal(Path(cfg.out), settings, world.rank, world.world_size, cfg.fresh) as journal:
        world.barrier()
        run = Run(cfg, world, journal.read(), wanted, Golds({p.name: p.code for p in known}), start)
        mine = world.share(wanted)
        run.failures += collect(run, mine, given)
        judge(run, mine)
        world.barrier()
        if world.is_main:
            journal.read()
            report.print_results(run.write())
        world.barrier()
    return sources.tell(run.failures)


def collect(run: "Run", wanted: list[tuple[Problem, int]], given: dict[tuple[str, int], str]) -> list[str]:
    """Bring in the candidates that the journal lacks; returns a line for each that could not be had."""
    missing = [(p, s) for p, s in wanted if run.journal.get("sample", p.name, s) is None]
    entries = {p.name: p.entries for p, _ in wanted}

    def save(name: str, sample: int, completion: str, **details) -> None:
        candidate = completion if run.cfg.gold else tritonbench.extract(completion, entries[name])
        run.journal.append({"kind": "sample", "problem": name, "sample": sample, "completion": completion, "candidate": candidate, **details})

    if given:
        for p, s in missing:
            save(p.name, s, given[p.name, s])
        return []
    if lacking := sorted({p.name for p, _ in missing if run.cfg.style not in p.instructions}):
        raise config.ConfigError(f"{run.cfg.data}: no {run.cfg.style} instruction for {', '.join(lacking[:3])}")
    asks = [
        sources.Ask(p.name, s, (("system", SYSTEM), ("user", p.instructions[run.cfg.style])), p.instructions[run.cfg.style],
                    seed_of(run.cfg.seed, 21, "GT".index(run.cfg.channel), zlib.crc32(p.name.encode()), s))
        for p, s in missing
    ]  # fmt: skip
    return sources.collect(run.cfg, asks, run.world, lambda ask, text, details: save(ask.problem, ask.sample, text, **details))


# ---- verdicts ----


def judge(run: "Run", wanted: list[tuple[Problem, int]]) -> None:
    """Run each candidate's file and its gold file, compare what they answer, and write down each verdict as it comes."""
    cfg, journal = run.cfg, run.journal
    todo: dict[str, list[tuple[int, str]]] = {}
    problems = {p.name: p for p, _ in wanted}
    for p, s in wanted:
        sample = journal.get("sample", p.name, s)
        if sample is None or journal.get("verdict", p.name, s, "tensors"):
            continue
        if sample["candidate"] is None:
            run.save(p.name, s, Verdict("no_code", "extract", sample.get("error") or "the completion has no code"), False, False)
        else:
            todo.setdefault(p.name, []).append((s, tritonbench.script(sample["candidate"], p.test, cfg.seed, p.name)))
    if not todo:
        return
    with ScriptExecutor(cfg.device, cfg.workers, cfg.timeout, memory_gib=cfg.memory_gib) as executor, log.bar(total=sum(map(len, todo.values())), desc="judging") as progress:
        running: dict[str, tuple[str, Future[Verdict], list[Future[Verdict]]]] = {}
        waiting = list(todo)
        for name, candidates in todo.items():
            while waiting and len(running) < AHEAD:
                ahead = waiting.pop(0)
                gold = tritonbench.script(problems[ahead].code, problems[ahead].test, cfg.seed, ahead)
                running[ahead] = gold, executor.run(gold), [executor.run(source) for _, source in todo[ahead]]
            gold, gold_future, futures = running.pop(name)
            reference = Gold(executor, gold, gold_future.result())
            journal.append({"kind": "gold", "problem": name, "sample": 0, "weak": reference.weak, "verdict": dataclasses.asdict(reference.verdict)})
            for (s, source), future in zip(candidates, futures, strict=True):
                run.save(name, s, *reference.judge(executor, source, future.result()))
                progress.update()
            for source in {gold, *(source for _, source in candidates)}:
                Path(answer_path(executor.root, source)).unlink(missing_ok=True)
            run.refresh()


class Gold:
    """A gold file's answer, what its test is worth, and the judgement of candidates against it."""

    def __init__(self, executor: ScriptExecutor, source: str, verdict: Verdict):
        self.verdict = verdict
        self.answer = executor.answer(source) if verdict.correct else None
        self.weak = answers.weakness(self.answer.tree) if self.answer else []

    def judge(self, executor: ScriptExecutor, source: str, ran: Verdict) -> tuple[Verdict, bool | None, bool | None]:
        """(verdict by tensors, call, stdout). None: that can't be told here, the candidate's file or the gold one being unsupported."""
        if not ran.correct:
            unknown = None if ran.status in ("unsupported", "infra_error") else False
            return ran, unknown, unknown
        if self.answer is None:
            message = f"the gold file itself fails here: {self.verdict.status}: {self.verdict.message}"
            return dataclasses.replace(ran, status="unsupported", stage="gold", message=message), True, None
        answer = executor.answer(source)
        printed = answer.stdout == self.answer.stdout
        try:
            answers.compare(answer.tree, self.answer.tree)
        except Fault as fault:
            return dataclasses.replace(ran, status=fault.status, stage="judge", message=fault.message), True, printed
        return ran, True, printed


# ---- results ----


@dataclass
class Run:
    """What all steps of a run share, and the results as far as they go."""

    cfg: Config
    world: distributed.World
    journal: Journal
    wanted: list[tuple[Problem, int]]
    golds: Golds
    start: float
    written: float = 0.0
    failures: list[str] = field(default_factory=list)  # a line for each candidate that could not be had, or not be judged

    def save(self, name: str, s: int, verdict: Verdict, call: bool | None, stdout: bool | None) -> None:
        if verdict.status == "infra_error":  # ours: not written down, so that it is tried again when the run is continued
            self.failures.append(f"problem {name}, sample {s}: {verdict.message}")
        else:
            line = {"kind": "verdict", "problem": name, "sample": s, "policy": "tensors", "call": call, "stdout": stdout}
            self.journal.append(line | {"verdict": dataclasses.asdict(verdict)})

    def refresh(self) -> None:
        if self.world.is_main and time.monotonic() - self.written > REFRESH:
            self.journal.read()
            self.write()

    def outcomes(self, policy: str) -> list[Outcome]:
        found = []
        for p, s in self.wanted:
            if e := self.journal.get("verdict", p.name, s, policy):
                v = e["verdict"]
                found.append(Outcome(p.name, v["status"], v["stage"], v["message"], bool(e["call"]), bool(e["stdout"])))
        return found

    def write(self) -> dict:
        """Write the JSON, the table and the plots for what there is; returns the results."""
        cfg, get = self.cfg, self.journal.get
        golds = {p.name: g for p, _ in self.wanted if (g := get("gold", p.name, 0))}
        weak = {name: "; ".join(g["weak"]) for name, g in golds.items() if g["weak"]}
        rows, judged = [], self.outcomes("tensors")
        for p, s in self.wanted:
            sample, entry = get("sample", p.name, s) or {}, get("verdict", p.name, s, "tensors")
            row = {"problem": p.name, "sample": s, "difficulty": p.difficulty, "weak": weak.get(p.name)}
            row |= {k: sample[k] for k in ("finish_reason", "tokens", "error") if k in sample}
            if candidate := sample.get("candidate"):
                row["triton"] = rules.check_source(candidate, "autotriton") is None
                contained = self.golds.contained(candidate)
                row["gold_inside"] = {k: round(v, 3) for k, v in contained.items() if v >= FLAG}
            row |= {"call": entry["call"], "stdout": entry["stdout"]} if entry else {}
            rows.append(row | {"verdicts": {"tensors": entry["verdict"]} if entry else {}})
        results = {
            "benchmark": "tritonbench", "channel": cfg.channel, "command": command(), "complete": len(judged) == len(self.wanted),
            "wanted": len(self.wanted), "judged": {"tensors": len(judged)}, "seconds": round(time.perf_counter() - self.start, 1),
            "environment": environment() | {"device": cfg.device}, "settings": dataclasses.asdict(cfg), "prompt": [["system", SYSTEM], ["user", f"the benchmark's own, {cfg.style}"]],
            "scores": tables(lambda _: judged, ["tensors"], lambda _: cfg.channel, weak, cfg.ks),
            "gold_failures": {n: f"{g['verdict']['status']}: {g['verdict']['message']}" for n, g in golds.items() if g["verdict"]["status"] != "correct"},
            "weak_tests": weak, "correct_without_triton": sum(r["verdicts"]["tensors"]["status"] == "correct" and not r.get("triton") for r in rows if r["verdicts"]),
            "contain_gold": sum(bool(r.get("gold_inside")) for r in rows), "samples": rows,
        }  # fmt: skip
        write_json(Path(cfg.out), results)
        report.write(results, Path(cfg.out))
        self.written = time.monotonic()
        return results


def command() -> str:
    return " ".join(["python -m bench.tritonbench", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(distributed.launch(main, config.parse(Config)))
