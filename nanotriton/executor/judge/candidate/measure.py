"""How fast is a right candidate? It is timed in turns with the reference.

The answer of its last timed run is checked too.
"""

import torch

from nanotriton.executor.gpu.timing import Timing, Work, floor_us
from nanotriton.executor.judge.candidate.gpu_runner import GpuRunner
from nanotriton.executor.judge.candidate.job import Job
from nanotriton.executor.judge.comparison.compare import compare
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.replay.replayer import ReplayError
from nanotriton.plan.trees import leaves, tensors
from nanotriton.verdict import Fault, out_of_memory

PROBES = 32  # elements of an input that are tried: does the answer need them?
CHANCE = 0.1  # is taken off the share of these elements that the answer needs
SMALL = 1 << 20  # bytes: an input with fewer of them is not tried
ROTATION = 3  # draws of inputs that timed runs take in turns


def measure(job: Job, worker, reference: Reference, runner: GpuRunner, trial: Trial) -> None:
    """Time the candidate and the reference in turns, on draws of their own, and check the last answer.

    The draws differ because the reference's answers are on the GPU while the candidate runs: they must not be
    the answers that the candidate has to give. Raises Fault: `too_fast` for a time that memory cannot reach,
    or the fault of the last answer.
    """
    gpu = worker.gpu
    crowded = gpu.crowded(job, reference)
    rotation = 1 if crowded else ROTATION  # the L2 cache keeps nothing of so much data
    timings, outputs = clock(job, worker, reference, runner, trial, rotation)
    with worker.stage("judge", worker.patience):
        if crowded:
            gpu.own(None)  # room for the reference
        last = trial.inputs + 1 + (timings[0].runs - 1) % rotation
        answer = reference.answer("plain", last, trial.weights)
        compare(outputs, answer)
        if len(timings) > 1:
            other = reference.inputs.draw("plain", trial.inputs + 2 * rotation)
            needed = needed_bytes(reference, other, trial.weights)
            gpu.learn(job.task.key, timings[1].us, needed)
    note_speed(job, gpu, timings[0].us, written=sum(t.nbytes for t in tensors(outputs)))


def note_speed(job: Job, gpu, us: float, written: int) -> None:
    """Put the candidate's time and speed-up into the job's facts. Raises Fault: `too_fast`.

    us: of the candidate. written: bytes of its outputs.
    """
    reference_us, needed = gpu.known(job.task.key)
    job.facts |= {"time_us": us, "reference_us": reference_us}
    floor = floor_us(gpu.card, needed, written)
    if us < floor:
        must = f"the bytes that it must move take {floor:.1f} us at the memory's peak bandwidth"
        raise Fault("too_fast", f"{us:.1f} us; {must}")
    job.facts["speedup"] = reference_us / us


def clock(
    job: Job, worker, reference: Reference, runner: GpuRunner, trial: Trial, rotation: int
) -> tuple[list[Timing], object]:
    """(timings of the candidate and of the reference, the candidate's answer in its last timed run).

    The reference's timing is left out if it is known. rotation: how many draws each of them takes in turns.
    """
    gpu, weights = worker.gpu, runner.by_name(trial.weights)
    seeds = range(trial.inputs + 1, trial.inputs + 2 * rotation + 1)
    draws = [reference.inputs.draw("plain", seed) for seed in seeds]
    own, others = draws[:rotation], draws[rotation:]
    reference.code.settle()
    gpu.own(runner)
    runner.replay.load(own[0], weights)
    # on the GPU, so that no run waits for the host
    weights = {name: t.to(reference.device) for name, t in weights.items()}

    def load(i: int) -> None:
        runner.replay.load(own[i % rotation], weights)

    works = [Work(runner.replay.execute, load, rotation)]
    if gpu.known(job.task.key) is None:
        works.append(reference_work(reference, trial.weights, others))
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


def reference_work(reference: Reference, seed: int, draws: list[list]) -> Work:
    """The task's own module in eager mode, with the precision that it is judged by.

    seed: of the weights. draws: lists of inputs, which the runs take in turns.
    """
    model = reference.modules.build(seed)
    place = reference.inputs.draw("plain", 0)  # every run reads its inputs here

    def run() -> None:
        with torch.no_grad(), reference.code.settings.active():
            model(*place)

    def before(i: int) -> None:
        draw = draws[i % len(draws)]
        for (_, into), (_, fresh) in zip(leaves(place), leaves(draw), strict=True):
            if isinstance(into, torch.Tensor):
                into.copy_(fresh)

    return Work(run, before, len(draws))


def needed_bytes(reference: Reference, inputs: list, seed: int) -> int:
    """A lower bound of the bytes of the inputs that the answer depends on. seed: of the weights.

    In each input PROBES elements are replaced by a NaN, one at a time. An element that brings a NaN into the
    answer is needed. Integers and small inputs count as nothing, and so does all of a reference that must not
    be asked what its task doesn't draw. No candidate can read fewer bytes, so its time has a floor.
    """
    if not reference.stress:
        return 0
    generator = torch.Generator().manual_seed(0)
    model = reference.modules.build(seed)
    total = 0.0
    with torch.no_grad():
        for t in floats(inputs):
            if t.nbytes < SMALL or not t.is_contiguous():
                continue
            flat, hits = t.view(-1), 0
            for at in torch.randint(t.numel(), (PROBES,), generator=generator).tolist():
                old = flat[at].clone()
                flat[at] = float("nan")
                hits += meets_nan(reference, model, inputs)
                flat[at] = old
            total += t.nbytes * max(0.0, hits / PROBES - CHANCE)
    return int(total)


def meets_nan(reference: Reference, model: torch.nn.Module, inputs: list) -> bool:
    """Whether the module reads the NaN in these inputs: its answer holds one, or it refuses them."""
    try:
        with reference.code.active_on("NaN"):
            return any(bool(out.isnan().any()) for out in floats(model(*inputs)))
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        return True


def floats(tree) -> list[torch.Tensor]:
    return [t for t in tensors(tree) if t.is_floating_point()]
