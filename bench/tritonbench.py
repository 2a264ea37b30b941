"""TritonBench, channels G and T, two ways side by side: as the paper scores it, and by the tensors that its tests return.

    python -m bench.tritonbench --data TritonBench --channel G --model FOLDER --n 10 --out results.json
    python -m bench.tritonbench --data TritonBench --channel T --endpoint http://localhost:8000/v1 --out results.json
    python -m bench.tritonbench --data TritonBench --channel G --predictions FILE.jsonl --out results.json
    python -m bench.tritonbench --data TritonBench --channel G --gold --out results.json       # the benchmark's own implementations

`paper`: call, the candidate with the test behind it runs to its end; and stdout, what it prints is what the gold file prints. `tensors`: the
test runs in the candidate's and in the gold's namespace, with the same seed, in separate sandboxed processes, and the structures that it
returns are compared. Tests that can't tell (no float tensor, only shapes, zeros pass) are flagged and scored apart. Without a GPU files are
recorded and replayed (nanotriton/executor/judge/script.py); what can't be is `unsupported`.

On a GPU correct candidates are timed on inputs of the benchmark's own performance scripts, against the gold kernel (G) or the torch code (T),
timed beside them (bench/perf.py). What is not recordable is not timed: no clock here is within reach of a candidate.

The run writes OUT.json, OUT.md and two plots as it goes, and OUT.journal.jsonl, with which the same command continues after a kill.
Exit status: 0 finished, 1 some candidates could not be had or not be judged (run it again), 2 a mistake of the user's.
"""

import dataclasses
import sys
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from bench import answers, perf, sources
from bench.contamination import FLAG, Golds
from bench.helper import Helper
from bench.run import FREE, Run, check
from bench.scores import Outcome, tables
from nanotriton import config, log
from nanotriton.executor import Executor
from nanotriton.executor.judge.script import answer_path
from nanotriton.executor.script import ScriptExecutor
from nanotriton.rollout import seed_of
from nanotriton.rules import rules
from nanotriton.run import launch
from nanotriton.tasks import tritonbench
from nanotriton.tasks.tritonbench import Problem
from nanotriton.verdict import Fault, Verdict
from nanotriton.world import World

SECONDS = 120.0  # for a look at one performance script
AHEAD = 16  # problems whose files run before the first of them is compared: answers lie on the disk meanwhile
SYSTEM = "You are an expert in writing Triton kernels. Answer with one complete Python file in a single ```python block."


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
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"  # where candidates run
    limit: Annotated[int, ">= 0"] = 0  # only the first so many problems; 0: all
    ids: list[str] = field(default_factory=list)  # only these problems, by file name
    out: str = "results.json"  # the results; the table, plots and journal go beside it
    fresh: bool = False  # forget what an earlier run left at --out, instead of continuing it
    # the k of pass@k, as far as there are samples
    ks: list[int] = field(default_factory=lambda: [1, 2, 5, 10, 20, 50, 100])
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
    # inputs of each performance script that correct candidates are timed on, on a GPU; 0: none
    speed_inputs: Annotated[int, ">= 0"] = 3

    def validate(self) -> None:
        check(self, "predictions", "a clone of TritonBench")


def main(cfg: Config, world: World) -> int:
    try:
        known = tritonbench.load_problems(cfg.data, cfg.channel)
        problems = tritonbench.select(known, cfg.ids, cfg.limit)
        given = (
            tritonbench.join(sources.read_jsonl(cfg.predictions), known, cfg.predictions)
            if cfg.predictions
            else {}
        )
        given |= {(p.name, 0): p.code for p in problems} if cfg.gold else {}
    except ValueError as error:
        raise config.ConfigError(error) from None
    return TritonBench(cfg, world, problems, given, Golds({p.name: p.code for p in known})).go()


class Gold:
    """A gold file's answer, what its test is worth, and the judgement of candidates against it."""

    def __init__(self, executor: ScriptExecutor, source: str, verdict: Verdict):
        self.verdict = verdict
        self.answer = executor.answer(source) if verdict.correct else None
        self.weak = answers.weakness(self.answer.tree) if self.answer else []

    def judge(
        self, executor: ScriptExecutor, source: str, ran: Verdict
    ) -> tuple[Verdict, bool | None, bool | None]:
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
            return (
                dataclasses.replace(ran, status=fault.status, stage="judge", message=fault.message),
                True,
                printed,
            )
        return ran, True, printed


