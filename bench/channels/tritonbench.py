"""TritonBench, channels G and T, scored two ways: as the paper does, and by the tensors that tests return.

    python -m bench.channels.tritonbench --data CLONE --channel G --model FOLDER --n 10 --out tb.json
    python -m bench.channels.tritonbench --data CLONE --channel T --endpoint http://localhost:8000/v1
    python -m bench.channels.tritonbench --data CLONE --channel G --predictions FILE.jsonl --out tb.json
    python -m bench.channels.tritonbench --data CLONE --channel G --gold --out tb.json

--gold judges the benchmark's own implementations, the gold files: which of them run here?

The paper asks two things. Call: does the candidate, with the test behind it, run to its end? Stdout: does it
print what the gold file prints? For these two the file runs as in the paper's harness: a `__main__` block of
the candidate's runs too, and nothing is imported for it. Our own way compares tensors: the test runs behind
the candidate and behind the gold file, with the same seed, in separate sandboxed processes, and the
structures that it returns are compared. A test that can't tell right from wrong (its answer has no float
tensor, or only shapes; or zeros would pass) is weak, and scored apart. Without a GPU files are recorded and
replayed (nanotriton/executor/judge/candidate/script.py); what can't be is `unsupported`.

On a GPU correct candidates are timed on inputs of the benchmark's own performance scripts, in turns with the
gold kernel (G) or the torch code (T); see perf.py. A candidate that can't be recorded is not timed, as its
own process could reach any clock there.

A gold file runs once a problem, whatever the number of candidates, and with --golds FOLDER once a machine:
later runs take its answer from there. To have gold files run again, delete the folder.

The run writes OUT.json, OUT.md and two plots as it goes. With OUT.journal.jsonl the same command continues
after a kill. Exit status: 0 finished; 1 some candidates could not be had or not be judged (run it again); 2 a
mistake of the user's.
"""

import dataclasses
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bench.channels import perf, sources
from bench.channels.contamination import FLAG, Golds
from bench.channels.golds import Files, KeptGolds, make_folder
from bench.channels.helper import ask_all
from bench.channels.inflight import InFlight, Running
from bench.channels.run import FREE, REFRESH, BenchmarkRun, check
from bench.channels.scores import Outcome, tables
from bench.channels.sources import ServerOptions
from bench.results import environment, usual_device
from nanotriton import config, log
from nanotriton.executor import Executor
from nanotriton.executor.processes import cores
from nanotriton.executor.script import ScriptExecutor
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World
from nanotriton.rules import rules
from nanotriton.schedule import Stream, seed_of
from nanotriton.tasks import tritonbench
from nanotriton.tasks.prompt import Prompt
from nanotriton.tasks.tritonbench import Problem
from nanotriton.verdict import Verdict

SECONDS = 120.0  # for a look at one performance script
HELPERS = 8  # processes that look at performance scripts, each with a GPU context
SYSTEM = (
    "You are an expert in writing Triton kernels. "
    "Answer with one complete Python file in a single ```python block."
)


@dataclass
class Config:
    data: str = ""  # a clone of TritonBench
    channel: Literal["G", "T"] = "G"  # G: kernels of repositories, by description; T: Triton for PyTorch code
    model: str = ""  # candidates from a model folder or hub id, by our sampler
    # candidates from an OpenAI-compatible server: its URL, such as http://localhost:8000/v1
    endpoint: str = ""
    predictions: str = ""  # candidates from a JSONL file of {instruction, predict, label}
    gold: bool = False  # the benchmark's own implementations as candidates: which of them run here?
    style: Literal["simp", "comp"] = "simp"  # which of the benchmark's instructions: simple or complex
    # candidates a problem; none: 1 from a model or an endpoint, all there are from a file
    n: Annotated[int | None, ">= 1"] = None
    device: Literal["cpu", "cuda"] = ""  # where candidates run; empty: cuda if there is a GPU
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems; 0: all
    ids: list[str] = field(default_factory=list)  # only these problems, by file name
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    # a folder that keeps what gold files answer for later runs; empty: they run every time
    golds: str = ""
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    # the k of pass@k, as far as there are samples
    ks: list[int] = field(default_factory=lambda: [1, 2, 5, 10, 20, 50, 100])
    template: str = ""  # variables for the model's chat template, in JSON: '{"enable_thinking": false}'
    temperature: Annotated[float, ">= 0"] = 1.0  # of the samples; 0: greedy
    top_p: Annotated[float, "> 0", "<= 1"] = 1.0  # nucleus
    max_tokens: Annotated[int, ">= 1"] = 4096  # longest completion
    seed: Annotated[int, ">= 0"] = 0  # of the samples, and of the tests' random tensors
    workers: Annotated[int | None, ">= 1"] = None  # judging processes; none: the executor's default
    timeout: Annotated[float, "> 0"] = 60.0  # seconds for each stage of a file
    memory_gib: Annotated[float | None, "> 0"] = None  # for each judging process; none: a share
    # inputs of each performance script that correct candidates are timed on, on a GPU; 0: none
    speed_inputs: Annotated[int, ">= 0"] = 3
    server: ServerOptions = field(default_factory=ServerOptions)

    def __post_init__(self) -> None:
        self.device = self.device or usual_device()

    def validate(self) -> None:
        check(self, "predictions", "a clone of TritonBench")
        if self.golds:
            make_folder(self.golds)


