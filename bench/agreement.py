"""Do the executor's times agree with a plain triton.testing.do_bench of the same module?

    python -m bench.kernelbench --data CLONE --levels 1 2 --samples runs/NAME --policy strict --device cuda --out run.json
    python -m bench.agreement run.json [--out agreement.json]

For each candidate of the run that is correct and timed, one fresh process builds the candidate and the problem's own module, draws the problem's
inputs, and times both with do_bench (median; torch's default precision, no gradients). Exit status 1 if a speed-up differs by over 5%.
do_bench launches from Python, the executor replays a graph: work of a few microseconds differs by what launching costs.
"""

import json
import sys
import tempfile
from pathlib import Path

from bench import environment
from bench.helper import Helper, serve
from bench.journal import all_paths, write_json
from bench.report import load, table
from nanotriton import log
from nanotriton.config import die
from nanotriton.executor.common.construct import seed_everything
from nanotriton.tasks import kernelbench

LIMIT = 0.05  # of the speed-up
SECONDS = 300.0  # for one candidate


def bench(request: dict) -> dict:
    """{"time_us", "reference_us"} by do_bench. It runs the candidate's Python, unconfined: only for candidates that one trusts."""
    import torch

    from nanotriton.executor.child.process import load as load_file

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        modules = []
        for name in ("reference", "candidate"):
            path = Path(folder, f"{name}.py")  # where Triton reads kernels back
            path.write_text(request[name])
            modules.append(load_file(str(path)))
        task, candidate = modules
        return {"time_us": plain_us(task, candidate.ModelNew), "reference_us": plain_us(task, task.Model)}


def plain_us(task, cls) -> float:
    import torch
    import triton

    with torch.device("cuda"):
        seed_everything(0)
        inputs = task.get_inputs()
        model = cls(*task.get_init_inputs()).cuda()
    return 1e3 * triton.testing.do_bench(lambda: model(*inputs), warmup=200, rep=1000, return_mode="median")


def pairs(results: dict, path: Path) -> list[tuple[str, int, str, dict]]:
    """(problem, sample, candidate, verdict) of what is correct and timed, under the run's first policy."""
    policy = next(iter(results["scores"]))
    verdicts = {
        (r["problem"], r["sample"]): v
        for r in results["samples"]
        if (v := r["verdicts"].get(policy)) and v["status"] == "correct" and v["speedup"]
    }
    lines = [json.loads(line) for journal in all_paths(path) for line in journal.read_text().splitlines()]
    sources = {(x["problem"], x["sample"]): x["candidate"] for x in lines if x["kind"] == "sample"}
    return [(*key, sources[key], v) for key, v in verdicts.items() if key in sources]


def main(path: str, out: str) -> int:
    results = load(path)
    if results["benchmark"] != "kernelbench":
        die(f"{path}: a run of bench.kernelbench is expected")
    try:
        problems = {
            p.name: p.task
            for p in kernelbench.load_problems(results["settings"]["data"], results["settings"]["levels"])
        }
    except ValueError as error:
        die(error)
    timed, rows = pairs(results, Path(path)), []
    if not timed:
        die(f"{path}: no candidate in it is correct and timed, or its journal is gone")
    for name, sample, source, verdict in log.bar(timed, desc="do_bench"):
        with Helper("bench.agreement", SECONDS, "serve") as helper:  # a fresh process for each
            plain = helper.ask({"candidate": source, "reference": problems[name].source})
        row = {
            "problem": name,
            "sample": sample,
            "executor": {k: verdict[k] for k in ("time_us", "reference_us", "speedup")},
            "do_bench": plain,
        }
        if "error" not in plain:
            plain["speedup"] = plain["reference_us"] / plain["time_us"]
            row["off"] = {k: row["executor"][k] / plain[k] - 1 for k in plain}
        rows.append(row)
    shown = lambda values: (
        [f"{values[k]:.1f}" for k in ("time_us", "reference_us")] + [f"{values['speedup']:.3f}"]
    )
    cells = [
        [
            f"{r['problem']}/{r['sample']}",
            *shown(r["executor"]),
            *(
                shown(r["do_bench"]) + [f"{100 * r['off'][k]:+.1f}%" for k in ("time_us", "speedup")]
                if "off" in r
                else [r["do_bench"]["error"], "", "", "", ""]
            ),
        ]
        for r in rows
    ]
    head = [
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
    print("\n".join(table(head, cells)))
    agree = sum("off" in r and abs(r["off"]["speedup"]) <= LIMIT for r in rows)
    print(f"{agree} of {len(rows)} speed-ups agree within {LIMIT:.0%}")
    if out:
        write_json(
            Path(out),
            {
                "command": " ".join(["python -m bench.agreement", *sys.argv[1:]]),
                "environment": environment(),
                "limit": LIMIT,
                "agree": agree,
                "rows": rows,
            },
        )
    return 0 if agree == len(rows) else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            serve(bench)
        case [path] if not path.startswith("-"):
            sys.exit(main(path, ""))
        case [path, "--out", out] if not path.startswith("-"):
            sys.exit(main(path, out))
        case _:
            die("usage: python -m bench.agreement RUN.json [--out FILE.json]")
