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
from nanotriton.executor.judge.candidate.candidate import check_rules, stands
from nanotriton.executor.judge.candidate.job import Job, Spawn, check_ended, not_its_own
from nanotriton.executor.judge.candidate.recording import SLACK
from nanotriton.executor.judge.comparison.compare import Answer, passes
from nanotriton.executor.judge.inputs.kinds import Trial, grown, untrained, with_same_buffers
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import excused
from nanotriton.executor.judge.trials.between import Training, training_of
from nanotriton.executor.judge.trials.calls import Calls, another_seed, calls_of, judge_calls
from nanotriton.executor.judge.trials.reference_calls import ANOTHER, EVALUATION, hides_state
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan import wire
from nanotriton.plan.trees import identical, mapped, tensors
from nanotriton.rules import rules
from nanotriton.verdict import Fault, TaskFault

STARTUP = 20.0  # seconds for a CUDA context and first compilations, beside the candidate's own limit
WAITS = 0.0, 1.0, 4.0  # seconds before each try, where a GPU has no room for another context
ROOM = 1 << 30  # bytes that a context and its first kernels may take
LARGE = 256 << 20  # bytes of a task's inputs, answer and weights beyond which few further calls are made


@dataclass
class Said:
    """What a child says of a candidate's calls. Each of these is [outputs, inputs afterwards].

    trials: a call of each trial. further: more calls of the first trial's module; the last one has its state
    as well. trained: whether weights were put in before these. overwritten: (call, number of an output
    tensor) of answers of one module that a later call has changed.
    """

    trials: list[list]
    further: list[list]
    trained: bool
    overwritten: set[tuple[int, int]]


