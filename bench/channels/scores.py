"""From verdicts to the figures of a table: rates, pass@k, fast_p, speed-ups, and why other samples failed.

A rate is {"value", "low", "high"}: the mean over problems and its 95% bootstrap interval. The interval's ends
are None where there is only one problem. A rate that can't be told is None.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.channels.metrics import SPEEDS, bootstrap, fast_p, geometric_mean, mean, pass_at_k
from nanotriton.verdict import UNSCORED

# KernelBench calls a candidate "compiled" if its file loads. These never got there.
NOT_COMPILED = frozenset(
    [
        "no_code",
        "syntax_error",
        "rule_violation",
        "import_error",
        "compile_error",
        "infra_error",
        "unsupported",
        "weak_task",
    ]
)
# The candidate gave an answer, right or wrong.
ANSWERED = frozenset(
    [
        "correct",
        "wrong_shape",
        "wrong_dtype",
        "wrong_value",
        "not_finite",
        "input_modified",
        "nondeterministic",
        "too_fast",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """One sample as the scores see it."""

    problem: str
    status: str
    stage: str = ""
    message: str = ""
    compiled: bool = False
    loose: bool | None = None  # right by the benchmark's own check; None where that was not asked
    speedup: float | None = None

    @property
    def correct(self) -> bool:
        return self.status == "correct"

    @property
    def judged(self) -> bool:
        """Whether it was found out if the candidate is right, as Verdict.judged says.

        It was not where the executor lacks what the candidate's code needs, or where the task itself failed:
        its reference needs more memory than there is, say.
        """
        return self.status not in UNSCORED | {"unsupported"} and self.stage != "task"

    @property
    def speed(self) -> float:
        """The sample as an entry of metrics.fast_p: 0.0 if wrong, NaN if right and not timed."""
        if not self.correct:
            return 0.0
        return math.nan if self.speedup is None else self.speedup


def score(outcomes: Sequence[Outcome], ks: Sequence[int]) -> dict:
    """The figures of a group of samples, each problem weighted alike. ks: the k of pass@k.

    Samples that could not be judged here count as failures, so that no machine flatters a model. `not_judged`
    says how many there are.
    """
    problems: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        problems.setdefault(outcome.problem, []).append(outcome)
    groups = list(problems.values())
    smallest = min((len(g) for g in groups), default=0)
    right = [o for o in outcomes if o.correct]
    timed = sum(o.speedup is not None for o in right)

    def rate(test: Callable[[Outcome], bool | None]) -> dict | None:
        return interval([mean([float(bool(test(o))) for o in g]) for g in groups])

    return {
        "problems": len(groups),
        "samples": len(outcomes),
        "not_judged": sum(not o.judged for o in outcomes),
        "compiled": rate(lambda o: o.compiled),
        "answered": rate(lambda o: o.status in ANSWERED),
        "correct": rate(lambda o: o.correct),
        "loose": rate(lambda o: o.loose) if any(o.loose is not None for o in outcomes) else None,
        "pass_at_k": {str(k): interval(passes(groups, k)) for k in ks if k <= smallest},
        # Without a clock only fast_0 is known, unless no sample is right: then all are 0.
        "fast_p": {
            f"{p:g}": interval(fast(groups, p)) if p == 0 or timed or not right else None for p in SPEEDS
        },
        "speedup": speedups(groups),
        "timed": timed,
        "statuses": dict(Counter(label(o) for o in outcomes).most_common()),
    }


def label(outcome: Outcome) -> str:
    """The status, and whether it is the task's own."""
    return outcome.status + (" (task)" if outcome.stage == "task" else "")


def interval(values: list[float]) -> dict | None:
    """The rate of these values, one a problem; None of no values."""
    if not values:
        return None
    low, high = bootstrap(values) or (None, None)
    return {"value": mean(values), "low": low, "high": high}


def passes(groups: list[list[Outcome]], k: int) -> list[float]:
    """pass@k of each problem."""
    return [pass_at_k(len(g), sum(o.correct for o in g), k) for g in groups]


def fast(groups: list[list[Outcome]], p: float) -> list[float]:
    """fast_p of each problem. A right sample without a time counts for p = 0 only."""
    return [fast_p([o.speed for o in g], p) or 0.0 for g in groups]


def speedups(groups: list[list[Outcome]]) -> dict | None:
    """The geometric mean over the right and timed samples: of each problem first, then of the problems."""
    logs = []
    for group in groups:
        if found := [o.speedup for o in group if o.correct and o.speedup]:
            logs.append(math.log(geometric_mean(found)))
    if not logs:
        return None
    return {k: None if v is None else math.exp(v) for k, v in interval(logs).items()}


def taxonomy(outcomes: Sequence[Outcome], causes: int = 3) -> list[dict]:
    """How many samples fail at which stage, and why: one row a (stage, status), the largest first.

    A row has the `causes` most frequent messages, without their numbers and names.
    """
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        if not o.correct:
            rows.setdefault((o.stage, o.status), []).append(o)
    found = []
    for (stage, status), group in sorted(rows.items(), key=lambda item: -len(item[1])):
        kinds = Counter(kind_of(o.message) for o in group if o.message)
        found.append(
            {
                "stage": stage,
                "status": status,
                "count": len(group),
                "share": len(group) / len(outcomes),
                "causes": [[text, count] for text, count in kinds.most_common(causes)],
            }
        )
    return found


def kind_of(message: str) -> str:
    """A message without what differs from candidate to candidate: the line, quoted names, numbers."""
    message = re.sub(r"^line \d+: | \(line \d+.*$", "", message)
    # quotes around several words are a sentence's
    message = re.sub(r"'[^'\s]*'|\"[^\"\s]*\"", "'...'", message)
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", message)[:160]


def tables(
    outcomes: dict[str, Sequence[Outcome]],
    group_of: Callable[[str], str],
    weak: dict[str, str],
    ks: Sequence[int],
) -> dict:
    """{policy: {group: {"all": scores, "fair": scores without weak problems, "failures": taxonomy}}}.

    outcomes: by policy. group_of: the group of a problem's name. The group "all" holds every problem.
    """
    found: dict[str, dict] = {}
    for policy, rows in outcomes.items():
        found[policy] = {}
        for name in [*sorted({group_of(o.problem) for o in rows}), "all"]:
            inside = [o for o in rows if name in ("all", group_of(o.problem))]
            fair = [o for o in inside if o.problem not in weak]
            found[policy][name] = {
                "all": score(inside, ks),
                "fair": score(fair, ks),
                "failures": taxonomy(inside),
            }
    return found
