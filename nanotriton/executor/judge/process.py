"""Process mode, the trusted side: one single-use child runs the candidate for real, on every trial, and hands its answers over.

The child has a CUDA context of its own. Inputs and answers pass through memory files that the worker owns, the answer's size
capped by the reference's own. There is no trusted clock here: `speedup` stays None.
"""

import glob
import os
from collections.abc import Generator
from dataclasses import replace

import torch

from nanotriton.executor.child.process import NO_ROOM
from nanotriton.executor.judge.candidate import SLACK, check_rules
from nanotriton.executor.judge.job import Job, Spawn, check_ended, not_its_own
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.judge.trial import judge_trial
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan import wire
from nanotriton.plan.trees import identical, mapped, tensors
from nanotriton.verdict import Fault, TaskFault

STARTUP = 20.0  # seconds for a CUDA context and first compilations, beside the candidate's own limit
WAITS = 0.0, 1.0, 4.0  # seconds before each try, where a GPU has no room for another context
ROOM = 1 << 30  # bytes that a context and its first kernels may take


def process_mode(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Rules, one child for all trials, comparison. Raises Fault unless it is right."""
    with worker.stage("rules", job.timeout):
        check_rules(job)
    reference: Reference = worker.reference(job.task)
    # whether its weights have the names only it knows
    trials = [replace(t, weights=abs(t.weights)) for t in reference.trials(worker.secret, job.source)]
    fd = os.memfd_create("trials")
    try:
        with worker.stage("task", worker.patience):
            args = write_trials(fd, reference, trials)
        limits, options = confinement(job, len(trials) * (4 * reference.bytes + SLACK))
        for wait in WAITS:
            ended = yield Spawn("process", args | {"wait": wait}, limits, (fd,), options)
            crowded = ended.header is not None and ended.header.get("status") == NO_ROOM
            if not crowded and not not_its_own(ended):
                break
    finally:
        os.close(fd)
    worker.add_child("process", ended)
    if crowded:  # whether that is so is for us to say
        kind = TaskFault if torch.cuda.mem_get_info()[0] < ROOM else Fault
        raise kind("memory_limit", "no memory left on the GPU for a process of its own")
    header = check_ended(ended, limits, frozenset(["illegal_memory"]))
    with worker.stage("validate", job.timeout):
        answers = read_answers(header, ended.payload, len(trials))
    for number, (trial, (outputs, after)) in enumerate(zip(trials, answers, strict=True)):
        with worker.stage("judge", worker.patience):
            judged = judge_trial(
                reference, trial, lambda inputs, seed, o=outputs, a=after: on_device(reference, inputs, o, a)
            )
        job.note(number, judged)


def write_trials(fd: int, reference: Reference, trials: list[Trial]) -> dict:
    """Write the trials' inputs and weights to the memory file; return the child's arguments."""
    described = []
    for trial in trials:
        inputs, drawn = wire.describe(reference.inputs(trial.kind, trial.inputs))
        state, weights = wire.describe(reference.weights(trial.weights))
        for t in (*drawn, *weights):
            view = memoryview(wire.raw([t]))
            while view:
                view = view[os.write(fd, view) :]
        _, init = reference.described(trial.weights)
        described.append({"inputs": inputs, "init": init, "state": state, "seed": trial.weights})
    device = reference.device.type
    moved = sorted(reference.moved_buffers)
    return {
        "trials": described,
        "device": device,
        "bytes": os.fstat(fd).st_size,
        "buffers": moved,
    }


def confinement(job: Job, output: int) -> tuple[Limits, dict]:
    """Limits and sandbox of the child. CUDA needs its devices, a huge address space, and Triton's compilers a folder and exec."""
    limits = Limits(
        job.timeout + STARTUP, None, resident=job.memory, output=max(output, 64 << 20), files=4096
    )
    # the last is where Triton sends what its C compiler prints
    devices = [*glob.glob("/dev/nvidia*"), os.devnull]
    return limits, {
        "write": True,
        "also": ["/proc", "/sys"],
        "devices": devices,
        "exec_ok": True,
        "cuda": True,
    }


def read_answers(header: dict, payload: bytes, count: int) -> list[tuple[object, list]]:
    """[(outputs, inputs afterwards)] of the trials. Raises Fault for anything that is not that."""
    data, answers = memoryview(payload), []
    try:
        for description in header["trials"]:
            (outputs, after), used = wire.rebuild(description, data)
            data = data[used:]
            answers.append((outputs, after))
    except (wire.WireError, TypeError, ValueError, KeyError) as error:
        raise Fault("crashed", f"the process left an answer that can't be read: {error}") from None
    if len(answers) != count:
        raise Fault("crashed", f"the process answered {len(answers)} of {count} trials")
    return answers


def on_device(
    reference: Reference, inputs: list, outputs, after: list
) -> tuple[object, dict[int, torch.Tensor]]:
    """What `judge_trial` wants of a run: the outputs, and the inputs that changed, by number."""
    before = tensors(inputs)
    now = [t.to(reference.device) for t in tensors(after)]
    if len(before) != len(now) or any(
        x.shape != y.shape or x.dtype != y.dtype for x, y in zip(before, now, strict=True)
    ):
        raise Fault(
            "input_modified", "the inputs are not what they were: forward must not change their shapes"
        )
    return mapped(outputs, lambda t: t.to(reference.device)), {
        i: y for i, (x, y) in enumerate(zip(before, now, strict=True)) if not identical(x, y)
    }
