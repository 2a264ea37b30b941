"""Candidates recorded, compiled, replayed on a GPU and judged: how many a second, and what each stage costs.

    python -m bench.replay_speed [--tasks 24] [--variants 8] [--processes N] [--time] [--kind dot|other] [--ops N] [--executor] [--out FILE.json]

Tasks are synthetic; a variant is the solution with its kernels renamed, so that every one is a distinct candidate that has to be
recorded and compiled. Without --executor N processes record and compile, unsandboxed, and this one owns the GPU: the stages bare.
With it the executor does everything, as in training: a sandboxed child for each recording and each compilation.
"""

import argparse
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
import triton

from nanotriton.executor.compiler import Binary, compile_kernel
from nanotriton.executor.plan import Plan


def start() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    from nanotriton.executor import recorder

    recorder.install()
    with tempfile.TemporaryDirectory() as folder:
        recorder.warm_up(folder)


def prepare(source: str, inputs: list, init: list, seed: int) -> tuple[bytes, list[bytes], dict[str, float]]:
    """In a process without a GPU: the plan's bytes, its binaries in order of the plan's kernels, CPU seconds a stage."""
    from nanotriton.executor import draws, recorder, wire

    clock = time.process_time()
    with tempfile.TemporaryDirectory() as folder, draws.moved_constants(seed):
        plan = recorder.record(source, wire.stand_ins(init), wire.stand_ins(inputs), seed=seed, folder=folder, max_configs=1)
    recorded = time.process_time()
    plan.validate()
    binaries = [compile_kernel(k).to_bytes() for k in plan.kernels]
    return plan.to_bytes(), binaries, {"record": recorded - clock, "compile": time.process_time() - recorded}


def variant(source: str, number: int) -> str:
    """The same program with its kernels renamed: other TTIR, another cubin."""
    for name in re.findall(r"@triton\.jit\s+def (\w+)", source):
        source = re.sub(rf"\b{name}\b", f"{name}_v{number}", source)
    return source


