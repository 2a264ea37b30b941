"""How fast is a right candidate? It is timed in turns with the reference, and the answers of its timed runs are checked too."""

import contextlib
from contextlib import contextmanager

import torch

from nanotriton.executor.gpu.timing import Timing, Work, floor_us
from nanotriton.executor.judge.compare import compare
from nanotriton.executor.judge.gpu_runner import GpuRunner
from nanotriton.executor.judge.job import Job
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.replay.replayer import ReplayError
from nanotriton.plan.plan import Aten, Plan
from nanotriton.plan.trees import leaves, tensors
from nanotriton.verdict import Fault, out_of_memory

PROBES = 32  # elements of an input that are tried: does the answer need them?
ROTATION = 3  # draws of inputs that timed runs take in turns


def measure(job: Job, worker, reference: Reference, runner: GpuRunner, trial: Trial) -> None:
    """Time the candidate and the reference in turns, on draws of their own, and check the candidate's last answer.

    The draws differ because the reference's answers are on the GPU while the candidate runs: to other questions, then.
    Raises Fault: `too_fast` for a time that memory cannot reach, or what is wrong with the last answer.
    """
    gpu, crowded = worker.gpu, worker.gpu.crowded(job, reference)
    rotation = 1 if crowded else ROTATION  # the L2 keeps nothing of so much
    timings, outputs = clock(job, worker, reference, runner, trial, rotation)
    with worker.stage("judge", worker.patience):
        if crowded:
            gpu.own(None)  # room for the reference
        with torchs_precision() if convolves(runner.plan) else contextlib.nullcontext():
            answer = reference.answer(
                "plain", trial.inputs + 1 + (timings[0].runs - 1) % rotation, trial.weights
            )
        compare(outputs, answer)
        if len(timings) > 1:
            other = reference.inputs("plain", trial.inputs + 2 * rotation)
            gpu.learn(job.task.key, timings[1].us, needed_bytes(reference, other, trial.weights))
    reference_us, needed = gpu.known(job.task.key)
    floor = floor_us(gpu.card, needed, sum(t.nbytes for t in tensors(outputs)))
    job.facts |= {"time_us": timings[0].us, "reference_us": reference_us}
    if timings[0].us < floor:
        raise Fault(
            "too_fast",
            f"{timings[0].us:.1f} us; the bytes that it must move take {floor:.1f} us at the memory's peak bandwidth",
        )
    job.facts["speedup"] = reference_us / timings[0].us


def clock(
    job: Job, worker, reference: Reference, runner: GpuRunner, trial: Trial, rotation: int
) -> tuple[list[Timing], object]:
    """(timings of the candidate and, unless it is known, of the reference; the candidate's answer to the last draw that it was timed on)."""
    gpu, weights = worker.gpu, runner.by_name(trial.weights)
    draws = [reference.inputs("plain", trial.inputs + i) for i in range(1, 2 * rotation + 1)]
    gpu.own(runner)
    runner.replay.load(draws[0], weights)
    weights = {name: t.to(reference.device) for name, t in weights.items()}  # no run waits for the host

    def run() -> None:
        with torchs_precision():
            runner.replay.execute()

    works = [Work(run, lambda i: runner.replay.load(draws[i % rotation], weights), rotation)]
    if gpu.known(job.task.key) is None:
        works.append(reference_work(reference, trial.weights, draws[rotation:]))
    try:
        with worker.stage("time", job.timeout):
            ready = [gpu.watch.prepare(work) for work in works]
        with gpu.turns.quiet(), worker.stage("time", job.timeout):
            timings = gpu.watch.time(ready)
        with worker.stage("time", job.timeout):
            return timings, runner.replay.outputs()
    except ReplayError as error:
        gpu.lost |= error.fatal
        raise Fault(error.status, f"while it was timed: {error.message}") from None


@contextmanager
def torchs_precision():
    """What torch does unless it is told otherwise: cuDNN's convolutions are TF32, in the reference and in those that a candidate leaves to torch."""
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = False


def convolves(plan: Plan) -> bool:
    return any(isinstance(step, Aten) and "conv" in step.op for step in plan.steps)


def reference_work(reference: Reference, seed: int, draws: list[list]) -> Work:
    """The task's own module, eager as captured, with torch's default precision."""
    model, place = reference.build(seed), reference.inputs("plain", 0)

    def run() -> None:
        with torchs_precision(), torch.no_grad(), reference.settings.active():
            model(*place)

    def before(i: int) -> None:
        for (_, into), (_, fresh) in zip(leaves(place), leaves(draws[i % len(draws)]), strict=True):
            if isinstance(into, torch.Tensor):
                into.copy_(fresh)

    return Work(run, before, len(draws))


def needed_bytes(reference: Reference, inputs: list, seed: int) -> int:
    """How many bytes of the inputs the answer really depends on, from below: a NaN is planted in single elements, and looked for.

    A tenth is taken off for luck, integers count as nothing: reading less than this is not possible, so it can be a floor.
    """
    total, generator = 0.0, torch.Generator().manual_seed(0)
    model = reference.build(seed)
    floats = lambda tree: [t for t in tensors(tree) if t.is_floating_point()]

    def meets_it() -> bool:
        try:
            with reference.own("NaN"):
                return any(bool(out.isnan().any()) for out in floats(model(*inputs)))
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            return True  # it refuses what it has read

    with torch.no_grad():
        for t in floats(inputs):
            if t.nbytes < 1 << 20 or not t.is_contiguous():
                continue
            hits, flat = 0, t.view(-1)
            for at in torch.randint(t.numel(), (PROBES,), generator=generator).tolist():
                old = flat[at].clone()
                flat[at] = float("nan")
                hits += meets_it()
                flat[at] = old
            total += t.nbytes * max(0.0, hits / PROBES - 0.1)
    return int(total)
