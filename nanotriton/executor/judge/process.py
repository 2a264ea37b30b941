"""Process mode, the trusted side: one single-use child runs the candidate for real, on every trial, and hands
its answers over.

The child has a CUDA context of its own. Inputs and answers pass through memory files that the worker owns,
the answer's size capped by the reference's own. There is no trusted clock here: `speedup` stays None.
"""

import glob
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial

import torch

from nanotriton.executor.child.process import NO_ROOM
from nanotriton.executor.judge.between import Training
from nanotriton.executor.judge.calls import Calls, calls_of, judge_calls
from nanotriton.executor.judge.candidate import check_rules
from nanotriton.executor.judge.compare import Answer, passes
from nanotriton.executor.judge.job import Job, Spawn, check_ended, not_its_own
from nanotriton.executor.judge.kinds import Trial, untrained
from nanotriton.executor.judge.recording import SLACK
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.judge.trial import judge_trial
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan import wire
from nanotriton.plan.trees import identical, mapped, tensors
from nanotriton.rules import rules
from nanotriton.verdict import Fault, TaskFault

STARTUP = 20.0  # seconds for a CUDA context and first compilations, beside the candidate's own limit
WAITS = 0.0, 1.0, 4.0  # seconds before each try, where a GPU has no room for another context
ROOM = 1 << 30  # bytes that a context and its first kernels may take


