"""What a verdict is worth, part by part: how fast it is, and how far it got."""

import math

from nanotriton.verdict import Verdict

# How far a failed candidate came, for --partial: 0 if it is no code or cheats, 1 if only its values
# are wrong. Every status that a cheat can choose to end in (rules, too fast, edited inputs, stolen time or
# memory) is worth nothing.
PROGRESS = {
    "import_error": 0.2,
    "compile_error": 0.2,
    "runtime_error": 0.4,
    "out_of_resources": 0.4,
    "out_of_bounds": 0.6,
    "illegal_memory": 0.6,
    "wrong_shape": 0.6,
    "wrong_dtype": 0.8,
    "not_finite": 0.8,
    "nondeterministic": 0.8,
    "wrong_value": 1.0,
}


def progress(verdict: Verdict) -> float:
    """How far a candidate got, from 0 to 1.

    It is 1 for correct and for wrong values alike, so scale it well below the reward of being right.
    """
    return 1.0 if verdict.correct else PROGRESS.get(verdict.status, 0.0)


def speed(verdict: Verdict, slowest: float, fastest: float) -> float:
    """Where log(speedup) lies between those of `slowest` and `fastest`, from 0 to 1; 0 if nothing was timed.

    The logarithm makes twice as fast worth the same from wherever it starts. What is slower than PyTorch is
    paid too, as a young model's kernels mostly are: paid from PyTorch's speed on, only 39 of 139 groups had
    anything to learn from, and 122 this way (docs/learning.md). The ends keep a broken clock or a lucky task
    from outweighing a batch.
    """
    if verdict.speedup is None or not math.isfinite(verdict.speedup) or verdict.speedup <= slowest:
        return 0.0
    return min(1.0, math.log(verdict.speedup / slowest) / math.log(fastest / slowest))
