"""How many of a candidate's launches matter: the plan is replayed without each of them."""

from nanotriton.executor.judge.candidate.runner import Runner
from nanotriton.executor.judge.comparison.compare import Answer, passes
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import excused
from nanotriton.verdict import Fault

LEAST_ABLATIONS = 4  # of a plan's launches, the last so many are left out one by one,
REPLAYED_LAUNCHES = 256  # and more as long as all these replays together have no more launches than this


def effective_launches(reference: Reference, trial: Trial, runner: Runner) -> int:
    """How many of the last few launches matter: without one of them the answer changes, or the run breaks.

    1 if none does alone but all do together: a launch that only repeats another one makes neither of them a
    decoy.
    """
    with excused("drawing inputs"):
        inputs = reference.inputs.draw(trial.kind, trial.inputs)
    whole = Answer(runner.whole(trial, inputs), None, None, [])

    def matters(skip: int | range) -> bool:
        try:
            return not passes(runner(inputs, trial.weights, skip)[0], whole)
        except Fault as fault:
            if fault.status == "memory_limit":  # other workers' tasks, not the launch that was left out
                raise
            return True

    launches = range(runner.launches)
    few = max(LEAST_ABLATIONS, REPLAYED_LAUNCHES // max(1, len(launches)))
    effective = sum(matters(i) for i in launches[-few:])
    if not effective and len(launches) > 1:
        return int(matters(launches))
    return effective