def process_mode(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Rules, one child for all trials, comparison, and a child without launches. Raises Fault unless it is
    right."""
    with worker.stage("rules", job.timeout):
        check_rules(job)
    reference: Reference = worker.reference(job.task)
    # whether its weights have the names only it knows
    with worker.stage("task", worker.patience):
        trials = [
            replace(t, weights=untrained(t.weights)) for t in reference.trials(worker.secret, job.source)
        ]
    fd = os.memfd_create("trials")
    try:
        with worker.stage("task", worker.patience):
            args = write_trials(fd, reference, trials)
        state = sum(t.nbytes for t in reference.weights(trials[0].weights).values())
        answers = 2 * state + (len(trials) + 1) * (4 * reference.bytes + SLACK)
        limits, options = confinement(job, answers, args["bytes"])
        child = Spawn("process", args, limits, (fd,), options)
        (outputs, after), second, *others = yield from run_child(job, worker, child)
        judge_answers(job, worker, reference, trials, [(outputs, after), *others], second)
        if job.policy in ("strict", "kernelbench"):
            effective = yield from launches_matter(job, worker, child, outputs)
            job.facts["effective_launches"] = int(effective)
            if violation := rules.check_effective(int(effective), job.policy):
                raise Fault(violation.status, str(violation))
    finally:
        os.close(fd)


def run_child(job: Job, worker, child: Spawn) -> Generator[Spawn, Ended, list[list]]:
    """Spawn a child, again where the GPU has no room for its context -> its calls (`read_calls`).

    Raises Fault.
    """
    for wait in WAITS:
        ended = yield replace(child, args=child.args | {"wait": wait})
        crowded = ended.header is not None and ended.header.get("status") == NO_ROOM
        if not crowded and not not_its_own(ended):
            break
    worker.add_child("process", ended)
    if crowded:  # whether that is so is for us to say
        kind = TaskFault if torch.cuda.mem_get_info()[0] < ROOM else Fault
        raise kind("memory_limit", "no memory left on the GPU for a process of its own")
    header = check_ended(ended, child.limits, frozenset(["illegal_memory"]))
    with worker.stage("validate", job.timeout):
        return read_calls(header, ended.payload, len(child.args["trials"]))


def launches_matter(job: Job, worker, child: Spawn, outputs: object) -> Generator[Spawn, Ended, bool]:
    """Whether the first trial's answer changes where every launch has an empty grid.

    One that launches nothing, or whose kernels do nothing that counts, gives the same answer. Where the
    candidate then fails, its launches mattered. outputs: its answer with launches. Raises Fault for what is
    not its own.
    """
    args = child.args | {"trials": child.args["trials"][:1], "launches": False}
    try:
        (without, _), _ = yield from run_child(job, worker, replace(child, args=args))
    except TaskFault:
        raise
    except Fault as fault:
        if fault.status in ("memory_limit", "infra_error"):  # other processes', not the launches'
            raise
        return True
    with worker.stage("ablate", job.timeout):
        return not passes(without, Answer(outputs, None, None, []))


def judge_answers(
    job: Job, worker, reference: Reference, trials: list[Trial], calls: list[tuple], second: list
) -> None:
    """Compare every call with the reference's. Raises Fault.

    calls: (outputs, inputs afterwards) of each trial. second: of the first trial's second call, with the
    module's state.
    """
    for number, (trial, call) in enumerate(zip(trials, calls, strict=True)):
        with worker.stage("judge", worker.patience):
            judged = judge_trial(reference, trial, partial(as_judged, reference, call))
        job.note(number, judged)
    with worker.stage("judge", worker.patience):
        judge_calls(reference, process_calls(reference, trials[0]), Called(reference, *second))


def process_calls(reference: Reference, trial: Trial) -> list[Trial]:
    """The two calls that the child makes: the trial's own, and another one."""
    _, second, *_ = calls_of(reference, trial)
    return [trial, second]


@dataclass
class Called:
    """What the child said of a second call, in the form in which `judge_calls` asks for it."""

    reference: Reference
    outputs: object
    after: list
    state: dict[str, torch.Tensor]

    def calls(self, draws: list[Callable[[], list]], training: Training | None, least: int = 2) -> Calls:
        """Nothing is trained, and `judge_trial` has seen the first answer."""
        outputs, written = as_judged(self.reference, (self.outputs, self.after), draws[1](), 0)
        state = mapped(self.state, lambda t: t.to(self.reference.device))
        return Calls([None, outputs], [{}, written], state)


def write_trials(fd: int, reference: Reference, trials: list[Trial]) -> dict:
    """Write the trials' inputs and weights to the memory file; return the child's arguments."""
    described = []
    for number, trial in enumerate(trials):
        inputs, drawn = wire.describe(reference.inputs(trial.kind, trial.inputs))
        state, weights = wire.describe(reference.weights(trial.weights))
        _, init = reference.described(trial.weights)
        written = {"inputs": inputs, "init": init, "state": state, "seed": trial.weights}
        write_all(fd, [*drawn, *weights])
        if number == 0:
            _, second = process_calls(reference, trial)
            written["more"], drawn = wire.describe(reference.inputs(second.kind, second.inputs))
            write_all(fd, drawn)
        described.append(written)
    device = reference.device.type
    moved = sorted(reference.moved_buffers)
    return {
        "trials": described,
        "device": device,
        "bytes": os.fstat(fd).st_size,
        "buffers": moved,
        "defaults": reference.defaults,
        "launches": True,
    }


def write_all(fd: int, given: list[torch.Tensor]) -> None:
    """Write the tensors' bytes to a file, one tensor after another."""
    for t in given:
        view = memoryview(wire.raw([t]))
        while view:
            view = view[os.write(fd, view) :]


def confinement(job: Job, output: int, given: int = 0) -> tuple[Limits, dict]:
    """Limits and sandbox of the child. CUDA needs its devices, a huge address space, and Triton's compilers a
    folder and exec.

    output, given: bytes of what it may answer, and of what it reads. Both are in its memory, beside what the
    candidate itself may take.
    """
    resident = job.memory + given + output
    limits = Limits(
        job.timeout + STARTUP,
        None,
        resident=resident,
        output=max(output, 64 << 20),
        files=4096,
        threads=256,  # the driver and torch start some
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


def read_calls(header: dict, payload: bytes, trials: int) -> list[list]:
    """What the child says of its calls: the first trial's, that trial's second, then one for each other
    trial.

    Each is [outputs, inputs afterwards]; the second call's also has the state. Raises Fault for anything
    else.
    """
    data, calls = memoryview(payload), []
    try:
        for description in header["calls"]:
            call, used = wire.rebuild(description, data)
            data = data[used:]
            calls.append(list(call))
    except (wire.WireError, TypeError, ValueError, KeyError) as error:
        raise Fault("crashed", f"the process left an answer that can't be read: {error}") from None
    wanted = [2, 3] + [2] * (trials - 1)
    if [len(call) for call in calls] != wanted or not is_state(calls[1][2]):
        raise Fault("crashed", f"the process answered {len(calls)} of {len(wanted)} calls")
    return calls


def is_state(given: object) -> bool:
    return isinstance(given, dict) and all(isinstance(t, torch.Tensor) for t in given.values())


def as_judged(
    reference: Reference, call: tuple, inputs: list, seed: int
) -> tuple[object, dict[int, torch.Tensor]]:
    """A call in the form in which `judge_trial` asks for it: the outputs, and the inputs that changed, by
    number.

    call: (outputs, inputs afterwards), on the host. inputs: as they were before.
    """
    outputs, after = call
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
