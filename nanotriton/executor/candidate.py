"""The life of one candidate in a worker, from source to verdict. Trusted code; the untrusted part is in children.py.

Each mode is a generator: it yields the children that it wants (`Spawn`), is resumed with how each ended, and returns the facts for a
Verdict. While one candidate waits for its child the worker goes on with another, so that all cores stay busy.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from nanotriton.executor.aten import tensor_ids
from nanotriton.executor.compare import Answer, Fault, TaskFault, ValueFault, passes
from nanotriton.executor.judge import Judged, judge_trial
from nanotriton.executor.plan import DTYPES, Plan, PlanError, Weight
from nanotriton.executor.reference import Reference, Trial, excused, out_of_memory
from nanotriton.executor.replayer import Replay, ReplayError
from nanotriton.executor.sandbox import Limits
from nanotriton.executor.zygote import LOG_BYTES, Ended
from nanotriton.tasks.task import Task
from reward import rules

PLAN_BYTES = 320 << 20
SLACK = 1 << 20  # bytes that any answer may take
CONFIGURATIONS = 16  # of an autotuner's that are compiled and tried
TF32_HINT = '; it looks like reduced precision: tl.dot is TF32 unless it is given input_precision="ieee"'
ABLATIONS = 4, 256  # of a plan's last launches at least so many, and as many as replay no more launches than this, are left out one by one
# What a child may say of itself. Everything else that it says (that we failed, that the task is weak, that it is right) is no excuse.
CHILD_STATUSES = frozenset(
    ["syntax_error", "rule_violation", "import_error", "runtime_error", "compile_error", "out_of_resources", "memory_limit", "out_of_bounds", "nondeterministic"]
)
SIGNALS = {4: "illegal instruction", 6: "abort", 7: "bus error", 8: "arithmetic error", 9: "killed", 11: "segmentation fault", 31: "forbidden system call"}


@dataclass
class Job:
    """One candidate to judge, as the executor sends it."""

    id: int
    task: Task
    source: str
    policy: str
    timeout: float
    memory: int  # bytes for each of its processes
    phase: str = "replay"  # replay; record: the same, before process mode; process; task: no candidate yet
    time: bool = False  # measure how fast it is, if it is right
    facts: dict = field(default_factory=dict)  # what an earlier phase found
    large: bool = False  # its plan takes more than a worker's share of the GPU

    def note(self, number: int, judged: Judged | None) -> None:
        """Keep what trial `number` found."""
        if judged:
            self.facts["max_error"] = max(judged.max_error, self.facts.get("max_error", 0.0))
        if number == 0:
            self.facts["kernelbench_allclose"] = judged.kernelbench_allclose


@dataclass
class Spawn:
    """A child that a candidate wants."""

    target: str
    args: dict
    limits: Limits
    extra: tuple[int, ...] = ()  # memory files to hand over
    options: dict = field(default_factory=dict)  # of sandbox.enter


class Unrecordable(Fault):
    """Nothing is wrong with the candidate, except that a plan cannot express it."""


def check_rules(job: Job) -> None:
    if not job.source.strip():
        raise Fault("no_code", "the candidate is empty")
    if violation := rules.check_source(job.source, job.policy):
        raise Fault(violation.status, str(violation))


def not_its_own(ended: Ended) -> bool:
    """Whether a child ended of something else than its candidate: before that began, or by somebody else's kill -9 (the kernel's, for want of memory)."""
    return ended.header is None and (not ended.begun or (ended.signal == 9 and not ended.killed))


def check_ended(ended: Ended, limits: Limits, also: frozenset[str] = frozenset()) -> dict:
    """A child's own answer, or Fault if it left none or says that the candidate failed (with one of CHILD_STATUSES and `also`)."""
    if not ended.begun and ended.header is None:
        raise Fault("infra_error", f"the process ended before the candidate began: {ended.killed or f'signal {ended.signal}, code {ended.code}'}")
    if ended.killed == "timeout":
        raise Fault("timeout", f"{ended.stage or 'start'}: not done after {limits.seconds:g} s")
    if ended.killed == "output_limit" or ended.signal == 25:
        raise Fault("output_limit", f"it printed more than {LOG_BYTES >> 20} MiB, or returned more than {limits.output >> 20} MiB")
    if ended.killed:
        raise Fault("memory_limit", f"it used more than {(limits.memory or limits.resident) >> 20} MiB")
    if ended.signal == 24:
        raise Fault("timeout", f"{ended.stage}: more than {limits.seconds:g} s of CPU time")
    if ended.signal:
        raise Fault("crashed", f"{ended.stage or 'start'}: the process died of signal {ended.signal} ({SIGNALS.get(ended.signal, 'unknown')})")
    if ended.header is None:
        raise Fault("crashed", f"{ended.stage or 'start'}: the process ended with code {ended.code} and no answer")
    status = ended.header.get("status")
    if status is None:
        return ended.header
    message, line = str(ended.header.get("message"))[:1000], ended.header.get("line")
    message = " ".join(message.split())
    if type(line) is int and line > 0 and f"line {line}" not in message:
        message = f"line {line}: {message}"
    if ended.header.get("recordable") is False:
        raise Unrecordable("unsupported", message)
    raise Fault(status if status in CHILD_STATUSES | also else "runtime_error", message)