def judge(reference, plan: Plan, binaries: dict[str, Binary], watch, cost: dict[str, float]) -> None:
    """Three trials, as the executor's; with `watch` also the clock. Adds wall seconds a stage to `cost`."""
    from nanotriton.executor.cuda import CudaBackend
    from nanotriton.executor.judge import judge_trial
    from nanotriton.executor.replayer import Replay
    from nanotriton.executor.timing import Work

    mark = time.perf_counter()
    backend = CudaBackend(binaries)
    replay = Replay(plan, backend=backend)
    for kernel in plan.kernels:
        backend.function(kernel)
    cost["load"] += time.perf_counter() - mark
    weights = {}

    def run(inputs, seed):
        if seed not in weights:
            weights[seed] = dict(reference.build(seed).state_dict()) if plan.weights else {}
        begun = time.perf_counter()
        outputs = replay.run(inputs, weights[seed])
        cost["run"] += time.perf_counter() - begun
        return outputs, {}

    mark, before = time.perf_counter(), cost["run"]
    trials = reference.trials(b"secret", repr(plan.kernels[0].name))
    for trial in trials:
        judge_trial(reference, trial, run)
    cost["judge"] += time.perf_counter() - mark - (cost["run"] - before)
    if watch:
        mark = time.perf_counter()
        draws = [reference.inputs("plain", seed) for seed in (1, 2)]
        state = weights.get(trials[0].weights, {})
        watch.time([Work(replay.execute, lambda i: replay.load(draws[i % 2], state))], budget=0.01)
        replay.outputs()
        cost["time"] += time.perf_counter() - mark
    backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--variants", type=int, default=8)
    parser.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--kind", choices=("dot", "other"), default="other")
    parser.add_argument("--ops", type=int, default=99, help="tasks of at most so many operations")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--executor", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result = (whole if args.executor else bare)(args)
    flags = f"--kind {args.kind}" + f" --ops {args.ops}" * (args.ops < 99) + " --time" * args.time + " --executor" * args.executor
    command = f"python -m bench.replay_speed --tasks {args.tasks} --variants {args.variants} --processes {args.processes} {flags}"
    card = {"command": command, "card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    result = card | {"cores": len(os.sched_getaffinity(0))} | result
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def choose(args: argparse.Namespace) -> list:
    from nanotriton.tasks.synthetic import generate

    tasks = [t for t in generate("rl", 12 * args.tasks, 0, size="gpu") if ("tl.dot" in t.solution) == (args.kind == "dot")]
    return [t for t in tasks if len(t.meta["ops"]) <= args.ops][: args.tasks]


def whole(args: argparse.Namespace) -> dict:
    """The executor's own rate: all candidates submitted at once, after a first one has warmed it up."""
    from nanotriton.executor.executor import Executor

    tasks = choose(args)
    with Executor(device="cuda", mode="replay", workers=args.processes, time=args.time, timeout=30.0) as executor:
        for future in [executor.submit(t, variant(t.solution, 10_000 + i)) for t in tasks for i in range(3)]:
            future.result()  # every worker has met every task
        begun = time.perf_counter()
        verdicts = [f.result() for f in [executor.submit(t, variant(t.solution, n)) for n in range(args.variants) for t in tasks]]
        wall = time.perf_counter() - begun
    cost: dict[str, float] = defaultdict(float)
    for v in verdicts:
        for stage, seconds in v.cost.items():
            cost[stage] += seconds
    wrong = [f"{v.status}: {v.message}"[:200] for v in verdicts if not v.correct]
    return {
        "candidates": len(verdicts), "right": len(verdicts) - len(wrong), "failed": wrong[:5], "per_second": round(len(verdicts) / wall, 1),
        "ms_each": {k: round(v / len(verdicts) * 1e3, 2) for k, v in cost.items()},
    }  # fmt: skip


def bare(args: argparse.Namespace) -> dict:
    """The stages without a sandbox and without a scheduler."""
    from nanotriton.executor.judge import Reference
    from nanotriton.executor.timing import Stopwatch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    pool = ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn"), initializer=start)
    warm = [pool.submit(time.sleep, 1.0) for _ in range(args.processes)]
    tasks = choose(args)
    references = [Reference(t, "cuda") for t in tasks]
    watch = Stopwatch() if args.time else None
    for w in warm:
        w.result()
    cost: dict[str, float] = defaultdict(float)
    warm_up(pool, references[0], tasks[0], watch)
    begun, failed, latency = time.perf_counter(), [], []
    futures = {}
    for number in range(args.variants):
        for task, reference in zip(tasks, references):
            source = variant(task.solution, number)
            job = pool.submit(prepare, source, reference.described_inputs, reference.described_init, reference.trials(b"secret", "x")[0].weights)
            futures[job] = (reference, task.name)
    for future in as_completed(futures):
        reference, name = futures.pop(future)
        mark = time.perf_counter()
        try:
            data, binaries, seconds = future.result()
            plan = Plan.from_bytes(data)
            cost["validate"] += time.perf_counter() - mark
            judge(reference, plan, {k.key: Binary.from_bytes(b) for k, b in zip(plan.kernels, binaries)}, watch, cost)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}"[:200])
            continue
        for stage, value in seconds.items():
            cost[stage] += value
        latency.append(time.perf_counter() - mark)
    wall, count = time.perf_counter() - begun, args.variants * len(tasks)
    pool.shutdown()
    return {
        "candidates": count, "right": len(latency), "failed": failed[:5], "per_second": round(count / wall, 1),
        "gpu_process_ms_each": round(statistics.median(latency) * 1e3, 2) if latency else None,
        "ms_each": {k: round(v / max(1, len(latency)) * 1e3, 2) for k, v in cost.items()},
        "cpu_floor_per_second": round(args.processes * len(latency) / (cost["record"] + cost["compile"]), 1) if latency else None,
    }  # fmt: skip


def warm_up(pool: ProcessPoolExecutor, reference, task, watch) -> None:
    """One candidate outside of the measurement: libraries, first kernels, the allocator."""
    data, binaries, _ = pool.submit(prepare, variant(task.solution, 10_000), reference.described_inputs, reference.described_init, 0).result()
    plan = Plan.from_bytes(data)
    judge(reference, plan, {k.key: Binary.from_bytes(b) for k, b in zip(plan.kernels, binaries)}, watch, defaultdict(float))


if __name__ == "__main__":
    main()
