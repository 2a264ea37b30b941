"""Do the executor's times agree with a plain triton.testing.do_bench of the same module?

    python -m bench.channels.kernelbench --data CLONE --samples runs/NAME --policy strict --out run.json
    python -m bench.channels.agreement run.json [--out agreement.json]

The candidates of the run that are correct and timed are timed again. A fresh process for each builds the
candidate and the problem's own module, draws the problem's inputs and times both with do_bench: the median,
in torch's default precision, without gradients. do_bench launches from Python, while the executor replays a
CUDA graph, so work of a few microseconds differs by what launching costs. Exit status 1 if a speed-up differs
by more than 5%.
"""

import json
import sys
import tempfile
from pathlib import Path

from bench.channels.helper import Helper, serve
from bench.channels.journal import all_paths
from bench.channels.markdown import table
from bench.channels.report import load
from bench.results import command, environment, write_json
from nanotriton import log
from nanotriton.config import die
from nanotriton.executor.common.construct import seed_everything
from nanotriton.tasks import kernelbench

LIMIT = 0.05  # how far a speed-up may be off, as a share of it
SECONDS = 300.0  # for one candidate
USAGE = "usage: python -m bench.channels.agreement RUN.json [--out FILE.json]"
HEAD = [
    "candidate",
    "executor us",
    "reference us",
    "speed-up",
    "do_bench us",
    "reference us",
    "speed-up",
    "time off by",
    "speed-up off by",
]


# ---- in a process of its own ----


def bench(request: dict) -> dict:
    """{"time_us", "reference_us"} by do_bench.

    It runs the candidate's Python without a sandbox, so it is only for candidates that one trusts.
    """
    import torch

    from nanotriton.executor.child.process import load as load_file

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        modules = []
        for name in ("reference", "candidate"):
            path = Path(folder, f"{name}.py")  # Triton reads a kernel's source back from its file
            path.write_text(request[name])
            modules.append(load_file(str(path)))
        task, candidate = modules
        return {"time_us": plain_us(task, candidate.ModelNew), "reference_us": plain_us(task, task.Model)}


def plain_us(task, cls) -> float:
    """Microseconds of one call of `cls` on the task's inputs."""
    import torch
    import triton

    with torch.device("cuda"):
        seed_everything(0)
        inputs = task.get_inputs()
        model = cls(*task.get_init_inputs()).cuda()
    return 1e3 * triton.testing.do_bench(lambda: model(*inputs), warmup=200, rep=1000, return_mode="median")


# ---- the comparison ----


def pairs(results: dict, path: Path) -> list[tuple[str, int, str, dict]]:
    """(problem, sample, candidate, verdict) of what is correct and timed under the run's first policy."""
    policy = next(iter(results["scores"]))
    candidates = {}
    for journal in all_paths(path):
        for text in journal.read_text().splitlines():
            line = json.loads(text)
            if line["kind"] == "sample":
                candidates[line["problem"], line["sample"]] = line["candidate"]
    found = []
    for row in results["samples"]:
        key, verdict = (row["problem"], row["sample"]), row["verdicts"].get(policy)
        timed = verdict and verdict["status"] == "correct" and verdict["speedup"]
        if timed and key in candidates:
            found.append((*key, candidates[key], verdict))
    return found


def measure(name: str, sample: int, candidate: str, verdict: dict, reference: str) -> dict:
    """The row of one candidate. `off`: what the executor says over what do_bench says, minus 1."""
    with Helper("bench.channels.agreement", SECONDS, "serve") as helper:
        plain = helper.ask({"candidate": candidate, "reference": reference})
    executor = {k: verdict[k] for k in ("time_us", "reference_us", "speedup")}
    row = {"problem": name, "sample": sample, "executor": executor, "do_bench": plain}
    if "error" not in plain:
        plain["speedup"] = plain["reference_us"] / plain["time_us"]
        row["off"] = {k: executor[k] / plain[k] - 1 for k in plain}
    return row


def cells(row: dict) -> list[str]:
    """A line of the table."""

    def shown(values: dict) -> list[str]:
        return [f"{values['time_us']:.1f}", f"{values['reference_us']:.1f}", f"{values['speedup']:.3f}"]

    line = [f"{row['problem']}/{row['sample']}", *shown(row["executor"])]
    if "off" not in row:
        return [*line, row["do_bench"]["error"], "", "", "", ""]
    off = row["off"]
    return [*line, *shown(row["do_bench"]), f"{100 * off['time_us']:+.1f}%", f"{100 * off['speedup']:+.1f}%"]


def main(path: str, out: str) -> int:
    results = load(path)
    if results["benchmark"] != "kernelbench":
        die(f"{path}: a run of bench.channels.kernelbench is expected")
    settings = results["settings"]
    try:
        problems = kernelbench.load_problems(settings["data"], settings["levels"])
    except ValueError as error:
        die(error)
    references = {p.name: p.task.source for p in problems}
    timed = pairs(results, Path(path))
    if not timed:
        die(f"{path}: no candidate in it is correct and timed, or its journal is gone")
    rows = []
    for name, sample, candidate, verdict in log.bar(timed, desc="do_bench"):
        rows.append(measure(name, sample, candidate, verdict, references[name]))
    print("\n".join(table(HEAD, [cells(row) for row in rows])))
    agree = sum("off" in row and abs(row["off"]["speedup"]) <= LIMIT for row in rows)
    print(f"{agree} of {len(rows)} speed-ups agree within {LIMIT:.0%}")
    if out:
        about = {"command": command("bench.channels.agreement"), "environment": environment()}
        write_json(out, about | {"limit": LIMIT, "agree": agree, "rows": rows})
    return 0 if agree == len(rows) else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:  # how `measure` starts the other process
            serve(bench)
        case ["-h"] | ["--help"]:
            print(__doc__.strip())
        case [path] if not path.startswith("-"):
            sys.exit(main(path, ""))
        case [path, "--out", out] if not path.startswith("-"):
            sys.exit(main(path, out))
        case _:
            die(USAGE)