def record(job: Job, worker, reference: Reference, seed: int) -> Generator[Spawn, Ended, "Runner"]:
    """Record in a child, read its plan as what it is (bytes from a stranger), and apply the rules to it."""
    limits = Limits(job.timeout, job.memory, output=PLAN_BYTES)
    with worker.stage("task", worker.patience):
        known = list(reference.large_weights(seed))
    args = {"inputs": reference.described_inputs, "init": reference.described_init, "seed": seed, "known": known, "buffers": sorted(reference.moved_buffers)}
    args["defaults"] = reference.defaults
    args["configs"] = 1 if worker.gpu is None else CONFIGURATIONS  # the evaluator has no use for a second one
    ended = yield Spawn("record", args, limits)
    if not_its_own(ended):
        ended = yield Spawn("record", args, limits)
    worker.add_child("record", ended)
    check_ended(ended, limits)
    with worker.stage("validate", job.timeout):
        try:
            plan = Plan.from_bytes(ended.payload, job.memory if worker.gpu is None else worker.gpu.budget)
        except PlanError as error:
            raise Fault("memory_limit" if "bytes of tensors" in str(error) else "crashed", f"plan: {error}") from None
        job.large = worker.gpu is not None and sum(s.nbytes for s in plan.storages) > worker.gpu.share
        facts = rules.facts(plan)
        job.facts |= {"recordable": True, "launches": facts.launches, "torch_ops": facts.torch_ops}
        job.facts |= {"torch_bytes": facts.moved_bytes, "answer": facts.answer}
        if reference.facts.flops:
            job.facts["torch_share"] = facts.flops / reference.facts.flops
        if violation := rules.check_plan(plan, job.policy, reference.facts):
            raise Fault(violation.status, str(violation))
        size = sum(math.prod(t.shape) * DTYPES[t.dtype].itemsize for t in (plan.tensors[i] for i in plan.output_tensors()))
        if size > 4 * reference.bytes + SLACK:  # it would crowd out the reference, whose failure is excused
            raise Fault("wrong_shape", f"the answer takes {size} bytes, the task's inputs and answer {reference.bytes}")
    if worker.gpu is None:
        return Runner(worker, job, reference, plan, seed)
    from nanotriton.executor import gpu  # it builds on this module

    return (yield from gpu.make_runner(job, worker, reference, plan, seed))