def process_mode(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Rules, one child for all trials, comparison, and a child without launches.

    Raises Fault unless it is right.
    """
    with worker.stage("rules", job.timeout):
        check_rules(job)
    reference: Reference = worker.reference(job.task)
    # whether its weights have the names only it knows
    with worker.stage("task", worker.patience):
        trials = [
            replace(t, weights=untrained(t.weights)) for t in reference.trials(worker.secret, job.source)
        ]
        further = further_calls(reference, trials[0])
    fd = os.memfd_create("trials")
    try:
        with worker.stage("task", worker.patience):
            args = write_trials(fd, reference, trials, further)
        state = sum(t.nbytes for t in reference.modules.weights(trials[0].weights).values())
        calls = len(trials) + len(further.calls)
        answers = 2 * state + calls * (4 * reference.findings.bytes + SLACK)
        limits, options = confinement(job, answers, args["bytes"])
        child = Spawn("process", args, limits, (fd,), options)
        said = yield from run_child(job, worker, child)
        judge_answers(job, worker, reference, trials, further, said)
        if job.policy in ("strict", "kernelbench"):
            effective = yield from launches_matter(job, worker, child, said.trials[0][0])
            job.facts["effective_launches"] = int(effective)
            if violation := rules.check_effective(int(effective), job.policy):
                raise Fault(violation.status, str(violation))
    finally:
        os.close(fd)


def run_child(job: Job, worker, child: Spawn) -> Generator[Spawn, Ended, Said]:
    """Spawn a child, again where the GPU has no room for its context -> what it says of its calls.

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
        first, *others = child.args["trials"]
        further = len(first["further"]["inputs"]) if first["further"] is not None else 0
        return read_calls(header, ended.payload, further, len(others))


def launches_matter(job: Job, worker, child: Spawn, outputs: object) -> Generator[Spawn, Ended, bool]:
    """Whether the first trial's answer changes where every launch has an empty grid.

    One that launches nothing, or whose kernels do nothing that counts, gives the same answer. Where the
    candidate then fails, its launches mattered. outputs: its answer with launches. Raises Fault for what is
    not its own.
    """
    first = child.args["trials"][0] | {"further": None}
    args = child.args | {"trials": [first], "launches": False}
    try:
        said = yield from run_child(job, worker, replace(child, args=args))
    except TaskFault:
        raise
    except Fault as fault:
        if fault.status in ("memory_limit", "infra_error"):  # other processes', not the launches'
            raise
        return True
    with worker.stage("ablate", job.timeout):
        return not passes(said.trials[0][0], Answer(outputs, None, None, []))


def judge_answers(
    job: Job, worker, reference: Reference, trials: list[Trial], further: "Further", said: Said
) -> None:
    """Compare every call with the reference's. Raises Fault."""
    for number, (trial, call) in enumerate(zip(trials, said.trials, strict=True)):
        with worker.stage("judge", worker.patience):
            judged = judge_trial(reference, trial, partial(as_judged, reference, call))
        job.note(number, judged)
    with worker.stage("judge", worker.patience):
        training = further.training if said.trained else None
        judge_calls(reference, [trials[0], *further.calls], Called(reference, said), training)


# ---- further calls ----


@dataclass(frozen=True)
class Further:
    """The calls that follow the first trial's, and the weights that its module then has.

    another: the seed of the weights of another module that is called too, or None.
    """

    calls: list[Trial]
    training: Training | None = None
    another: int | None = None


def further_calls(reference: Reference, trial: Trial) -> Further:
    """As in replay mode, but for the first call: that is the trial's own. Where a task is large, there is one
    call more and no other module. Large weights are put in where the reference stands them."""
    weights = sum(t.nbytes for t in reference.modules.weights(trial.weights).values())
    small = reference.findings.bytes + weights <= LARGE
    another = another_seed(reference, trial.weights) if small else None
    calls = calls_of(reference, trial, another)[1:]
    if not small:
        return Further(calls[:1])
    with excused("on its own inputs, called again"):
        if not reference.findings.trains or hides_state(reference, [trial, *calls]):
            return Further(calls, None, another)
        trained = -trial.weights if reference.findings.trained.buffers else with_same_buffers(-trial.weights)
        if reference.findings.grows and all(stands(reference, call, grown(trained)) for call in calls):
            trained = grown(trained)
        return Further(calls, training_of(reference, trained), another)


@dataclass
class Called:
    """What the child said of further calls, in the form in which `judge_calls` asks for it."""

    reference: Reference
    said: Said

    def calls(self, draws: list[Callable[[], list]], training: Training | None, least: int = 2) -> Calls:
        """The child has made them all, and `judge_trial` has seen the first answer."""
        found = Calls([None], [{}], overwritten=self.said.overwritten)
        for draw, (outputs, after, *_) in zip(draws[1:], self.said.further, strict=True):
            answer, written = as_judged(self.reference, (outputs, after), draw(), 0)
            found.answers.append(answer)
            found.written.append(written)
        found.state = mapped(self.said.further[-1][2], lambda t: t.to(self.reference.device))
        return found


# ---- to the child, and back ----


def write_trials(fd: int, reference: Reference, trials: list[Trial], further: Further) -> dict:
    """Write the trials' inputs and weights to the memory file; return the child's arguments."""
    described = []
    for number, trial in enumerate(trials):
        inputs = write(fd, reference.inputs.draw(trial.kind, trial.inputs))
        written = {"inputs": inputs, "further": None} | write_module(fd, reference, trial.weights)
        if number == 0:
            written["further"] = write_further(fd, reference, further)
        described.append(written)
    return {
        "trials": described,
        "device": reference.device.type,
        "bytes": os.fstat(fd).st_size,
        "buffers": sorted(reference.findings.moved_buffers),
        "attributes": bool(reference.findings.leaves),
        "defaults": reference.code.defaults,
        "launches": True,
    }


def write_module(fd: int, reference: Reference, weights: int) -> dict:
    """What a child needs to build a module with weights of this seed."""
    _, init = reference.described(weights)
    return {"init": init, "state": write(fd, reference.modules.weights(weights)), "seed": weights}


def write_further(fd: int, reference: Reference, further: Further) -> dict:
    """The fields of the child's Further. The calls' numbers there begin with the second call."""
    inputs = [write(fd, reference.inputs.draw(call.kind, call.inputs)) for call in further.calls]
    evaluated = reference.findings.evaluates and len(inputs) >= EVALUATION
    trained = None if further.training is None else write(fd, further.training.after)
    another = None if further.another is None else write_module(fd, reference, further.another)
    return {
        "inputs": inputs,
        "evaluation": EVALUATION - 1 if evaluated else None,
        "another": None if another is None else ANOTHER - 1,
        "trained": trained,
        "module": another,
    }


def write(fd: int, tree) -> list:
    """Write a tree's tensors to the memory file; return its description."""
    description, found = wire.describe(tree)
    write_all(fd, found)
    return description


def write_all(fd: int, given: list[torch.Tensor]) -> None:
    """Write the tensors' bytes to a file, one tensor after another."""
    for t in given:
        view = memoryview(wire.raw([t]))
        while view:
            view = view[os.write(fd, view) :]


def confinement(job: Job, output: int, given: int = 0) -> tuple[Limits, dict]:
    """Limits and sandbox of the child.

    CUDA needs its devices, a huge address space, and Triton's compilers a folder and exec.

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


def read_calls(header: dict, payload: bytes, further: int, others: int) -> Said:
    """What the child says of its calls: the first trial's, so many further ones, and one for each other
    trial. Raises Fault for anything else."""
    data, calls = memoryview(payload), []
    try:
        for description in header["calls"]:
            call, used = wire.rebuild(description, data)
            data = data[used:]
            calls.append(list(call))
        overwritten = {(int(call), int(output)) for call, output in header["overwritten"]}
    except (wire.WireError, TypeError, ValueError, KeyError) as error:
        raise Fault("crashed", f"the process left an answer that can't be read: {error}") from None
    wanted = [2] + [2] * (further - 1) + [3] * (further > 0) + [2] * others
    if [len(call) for call in calls] != wanted:
        raise Fault("crashed", f"the process answered {len(calls)} of {len(wanted)} calls")
    if further and not is_state(calls[further][2]):
        raise Fault("crashed", "the process left no state of the module")
    first, rest = calls[0], calls[1 + further :]
    return Said([first, *rest], calls[1 : 1 + further], header.get("trained") is True, overwritten)


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
