"""A recording of a candidate: a child makes it, and what the child leaves is read as what it is, bytes from a
stranger. Trusted code; the untrusted part is child/record.py."""

import dataclasses
import itertools
import math
from collections.abc import Generator

from torch import nn

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.common.training import Trained, parameters_of
from nanotriton.executor.judge.calls import MOST_CALLS, another_seed, place
from nanotriton.executor.judge.configurations import MOST
from nanotriton.executor.judge.job import Job, Spawn, check_ended, not_its_own
from nanotriton.executor.judge.kinds import has_other_numbers, untrained
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.judge.runner import Runner
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan.aten import check
from nanotriton.plan.facts import shared_memory
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


def record(
    job: Job,
    worker,
    reference: Reference,
    seed: int,
    between: bool = False,
    processors: int | None = None,
) -> Generator[Spawn, Ended, "Runner"]:
    """Record in a child, read its plan as what it is (bytes from a stranger), and apply the rules to it.

    seed: of the weights. between: they are trained between the first call and the second, and not before.
    processors: multiprocessors of the card that the candidate is told of; None: as many as it has.
    """
    limits = Limits(job.timeout, job.memory, output=PLAN_BYTES)
    with worker.stage("task", worker.patience):
        known = list(reference.large_weights(seed))
        inputs, init = reference.described(seed)
        model = reference.on_host(seed)
        parameters = parameters_of(model)
        another = None if has_other_numbers(seed) else another_seed(reference, seed)
    args = {
        "inputs": inputs,
        "init": init,
        "seed": untrained(seed),
        "training": describe_training(model, reference.trained_with(seed)) if seed < 0 else None,
        "between": between,
        "parameters": parameters,
        "known": known,
        "buffers": sorted(reference.moved_buffers),
        "defaults": reference.defaults,
        "processors": processors,
    }
    # a recording with other numbers is judged by its first call alone
    further = None if has_other_numbers(seed) else {"evaluates": reference.evaluates, "another": another}
    args["attributes"] = bool(reference.leaves)
    args["further"] = further
    args["configs"], args["drawn"] = CONFIGURATIONS, None
    if worker.gpu is None:
        args["configs"], args["drawn"] = MOST, seed_from(worker.secret, job.source, "configurations")
    ended = yield Spawn("record", args, limits)
    if not_its_own(ended):
        ended = yield Spawn("record", args, limits)
    worker.add_child("record", ended)
    check_ended(ended, limits)
    if between or ended.header.get("trained") is not True:
        seed = untrained(seed)  # a module with other parameters than the reference's is not trained alike
    with worker.stage("validate", job.timeout):
        plans = read_plans(ended, job.memory if worker.gpu is None else worker.gpu.budget)
        names = read_names(ended, [name for name, _ in model.named_parameters()])
        plan = plans[0]
        check_effects(job, reference, ended.header.get("effects"))
        job.large = worker.gpu is not None and sum(s.nbytes for s in plan.storages) > worker.gpu.share
        facts = rules.facts(plan)
        job.facts |= {"recordable": True, "launches": facts.launches, "torch_ops": facts.torch_ops}
        job.facts |= {"torch_bytes": facts.moved_bytes, "answer": facts.answer}
        if reference.facts.flops:
            job.facts["torch_share"] = facts.flops / reference.facts.flops
        for number, call in enumerate(plans):
            if violation := rules.check_plan(call, job.policy, reference.facts):
                where = f"in {place(reference, another, number)}: " if number else ""
                raise Fault(violation.status, f"{where}{violation}")
        size = sum(
            math.prod(t.shape) * DTYPES[t.dtype].itemsize
            for t in (plan.tensors[i] for i in plan.output_tensors())
        )
        if size > 4 * reference.bytes + SLACK:  # it would crowd out the reference, whose failure is excused
            raise Fault(
                "wrong_shape",
                f"the answer takes {size} bytes, the task's inputs and answer {reference.bytes}",
            )
        if shared := shared_memory(plan, reference.facts.fresh):
            raise Fault("wrong_value", shared)
    if worker.gpu is None:
        yield from worker.fits.check(job, worker, plans)
        runner = Runner(worker, job, reference, plans, seed, names, another)
    else:
        from nanotriton.executor.judge import gpu_runner  # imports the CUDA driver

        runner = yield from gpu_runner.make_runner(job, worker, reference, plans, seed, names, another)
    runner.asks_processors = ended.header.get("processors") is True
    return runner


def check_effects(job: Job, reference: Reference, left: object) -> None:
    """Under `strict`, raise Fault if the candidate has left something changed that its caller shares.

    What the task itself sets, it may set too.
    """
    if job.policy != "strict" or type(left) is not list:
        return
    for name in left:
        if name in IN_WORDS and name not in reference.settings.own:
            raise Fault("rule_violation", f"it leaves {IN_WORDS[name]} changed, for the whole process")


def describe_training(model: nn.Module, trained: Trained) -> dict:
    """What training changes of the reference's module, for record_child."""
    buffers = [(name, model.get_buffer(name)) for name in trained.buffers]
    return {
        "parameters": list(trained.parameters),
        "tables": [dataclasses.astuple(table) for table in trained.tables],
        "buffers": [[name, list(t.shape), str(t.dtype)] for name, t in buffers],
        "flips": trained.flips,
        "grows": trained.grows,
    }


def read_plans(ended: Ended, max_memory: int) -> list[Plan]:
    """The plans of a first call and of further ones, from a child's answer. Raises Fault for anything that is
    not that."""
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
