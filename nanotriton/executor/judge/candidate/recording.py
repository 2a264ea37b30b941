"""A recording of a candidate: a child makes it, and what the child leaves is read as what it is, bytes from a
stranger. Trusted code; the untrusted part is child/record.py."""

import itertools
import math
from collections.abc import Collection, Generator
from dataclasses import dataclass

from nanotriton.executor.common.asked import Asked
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.common.training import describe, parameters_of
from nanotriton.executor.judge.candidate.job import Job, Spawn, check_ended, not_its_own
from nanotriton.executor.judge.candidate.runner import Runner
from nanotriton.executor.judge.inputs.kinds import has_other_numbers, untrained
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.calls import MOST_CALLS, another_seed, place
from nanotriton.executor.judge.trials.configurations import MOST
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan.aten import check
from nanotriton.plan.facts import answer_not_new
from nanotriton.plan.plan import DTYPES, Plan, PlanError, malformed
from nanotriton.plan.validate import check_follows
from nanotriton.rules import rules
from nanotriton.verdict import Fault

PLAN_BYTES = 320 << 20
SLACK = 1 << 20  # bytes that any answer may take
CONFIGURATIONS = 16  # of an autotuner's that are compiled and tried on a GPU

# what a child says that its candidate has left changed (child/effects.py)
IN_WORDS = {
    "default dtype": "torch's default dtype",
    "deterministic algorithms": "torch's choice of deterministic algorithms",
    "gradients": "torch's recording of gradients",
    "random stream": "torch's random stream",
}


@dataclass(frozen=True)
class Purpose:
    """What a recording is for, beside its seed of weights.

    further: more than two calls are recorded. between: the weights are trained between the first call and the
    second, and not before. processors: multiprocessors of the card that the candidate is told of; None: as
    many as it has.
    """

    further: bool = True
    between: bool = False
    processors: int | None = None


ALL = Purpose()  # the first recording, by which all is judged that others need not
ONE_TRIAL = Purpose(further=False)  # with other weights: only the first call is judged


def record(
    job: Job, worker, reference: Reference, seed: int, purpose: Purpose = ALL
) -> Generator[Spawn, Ended, Runner]:
    """Record in a child, read its plan as what it is (bytes from a stranger), and apply the rules to it.

    seed: of the weights. Raises Fault.
    """
    with worker.stage("task", worker.patience):
        another = another_seed(reference, seed) if purpose.further and not has_other_numbers(seed) else None
        asked = what_to_ask(job, worker, reference, seed, purpose, another)
    ended = yield from ask(job, worker, asked)
    trained = ended.header.get("trained") is True and not purpose.between
    # a module with other parameters than the reference's is not trained alike
    recorded = seed if trained else untrained(seed)
    with worker.stage("validate", job.timeout):
        plans = read_plans(ended, job.memory if worker.gpu is None else worker.gpu.budget)
        wanted = [name for name, _ in reference.modules.on_host(seed).named_parameters()]
        names = read_names(ended, wanted)
        check_effects(job, reference, ended.header.get("effects"))
        job.large = worker.gpu is not None and sum(s.nbytes for s in plans[0].storages) > worker.gpu.share
        note_facts(job, reference, plans[0])
        check_plans(job, reference, plans, another)
    if worker.gpu is None:
        yield from worker.fits.check(job, worker, plans)
        runner = Runner(worker, job, reference, plans, recorded, names, another)
    else:
        from nanotriton.executor.judge.candidate import gpu_runner  # imports the CUDA driver

        runner = yield from gpu_runner.make_runner(job, worker, reference, plans, recorded, names, another)
    runner.asks_processors = ended.header.get("processors") is True
    return runner


def what_to_ask(
    job: Job, worker, reference: Reference, seed: int, purpose: Purpose, another: int | None
) -> Asked:
    """another: the seed of the weights of another module, which is called too; None: there is none."""
    inputs, init = reference.described(seed)
    model = reference.modules.on_host(seed)
    # a recording with other numbers is judged by its first call alone
    further = purpose.further and not has_other_numbers(seed)
    on_cpu = worker.gpu is None
    return Asked(
        inputs=inputs,
        init=init,
        seed=untrained(seed),
        parameters=parameters_of(model),
        training=describe(model, reference.findings.trained_with(seed)) if seed < 0 else None,
        between=purpose.between,
        further={"evaluates": reference.findings.evaluates, "another": another} if further else None,
        attributes=bool(reference.findings.leaves),
        buffers=sorted(reference.findings.moved_buffers),
        known=list(reference.modules.large_weights(seed)),
        configs=MOST if on_cpu else CONFIGURATIONS,
        drawn=seed_from(worker.secret, job.source, "configurations") if on_cpu else None,
        defaults=reference.code.defaults,
        processors=purpose.processors,
    )


