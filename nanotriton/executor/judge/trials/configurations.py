"""The other configurations of autotuned kernels, on a CPU: is each of them right?

A GPU may choose any of them, so one that skips a block or leaves out a maximum is wrong, whatever the first
one does. All trials run with the first; here the others run once more under stress, on their own. On a GPU
the trials run with the configuration that was fastest, and there is nothing left to ask.
"""

from collections.abc import Iterator

from nanotriton.executor.judge.comparison.compare import is_fair
from nanotriton.executor.judge.inputs.kinds import MOVED, Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import excused
from nanotriton.executor.judge.trials.calls import compare_again
from nanotriton.executor.judge.trials.fairness import question
from nanotriton.plan.plan import Choice, Plan
from nanotriton.verdict import Fault

MOST = 8  # configurations of an autotuner's that a CPU records: the first, and others that are drawn
WHERE = "with another configuration of the autotuner (it may be the fastest on a GPU)"


def judge_configurations(reference: Reference, trials: list[Trial], runner) -> None:
    """Run every recorded configuration under stress, and compare. Raises Fault.

    trials: of the candidate, which have been passed. runner: has `chosen_for_all(choices)`, a context in
    which it runs with these; see judge/candidate/runner.py.
    """
    others = list(other_choices(runner.plan))
    for trial in stressed(trials) if others else ():
        answer = None
        for choices in others:
            with excused("drawing inputs"):
                inputs = reference.inputs.draw(trial.kind, trial.inputs)
            try:
                with runner.chosen_for_all(choices):
                    outputs, _ = runner(inputs, trial.weights)
            except Fault as fault:
                if fault.status == "unsupported":
                    continue  # the evaluator's limits say nothing of a GPU
                if fault.status == "timeout":
                    return
                raise Fault(fault.status, f"{WHERE}: {fault.message}") from None
            if answer is None:
                with excused("on its own inputs"):
                    answer = reference.answer(trial.kind, trial.inputs, trial.weights)
            if not is_fair(answer, infinite=trial.kind.startswith(MOVED)):
                break
            with excused("comparing answers"):
                compare_again(WHERE, outputs, answer, question(reference, trial))


def other_choices(plan: Plan) -> Iterator[dict[int, int]]:
    """{key of a choice: its alternative} for as many runs as the largest choice has alternatives, save the
    first."""
    sizes: dict[int, int] = {}
    for step in plan.steps:
        if isinstance(step, Choice):
            size = len(step.alternatives)
            sizes[step.key] = min(sizes.get(step.key, size), size)
    for number in range(1, max(sizes.values(), default=1)):
        yield {key: number % size for key, size in sizes.items()}


def stressed(trials: list[Trial]) -> list[Trial]:
    """The trials on other inputs than the task's own, with the weights of the first."""
    found = {}
    for trial in trials[1:]:
        kind = trial.kind.removeprefix(MOVED)
        found.setdefault(kind, Trial(kind, trial.inputs, trials[0].weights))
    return list(found.values()) or trials[:1]
