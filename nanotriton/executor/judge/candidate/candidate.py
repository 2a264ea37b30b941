"""The life of one candidate in a worker, from source to verdict.

This is trusted code; the untrusted part is in the wing child/.

Each mode is a generator: it yields the children that it wants (`Spawn`), and is resumed with how each ended.
A Fault that it raises is the verdict; without one the candidate is right. While one candidate waits for its
child the worker goes on with another, so that all cores stay busy.
"""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.candidate.ablation import effective_launches
from nanotriton.executor.judge.candidate.hints import hinted
from nanotriton.executor.judge.candidate.job import Job, Spawn
from nanotriton.executor.judge.candidate.recording import ONE_TRIAL, Purpose, alike, prepares_numbers, record
from nanotriton.executor.judge.candidate.runner import Runner
from nanotriton.executor.judge.inputs.kinds import (
    MOVED,
    Trial,
    grown,
    has_other_numbers,
    trains_buffers,
    untrained,
    with_same_buffers,
)
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import excused
from nanotriton.executor.judge.trials.between import training_of
from nanotriton.executor.judge.trials.calls import calls_of, judge_calls
from nanotriton.executor.judge.trials.configurations import judge_configurations
from nanotriton.executor.judge.trials.reference_calls import hides_state
from nanotriton.executor.judge.trials.trial import Judged, judge_trial
from nanotriton.executor.judge.trials.tuning import judge_tuning
from nanotriton.executor.judge.trials.unread import check_unread
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.rules import rules
from nanotriton.verdict import Fault, HoleFault, TaskFault, Unrecordable, ValueFault, out_of_memory

# operators that bring a value to the host, or a shape that depends on values
READS = frozenset({"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"})
# the end of a message about a trial that is not drawn as the task draws
STRESSED = "; inputs as get_inputs() draws them do not show it: these are {kind} (docs/executor.md)"


@dataclass(frozen=True)
class Way:
    """How a trial is judged: a recording, and the seed of the weights that are put into it."""

    runner: Runner
    weights: int


def check_rules(job: Job) -> None:
    """Raise Fault if the source is empty, or breaks a rule on sources."""
    if not job.source.strip():
        raise Fault("no_code", "the candidate is empty")
    if violation := rules.check_source(job.source, job.policy):
        raise Fault(violation.status, str(violation))


def check_moves(job: Job, reference: Reference) -> None:
    """Raise Fault if torch moves data where the task is about moving it."""
    if violation := rules.check_moves(job.source, job.policy, reference.findings.facts):
        raise Fault(violation.status, str(violation))