def ask(job: Job, worker, asked: Asked) -> Generator[Spawn, Ended, Ended]:
    """How a child has ended that recorded something: with an answer. Raises Fault."""
    limits = Limits(job.timeout, job.memory, output=PLAN_BYTES)
    ended = yield Spawn("record", asked.to_json(), limits)
    if not_its_own(ended):
        ended = yield Spawn("record", asked.to_json(), limits)
    worker.add_child("record", ended)
    check_ended(ended, limits)
    return ended


def note_facts(job: Job, reference: Reference, plan: Plan) -> None:
    """Keep for the verdict what a first call does."""
    facts = rules.facts(plan)
    job.facts |= {"recordable": True, "launches": facts.launches, "torch_ops": facts.torch_ops}
    job.facts |= {"torch_bytes": facts.moved_bytes, "answer": facts.answer}
    if reference.findings.facts.flops:
        job.facts["torch_share"] = facts.flops / reference.findings.facts.flops


def check_plans(job: Job, reference: Reference, plans: list[Plan], another: int | None) -> None:
    """Raise Fault if a call breaks a rule, or if the first answer is too large or in memory that is not its
    own."""
    for number, plan in enumerate(plans):
        if violation := rules.check_plan(plan, job.policy, reference.findings.facts):
            where = f"in {place(reference, another, number)}: " if number else ""
            raise Fault(violation.status, f"{where}{violation}")
    first = plans[0]
    answers = [first.tensors[i] for i in first.output_tensors()]
    size = sum(math.prod(t.shape) * DTYPES[t.dtype].itemsize for t in answers)
    usual = reference.findings.bytes
    if size > 4 * usual + SLACK:  # it would crowd out the reference, whose failure is excused
        raise Fault("wrong_shape", f"the answer takes {size} bytes, the task's inputs and answer {usual}")
    if not_new := answer_not_new(first, reference.findings.facts.fresh):
        raise Fault("wrong_value", not_new)


def check_effects(job: Job, reference: Reference, left: object) -> None:
    """Under `strict`, raise Fault if the candidate has left something changed that its caller shares.

    What the task itself sets, it may set too.
    """
    if job.policy != "strict" or type(left) is not list:
        return
    for name in left:
        if name in IN_WORDS and name not in reference.code.settings.own:
            raise Fault("rule_violation", f"it leaves {IN_WORDS[name]} changed, for the whole process")


def read_plans(ended: Ended, max_memory: int) -> list[Plan]:
    """The plans of a first call and of further ones, from a child's answer.

    Raises Fault for anything that is not that.
    """
    try:
        with malformed():
            lengths = ended.header["plans"]
            check(type(lengths) is list and 2 <= len(lengths) <= MOST_CALLS, "two calls, or a few more")
            check(all(type(n) is int and n >= 0 for n in lengths), "a plan's length is a number")
            ends = list(itertools.accumulate(lengths))
            check(ends[-1] == len(ended.payload), "plans fill the answer exactly")
            starts = [0, *ends[:-1]]
            plans = [
                Plan.from_bytes(ended.payload[start:end], max_memory)
                for start, end in zip(starts, ends, strict=True)
            ]
            check(not plans[0].carried, "a first call takes over nothing")
            for before, after in itertools.pairwise(plans):
                check_follows(after, before)
    except PlanError as error:
        status = "memory_limit" if "bytes of tensors" in str(error) else "crashed"
        raise Fault(status, f"plan: {error}") from None
    return plans


def read_names(ended: Ended, wanted: list[str]) -> dict[str, str]:
    """The names of the candidate's parameters -> the reference's (wanted), which are in the same order.

    There are none where the child says that the parameters are not alike.
    """
    own = ended.header.get("parameters")
    if type(own) is not list or len(own) != len(wanted) or not all(type(name) is str for name in own):
        return {}
    return dict(zip(own, wanted, strict=True))


# ---- two recordings ----


def prepares_numbers(plan: Plan, other: Plan, names: Collection[str]) -> bool:
    """Whether two recordings with other weights differ in numbers alone, and in no tensor made of weights.

    A number (`weight.mean().item()`) may be read in the constructor, which knows of no training. A copy of a
    weight may not: the kernel that reads it is wrong as soon as the weight is loaded or trained. names: of
    the reference's weights.
    """
    return made_tensors(plan, names) == made_tensors(other, names)


def made_tensors(plan: Plan, names: Collection[str]) -> list:
    """What a recording holds beside the weights of these names."""
    others = [weight for weight in plan.weights if not set(weight.names) & set(names)]
    return constants(plan) + [plan.storages[plan.tensors[w.tensor].storage].blob for w in others]


def constants(plan: Plan) -> list:
    """The bytes of a plan's constants."""
    return [s.blob for s in plan.storages if s.kind == "const"]


def alike(one: Plan, other: Plan) -> bool:
    """Whether two recordings are the same but for the values of weights."""
    if constants(one) != constants(other):
        return False
    return (one.steps, one.kernels, one.tensors, one.weights) == (
        other.steps,
        other.kernels,
        other.tensors,
        other.weights,
    )