def main(cfg: Config, world: World) -> int:
    try:
        known = tritonbench.load_problems(cfg.data, cfg.channel)
        problems = tritonbench.select(known, cfg.ids, cfg.limit)
        given = {}
        if cfg.predictions:
            given = tritonbench.join(sources.read_jsonl(cfg.predictions), known, cfg.predictions)
        if cfg.gold:
            given = {(p.name, 0): p.code for p in problems}
    except ValueError as error:
        raise config.ConfigError(error) from None
    return TritonBench(cfg, world, problems, given, Golds({p.name: p.code for p in known})).go()


class TritonBench(BenchmarkRun):
    benchmark = "tritonbench"
    free = FREE | {"speed_inputs", "golds"}

    def __init__(self, cfg: Config, world: World, problems: list[Problem], given: dict, golds: Golds):
        super().__init__(cfg, world, problems, given, f"--predictions {cfg.predictions}")
        self.golds, self.entries = golds, {p.name: p.entries for p in problems}
        lacking = [p.name for p in problems if cfg.style not in p.instructions] if not given else []
        if lacking:
            raise config.ConfigError(f"{cfg.data}: no {cfg.style} instruction for {', '.join(lacking[:3])}")
        self.scripts = perf.find_scripts(cfg.data, cfg.channel)
        self.not_timed = ""  # why no candidate is
        if not cfg.speed_inputs:
            self.not_timed = "no speed: --speed-inputs 0"
        elif cfg.device != "cuda":
            self.not_timed = "no speed: it is measured on a GPU"
        elif self.scripts is None:
            folder = f"performance_metrics/perf_{cfg.channel}/golden_metrics"
            self.not_timed = f"no speed: {cfg.data} has no {folder}, as a whole clone of TritonBench has"
            if world.is_main:
                print(self.not_timed, file=sys.stderr)

    def sample(self, problem: Problem, given: str) -> dict:
        candidate = given if self.cfg.gold else tritonbench.extract(given, self.entries[problem.name])
        return {"completion": given, "candidate": candidate}

    def ask(self, p: Problem, s: int) -> sources.Ask:
        text = p.instructions[self.cfg.style]
        seed = seed_of(
            self.cfg.seed, Stream.TRITONBENCH, "GT".index(self.cfg.channel), zlib.crc32(p.name.encode()), s
        )
        return sources.Ask(p.name, s, Prompt((("system", SYSTEM), ("user", text)), text, text), seed)

    # ---- verdicts ----

    def judge(self, wanted: list[tuple[Problem, int]]) -> None:
        """Run each candidate's file and its gold file, compare their answers, and write down each verdict."""
        todo = self.pending(wanted)
        if not todo:
            return
        cfg = self.cfg
        problems = {p.name: p for p, _ in wanted}
        running = [Running(problems[name], candidates, cfg.seed) for name, candidates in todo.items()]
        with (
            ScriptExecutor(cfg.device, cfg.workers, cfg.timeout, memory_gib=cfg.memory_gib) as executor,
            log.bar(total=sum(map(len, todo.values())), desc="judging") as progress,
        ):
            inflight = InFlight(executor, KeptGolds(cfg.golds, self.setting()), running)
            while inflight.unfinished:
                if ended := inflight.ended(REFRESH):
                    self.compare(inflight, ended)
                    progress.update(len(ended.candidates))
                self.refresh()

    def setting(self) -> dict:
        """What a gold file's answer depends on, beside its text."""
        here = environment()
        del here["cores"]
        return here | {name: getattr(self.cfg, name) for name in ("device", "timeout", "memory_gib")}

    def pending(self, wanted: list[tuple[Problem, int]]) -> dict[str, list[tuple[int, Files]]]:
        """{problem: [(sample, its files with the test behind)]} of the candidates that must run.

        The others have their verdicts already, or get them here.
        """
        todo: dict[str, list[tuple[int, Files]]] = {}
        for p, s in wanted:
            sample = self.journal.get("sample", p.name, s)
            if sample is None or self.journal.get("verdict", p.name, s, "tensors"):
                continue
            if sample["candidate"] is None:
                why = sample.get("error") or "the completion has no code"
                verdict = Verdict("no_code", "extract", why)
                self.save(p.name, s, "tensors", verdict, call=False, stdout=False)
            else:
                files = Files.of(sample["candidate"], p, self.cfg.seed)
                todo.setdefault(p.name, []).append((s, files))
        return todo

    def compare(self, inflight: InFlight, running: Running) -> None:
        """Write down the verdicts of one problem, whose files have run."""
        name = running.problem.name
        gold = inflight.gold(running)
        executor = inflight.executor
        if gold.verdict.status != "infra_error":
            about = {"weak": gold.weak, "kept": running.kept is not None}
            verdict = dataclasses.asdict(gold.verdict)
            self.journal.append({"kind": "gold", "problem": name, "sample": 0, **about, "verdict": verdict})
        for s, files in running.candidates:
            ours, in_paper = running.results(files)
            judged = gold.judge(executor, files.ours, ours)
            if in_paper.status == "infra_error":  # our failure: both run again when the run is continued
                judged = in_paper
            if files.paper != files.ours:
                judged = dataclasses.replace(judged, cost=dict(Counter(ours.cost) + Counter(in_paper.cost)))
            call, stdout = gold.paper(executor, files.paper, in_paper)
            self.save(name, s, "tensors", judged, call=call, stdout=stdout)
        inflight.forget(running)

    # ---- speed ----

    def measure(self) -> None:
        """Time this rank's correct candidates, each on a few inputs of its problem's performance script."""
        if self.not_timed:
            return
        todo = []
        for p, s in self.world.share(self.wanted):
            entry = self.journal.get("verdict", p.name, s, "tensors")
            right = entry and entry["verdict"]["status"] == "correct"
            if right and not self.journal.get("speed", p.name, s):
                todo.append((p, s))
        if not todo:
            return
        cfg = self.cfg
        # its processes start while the scripts are read
        with Executor(
            "cuda", "replay", cfg.workers, "none", cfg.timeout, time=True, memory_gib=cfg.memory_gib
        ) as executor:
            scripts, facts = self.read_scripts({p.name: p for p, _ in todo})
            futures = []
            for p, s in todo:
                found, script = facts[p.name], scripts.get(p.name, "")
                source = self.journal.get("sample", p.name, s)["candidate"]
                parts = []
                for number in found.get("numbers", ()):
                    task = perf.task(p.name, p.code, script, number, found)
                    parts.append(executor.submit(task, perf.candidate(source, script, found)))
                futures.append(parts)
            for (p, s), parts in zip(log.bar(todo, desc="timing"), futures, strict=True):
                self.save_speed(p.name, s, [f.result() for f in parts], facts[p.name].get("error"))
                self.refresh()

    def read_scripts(self, problems: dict[str, Problem]) -> tuple[dict[str, str], dict[str, dict]]:
        """({problem: its performance script}, {problem: what perf.look found of it, or {"error"}})."""
        scripts: dict[str, str] = {}
        requests: dict[str, dict] = {}
        facts = {name: {"error": "it has no performance script"} for name in problems}
        for name, problem in problems.items():
            path = self.scripts / f"{name}_perf.py"
            if path.is_file():
                scripts[name] = path.read_text(encoding="utf-8")
                about = {"wanted": self.cfg.speed_inputs, "device": self.world.local_rank}
                requests[name] = {"code": problem.code, "script": scripts[name]} | about
        found = ask_all("bench.channels.perf", SECONDS, requests, min(HELPERS, cores()))
        for name, fact in log.bar(found, total=len(requests), desc="performance scripts"):
            facts[name] = fact
        return scripts, facts

    def save_speed(self, name: str, s: int, verdicts: list[Verdict], error: str | None) -> None:
        """Write down a candidate's speed-up, or why it has none, and the times behind it.

        verdicts: one an input. error: why the script gave no inputs.
        """
        ours = [v.message for v in verdicts if v.status == "infra_error"]
        if ours:  # not written down, so that it is timed when the run is continued
            self.failures.append(f"problem {name}, sample {s}, speed: {ours[0]}")
            return
        speedup = perf.speedup(verdicts, self.cfg.channel)
        times = [[v.time_us, v.reference_us] for v in verdicts]
        line = {"kind": "speed", "problem": name, "sample": s, "speedup": speedup, "times_us": times}
        if not speedup:
            failed = [f"{v.status}: {v.message}" for v in verdicts if not v.correct]
            line["why"] = error or (failed[0] if failed else "it was not timed")
        self.journal.append(line)

    # ---- results ----

    def outcomes(self) -> list[Outcome]:
        """The judged samples."""
        found = []
        for p, s in self.wanted:
            if entry := self.journal.get("verdict", p.name, s, "tensors"):
                v = entry["verdict"]
                call = bool(entry["call"])
                stdout = bool(entry["stdout"])
                speed = self.journal.get("speed", p.name, s) or {}
                outcome = Outcome(p.name, v["status"], v["stage"], v["message"], call, stdout)
                found.append(dataclasses.replace(outcome, speedup=speed.get("speedup")))
        return found

    def gold_lines(self) -> dict[str, dict]:
        """{problem: the journal's line on its gold file}."""
        return {p.name: line for p in self.problems if (line := self.journal.get("gold", p.name, 0))}

    def weak(self) -> dict[str, str]:
        return {name: "; ".join(line["weak"]) for name, line in self.gold_lines().items() if line["weak"]}

    def row(self, p: Problem, s: int, sample: dict) -> dict:
        row: dict = {"difficulty": p.difficulty, "verdicts": {}}
        if candidate := sample.get("candidate"):
            inside = self.golds.contained(candidate).items()
            row["triton"] = rules.check_source(candidate, "autotriton") is None
            row["gold_inside"] = {name: round(share, 3) for name, share in inside if share >= FLAG}
        if entry := self.journal.get("verdict", p.name, s, "tensors"):
            speed = self.journal.get("speed", p.name, s) or {}
            verdict = entry["verdict"] | {"speedup": speed.get("speedup")}
            row |= {"call": entry["call"], "stdout": entry["stdout"], "verdicts": {"tensors": verdict}}
            row |= {k: speed[k] for k in ("times_us", "why") if k in speed}
        return row

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        judged = self.outcomes()
        verdicts = {name: line["verdict"] for name, line in self.gold_lines().items()}
        failed = {name: v for name, v in verdicts.items() if v["status"] != "correct"}
        correct = [r for r in rows if r["verdicts"] and r["verdicts"]["tensors"]["status"] == "correct"]
        return {
            "channel": self.cfg.channel,
            "judged": {"tensors": len(judged)},
            "prompt": [["system", SYSTEM], ["user", f"the benchmark's own, {self.cfg.style}"]],
            "scores": tables({"tensors": judged}, lambda name: self.cfg.channel, weak, self.cfg.ks),
            "golds_kept": sum(line.get("kept", False) for line in self.gold_lines().values()),
            "gold_failures": {name: f"{v['status']}: {v['message']}" for name, v in failed.items()},
            "weak_tests": weak,
            "not_timed": self.not_timed,
            "correct_without_triton": sum(not r.get("triton") for r in correct),
            "contain_gold": sum(bool(r.get("gold_inside")) for r in rows),
        }


if __name__ == "__main__":
    program(main, config.parse(Config))
