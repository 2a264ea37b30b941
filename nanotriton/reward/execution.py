"""What a verdict is worth, part by part: how fast it is, and how far it got."""

import math

from nanotriton.verdict import Verdict

# How far a failed candidate came, for the partial-credit option: 0 it is no code or it cheats, 1 only the
# values are wrong.
# Every status that a cheat can choose to end in (rules, too fast, edited inputs, stolen time or memory) is
# worth nothing.
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
    """0 to 1: how far it got. 1 for correct and for wrong values alike, so scale it well below the reward of
    being right."""
    return 1.0 if verdict.correct else PROGRESS.get(verdict.status, 0.0)


def speed(verdict: Verdict, cap: float, noise: float) -> float:
    """0 to 1: log(speedup) / log(cap), 0 when nothing was timed or the gain is within the noise, 1 at `cap`
    times and beyond.

    The logarithm makes twice as fast worth the same from wherever it starts; the cap keeps a broken clock or
    a lucky task from
    outweighing a batch; the floor keeps timing noise from becoming an advantage.
    """
    if verdict.speedup is None or not math.isfinite(verdict.speedup) or verdict.speedup <= 1 + noise:
        return 0.0
    return min(1.0, math.log(verdict.speedup) / math.log(cap))
