"""A reward file is tried before anything is trained: a mistake in it costs seconds, and not a whole SFT."""

from nanotriton.reward.reward import RewardFunction, Value
from nanotriton.tasks.grammar import OPS
from nanotriton.tasks.prompt import NO_CODE, build_completion
from nanotriton.tasks.synthetic import render
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict


def try_out(function: RewardFunction, task: Task, timed: bool = False) -> str:
    """Call a user's reward once each for a right, a wrong, an empty and an unscored sample, all made up.

    task: one of the run's, because a reward may look up its name. timed: candidates of the run are timed, so
    a right one has a speed-up. Returns a note about a reward that is odd but allowed, or "". ConfigError (one
    line) if it raises, or returns what is no reward. The built-in reward is not called.
    """
    if function.path is None:
        return ""
    right, wrong, *_ = [function(verdict, text, task) for verdict, text in made_up(timed)]
    return missing_return(function, right, wrong)


def missing_return(function: RewardFunction, right: Value, wrong: Value) -> str:
    if right is not None or wrong is not None:
        return ""
    return (
        f"note: --reward {function.path}: reward() returned None for a made-up right sample and for a wrong "
        "one; None takes a sample out of the batch: is a return missing?"
    )


def made_up(timed: bool) -> list[tuple[Verdict, str]]:
    """(verdict, completion) of samples that are right, wrong, without a candidate, and without a reward.

    A verdict has the fields that are filled in for such a sample. What never ran has neither launches nor an
    error, and a young model writes much of that.
    """
    seen = dict(mode="replay", device="cuda" if timed else "cpu", recordable=True, launches=1)
    seen |= dict(torch_bytes=0, torch_share=0.0, answer="own", cost={"rules": 0.01, "run": 0.01})
    times = dict(time_us=10.0, reference_us=20.0, speedup=2.0) if timed else {}
    right = dict(effective_launches=1, max_error=1e-7, kernelbench_allclose=True)
    text = completion()
    return [
        (Verdict("correct", "time" if timed else "ablate", **seen, **right, **times), text),
        (Verdict("wrong_value", "judge", "1 of 4 values differ", **seen, max_error=0.5), text),
        (Verdict("no_code", "extract", NO_CODE), ""),
        (Verdict("infra_error", message="the executor's own health check fails", mode="replay"), text),
    ]


def completion() -> str:
    """An answer as a model writes it: a fenced kernel."""
    source, solution = render([(OPS[0], "")], {"rows": 2, "cols": 3}, block=16)
    return build_completion(Task("made up", source, solution))