class TritonBench(Run):
    benchmark = "tritonbench"
    free = FREE | {"speed_inputs"}

    def __init__(self, cfg: Config, world: World, problems: list[Problem], given: dict, golds: Golds):
        super().__init__(cfg, world, problems, given, f"--predictions {cfg.predictions}")
        self.golds, self.entries = golds, {p.name: p.entries for p in problems}
        lacking = [p.name for p in problems if cfg.style not in p.instructions] if not given else []
        if lacking:
            raise config.ConfigError(f"{cfg.data}: no {cfg.style} instruction for {', '.join(lacking[:3])}")
        self.scripts = perf.find_scripts(cfg.data, cfg.channel)
        self.not_timed = ""  # why nothing is
        if cfg.device != "cuda" or not cfg.speed_inputs:
            self.not_timed = (
                "no speed: it is measured on a GPU" if cfg.speed_inputs else "no speed: --speed-inputs 0"
            )
        elif self.scripts is None:
            self.not_timed = f"no speed: {cfg.data} has no performance_metrics/perf_{cfg.channel}/golden_metrics, as a whole clone of TritonBench has"
            if world.is_main:
                print(self.not_timed, file=sys.stderr)

    def sample(self, problem: Problem, given: str) -> dict:
        return {
            "completion": given,
            "candidate": given if self.cfg.gold else tritonbench.extract(given, self.entries[problem.name]),
        }

    def ask(self, p: Problem, s: int) -> sources.Ask:
        text = p.instructions[self.cfg.style]
        seed = seed_of(self.cfg.seed, 21, "GT".index(self.cfg.channel), zlib.crc32(p.name.encode()), s)
        return sources.Ask(p.name, s, (("system", SYSTEM), ("user", text)), text, seed)

    # ---- verdicts ----

    def judge(self, wanted: list[tuple[Problem, int]]) -> None:
        """Run each candidate's file and its gold file, compare what they answer, and write down each verdict as it comes."""
        cfg, journal = self.cfg, self.journal
        todo: dict[str, list[tuple[int, str]]] = {}
        problems = {p.name: p for p, _ in wanted}
        for p, s in wanted:
            sample = journal.get("sample", p.name, s)
            if sample is None or journal.get("verdict", p.name, s, "tensors"):
                continue
            if sample["candidate"] is None:
                verdict = Verdict("no_code", "extract", sample.get("error") or "the completion has no code")
                self.save(p.name, s, "tensors", verdict, call=False, stdout=False)
            else:
                todo.setdefault(p.name, []).append(
                    (s, tritonbench.script(sample["candidate"], p.test, cfg.seed, p.name))
                )
        if not todo:
            return
        with (
            ScriptExecutor(cfg.device, cfg.workers, cfg.timeout, memory_gib=cfg.memory_gib) as executor,
            log.bar(total=sum(map(len, todo.values())), desc="judging") as progress,
        ):
            running: dict[str, tuple[str, Future[Verdict], list[Future[Verdict]]]] = {}
            waiting = list(todo)
            for name, candidates in todo.items():
                while waiting and len(running) < AHEAD:
                    ahead = waiting.pop(0)
                    gold = tritonbench.script(problems[ahead].code, problems[ahead].test, cfg.seed, ahead)
                    running[ahead] = (
                        gold,
                        executor.run(gold),
                        [executor.run(source) for _, source in todo[ahead]],
                    )
                gold, gold_future, futures = running.pop(name)
                reference = Gold(executor, gold, gold_future.result())
                journal.append(
                    {
                        "kind": "gold",
                        "problem": name,
                        "sample": 0,
                        "weak": reference.weak,
                        "verdict": dataclasses.asdict(reference.verdict),
                    }
                )
                for (s, source), future in zip(candidates, futures, strict=True):
                    verdict, call, stdout = reference.judge(executor, source, future.result())
                    self.save(name, s, "tensors", verdict, call=call, stdout=stdout)
                    progress.update()
                for source in {gold, *(source for _, source in candidates)}:
                    Path(answer_path(executor.root, source)).unlink(missing_ok=True)
                self.refresh()

    def measure(self) -> None:
        """Time the correct candidates, each on a few inputs of its problem's performance script."""
        get = self.journal.get
        right = [
            (p, s)
            for p, s in self.world.share(self.wanted)
            if (e := get("verdict", p.name, s, "tensors")) and e["verdict"]["status"] == "correct"
        ]
        todo = [(p, s) for p, s in right if not get("speed", p.name, s)] if not self.not_timed else []
        if not todo:
            return
        scripts = {
            p.name: path.read_text(encoding="utf-8")
            for p, _ in todo
            if (path := self.scripts / f"{p.name}_perf.py").is_file()
        }
        facts: dict[str, dict] = {}
        with Helper("bench.perf", SECONDS) as helper:
            for p in log.bar({p.name: p for p, _ in todo}.values(), desc="performance scripts"):
                request = {"code": p.code, "wanted": self.cfg.speed_inputs, "device": self.world.local_rank}
                facts[p.name] = (
                    helper.ask(request | {"script": scripts[p.name]})
                    if p.name in scripts
                    else {"error": "it has no performance script"}
                )
                if "CUDA error" in facts[p.name].get("error", ""):
                    helper.stop()  # its context is lost
        with Executor(
            "cuda",
            "replay",
            self.cfg.workers,
            "none",
            self.cfg.timeout,
            time=True,
            memory_gib=self.cfg.memory_gib,
        ) as executor:
            futures = []
            for p, s in todo:
                found, source = facts[p.name], get("sample", p.name, s)["candidate"]
                futures.append(
                    [
                        executor.submit(
                            perf.task(p.name, p.code, scripts[p.name], i, found),
                            perf.candidate(source, scripts[p.name], found),
                        )
                        for i in found.get("numbers", ())
                    ]
                )
            for (p, s), parts in zip(log.bar(todo, desc="timing"), futures, strict=True):
                self.save_speed(p.name, s, [f.result() for f in parts], facts[p.name].get("error"))
                self.refresh()

    def save_speed(self, name: str, s: int, verdicts: list[Verdict], error: str | None) -> None:
        """One line for a candidate: its speed-up, or why it has none, and the times behind it."""
        if any(v.status == "infra_error" for v in verdicts):
            self.failures.append(
                f"problem {name}, sample {s}, speed: {next(v.message for v in verdicts if v.status == 'infra_error')}"
            )
            return
        failed = next((f"{v.status}: {v.message}" for v in verdicts if not v.correct), "it was not timed")
        speedup = perf.speedup(verdicts, self.cfg.channel)
        times = [[v.time_us, v.reference_us] for v in verdicts]
        line = {"kind": "speed", "problem": name, "sample": s, "speedup": speedup, "times_us": times}
        self.journal.append(line | ({} if speedup else {"why": error or failed}))

    # ---- results ----

    def outcomes(self) -> list[Outcome]:
        found = []
        for p, s in self.wanted:
            if e := self.journal.get("verdict", p.name, s, "tensors"):
                v, speed = e["verdict"], self.journal.get("speed", p.name, s) or {}
                found.append(
                    Outcome(
                        p.name,
                        v["status"],
                        v["stage"],
                        v["message"],
                        bool(e["call"]),
                        bool(e["stdout"]),
                        speed.get("speedup"),
                    )
                )
        return found

    def gold_lines(self) -> dict[str, dict]:
        return {p.name: g for p in self.problems if (g := self.journal.get("gold", p.name, 0))}

    def weak(self) -> dict[str, str]:
        return {name: "; ".join(g["weak"]) for name, g in self.gold_lines().items() if g["weak"]}

    def row(self, p: Problem, s: int, sample: dict) -> dict:
        row, entry = (
            {"difficulty": p.difficulty, "verdicts": {}},
            self.journal.get("verdict", p.name, s, "tensors"),
        )
        if candidate := sample.get("candidate"):
            row["triton"] = rules.check_source(candidate, "autotriton") is None
            row["gold_inside"] = {
                k: round(v, 3) for k, v in self.golds.contained(candidate).items() if v >= FLAG
            }
        if entry:
            speed = self.journal.get("speed", p.name, s) or {}
            row |= {
                "call": entry["call"],
                "stdout": entry["stdout"],
                "verdicts": {"tensors": entry["verdict"] | {"speedup": speed.get("speedup")}},
            }
            row |= {k: speed[k] for k in ("times_us", "why") if k in speed}
        return row

    def results(self, weak: dict[str, str], rows: list[dict]) -> dict:
        judged, failed = (
            self.outcomes(),
            {n: g["verdict"] for n, g in self.gold_lines().items() if g["verdict"]["status"] != "correct"},
        )
        correct = [r for r in rows if r["verdicts"] and r["verdicts"]["tensors"]["status"] == "correct"]
        return {
            "channel": self.cfg.channel,
            "judged": {"tensors": len(judged)},
            "prompt": [["system", SYSTEM], ["user", f"the benchmark's own, {self.cfg.style}"]],
            "scores": tables(lambda _: judged, ["tensors"], lambda _: self.cfg.channel, weak, self.cfg.ks),
            "gold_failures": {n: f"{v['status']}: {v['message']}" for n, v in failed.items()},
            "weak_tests": weak,
            "not_timed": self.not_timed,
            "correct_without_triton": sum(not r.get("triton") for r in correct),
            "contain_gold": sum(bool(r.get("gold_inside")) for r in rows),
        }


if __name__ == "__main__":
    sys.exit(launch(main, config.parse(Config)))