def examine(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Nothing but the task, before its candidates come. What is wrong with it they will be told."""
    worker.reference(job.task)
    yield from ()


def replay_mode(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Rules, recording, trials, ablation. Raises Fault unless the candidate is right.

    `job.facts` gathers what was found until then.
    """
    with worker.stage("rules", job.timeout):
        check_rules(job)
    reference = worker.reference(job.task)
    job.facts["unvaried"] = reference.findings.unvaried
    with worker.stage("rules", job.timeout):
        check_moves(job, reference)
    drawer = job.source if job.draw is None else job.draw
    draw = partial(reference.trials, worker.secret, drawer)
    trials = in_room(worker, reference, "task", worker.patience, draw)
    try:
        first = yield from record(job, worker, reference, trials[0].weights)
    except Unrecordable as error:
        job.facts["recordable"] = False
        if job.policy == "strict":
            raise Fault(
                "rule_violation", f"{error.message}: under strict, forward must be recordable without data"
            ) from None
        if worker.gpu is None:
            message = f"{error.message}; to run it without a recording needs a GPU"
            if READS & reference.findings.called:  # the task wants it, so no candidate can do without
                raise TaskFault(error.status, message) from None
            raise Unrecordable(error.status, message) from None
        raise
    trials = [fitting(trial, reference, first) for trial in trials]
    # Before process mode too: there a candidate may do another thing than what it let us record, so the plan
    # must be right as well.
    ways = yield from judge_trials(job, worker, reference, trials, first)
    yield from judge_further_calls(job, worker, reference, trials[0], first, ways)
    judge_moved_state(worker, reference, trials, ways)
    yield from judge_fewer_processors(job, worker, reference, trials[0], first)
    look_further(worker, reference, trials, first)
    if job.time and worker.gpu is not None:
        time_candidate(job, worker, reference, trials[0], first)
    if job.policy in ("strict", "kernelbench"):
        check_effective(job, worker, reference, trials[0], first)


def time_candidate(job: Job, worker, reference: Reference, trial: Trial, first: Runner) -> None:
    """Measure how fast a right candidate is. One that finds no memory for that stays right, and untimed."""
    from nanotriton.executor.judge.candidate.measure import measure  # imported late: it is for a GPU

    try:
        with worker.room(reference):
            measure(job, worker, reference, first, trial)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise


def check_effective(job: Job, worker, reference: Reference, trial: Trial, first: Runner) -> None:
    """Note how many launches matter. Raise Fault if that is none."""
    count = partial(effective_launches, reference, trial, first)
    effective = in_room(worker, reference, "ablate", job.timeout, count)
    job.facts["effective_launches"] = effective
    if violation := rules.check_effective(effective, job.policy):
        raise Fault(violation.status, str(violation))


def look_further(worker, reference: Reference, trials: list[Trial], first: Runner) -> None:
    """What no trial shows: races, what is never read, what an autotuner's runs leave, and on a CPU other
    configurations. Raises Fault."""
    todo = [partial(first.ask_evaluator, trials[0]), partial(check_unread, reference, trials[0], first)]
    todo.append(partial(judge_tuning, reference, trials[0], first, others=worker.gpu is None))
    if worker.gpu is None:
        todo.append(partial(judge_configurations, reference, trials, first))
    for work in todo:
        in_room(worker, reference, "judge", worker.patience, work)


def judge_trials(
    job: Job, worker, reference: Reference, trials: list[Trial], first: Runner
) -> Generator[Spawn, Ended, dict[int, Way]]:
    """All trials. Weights go in by name where that is possible; else each weight seed takes a recording of
    its own. Returns how the trials were judged, by the seed of their weights."""
    ways = {first.recorded: Way(first, first.recorded)}
    for number, trial in enumerate(trials):
        if way := ways.get(trial.weights):
            judged = judge_one(job, worker, reference, trial, way)
        else:
            judged, ways[trial.weights] = yield from judge_other_weights(job, worker, reference, trial, first)
        job.note(number, judged)
    return ways


def fitting(trial: Trial, reference: Reference, first: Runner) -> Trial:
    """The trial as a candidate can be given it: one that lacks a buffer of the reference's that training
    changes gets weights whose buffers stay."""
    for name in reference.findings.trained.buffers:
        if not first.has(name):
            return replace(trial, weights=with_same_buffers(trial.weights))
    return trial


def judge_further_calls(
    job: Job, worker, reference: Reference, trial: Trial, first: Runner, ways: dict[int, Way]
) -> Generator[Spawn, Ended, None]:
    """Judge the first recording's further calls (trials/calls.py), trained in between where that is fair.

    trial: the first. ways: how the trials were judged.
    """
    calls = calls_of(reference, trial, first.another)

    def judge_further(runner: Runner, weights: int) -> None:
        """weights: seed of the trained ones, or 0."""
        with excused("on its own inputs, called again"):
            fair = weights and not hides_state(reference, calls)
            training = training_of(reference, weights) if fair else None
        judge_calls(reference, calls, runner, training)
        runner.settle_first_call()

    def judge(runner: Runner, weights: int) -> None:
        work = partial(judge_further, runner, weights)
        in_room(worker, reference, "judge", worker.patience, work)

    # 0 if none was: the candidate has prepared numbers in the constructor, or has parameters of its own
    trained = next((way.weights for way in ways.values() if way.weights < 0), 0)
    if not trained:
        return judge(first, 0)
    trained = -trial.weights if trains_buffers(trained) else with_same_buffers(-trial.weights)

    judge_trained = partial(judge_further_trained, job, worker, reference, first, judge)
    if reference.findings.grows:
        try:
            return (yield from judge_trained(grown(trained)))
        except Fault as fault:
            if is_final(fault) or all(stands(reference, call, grown(trained)) for call in calls[1:]):
                raise
            # large weights say nothing here: with these, the reference itself breaks down
    yield from judge_trained(trained)


def judge_moved_state(worker, reference: Reference, trials: list[Trial], ways: dict[int, Way]) -> None:
    """Where a module keeps state, judge what it makes of moved numbers in a first call and a second: a decay
    of an average is seen in nothing else. Raises Fault."""
    trial = next((trial for trial in trials if has_other_numbers(trial.weights)), None)
    if trial is None or reference.findings.keeps_nothing:
        return
    way = ways[trial.weights]
    calls = [Trial(MOVED + "plain", trial.inputs + number, way.weights) for number in (1, 2)]
    work = partial(judge_calls, reference, calls, way.runner)
    try:
        in_room(worker, reference, "judge", worker.patience, work)
    except (ValueFault, HoleFault) as fault:
        fault.message += "; the numbers that the module is given are others here"
        raise


def judge_further_trained(
    job: Job,
    worker,
    reference: Reference,
    first: Runner,
    judge: Callable[[Runner, int], None],
    weights: int,
) -> Generator[Spawn, Ended, None]:
    """Judge further calls with these trained weights. judge: does it with a recording."""
    try:
        judge(first, weights)
    except Fault as fault:
        if is_final(fault):
            raise
        # forward may read numbers off weights: then each call belongs to its weights
        runner = yield from record(job, worker, reference, weights)
        if all(alike(one, other) for one, other in zip(runner.plans, first.plans, strict=False)):
            with worker.stage("judge", worker.patience):  # where it was found
                raise fault from None
        runner = yield from record(job, worker, reference, weights, Purpose(between=True))
        judge(runner, weights)


def stands(reference: Reference, call: Trial, weights: int) -> bool:
    """Whether the reference's answer to a call with these weights is one to compare with."""
    return reference.finite_answer(call.kind, call.inputs, weights) is not None


def judge_fewer_processors(
    job: Job, worker, reference: Reference, trial: Trial, first: Runner
) -> Generator[Spawn, Ended, None]:
    """A candidate that asks how many multiprocessors the card has is recorded and judged once more, for one
    with fewer: a grid of one program for each may not do without a loop. Raises Fault.

    The number is odd and drawn, so that no size of a task's happens to be a multiple of it. A candidate that
    refuses such a card by an exception is let off: it is judged for the one that is there.
    """
    if not first.asks_processors:
        return
    card = DEFAULT if worker.gpu is None else worker.gpu.card
    usual = card.multi_processor_count
    fewer = (usual // 4 + seed_from(worker.secret, job.source, "processors") % max(1, usual // 2)) | 1
    if fewer >= usual:
        return
    try:
        told = Purpose(further=False, processors=fewer)
        runner = yield from record(job, worker, reference, trial.weights, told)
    except Fault as fault:
        if fault.status == "runtime_error":
            return
        raise
    if alike(runner.plan, first.plan):
        return
    try:
        judge_one(job, worker, reference, trial, Way(runner, runner.recorded))
    except TaskFault:
        raise
    except Fault as fault:
        where = f"on a GPU with {fewer} multiprocessors"
        raise Fault(fault.status, f"{where}: {fault.message}") from None


def judge_other_weights(
    job: Job, worker, reference: Reference, trial: Trial, first: Runner
) -> Generator[Spawn, Ended, tuple[Judged | None, Way]]:
    """A trial with other weights than the first recording's.

    They are put in by name, or the candidate is recorded with them.

    Returns how it was judged, for the next trial with these weights. Raises Fault.
    """
    judge = partial(judge_one, job, worker, reference, trial)
    failed = None
    if not has_other_numbers(trial.weights) and first.by_name(trial.weights):
        way = Way(first, trial.weights)
        try:
            return judge(way), way
        except Fault as fault:
            if is_final(fault):
                raise
            # it may prepare numbers in the constructor: only a recording with this seed can tell
            failed = fault
    runner = yield from record(job, worker, reference, trial.weights, ONE_TRIAL)
    if failed and alike(runner.plan, first.plan):
        raise failed
    if not failed and runner.recorded != trial.weights and runner.by_name(trial.weights):
        way = Way(runner, trial.weights)  # recorded without training, as its parameters are others
        with contextlib.suppress(ValueFault):
            return judge(way), way
    way = Way(runner, runner.recorded)
    try:
        return judge(way), way
    except Fault as fault:
        if is_final(fault) or runner.recorded > 0:
            raise
        if not prepares_numbers(runner.plan, first.plan, reference.modules.weights(trial.weights)):
            raise
    runner = yield from record(job, worker, reference, untrained(trial.weights), ONE_TRIAL)
    way = Way(runner, runner.recorded)
    return judge(way), way


def judge_one(job: Job, worker, reference: Reference, trial: Trial, way: Way) -> Judged | None:
    """Judge a trial in this way, and say in the message what the trial is."""
    work = partial(judge_trial, reference, replace(trial, weights=way.weights), way.runner)
    try:
        return in_room(worker, reference, "judge", worker.patience, work)
    except TaskFault:
        raise
    except Fault as fault:
        fault = hinted(fault, way.runner.plan)
        if trial.kind != "plain" and isinstance(fault, (ValueFault, HoleFault)):
            fault.message += STRESSED.format(kind=trial.kind)
        raise fault from None


def is_final(fault: Fault) -> bool:
    """Whether other weights would not change it."""
    return isinstance(fault, TaskFault) or fault.status in ("unsupported", "timeout", "memory_limit")


def in_room(worker, reference: Reference, stage: str, limit: float, work: Callable):
    """`work()`, as a stage.

    If it finds too little memory on the GPU beside other workers' tasks, it has the GPU alone.
    """
    worker.pause()
    with reference.kept.shared(worker.job.draw):
        try:
            with worker.room(reference), worker.stage(stage, limit):
                return work()
        except Fault as fault:
            crowded = worker.gpu is not None and worker.gpu.crowded(worker.job, reference)
            if worker.gpu is None or fault.status != "memory_limit" or crowded:
                raise
        with worker.gpu.alone(), worker.stage(stage, limit):
            return work()
