"""The figures of a benchmark as functions of counts: pass@k, fast_p, geometric mean, bootstrap, sign test."""

import math
from collections.abc import Callable, Sequence

import numpy as np

SPEEDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)  # the p of fast_p, as KernelBench reports them
EXACT = 1000  # a sign test of more than this many differences is computed with logarithms


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples is right, of n samples of which c are.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) (arXiv 2107.03374, equation 1), computed as a product, which
    neither overflows nor cancels. ValueError unless 0 <= c <= n and 1 <= k <= n.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k of n={n}, c={c}, k={k}: 0 <= c <= n and 1 <= k <= n must hold")
    if n - c < k:
        return 1.0
    return -math.expm1(sum(math.log1p(-k / i) for i in range(n - c + 1, n + 1)))


def fast_p(speedups: Sequence[float | None], p: float) -> float | None:
    """The share of samples that are right and strictly more than p times as fast as the reference.

    This is KernelBench's figure (arXiv 2502.10517).

    speedups: one entry a sample. 0.0 is a wrong sample, NaN a right one that was not timed, None one that is
    not counted. The result is None if no sample is counted, or if p > 0 and no right sample was timed.
    """
    counted = [s for s in speedups if s is not None]
    right = [s for s in counted if s != 0.0]
    if not counted or (p > 0 and right and all(math.isnan(s) for s in right)):
        return None
    return sum(s > p or (p == 0 and math.isnan(s)) for s in right) / len(counted)


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp(mean(log)); None of no values. ValueError if one is not positive."""
    if any(not v > 0 for v in values):
        raise ValueError("a geometric mean takes positive numbers")
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return math.fsum(values) / len(values) if values else None


def bootstrap(
    values: Sequence[float],
    statistic: Callable | None = None,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> list[float] | None:
    """The percentile interval [low, high] of a statistic over resampled values; None for fewer than two.

    values: one a problem. statistic: a function of an array [draws, len(values)] along its last axis; by
    default the mean. The same seed gives the same interval.
    """
    if len(values) < 2:
        return None
    data = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(len(data), size=(draws, len(data)))
    resampled = data[picks]  # [draws, len(values)]
    found = statistic(resampled) if statistic else resampled.mean(-1)  # [draws]
    return [float(q) for q in np.quantile(found, [(1 - level) / 2, (1 + level) / 2])]


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of `wins` against `losses` if each were a fair coin's. 1.0 if there are none.

    Ties are not counted: leave them out.

    >>> sign_test(8, 0)
    0.0078125
    """
    if wins < 0 or losses < 0:
        raise ValueError("counts can't be negative")
    n, few = wins + losses, min(wins, losses)
    if 2 * few >= n:
        return 1.0
    tail = sum(math.comb(n, i) for i in range(few + 1))  # exact, as Python's integers do not round
    if n < EXACT:
        return min(1.0, tail / 2 ** (n - 1))
    return min(1.0, math.exp(math.log(tail) - (n - 1) * math.log(2)))
