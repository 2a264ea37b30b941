"""Is an autotuned kernel right after its tuner's runs too?

The trials run each kernel once, as later calls on a card do. In a card's first call the tuner runs it many
times on the same memory before. So a kernel that adds to its output or works in place is run so, once for
each configuration, with what reset_to_zero, restore_value and hooks do. Its answer must stay, and so must the
weights and inputs that it writes to.
"""

from nanotriton.executor.judge.comparison.compare import Answer, passes
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import excused
from nanotriton.executor.judge.trials.configurations import other_choices
from nanotriton.executor.replay.tuning import accumulates
from nanotriton.verdict import Fault

MESSAGE = (
    "autotuning: the tuner runs the kernel many times on the same memory before the first result, and each "
    "run starts from what the one before has left; name the tensors in restore_value or reset_to_zero"
)


def judge_tuning(reference: Reference, trial: Trial, runner, others: bool) -> None:
    """Raises Fault. others: every configuration is tried, and not only the one that was chosen."""
    todo = [runner.replay.chosen, *(other_choices(runner.plan) if others else ())]
    for choices in todo:
        if not accumulates(runner.plan, choices):
            continue
        with excused("drawing inputs"):
            inputs = reference.inputs.draw(trial.kind, trial.inputs)
        try:
            with runner.chosen_for_all(choices):
                once = runner.left(inputs, trial.weights, tuning=False)
                tuned = runner.left(inputs, trial.weights, tuning=True)
        except Fault as fault:
            if fault.status == "unsupported":
                continue  # the evaluator's limits say nothing of a GPU
            if fault.status in ("timeout", "memory_limit"):
                return
            raise Fault(fault.status, f"while it is autotuned: {fault.message}") from None
        if not passes(tuned, Answer(once, None, None, None)):
            raise Fault("wrong_value", MESSAGE)