def examine(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Nothing but the task, before its candidates come. What is wrong with it they will be told."""
    worker.reference(job.task)
    yield from ()


def replay_mode(job: Job, worker) -> Generator[Spawn, Ended, None]:
    """Rules, recording, trials, ablation. Raises Fault unless it is right; `job.facts` gathers what was found until then."""
    with worker.stage("rules", job.timeout):
        check_rules(job)
    reference = worker.reference(job.task)
    trials = reference.trials(worker.secret, job.source)
    try:
        first = yield from record(job, worker, reference, trials[0].weights)
    except Unrecordable as error:
        job.facts["recordable"] = False
        if job.policy == "strict":
            raise Fault("rule_violation", f"{error.message}: under strict, forward must be recordable without data") from None
        raise
    # Before process mode too: there a candidate may do another thing than what it let us record, so the plan must be right as well.
    yield from judge_trials(job, worker, reference, trials, first)
    if job.time and worker.gpu is not None:
        from nanotriton.executor import gpu

        try:
            with worker.room(reference):
                gpu.measure(job, worker, reference, first, trials[0])
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise  # it is right, and stays untimed
    if job.policy in ("strict", "kernelbench"):
        effective = in_room(worker, reference, "ablate", job.timeout, lambda: effective_launches(reference, trials[0], first))
        job.facts["effective_launches"] = effective
        if violation := rules.check_effective(effective, job.policy):
            raise Fault(violation.status, str(violation))


def judge_trials(job: Job, worker, reference: Reference, trials: list[Trial], first: "Runner") -> Generator[Spawn, Ended, None]:
    """All trials. Weights go in by name where that is possible; else each weight seed takes a recording of its own."""
    runners = {first.recorded: first}
    for number, trial in enumerate(trials):
        failed, runner = None, runners.get(trial.weights, first if first.by_name(trial.weights) else None)
        while True:
            if runner is None:
                trial = replace(trial, weights=abs(trial.weights))  # a constructor knows of no training
                runner = runners[trial.weights] = yield from record(job, worker, reference, trial.weights)
                if failed and alike(runner.plan, first.plan):
                    raise hinted(failed, first.plan)
            try:
                judged = in_room(worker, reference, "judge", worker.patience, partial(judge_trial, reference, trial, runner))
                break
            except TaskFault:
                raise
            except Fault as fault:
                if runner.recorded == trial.weights or fault.status in ("unsupported", "timeout", "memory_limit"):
                    raise hinted(fault, runner.plan) from None
                failed, runner = fault, None  # it may prepare numbers in the constructor: only a recording with this seed can tell
        job.note(number, judged)


def alike(one: Plan, other: Plan) -> bool:
    """Whether two recordings are the same but for the values of weights."""
    constants = lambda plan: [s.blob for s in plan.storages if s.kind == "const"]
    return (one.steps, one.kernels, one.tensors, one.weights, constants(one)) == (other.steps, other.kernels, other.tensors, other.weights, constants(other))


def in_room(worker, reference: Reference, stage: str, limit: float, work: Callable):
    """`work()`, as a stage. If it finds too little memory on the GPU beside other workers' tasks, it has the GPU alone."""
    worker.pause()
    try:
        with worker.room(reference), worker.stage(stage, limit):
            return work()
    except Fault as fault:
        if worker.gpu is None or fault.status != "memory_limit" or worker.gpu.crowded(worker.job, reference):
            raise
    with worker.gpu.alone(), worker.stage(stage, limit):
        return work()


def hinted(fault: Fault, plan: Plan) -> Fault:
    """The same fault; if the plan multiplies in TF32 and the error looks like it, the message says what to do."""
    if isinstance(fault, ValueFault) and fault.reduced and any("inputPrecision = tf32" in k.ttir for k in plan.kernels):
        fault.message += TF32_HINT
    return fault


def effective_launches(reference: Reference, trial: Trial, runner: "Runner") -> int:
    """How many launches change the answer by more than the tolerance, or break the run, when they are left out (of the last few: ABLATIONS).

    1 if none does alone but all do together: a launch that only repeats another one makes neither of them a decoy.
    """
    with excused("drawing inputs"):
        inputs = reference.inputs(trial.kind, trial.inputs)
    whole = Answer(runner(inputs, trial.weights)[0], None, None, [])

    def matters(skip: int | range) -> bool:
        try:
            return not passes(runner(inputs, trial.weights, skip)[0], whole)
        except Fault as fault:
            if fault.status == "memory_limit":  # other workers' tasks, not the launch that was left out
                raise
            return True

    launches = range(runner.launches)
    few, replayed = ABLATIONS
    return sum(matters(i) for i in launches[-max(few, replayed // max(1, len(launches))) :]) or int(len(launches) > 1 and matters(launches))


class Runner:
    """Replays one plan on the CPU, as `judge_trial` wants it: (inputs, weight seed) -> (outputs, {input: what it was changed to})."""

    def __init__(self, worker, job: Job, reference: Reference, plan: Plan, recorded: int):
        self.worker, self.job, self.reference, self.plan, self.recorded = worker, job, reference, plan, recorded
        self.launches = len(plan.launches())
        self.replay = Replay(plan, "cpu", known=reference.large_weights(recorded))
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, inputs: list, seed: int, skip: int | range | None = None) -> tuple[object, dict[int, torch.Tensor]]:
        weights, ids = self.by_name(seed), tensor_ids(self.plan.inputs)
        with self.worker.stage("run", self.job.timeout):
            try:
                outputs = self.replay.run(inputs, weights, skip_launch=skip)
                changed = {i: self.replay.tensor(ids[i]) for i in self.replay.modified_inputs}
            except ReplayError as error:
                if error.fatal:
                    self.worker.gpu.lost = True
                raise Fault(error.status, str(error)) from None
            except ValueError as error:
                raise Fault("crashed", f"plan: {error}") from None
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                raise Fault("memory_limit", f"it used more than {self.job.memory >> 20} MiB") from None
            finally:
                self.replay.forget()
        return outputs, changed

    def by_name(self, seed: int) -> dict[str, torch.Tensor]:
        """The reference's weights for this seed, if every weight of the plan has a twin there; else none: draw order decides."""
        if seed not in self.weights:
            state = self.reference.weights(seed) if self.plan.weights else {}
            self.weights[seed] = state if all(self.has_twin(w, state) for w in self.plan.weights) else {}
        return self.weights[seed]

    def has_twin(self, weight: Weight, state: dict[str, torch.Tensor]) -> bool:
        twin, own = next((state[n] for n in weight.names if n in state), None), self.plan.tensors[weight.tensor]
        return twin is not None and twin.shape == own.shape and twin.dtype == DTYPES[own.dtype]
